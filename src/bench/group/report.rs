//! What a measured group cost: the same numbers as text, JSON and a row of a markdown table.

use std::fmt::Write;

use serde::Serialize;

use super::super::report::LatencySummary;
use super::super::watch::Watched;
use crate::cli::plural;

const MIB: f64 = 1_048_576.0;

/// One group from its first member to its last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupReport {
    /// "group".
    pub kind: &'static str,
    /// "classic" or "consumer".
    pub protocol: &'static str,
    pub members: usize,
    pub partitions: usize,
    /// The node that coordinates the group.
    pub coordinator: i32,
    /// Its process, if it is one of those watched.
    pub coordinator_pid: Option<u32>,
    /// Resident memory of the coordinator with the topic there and no member so far.
    pub resident_bytes_before: Option<u64>,
    /// Opening a connection for each member; not part of any phase.
    pub connect_seconds: f64,
    /// All members join at once; ends when the group is stable.
    pub join: Phase,
    /// The stable group, left alone.
    pub rest: Phase,
    /// Heartbeats while the group was left alone.
    pub heartbeat: Option<LatencySummary>,
    /// One member leaves; ends when the group is stable without it. A group of one has none.
    pub departure: Option<Phase>,
}

/// A part of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    pub elapsed_seconds: f64,
    /// The generation (classic) or group epoch (consumer) at its end.
    pub epoch: i32,
    /// CPU seconds of this process, all members together.
    pub client_cpu_seconds: f64,
    pub watched: Vec<Watched>,
}

impl Phase {
    fn cpu_seconds(&self) -> f64 {
        self.watched
            .iter()
            .map(|watched| watched.cpu_seconds)
            .sum::<f64>()
    }

    fn of(&self, pid: Option<u32>) -> Option<&Watched> {
        let pid = pid?;
        self.watched.iter().find(|watched| watched.pid == pid)
    }
}

impl GroupReport {
    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "group of {}, {}, {} protocol; coordinator: node {}{}",
            plural(self.members as u64, "member", "members"),
            plural(self.partitions as u64, "partition", "partitions"),
            self.protocol,
            self.coordinator,
            self.coordinator_pid
                .map_or_else(String::new, |pid| format!(", process {pid}")),
        );
        let _ = writeln!(text, "  connections open  {:>8.2} s", self.connect_seconds);
        self.show_phase(&mut text, "join to stable", &self.join);
        self.show_phase(&mut text, "left alone", &self.rest);
        if let Some(departure) = &self.departure {
            self.show_phase(&mut text, "one member leaves", departure);
        }
        if let Some(latency) = self.heartbeat {
            let _ = writeln!(
                text,
                "  heartbeat ms   p50 {:.3}   p90 {:.3}   p99 {:.3}   p99.9 {:.3}   max {:.3}",
                latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms
            );
        }
        if let (Some(before), Some(after)) = (
            self.resident_bytes_before,
            self.rest.of(self.coordinator_pid),
        ) {
            let _ = writeln!(
                text,
                "  coordinator's RSS   {:.1} MiB without members, {:.1} MiB with them",
                before as f64 / MIB,
                after.resident_bytes as f64 / MIB,
            );
        }
        text
    }

    fn show_phase(&self, text: &mut String, name: &str, phase: &Phase) {
        let _ = write!(
            text,
            "  {name:<18}{:>8.2} s   epoch {:<6} this process {:.2} CPU s",
            phase.elapsed_seconds, phase.epoch, phase.client_cpu_seconds
        );
        if let Some(coordinator) = phase.of(self.coordinator_pid) {
            let _ = write!(
                text,
                "   coordinator {:.2} CPU s ({:.2} cores)",
                coordinator.cpu_seconds, coordinator.cores
            );
        }
        if !phase.watched.is_empty() {
            let _ = write!(text, "   watched {:.2} CPU s", phase.cpu_seconds());
        }
        text.push('\n');
    }
}

/// The head of [`markdown_row`]'s table.
pub fn markdown_head() -> String {
    "| protocol | members | partitions | join to stable s | coordinator CPU s | \
     coordinator RSS MiB, before and with | at rest: coordinator cores | heartbeat p50 / p99 ms | \
     one leaves: s | coordinator CPU s |\n|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned()
}

/// One measurement as a row of a markdown table; "-" where nobody watched.
pub fn markdown_row(report: &GroupReport) -> String {
    let none = || "-".to_owned();
    let watched = |phase: &Phase| phase.of(report.coordinator_pid).cloned();
    let cpu = |phase: &Phase| {
        watched(phase).map_or_else(none, |watched| format!("{:.2}", watched.cpu_seconds))
    };
    let rest = watched(&report.rest);
    let resident = match (report.resident_bytes_before, &rest) {
        (Some(before), Some(after)) => format!(
            "{:.0}, {:.0}",
            before as f64 / MIB,
            after.resident_bytes as f64 / MIB
        ),
        _ => none(),
    };
    format!(
        "| {} | {} | {} | {:.2} | {} | {resident} | {} | {} | {} | {} |\n",
        report.protocol,
        report.members,
        report.partitions,
        report.join.elapsed_seconds,
        cpu(&report.join),
        rest.as_ref()
            .map_or_else(none, |watched| format!("{:.3}", watched.cores)),
        report.heartbeat.map_or_else(none, |latency| format!(
            "{:.2} / {:.2}",
            latency.p50_ms, latency.p99_ms
        )),
        report
            .departure
            .as_ref()
            .map_or_else(none, |phase| format!("{:.2}", phase.elapsed_seconds)),
        report.departure.as_ref().map_or_else(none, cpu),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(cpu_seconds: f64) -> Phase {
        Phase {
            elapsed_seconds: 4.0,
            epoch: 2,
            client_cpu_seconds: 0.25,
            watched: [7, 8]
                .map(|pid| Watched {
                    pid,
                    cpu_seconds: cpu_seconds * f64::from(pid - 6),
                    cores: 0.5,
                    resident_bytes: 60 << 20,
                })
                .to_vec(),
        }
    }

    fn sample() -> GroupReport {
        GroupReport {
            kind: "group",
            protocol: "classic",
            members: 1000,
            partitions: 500,
            coordinator: 2,
            coordinator_pid: Some(8),
            resident_bytes_before: Some(50 << 20),
            connect_seconds: 0.1,
            join: phase(1.0),
            rest: phase(0.25),
            heartbeat: None,
            departure: Some(phase(0.75)),
        }
    }

    #[test]
    fn a_row_shows_the_coordinator_and_has_as_many_cells_as_its_head() {
        let head = markdown_head();
        let row = markdown_row(&sample());
        let cells = |line: &str| line.matches('|').count();
        assert_eq!(cells(head.lines().next().expect("head")), cells(&row));
        assert_eq!(
            row,
            "| classic | 1000 | 500 | 4.00 | 2.00 | 50, 60 | 0.500 | - | 4.00 | 1.50 |\n"
        );
    }

    #[test]
    fn nobody_watched_is_shown_as_such() {
        let mut report = sample();
        report.coordinator_pid = None;
        report.departure = None;
        assert_eq!(
            markdown_row(&report),
            "| classic | 1000 | 500 | 4.00 | - | - | - | - | - | - |\n"
        );
        let text = report.text();
        assert!(!text.contains("coordinator's RSS"), "{text}");
        assert!(!text.contains("one member leaves"), "{text}");
        assert!(text.contains("watched 3.00 CPU s"), "{text}");
    }
}
