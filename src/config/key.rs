//! One row of the configuration table, with the check of a value against it.

use std::fmt;

use thiserror::Error;

/// Which of the three layers a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// One process; needs a restart.
    Node,
    /// The whole cluster, replicated by the controller, live.
    Cluster,
    /// One topic, replicated by the controller, live.
    Topic,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scope::Node => "node",
            Scope::Cluster => "cluster",
            Scope::Topic => "topic",
        })
    }
}

/// The type of a value, as DescribeConfigs names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// Text.
    String,
    /// A whole number of 32 bits.
    Int,
    /// A whole number of 64 bits.
    Long,
    /// A decimal number.
    Double,
    /// Values separated by commas.
    List,
}

impl Kind {
    /// DescribeConfigs' `config_type` (version 3 and later).
    pub const fn wire_code(self) -> i8 {
        match self {
            Kind::Boolean => 1,
            Kind::String => 2,
            Kind::Int => 3,
            Kind::Long => 5,
            Kind::Double => 6,
            Kind::List => 7,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Boolean => "boolean",
            Kind::String => "string",
            Kind::Int => "int",
            Kind::Long => "long",
            Kind::Double => "double",
            Kind::List => "list",
        })
    }
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nothing that has a unit.
    None,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Millis,
    /// Minutes.
    Minutes,
    /// Hours.
    Hours,
    /// HOST:PORT.
    Address,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::None => "",
            Unit::Bytes => "bytes",
            Unit::Millis => "ms",
            Unit::Minutes => "min",
            Unit::Hours => "h",
            Unit::Address => "HOST:PORT",
        })
    }
}

/// Which values a key takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowed {
    /// Anything of the type.
    Any,
    /// A whole number from `min` to `max`, both included.
    Between {
        /// The smallest value taken.
        min: i64,
        /// The largest value taken.
        max: i64,
    },
    /// A decimal number from 0 to 1, both included.
    Ratio,
    /// Exactly one of these words.
    OneOf(&'static [&'static str]),
    /// For lists: one or more of these words.
    SomeOf(&'static [&'static str]),
}

/// What holds where nobody set the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// This value.
    Fixed(&'static str),
    /// A rule, told in words; [`super::effective`] and [`super::node`] compute it.
    Computed(&'static str),
    /// No value.
    Unset,
}

/// A cluster key that gives a topic key its default, as Kafka's brokers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synonym {
    /// The cluster key.
    pub name: &'static str,
    /// How many units of the topic key one unit of the cluster key is (hours to milliseconds).
    pub scale: i64,
}

/// One row: everything that is known about a key.
#[derive(Clone, Copy, Debug)]
pub struct ConfigKey {
    /// The key, most often Kafka's own.
    pub name: &'static str,
    /// The layer it belongs to.
    pub scope: Scope,
    /// The type of its value.
    pub kind: Kind,
    /// What its number counts.
    pub unit: Unit,
    /// What holds where nobody set it.
    pub default: DefaultValue,
    /// Which values it takes.
    pub allowed: Allowed,
    /// One or two sentences for people.
    pub doc: &'static str,
    /// False: known, checked, stored and described, but nothing acts on it yet.
    pub enforced: bool,
    /// For topic keys: the cluster keys behind it, strongest first.
    pub synonyms: &'static [Synonym],
}

/// Why a value was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name} = {value:?}: {reason}")]
pub struct ValueError {
    /// The key.
    pub name: &'static str,
    /// The value that was given.
    pub value: String,
    /// What is wrong and what would be right.
    pub reason: String,
}

impl ConfigKey {
    /// A row with no unit, any value, and nothing that acts on it yet.
    pub const fn new(name: &'static str, scope: Scope, kind: Kind, default: DefaultValue) -> Self {
        ConfigKey {
            name,
            scope,
            kind,
            unit: Unit::None,
            default,
            allowed: Allowed::Any,
            doc: "",
            enforced: false,
            synonyms: &[],
        }
    }

    /// Names the unit.
    pub const fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Bounds a whole number.
    pub const fn between(mut self, min: i64, max: i64) -> Self {
        self.allowed = Allowed::Between { min, max };
        self
    }

    /// Says which values are taken.
    pub const fn allowed(mut self, allowed: Allowed) -> Self {
        self.allowed = allowed;
        self
    }

    /// Explains the key.
    pub const fn doc(mut self, doc: &'static str) -> Self {
        self.doc = doc;
        self
    }

    /// Marks a key whose value is acted upon.
    pub const fn enforced(mut self) -> Self {
        self.enforced = true;
        self
    }

    /// Names the cluster keys that give this topic key its default, strongest first.
    pub const fn synonyms(mut self, synonyms: &'static [Synonym]) -> Self {
        self.synonyms = synonyms;
        self
    }

