//! A subscription by pattern. Pure.

use regex::Regex;

use crate::error::Error;

/// Which topics a member wants, besides those that it names.
///
/// The consumer protocol leaves the match to the coordinator (RE2 syntax, the whole name, KIP-848);
/// under the classic protocol each member looks for itself, by the same rule.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    source: String,
    whole: Regex,
}

impl Pattern {
    /// # Errors
    /// Config: this is no regular expression.
    pub(super) fn new(source: &str) -> Result<Pattern, Error> {
        // By itself first: what closes our group and opens another is no expression.
        let whole = Regex::new(source).and_then(|_| Regex::new(&format!(r"\A(?:{source})\z")));
        let whole = whole.map_err(|error| {
            Error::config(format!("cannot read the pattern `{source}`")).with_source(error)
        })?;
        Ok(Pattern {
            source: source.to_owned(),
            whole,
        })
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn matches(&self, topic: &str) -> bool {
        self.whole.is_match(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_name_has_to_match() {
        let pattern = Pattern::new("logs-.*|audit").expect("a pattern");
        for (topic, matches) in [
            ("logs-a", true),
            ("logs-", true),
            ("audit", true),
            ("old-logs-a", false),
            ("audit-2", false),
            ("logs", false),
        ] {
            assert_eq!(pattern.matches(topic), matches, "{topic}");
        }
        assert_eq!(pattern.source(), "logs-.*|audit");
        let error = Pattern::new("logs-(").expect_err("open");
        assert!(error.to_string().contains("`logs-(`"), "{error}");
    }
}
