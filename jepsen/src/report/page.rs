//! The page that puts verdict, plots and tables together.

use std::collections::HashSet;
use std::fmt::Write;

use crate::faults::FaultKind;
use crate::history::{Acks, History, Isolation};
use crate::verdict::{Finding, Judgement, Verdict};

use super::series::Series;
use super::{RunSummary, escape, neighbourhood, plot, thousands};

const STYLE: &str = include_str!("page.css");
/// Examples shown in full for each class.
const EXAMPLES_SHOWN: usize = 3;
/// Lines of preflight, remarks and files.
const LINES_MAX: usize = 200;

/// The whole page.
pub fn render(summary: &RunSummary, history: &History, verdict: &Verdict) -> String {
    let mut page = String::new();
    let judgement = verdict.judgement();
    let (class, word) = match judgement {
        Judgement::Pass => ("pass", "Pass"),
        Judgement::Violation => ("violation", "Violation"),
        Judgement::TooLittleCoverage => ("unknown", "Too little coverage"),
    };
    let header = &history.header;
    let title = format!(
        "{word}: {} on {} nodes",
        header.workload,
        header.nodes.len()
    );
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>\
         <style>{STYLE}</style></head><body>",
        escape(&title)
    );
    let _ = write!(
        page,
        "<header class=\"{class}\"><p class=\"kind\">Corduroy fault test</p><h1>{word}</h1><p class=\"line\">{}</p></header><main>",
        escape(&verdict.line())
    );
    setup(&mut page, summary, history);
    tiles(&mut page, verdict);
    missing(&mut page, verdict);
    findings(&mut page, history, "Violations", &verdict.violations);
    plots(&mut page, history);
    tables(&mut page, history, verdict);
    findings(
        &mut page,
        history,
        "Seen, and legal under these settings",
        &verdict.tolerated,
    );
    files(&mut page, summary);
    page.push_str("</main></body></html>\n");
    page
}

fn setup(page: &mut String, summary: &RunSummary, history: &History) {
    let header = &history.header;
    let settings = &header.settings;
    let acks = match settings.acks {
        Acks::None => "0",
        Acks::Leader => "1",
        Acks::All => "all",
    };
    let isolation = match settings.isolation {
        Isolation::ReadCommitted => "read_committed",
        Isolation::ReadUncommitted => "read_uncommitted",
    };
    let faults = match header.plan.faults.is_empty() {
        true => "none".to_owned(),
        false => header.plan.faults.join(", "),
    };
    let rows = [
        ("Workload", header.workload.clone()),
        ("Faults asked for", faults),
        ("Not possible there", header.plan.skipped.join(", ")),
        (
            "Clients",
            format!(
                "{}, acks={acks}, idempotence {}, {isolation}",
                settings.client,
                if settings.idempotence { "on" } else { "off" }
            ),
        ),
        (
            "Topic",
            format!(
                "{} replicas, min.insync.replicas={}",
                settings.replication_factor, settings.min_insync_replicas
            ),
        ),
        (
            "Run",
            match summary.total_seconds > 0.0 {
                true => format!(
                    "{} s of load, {:.0} s in all, seed {}",
                    header.plan.load_seconds, summary.total_seconds, header.seed
                ),
                false => format!(
                    "{} s of load, seed {}",
                    header.plan.load_seconds, header.seed
                ),
            },
        ),
        ("Product", summary.product.clone()),
    ];
    page.push_str("<dl class=\"setup\">");
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
    }
    page.push_str("</dl>");
    if !summary.command.is_empty() {
        let _ = write!(
            page,
            "<p class=\"again\">Run it again: <code>{}</code></p>",
            escape(&summary.command)
        );
    }
}

fn tiles(page: &mut String, verdict: &Verdict) {
    let counts = &verdict.counts;
    let availability = &verdict.availability;
    let share = match availability.ok_share_in_faults {
        Some(share) => format!("{:.1} %", share * 100.0),
        None => "–".to_owned(),
    };
    let tiles = [
        ("writes acknowledged", thousands(counts.writes_ok), false),
        ("lost", thousands(counts.lost), counts.lost > 0),
        (
            "duplicated",
            thousands(counts.duplicated),
            counts.duplicated > 0,
        ),
        ("never seen", thousands(counts.unseen), counts.unseen > 0),
        (
            "of unknown outcome",
            thousands(counts.writes_unknown),
            false,
        ),
        ("values read", thousands(counts.values_read), false),
        (
            "longest unavailability",
            format!("{:.2} s", availability.longest_gap_seconds()),
            false,
        ),
        (
            "longest from an acknowledgement to a consumer",
            match &verdict.delivery.longest {
                Some(late) => format!("{:.2} s", late.seconds),
                None => "–".to_owned(),
            },
            false,
        ),
        ("calls ok during faults", share, false),
    ];
    page.push_str("<ul class=\"tiles\">");
    for (name, value, bad) in tiles {
        let class = if bad { " class=\"bad\"" } else { "" };
        let _ = write!(page, "<li{class}><b>{value}</b>{name}</li>");
    }
    page.push_str("</ul>");
}

