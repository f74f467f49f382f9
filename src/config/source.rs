//! Where settings come from: flags, environment, file; which key each of them means.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::key::{ConfigKey, Scope, ValueError};
use super::nearest::nearest;
use super::table;

/// The place of a setting, weakest first, so that `Ord` is precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The table.
    Default,
    /// The TOML file.
    File,
    /// A `CORDUROY_…` variable.
    Environment,
    /// A command-line flag, `--set` included.
    Flag,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Default => "default",
            Layer::File => "file",
            Layer::Environment => "environment",
            Layer::Flag => "flag",
        })
    }
}

/// The settings as their sources gave them, before anything is checked.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// Flags and `--set key=value`, as (key, value).
    pub flags: Vec<(String, String)>,
    /// The environment; variables that do not begin with `CORDUROY_` are passed over.
    pub environment: Vec<(String, String)>,
    /// The configuration file: its path, for messages, and its text.
    pub file: Option<(PathBuf, String)>,
}

/// Why a configuration was refused. Every message says where the setting stands.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("cannot read the configuration file {path}: {source}\n  help    check --config", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration file {path} is not valid TOML\n{reason}", path = path.display())]
    NotToml {
        /// The file.
        path: PathBuf,
        /// What the parser said, with the line.
        reason: String,
    },
    /// No such key.
    #[error("unknown configuration key {key:?} ({place})\n  help    {help}")]
    UnknownKey {
        /// The key as written.
        key: String,
        /// Where it stands.
        place: String,
        /// The nearest name, or where to look.
        help: String,
    },
    /// The value does not fit the key.
    #[error("invalid configuration value ({place})\n  found   {error}")]
    InvalidValue {
        /// Where it stands.
        place: String,
        /// What is wrong with it.
        error: ValueError,
    },
    /// `--set` without an equals sign.
    #[error("cannot read --set {text:?}\n  help    write --set key=value")]
    NotAPair {
        /// What was given.
        text: String,
    },
}

/// One setting that survived: the strongest of its layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The checked value.
    pub value: String,
    /// Its place.
    pub layer: Layer,
}

/// The checked settings of the node and cluster layers.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Node keys.
    pub node: BTreeMap<&'static str, Setting>,
    /// Cluster keys: what a new cluster starts with.
    pub cluster: BTreeMap<&'static str, Setting>,
    /// `CORDUROY_…` variables that mean nothing to the node.
    pub strange_variables: Vec<String>,
}

/// Splits the text of a `--set` flag.
pub fn split_pair(text: &str) -> Result<(String, String), ConfigError> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(ConfigError::NotAPair {
            text: text.to_owned(),
        }),
    }
}

impl Settings {
    /// Checks every setting and keeps the strongest of each key.
    pub fn collect(layers: &Layers) -> Result<Settings, ConfigError> {
        let mut settings = Settings::default();
        if let Some((path, text)) = &layers.file {
            let table: toml::Table =
                text.parse()
                    .map_err(|error: toml::de::Error| ConfigError::NotToml {
                        path: path.clone(),
                        reason: error.to_string(),
                    })?;
            let mut pairs = Vec::new();
            flatten("", &table, &mut pairs);
            for (key, value) in pairs {
                let place = format!("in {}", path.display());
                settings.take(&key, &value, Layer::File, &place)?;
            }
        }
        for (variable, value) in &layers.environment {
            if !variable.starts_with("CORDUROY_") {
                continue;
            }
            match key_of_variable(variable) {
                Some(key) => {
                    let place = format!("in the environment, {variable}");
                    settings.keep(key, value, Layer::Environment, &place)?;
                }
                None => settings.strange_variables.push(variable.clone()),
            }
        }
        for (key, value) in &layers.flags {
            settings.take(key, value, Layer::Flag, "on the command line")?;
        }
        Ok(settings)
    }

    fn take(
        &mut self,
        name: &str,
        value: &str,
        layer: Layer,
        place: &str,
    ) -> Result<(), ConfigError> {
        match find(name) {
            Some(key) => self.keep(key, value, layer, place),
            None => Err(ConfigError::UnknownKey {
                key: name.to_owned(),
                place: place.to_owned(),
                help: unknown_help(name),
            }),
        }
    }

    fn keep(
        &mut self,
        key: &'static ConfigKey,
        value: &str,
        layer: Layer,
        place: &str,
    ) -> Result<(), ConfigError> {
        let value = key
            .check(value)
            .map_err(|error| ConfigError::InvalidValue {
                place: place.to_owned(),
                error,
            })?;
        let target = match key.scope {
            Scope::Node => &mut self.node,
            Scope::Cluster | Scope::Topic => &mut self.cluster,
        };
        match target.get(key.name) {
            Some(stronger) if stronger.layer > layer => {}
            _ => {
                target.insert(key.name, Setting { value, layer });
            }
        }
        Ok(())
    }
}

/// The row that a key of a file or flag means. The section names `node.` and `cluster.` may stand
/// before it; a section that does not fit the key's layer does not find it.
fn find(name: &str) -> Option<&'static ConfigKey> {
    let plain = || table::find(Scope::Node, name).or_else(|| table::find(Scope::Cluster, name));
    let sectioned = |section: &str, scope| {
        name.strip_prefix(section)
            .and_then(|rest| table::find(scope, rest))
    };
    plain()
        .or_else(|| sectioned("node.", Scope::Node))
        .or_else(|| sectioned("cluster.", Scope::Cluster))
}

fn key_of_variable(variable: &str) -> Option<&'static ConfigKey> {
    table::of(Scope::Node)
        .iter()
        .chain(table::of(Scope::Cluster))
        .find(|key| key.environment_name() == variable)
}

fn unknown_help(name: &str) -> String {
    let bare = name
        .strip_prefix("node.")
        .or_else(|| name.strip_prefix("cluster."))
        .unwrap_or(name);
    if let Some(key) = table::topic_key(bare) {
        return match key.synonyms.first() {
            Some(synonym) => format!(
                "{bare} belongs to a topic; the cluster's default for it is {}",
                synonym.name
            ),
            None => format!("{bare} belongs to a topic; set it there"),
        };
    }
    let names = table::of(Scope::Node)
        .iter()
        .chain(table::of(Scope::Cluster))
        .map(|key| key.name);
    match nearest(bare, names) {
        Some(near) => format!("did you mean {near}?"),
        None => "docs/config.md lists all of them".to_owned(),
    }
}

/// Turns tables into dotted keys and values into the text that a flag would have.
fn flatten(prefix: &str, table: &toml::Table, pairs: &mut Vec<(String, String)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        match value {
            toml::Value::Table(inner) => flatten(&key, inner, pairs),
            toml::Value::Array(items) => {
                let items: Vec<String> = items.iter().map(text_of).collect();
                pairs.push((key, items.join(",")));
            }
            other => pairs.push((key, text_of(other))),
        }
    }
}

fn text_of(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
