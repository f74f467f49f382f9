//! `docs/config.md`, generated from the table.

use std::fmt::Write;

use super::key::{Allowed, ConfigKey, DefaultValue, Scope, Unit};
use super::table;

const HEAD: &str = "\
# Configuration

Generated from the table in `src/config/rows.rs`; a test compares the two
(`UPDATE_DOCS=1 cargo test -p corduroy config_docs` rewrites this file).

Three layers that never mix:

- **node**: one process; a change needs a restart. Flag (`--set key=value`, and flags of their own
  such as `--listen`), environment (`CORDUROY_` and the key in capitals, dots as underscores), file
  (`--config FILE`, TOML, section `[node]`), default: the first one that is set holds.
- **cluster**: replicated by the controller, live, Kafka's broker names. Change them with
  IncrementalAlterConfigs on the broker resource with the empty name. Flags, environment and the
  file's section `[cluster]` say only what a new cluster starts with.
- **topic**: replicated by the controller, live, Kafka's topic names. Where a topic does not set a
  key, the cluster key named as its default holds, and then the default given here.

A key without a mark in the column *acts* is known, checked, stored and described, but nothing acts
on it yet; setting one warns. An unknown key is an error that names the nearest known one.
";

/// The whole of `docs/config.md`.
pub fn render() -> String {
    let mut text = String::from(HEAD);
    for scope in [Scope::Node, Scope::Cluster, Scope::Topic] {
        let title = match scope {
            Scope::Node => "Node settings",
            Scope::Cluster => "Cluster settings",
            Scope::Topic => "Topic settings",
        };
        let _ = writeln!(text, "\n## {title}\n");
        text.push_str("| key | type | default | values | acts | meaning |\n");
        text.push_str("|---|---|---|---|---|---|\n");
        for key in table::of(scope) {
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} | {} | {} |",
                key.name,
                type_text(key),
                default_text(key),
                allowed_text(key),
                if key.enforced { "yes" } else { "" },
                meaning_text(key),
            );
        }
    }
    text
}

fn type_text(key: &ConfigKey) -> String {
    match key.unit {
        Unit::None => key.kind.to_string(),
        unit => format!("{}, {unit}", key.kind),
    }
}

fn default_text(key: &ConfigKey) -> String {
    match key.default {
        DefaultValue::Fixed("") => "empty".into(),
        DefaultValue::Fixed("9223372036854775807") => "no limit (2^63-1)".into(),
        DefaultValue::Fixed(value) => format!("`{value}`"),
        DefaultValue::Computed(rule) => rule.into(),
        DefaultValue::Unset => "unset".into(),
    }
}

fn allowed_text(key: &ConfigKey) -> String {
    match key.allowed {
        Allowed::Any => String::new(),
        Allowed::Between { min, max } if max == i64::MAX => format!("{min} or more"),
        Allowed::Between { min, max } if max == i64::from(i32::MAX) => format!("{min} or more"),
        Allowed::Between { min, max } => format!("{min} to {max}"),
        Allowed::Ratio => "0 to 1".into(),
        Allowed::OneOf(words) | Allowed::SomeOf(words) => words
            .iter()
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn meaning_text(key: &ConfigKey) -> String {
    match key.synonyms.first() {
        Some(synonym) => format!("{} Cluster default: `{}`.", key.doc, synonym.name),
        None => key.doc.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn config_docs_match_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/config.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, render()).expect("write docs/config.md");
        }
        let written = std::fs::read_to_string(&path).expect("read docs/config.md");
        assert!(
            written == render(),
            "docs/config.md is stale: run UPDATE_DOCS=1 cargo test -p corduroy config_docs"
        );
    }

    #[test]
    fn every_key_is_documented() {
        let text = render();
        for key in table::all() {
            assert!(
                text.contains(&format!("| `{}` |", key.name)),
                "{}",
                key.name
            );
        }
    }
}
