//! Subscriptions by regular expression: RE2's syntax, looked at by the server (KIP-848).

use corduroy_protocol::ErrorCode;

use super::topics::Topics;
use crate::GroupError;
use crate::records::RegexValue;

/// The longest regular expression, in bytes.
pub const REGEX_BYTES_MAX: usize = 4096;
/// What a compiled regular expression may hold, in bytes: `(a{1000}){1000}` is refused by this.
const REGEX_COMPILED_BYTES_MAX: usize = 1 << 20;

/// A regular expression that must match a topic's whole name.
pub(crate) struct TopicPattern(regex::Regex);

impl TopicPattern {
    /// Compiles it; INVALID_REGULAR_EXPRESSION says what is wrong with it.
    pub(crate) fn new(text: &str) -> Result<TopicPattern, GroupError> {
        let refuse = |reason: String| {
            GroupError::new(
                ErrorCode::InvalidRegularExpression,
                format!("the regular expression `{text}` is invalid: {reason}"),
            )
        };
        if text.len() > REGEX_BYTES_MAX {
            return Err(GroupError::new(
                ErrorCode::InvalidRegularExpression,
                format!("the regular expression is longer than {REGEX_BYTES_MAX} bytes"),
            ));
        }
        let plain = without_quotes(text);
        // Alone first: `a)|(b` is wrong, although it would be right between the parentheses below.
        compile(&plain).map_err(&refuse)?;
        compile(&format!(r"\A(?:{plain})\z"))
            .map(TopicPattern)
            .map_err(&refuse)
    }

    /// The names that it matches, now.
    pub(crate) fn resolve(&self, topics: &dyn Topics, now_ms: i64) -> RegexValue {
        let mut names: Vec<String> = topics
            .names()
            .filter(|name| self.0.is_match(name))
            .map(str::to_owned)
            .collect();
        names.sort_unstable();
        RegexValue {
            topics: names,
            version: topics.version(),
            timestamp_ms: now_ms,
        }
    }
}

fn compile(text: &str) -> Result<regex::Regex, String> {
    regex::RegexBuilder::new(text)
        .size_limit(REGEX_COMPILED_BYTES_MAX)
        .dfa_size_limit(REGEX_COMPILED_BYTES_MAX)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
            // The parser's message spans lines and marks the place; its last line is the reason.
            other => {
                let text = other.to_string();
                let reason = text.lines().last().unwrap_or_default();
                reason.trim_start_matches("error: ").to_owned()
            }
        })
}

/// RE2 quotes text as `\Q...\E`, which the engine below does not know.
fn without_quotes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        plain.push_str(before);
        if let Some(quoted) = escape.strip_prefix(r"\Q") {
            let (literal, after) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
            plain.push_str(&regex::escape(literal));
            rest = after;
        } else {
            // A backslash and what it escapes, so that `\\Q` is a backslash and a Q.
            let end = escape
                .char_indices()
                .nth(2)
                .map_or(escape.len(), |(end, _)| end);
            plain.push_str(&escape[..end]);
            rest = &escape[end..];
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names_as_re2_does() {
        for (pattern, name, matches) in [
            ("orders", "orders", true),
            ("orders", "orders-eu", false),
            ("orders", "my-orders", false),
            ("orders.*", "orders-eu", true),
            // Leftmost-first would stop at `a`.
            ("a|ab", "ab", true),
            ("a|b", "ab", false),
            (r"\Qa.b\E.", "a.bc", true),
            (r"\Qa.b\E.", "axbc", false),
            (r"\Qa.b", "a.b", true),
            (r"a\\Q", r"a\Q", true),
            ("(?i)ORDERS", "orders", true),
            (r"\d+", "123", true),
            ("^orders$", "orders", true),
        ] {
            let compiled = TopicPattern::new(pattern).unwrap();
            assert_eq!(compiled.0.is_match(name), matches, "{pattern} on {name}");
        }
    }

    #[test]
    fn a_pattern_that_is_wrong_or_too_large_is_refused() {
        for pattern in [
            "(",
            "a)|(b",
            "*",
            r"(a)\1",
            "(?=a)",
            "((a{1000}){1000}){1000}",
            &"a".repeat(REGEX_BYTES_MAX + 1),
        ] {
            let error = TopicPattern::new(pattern).err().unwrap();
            assert_eq!(error.code, ErrorCode::InvalidRegularExpression, "{pattern}");
            assert!(!error.message.contains('\n'), "{}", error.message);
        }
    }
}
