//! The histories made by hand, and whether the checker judges each exactly.

use std::fmt;

use crate::checker;
use crate::history::History;
use crate::verdict::{Finding, Verdict};

use super::script::{ScriptError, parse};

/// The texts that cases are read from, by subject.
const TEXTS: &[(&str, &str)] = &[
    ("loss.txt", include_str!("histories/loss.txt")),
    ("offsets.txt", include_str!("histories/offsets.txt")),
    ("consumers.txt", include_str!("histories/consumers.txt")),
    ("recency.txt", include_str!("histories/recency.txt")),
    ("replicas.txt", include_str!("histories/replicas.txt")),
    (
        "transactions.txt",
        include_str!("histories/transactions.txt"),
    ),
    ("topics.txt", include_str!("histories/topics.txt")),
    ("contract.txt", include_str!("histories/contract.txt")),
    ("nodes.txt", include_str!("histories/nodes.txt")),
    ("groups.txt", include_str!("histories/groups.txt")),
    ("coverage.txt", include_str!("histories/coverage.txt")),
];

/// A history with what has to come of it.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    pub title: String,
    pub history: History,
    /// Class names with their counts: these and no others.
    pub violations: Vec<(String, u64)>,
    pub tolerated: Vec<(String, u64)>,
    /// Parts of the sentences about missing coverage, one each: these and no others.
    pub missing: Vec<String>,
}

impl Case {
    /// Judges the history; an error says what came instead.
    pub fn judge(&self) -> Result<Verdict, String> {
        let verdict = checker::check(&self.history, &self.history.header.settings);
        let mut faults = Vec::new();
        for (name, wanted, found) in [
            ("violations", &self.violations, &verdict.violations),
            ("tolerated", &self.tolerated, &verdict.tolerated),
        ] {
            let (wanted, found) = (sorted(wanted.clone()), summary(found));
            if wanted != found {
                faults.push(format!("{name}: expected {wanted:?}, found {found:?}"));
            }
        }
        let missing = &verdict.coverage.missing;
        let matches = missing.len() == self.missing.len()
            && std::iter::zip(&self.missing, missing).all(|(part, text)| text.contains(part));
        if !matches {
            faults.push(format!(
                "missing: expected {:?}, found {missing:?}",
                self.missing
            ));
        }
        match faults.is_empty() {
            true => Ok(verdict),
            false => Err(faults.join("; ")),
        }
    }
}

fn sorted(mut list: Vec<(String, u64)>) -> Vec<(String, u64)> {
    list.sort();
    list
}

fn summary(findings: &[Finding]) -> Vec<(String, u64)> {
    sorted(
        findings
            .iter()
            .map(|found| (found.class.name().to_owned(), found.count))
            .collect(),
    )
}

/// All cases.
pub fn cases() -> Result<Vec<Case>, (&'static str, ScriptError)> {
    let mut cases = Vec::new();
    for (file, text) in TEXTS {
        cases.extend(parse(text).map_err(|error| (*file, error))?);
    }
    Ok(cases)
}

/// What came of the histories: prints a line for each.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub passed: usize,
    /// Name and reason of each history that was judged wrongly.
    pub failed: Vec<(String, String)>,
    lines: Vec<String>,
}

impl Report {
    pub fn is_green(&self) -> bool {
        self.failed.is_empty() && self.passed > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        let all = self.passed + self.failed.len();
        write!(f, "histories: {} of {all} judged exactly", self.passed)
    }
}

/// Judges every history made by hand.
pub fn histories() -> Report {
    let mut report = Report::default();
    let cases = match cases() {
        Ok(cases) => cases,
        Err((file, error)) => {
            report.lines.push(format!("FAIL  {file}: {error}"));
            report.failed.push((file.to_owned(), error.to_string()));
            return report;
        }
    };
    for case in cases {
        match case.judge() {
            Ok(_) => {
                let names: Vec<&str> = case.violations.iter().map(|(name, _)| &**name).collect();
                let verdict = match names.is_empty() {
                    true => "clean".to_owned(),
                    false => names.join(" "),
                };
                let (name, title) = (&case.name, &case.title);
                report
                    .lines
                    .push(format!("ok    {name:<28} {verdict:<34} {title}"));
                report.passed += 1;
            }
            Err(reason) => {
                report
                    .lines
                    .push(format!("FAIL  {:<28} {reason}", case.name));
                report.failed.push((case.name, reason));
            }
        }
    }
    report
}