    /// The environment variable that sets this key: `CORDUROY_` and the name in capitals.
    pub fn environment_name(&self) -> String {
        let mut name = String::from("CORDUROY_");
        name.extend(self.name.chars().map(|c| match c {
            '.' | '-' => '_',
            other => other.to_ascii_uppercase(),
        }));
        name
    }

    /// Checks a value and returns it as it is stored: trimmed, lists without blanks.
    pub fn check(&self, value: &str) -> Result<String, ValueError> {
        let trimmed = value.trim();
        let refuse = |reason: String| ValueError {
            name: self.name,
            value: value.to_owned(),
            reason,
        };
        match self.kind {
            Kind::Boolean => match trimmed.to_ascii_lowercase().as_str() {
                word @ ("true" | "false") => Ok(word.to_owned()),
                _ => Err(refuse("must be true or false".into())),
            },
            Kind::Int | Kind::Long => self.check_whole(trimmed).map_err(refuse),
            Kind::Double => self.check_decimal(trimmed).map_err(refuse),
            Kind::String => match self.allowed {
                Allowed::OneOf(words) if !words.contains(&trimmed) => {
                    Err(refuse(format!("must be one of {}", words.join(", "))))
                }
                _ => Ok(trimmed.to_owned()),
            },
            Kind::List => self.check_list(trimmed).map_err(refuse),
        }
    }

    fn check_whole(&self, value: &str) -> Result<String, String> {
        let unit = match self.unit {
            Unit::Bytes => " of bytes",
            Unit::Millis => " of milliseconds",
            Unit::Minutes => " of minutes",
            Unit::Hours => " of hours",
            Unit::None | Unit::Address => "",
        };
        let number: i64 = value
            .parse()
            .map_err(|_| format!("must be a whole number{unit}"))?;
        let (mut min, mut max) = match self.allowed {
            Allowed::Between { min, max } => (min, max),
            _ => (i64::MIN, i64::MAX),
        };
        if self.kind == Kind::Int {
            min = min.max(i32::MIN.into());
            max = max.min(i32::MAX.into());
        }
        if number < min {
            return Err(format!("must be at least {min}"));
        }
        if number > max {
            return Err(format!("must be at most {max}"));
        }
        Ok(number.to_string())
    }

    fn check_decimal(&self, value: &str) -> Result<String, String> {
        let number: f64 = value.parse().map_err(|_| "must be a number".to_owned())?;
        if !number.is_finite() {
            return Err("must be a finite number".into());
        }
        if self.allowed == Allowed::Ratio && !(0.0..=1.0).contains(&number) {
            return Err("must be between 0 and 1".into());
        }
        Ok(value.to_owned())
    }

    fn check_list(&self, value: &str) -> Result<String, String> {
        let items = list_items(value);
        if let Allowed::SomeOf(words) = self.allowed {
            if items.is_empty() {
                return Err(format!("must name at least one of {}", words.join(", ")));
            }
            if let Some(stranger) = items.iter().find(|item| !words.contains(item)) {
                return Err(format!("{stranger:?} is not one of {}", words.join(", ")));
            }
        }
        Ok(items.join(","))
    }
}

/// The items of a list value: separated by commas, trimmed, none of them empty.
pub fn list_items(value: &str) -> Vec<&str> {
    value
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::config::table;

    #[test]
    fn values_are_checked_against_their_row() {
        let cases: &[(&str, &str, Result<&str, &str>)] = &[
            ("retention.ms", " 1000 ", Ok("1000")),
            ("retention.ms", "-1", Ok("-1")),
            ("retention.ms", "-2", Err("must be at least -1")),
            (
                "retention.ms",
                "7d",
                Err("must be a whole number of milliseconds"),
            ),
            (
                "segment.bytes",
                "99999999999",
                Err("must be at most 2147483647"),
            ),
            ("preallocate", "TRUE", Ok("true")),
            ("preallocate", "yes", Err("must be true or false")),
            ("min.cleanable.dirty.ratio", "0.25", Ok("0.25")),
            (
                "min.cleanable.dirty.ratio",
                "1.5",
                Err("must be between 0 and 1"),
            ),
            (
                "min.cleanable.dirty.ratio",
                "NaN",
                Err("must be a finite number"),
            ),
            ("message.timestamp.type", "CreateTime", Ok("CreateTime")),
            (
                "message.timestamp.type",
                "now",
                Err("must be one of CreateTime, LogAppendTime"),
            ),
            ("cleanup.policy", "compact , delete", Ok("compact,delete")),
            (
                "cleanup.policy",
                "shred",
                Err("\"shred\" is not one of compact, delete"),
            ),
            (
                "cleanup.policy",
                "",
                Err("must name at least one of compact, delete"),
            ),
            ("min.insync.replicas", "0", Err("must be at least 1")),
        ];
        for (name, value, want) in cases {
            let key = table::topic_key(name).expect("a known key");
            let got = key.check(value).map_err(|e| e.reason);
            let want = want.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(got, want, "{name} = {value:?}");
        }
    }
}