fn missing(page: &mut String, verdict: &Verdict) {
    if verdict.coverage.missing.is_empty() {
        return;
    }
    page.push_str("<section><h2>What is missing for a pass</h2><ul>");
    for sentence in &verdict.coverage.missing {
        let _ = write!(page, "<li>{}</li>", escape(sentence));
    }
    page.push_str("</ul></section>");
}

fn findings(page: &mut String, history: &History, title: &str, findings: &[Finding]) {
    if findings.is_empty() {
        return;
    }
    let _ = write!(page, "<section><h2>{title}</h2>");
    // Several classes often name one place; its neighbourhood is shown once.
    let mut shown = HashSet::new();
    for finding in findings {
        let _ = write!(
            page,
            "<h3><code>{}</code> {}</h3>",
            finding.class,
            thousands(finding.count)
        );
        if let Some(reason) = &finding.allowed_because {
            let _ = write!(page, "<p>Allowed: {}.</p>", escape(reason));
        }
        for example in finding.examples.iter().take(EXAMPLES_SHOWN) {
            let key = example
                .key
                .as_ref()
                .map(|key| format!("<code>{}</code>: ", escape(&key.to_string())))
                .unwrap_or_default();
            let _ = write!(
                page,
                "<article><p>{key}{}.</p><ol class=\"evidence\">",
                escape(&example.what)
            );
            for evidence in &example.evidence {
                let _ = write!(
                    page,
                    "<li><span>call {}</span> {}</li>",
                    evidence.call,
                    escape(&evidence.text)
                );
            }
            page.push_str("</ol>");
            let place = (&example.key, example.offsets.first());
            if shown.insert(place)
                && let Some(table) = neighbourhood::table(history, example)
            {
                page.push_str(&table);
            }
            page.push_str("</article>");
        }
    }
    page.push_str("</section>");
}

fn plots(page: &mut String, history: &History) {
    let series = Series::of(history);
    let shades = plot::shades(history);
    page.push_str("<section><h2>Over time</h2>");
    if !shades.is_empty() {
        let svg = plot::faults(history, &series, &shades);
        let _ = write!(
            page,
            "<figure><figcaption>Faults <span class=\"key\">the dashed lines are the heal and the end of the load</span></figcaption>{svg}</figure>"
        );
    }
    let quantiles: Vec<String> = series
        .quantiles
        .iter()
        .map(|(name, seconds)| format!("{name} {:.1} ms", seconds * 1e3))
        .collect();
    let figures = [
        (
            "Write latency",
            "<i class=\"ok\"></i>acknowledged <i class=\"unknown\"></i>unknown <i class=\"failed\"></i>refused <i class=\"p50\"></i>median <i class=\"p99\"></i>p99",
            plot::latency(&series, &shades),
            quantiles.join(", "),
        ),
        (
            "Records per second",
            "<i class=\"acked\"></i>acknowledged <i class=\"read\"></i>read <i class=\"refused\"></i>refused or unknown",
            plot::throughput(&series, &shades),
            String::new(),
        ),
        (
            "Unseen",
            "<i class=\"unseen\"></i>acknowledged, and not yet read by anybody",
            plot::unseen(&series, &shades),
            String::new(),
        ),
        (
            "Lag",
            "<i class=\"lag\"></i>records that the slowest poll was behind",
            plot::lag(&series, &shades),
            String::new(),
        ),
    ];
    for (title, key, svg, note) in figures {
        let _ = write!(
            page,
            "<figure><figcaption>{title} <span class=\"key\">{key}</span><span class=\"note\">{note}</span></figcaption>{svg}</figure>"
        );
    }
    page.push_str("</section>");
}

