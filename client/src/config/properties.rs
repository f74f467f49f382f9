//! The text of a `.properties` file, as `java.util.Properties` reads it.

use crate::error::Error;

/// Reads names and values in the order in which they stand.
///
/// `#` and `!` start comments; `=`, `:` or white space separates; a backslash escapes, continues
/// a line, and `\uXXXX` names a UTF-16 unit.
///
/// # Errors
/// Kind [`Config`](crate::ErrorKind::Config): a malformed escape, with its line.
pub(crate) fn parse(text: &str) -> Result<Vec<(String, String)>, Error> {
    let mut properties = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let mut logical = line.trim_start().to_owned();
        if logical.is_empty() || logical.starts_with(['#', '!']) {
            continue;
        }
        while is_continued(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start()),
                None => break,
            }
        }
        let (name, value) = split(&logical);
        let unescape = |raw: &str| {
            unescape(raw).ok_or_else(|| {
                Error::config(format!(
                    "line {} of the properties: malformed \\u escape in `{raw}`",
                    number + 1
                ))
            })
        };
        properties.push((unescape(name)?, unescape(value)?));
    }
    Ok(properties)
}

/// An odd number of backslashes at the end continues the line.
fn is_continued(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits at the first separator that is not escaped; both sides still hold their escapes.
fn split(line: &str) -> (&str, &str) {
    let is_blank = |c: char| matches!(c, ' ' | '\t' | '\u{c}');
    let mut escaped = false;
    let name_end = line
        .char_indices()
        .find(|(_, c)| {
            let ends = !escaped && (matches!(c, '=' | ':') || is_blank(*c));
            escaped = *c == '\\' && !escaped;
            ends
        })
        .map_or(line.len(), |(position, _)| position);
    let rest = line[name_end..].trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (&line[..name_end], rest.trim_start_matches(is_blank))
}

fn unescape(raw: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => match chars.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    if digits.len() != 4 {
                        return None;
                    }
                    units.push(u16::from_str_radix(&digits, 16).ok()?);
                    continue;
                }
                Some(other) => other,
                None => continue,
            },
            plain => plain,
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_java_reads_it() {
        let text = "# comment\n! another\n\n  acks = all\nlinger.ms:7\nclient.id  spaced out \n\
                    bootstrap.servers=a:1,\\\n   b:2\nkey\\ with\\=signs=value\n\
                    unicode=\\u00e9\\uD83D\\uDE00\nempty=\nback=a\\\\\nlast";
        let expected = [
            ("acks", "all"),
            ("linger.ms", "7"),
            ("client.id", "spaced out "),
            ("bootstrap.servers", "a:1,b:2"),
            ("key with=signs", "value"),
            ("unicode", "é😀"),
            ("empty", ""),
            ("back", "a\\"),
            ("last", ""),
        ];
        let expected: Vec<(String, String)> = expected
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        assert_eq!(parse(text).expect("valid"), expected);
    }

    #[test]
    fn a_broken_escape_names_its_line() {
        let error = parse("a=b\nc=\\u12").expect_err("malformed");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
