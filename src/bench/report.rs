//! What a measurement found: the same numbers as text, JSON and a row of a markdown table.

use std::fmt::Write;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

use super::commits::{self, CommitsReport};
use super::group::{self, report::GroupReport};
use super::suite_nodes::{AtRestReport, FailoverReport};
use super::watch::Watched;
use crate::cli::plural;

/// Latencies are kept from one microsecond to two minutes, with three digits.
const LATENCY_US_MAX: u64 = 120_000_000;

/// Latencies of one measurement in microseconds.
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Latencies {
    /// Nothing measured yet.
    pub fn new() -> Latencies {
        let histogram = match Histogram::new_with_bounds(1, LATENCY_US_MAX, 3) {
            Ok(histogram) => histogram,
            Err(error) => unreachable!("the bounds are constants that the crate accepts: {error}"),
        };
        Latencies { histogram }
    }

    /// Counts one latency; what is longer than two minutes counts as two minutes.
    pub fn record(&mut self, latency: std::time::Duration) {
        let micros = u64::try_from(latency.as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        self.histogram.saturating_record(micros);
    }

    /// The quantiles that reports show; `None` if nothing was measured.
    pub fn summary(&self) -> Option<LatencySummary> {
        if self.histogram.is_empty() {
            return None;
        }
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Some(LatencySummary {
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: self.histogram.max() as f64 / 1000.0,
            mean_ms: self.histogram.mean() / 1000.0,
        })
    }
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

/// Quantiles in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencySummary {
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
    pub mean_ms: f64,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// "produce", "consume" or "end-to-end".
    pub kind: &'static str,
    pub topic: String,
    pub partitions: usize,
    pub record_bytes: usize,
    /// How it was run: acks, linger, window and so on, in the order in which they are shown.
    #[serde(serialize_with = "as_object")]
    pub settings: Vec<(&'static str, String)>,
    pub records: u64,
    pub bytes: u64,
    pub failed: u64,
    pub elapsed_seconds: f64,
    pub records_per_second: f64,
    /// Megabytes (10^6 bytes) of keys and values a second.
    pub megabytes_per_second: f64,
    pub latency: Option<LatencySummary>,
    /// CPU seconds of this process.
    pub client_cpu_seconds: f64,
    pub watched: Vec<Watched>,
}

/// A report of any measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum AnyReport {
    Records(Report),
    Group(GroupReport),
    Commits(CommitsReport),
    AtRest(AtRestReport),
    Failover(FailoverReport),
}

impl AnyReport {
    /// The report for people.
    pub fn text(&self) -> String {
        match self {
            AnyReport::Records(report) => report.text(),
            AnyReport::Group(report) => report.text(),
            AnyReport::Commits(report) => report.text(),
            AnyReport::AtRest(report) => report.text(),
            AnyReport::Failover(report) => report.text(),
        }
    }

    /// The report as a row of its kind's table.
    pub fn markdown_row(&self) -> String {
        match self {
            AnyReport::Records(report) => markdown_row(report),
            AnyReport::Group(report) => group::report::markdown_row(report),
            AnyReport::Commits(report) => commits::markdown_row(report),
            AnyReport::AtRest(report) => report.markdown_row(),
            AnyReport::Failover(report) => report.markdown_row(),
        }
    }
}

impl From<Report> for AnyReport {
    fn from(report: Report) -> AnyReport {
        AnyReport::Records(report)
    }
}

impl From<GroupReport> for AnyReport {
    fn from(report: GroupReport) -> AnyReport {
        AnyReport::Group(report)
    }
}

impl From<CommitsReport> for AnyReport {
    fn from(report: CommitsReport) -> AnyReport {
        AnyReport::Commits(report)
    }
}

impl From<AtRestReport> for AnyReport {
    fn from(report: AtRestReport) -> AnyReport {
        AnyReport::AtRest(report)
    }
}

impl From<FailoverReport> for AnyReport {
    fn from(report: FailoverReport) -> AnyReport {
        AnyReport::Failover(report)
    }
}

fn as_object<S: Serializer>(
    settings: &[(&'static str, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(settings.iter().map(|(name, value)| (name, value)))
}

/// The raw sums of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub records: u64,
    pub bytes: u64,
    pub failed: u64,
    pub elapsed_seconds: f64,
    pub client_cpu_seconds: f64,
}

impl Report {
    /// Derives the rates from the sums.
    pub fn new(
        kind: &'static str,
        topic: &str,
        partitions: usize,
        record_bytes: usize,
        totals: Totals,
    ) -> Report {
        let seconds = totals.elapsed_seconds.max(f64::MIN_POSITIVE);
        Report {
            kind,
            topic: topic.to_owned(),
            partitions,
            record_bytes,
            settings: Vec::new(),
            records: totals.records,
            bytes: totals.bytes,
            failed: totals.failed,
            elapsed_seconds: totals.elapsed_seconds,
            records_per_second: totals.records as f64 / seconds,
            megabytes_per_second: totals.bytes as f64 / 1e6 / seconds,
            latency: None,
            client_cpu_seconds: totals.client_cpu_seconds,
            watched: Vec::new(),
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let settings: Vec<String> = self
            .settings
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "{} {} ({}, {} B records) {}",
            self.kind,
            self.topic,
            plural(self.partitions as u64, "partition", "partitions"),
            self.record_bytes,
            settings.join(" ")
        );
        let _ = writeln!(
            text,
            "  {:>10.1} MB/s   {:>12.0} records/s   {} records in {:.2} s, {} failed",
            self.megabytes_per_second,
            self.records_per_second,
            self.records,
            self.elapsed_seconds,
            self.failed
        );
        if let Some(latency) = self.latency {
            let _ = writeln!(
                text,
                "  latency ms   p50 {:.3}   p90 {:.3}   p99 {:.3}   p99.9 {:.3}   max {:.3}",
                latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms
            );
        }
        let _ = writeln!(text, "  this process  {:.2} CPU s", self.client_cpu_seconds);
        for watched in &self.watched {
            let _ = writeln!(text, "{}", watched.line());
        }
        text
    }
}

/// The head of [`markdown_row`]'s table.
pub fn markdown_head() -> String {
    "| what | record | partitions | settings | MB/s | records/s | p50 ms | p99 ms | p99.9 ms | \
     client cores | node cores | node CPU ms per MB | RSS per node MiB |\n\
     |---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned()
}

/// One measurement as a row of a markdown table.
pub fn markdown_row(report: &Report) -> String {
    let settings: Vec<String> = report
        .settings
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let (p50, p99, p999) = match report.latency {
        Some(latency) => (
            format!("{:.2}", latency.p50_ms),
            format!("{:.2}", latency.p99_ms),
            format!("{:.2}", latency.p999_ms),
        ),
        None => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
    };
    let cores: f64 = report.watched.iter().map(|watched| watched.cores).sum();
    let nodes = report.watched.len();
    let resident = report
        .watched
        .iter()
        .map(|watched| watched.resident_bytes)
        .sum::<u64>() as f64;
    let spent_ms: f64 = report.watched.iter().map(|w| w.cpu_seconds * 1e3).sum();
    let megabytes = (report.bytes as f64 / 1e6).max(f64::MIN_POSITIVE);
    let (cores, cost, resident) = if nodes == 0 {
        ("-".to_owned(), "-".to_owned(), "-".to_owned())
    } else {
        (
            format!("{cores:.2}"),
            format!("{:.1}", spent_ms / megabytes),
            format!("{:.0}", resident / nodes as f64 / 1_048_576.0),
        )
    };
    format!(
        "| {} | {} B | {} | {} | {:.1} | {:.0} | {p50} | {p99} | {p999} | {:.2} | {cores} | \
         {cost} | {resident} |\n",
        report.kind,
        report.record_bytes,
        report.partitions,
        settings.join(" "),
        report.megabytes_per_second,
        report.records_per_second,
        report.client_cpu_seconds / report.elapsed_seconds.max(f64::MIN_POSITIVE),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample() -> Report {
        let totals = Totals {
            records: 2_000,
            bytes: 2_000_000,
            failed: 0,
            elapsed_seconds: 2.0,
            client_cpu_seconds: 0.5,
        };
        let mut latencies = Latencies::new();
        for millis in 1..=100 {
            latencies.record(Duration::from_millis(millis));
        }
        let mut report = Report::new("produce", "t", 4, 1000, totals);
        report.latency = latencies.summary();
        report.settings = vec![("acks", "all".to_owned())];
        report.watched = vec![Watched {
            pid: 7,
            cpu_seconds: 1.0,
            cores: 0.5,
            resident_bytes: 10 << 20,
        }];
        report
    }

    #[test]
    fn rates_and_quantiles() {
        let report = sample();
        assert!((report.records_per_second - 1_000.0).abs() < 1e-9);
        assert!((report.megabytes_per_second - 1.0).abs() < 1e-9);
        let latency = report.latency.expect("measured");
        assert!((latency.p50_ms - 50.0).abs() < 0.1, "{latency:?}");
        assert!((latency.p99_ms - 99.0).abs() < 0.1, "{latency:?}");
        assert_eq!(Latencies::new().summary(), None);
    }

    #[test]
    fn a_markdown_row_has_as_many_cells_as_its_head() {
        let head = markdown_head();
        let row = markdown_row(&sample());
        let cells = |line: &str| line.matches('|').count();
        assert_eq!(cells(head.lines().next().expect("head")), cells(&row));
        assert!(
            row.starts_with("| produce | 1000 B | 4 | acks=all | 1.0 | 1000 | 50."),
            "{row}"
        );
    }

    #[test]
    fn settings_are_an_object_in_their_order() {
        let mut report = sample();
        report.settings.push(("window", "1".to_owned()));
        let text = serde_json::to_string(&report).expect("JSON");
        assert!(
            text.contains(r#""settings":{"acks":"all","window":"1"}"#),
            "{text}"
        );
    }

    #[test]
    fn nothing_measured_is_no_division_by_zero() {
        let report = Report::new("consume", "t", 1, 0, Totals::default());
        assert!(report.records_per_second.abs() < f64::EPSILON);
        assert!(report.text().contains("0 records"));
    }
}