fn tables(page: &mut String, history: &History, verdict: &Verdict) {
    let availability = &verdict.availability;
    page.push_str(
        "<section><h2>Unavailability</h2><p>The longest time in which writes to one partition were \
         tried and none was acknowledged, during a fault or in the ten seconds after it. Faults that \
         overlap share the blame.</p><table><thead><tr><th>fault</th><th>times</th><th>longest</th>\
         <th>partition</th><th>began</th></tr></thead><tbody>",
    );
    for (fault, gap) in &availability.after_fault {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{:.2} s</td><td>{}</td><td>{:.1} s</td></tr>",
            escape(fault),
            match gap.times {
                0 => "–".to_owned(),
                times => times.to_string(),
            },
            gap.longest_seconds,
            escape(&gap.partition),
            gap.began_seconds
        );
    }
    page.push_str("</tbody></table>");
    if let Some(line) = verdict.delivery.line() {
        let _ = write!(page, "<p>{}</p>", escape(&line));
    }
    page.push_str("</section>");

    let coverage = &verdict.coverage;
    let minima = &coverage.minima;
    let scale = match minima.are_full() {
        true => "A full run's minima.",
        false => "Minima scaled down for a short run, see docs/fault-tests.md.",
    };
    let _ = write!(
        page,
        "<section><h2>Coverage</h2><p>{scale}</p><table><thead><tr><th>what</th><th>seen</th><th>least</th></tr></thead><tbody>"
    );
    let mut row = |what: &str, seen: u64, least: u64| {
        let class = if seen < least {
            " class=\"damaged\""
        } else {
            ""
        };
        let _ = write!(
            page,
            "<tr{class}><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(what),
            thousands(seen),
            thousands(least)
        );
    };
    for (fault, times) in &coverage.faults {
        let least = u64::from(minima.times_each_fault);
        row(&format!("{fault} took hold"), u64::from(*times), least);
        for (manner, times) in coverage.manners.get(fault).into_iter().flatten() {
            row(&format!("{fault}: {manner}"), u64::from(*times), 0);
        }
        if let Some((limit, reason)) = FaultKind::named(fault).and_then(FaultKind::outlasts) {
            let what = format!("{fault} held for more than {} s, {reason}", limit.as_secs());
            let long = coverage.long_holds.get(fault).copied().unwrap_or(0);
            row(&what, u64::from(long), u64::from(minima.long_holds));
        }
    }
    for (fault, manners) in &history.header.plan.manners {
        for manner in manners {
            let times = coverage.in_manner(fault, manner);
            row(&format!("{fault} as \"{manner}\""), u64::from(times), 1);
        }
    }
    for (fault, times) in &coverage.missed {
        row(
            &format!("{fault} met nothing, and does not count"),
            u64::from(*times),
            0,
        );
    }
    if let Some(share) = coverage.quiet_share {
        let percent = (share * 100.0).round() as u64;
        row("percent of the load without a fault", percent, 0);
    }
    row(
        "writes acknowledged during faults",
        coverage.writes_in_faults,
        minima.writes_in_faults,
    );
    row(
        "reads with records during faults",
        coverage.reads_in_faults,
        minima.reads_in_faults,
    );
    if let Some(group) = &coverage.group {
        let least = minima.group.unwrap_or_default();
        for (what, seen, least) in [
            ("rebalances", group.rebalances, least.rebalances),
            (
                "commits acknowledged during faults",
                group.commits_in_faults,
                least.commits_in_faults,
            ),
            (
                "coordinators that gave way",
                group.coordinator_changes,
                least.coordinator_changes,
            ),
            (
                "partitions read to the end by a group",
                group.drained,
                least.drained,
            ),
        ] {
            row(what, seen, least);
        }
    }
    let whole = if minima.final_read {
        coverage.partitions
    } else {
        0
    };
    row(
        "partitions read to the end by a fresh client",
        coverage.partitions_final_read,
        whole,
    );
    row(
        "partitions read and compared on every replica",
        coverage.partitions_compared,
        whole,
    );
    row(
        "logs compared between stopped nodes, the controller's and the groups' among them",
        coverage.logs_compared,
        0,
    );
    row("entries of those", coverage.entries_compared, 0);
    row(
        "entries of the controller's log among them",
        coverage.controller_entries_compared,
        u64::from(minima.controller_compared),
    );
    row(
        "entries of __consumer_offsets among them",
        coverage.offsets_entries_compared,
        u64::from(minima.offsets_compared),
    );
    page.push_str("</tbody></table></section>");
}

fn files(page: &mut String, summary: &RunSummary) {
    let lists = [
        ("Remarks of the harness", &summary.remarks),
        ("Logs of the nodes", &summary.node_logs),
        ("Kept data directories", &summary.kept_data),
        ("Preflight", &summary.preflight),
    ];
    for (title, lines) in lists.iter().filter(|(_, lines)| !lines.is_empty()) {
        let _ = write!(page, "<section><h2>{title}</h2><ul class=\"files\">");
        for line in lines.iter().take(LINES_MAX) {
            let _ = write!(page, "<li><code>{}</code></li>", escape(line));
        }
        page.push_str("</ul></section>");
    }
}
