//! Writes what a run has shown: `results.json` for programs, `report.html` for people.
//!
//! The page is one file without scripts or anything from elsewhere, so that it can be mailed and
//! opened years later.

mod neighbourhood;
mod page;
mod plot;
mod series;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::history::{Header, History};
use crate::verdict::{Judgement, Verdict};

/// What is worth knowing about a run beside its history.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The command line that runs it again, with its seed.
    pub command: String,
    /// The product's version and build, as it prints them.
    pub product: String,
    /// What the preflight said: `fault: possible` or why not.
    pub preflight: Vec<String>,
    /// Wall-clock seconds from start to verdict.
    pub total_seconds: f64,
    /// Log files of the nodes, relative to the output directory.
    pub node_logs: Vec<String>,
    /// Data directories that were kept, relative to the output directory.
    pub kept_data: Vec<String>,
    /// Things that went wrong in the harness without ending the run.
    pub remarks: Vec<String>,
}

/// The files that a report consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportFiles {
    pub results: PathBuf,
    pub html: PathBuf,
}

/// The format of `results.json`.
pub const RESULTS_FORMAT: u32 = 1;

/// `results.json`: everything that was concluded, and from what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`RESULTS_FORMAT`].
    pub format: u32,
    pub judgement: Judgement,
    pub exit_code: u8,
    /// The verdict in one line, as it was printed.
    pub line: String,
    pub run: RunSummary,
    pub header: Header,
    pub verdict: Verdict,
}

/// Writes `results.json` and `report.html` into `out_dir`, which has to exist.
///
/// # Errors
///
/// Those of the file system.
pub fn write(
    out_dir: &Path,
    summary: &RunSummary,
    history: &History,
    verdict: &Verdict,
) -> io::Result<ReportFiles> {
    let files = ReportFiles {
        results: out_dir.join("results.json"),
        html: out_dir.join("report.html"),
    };
    let results = Results {
        format: RESULTS_FORMAT,
        judgement: verdict.judgement(),
        exit_code: verdict.exit_code(),
        line: verdict.line(),
        run: summary.clone(),
        header: history.header.clone(),
        verdict: verdict.clone(),
    };
    let mut json = serde_json::to_vec_pretty(&results)?;
    json.push(b'\n');
    std::fs::write(&files.results, json)?;
    std::fs::write(&files.html, page::render(summary, history, verdict))?;
    Ok(files)
}

/// Text that may stand in HTML, also within an attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// `1234567` as `1,234,567`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
