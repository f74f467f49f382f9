//! Percent formats: one small language for printing records and for reading them.
//!
//! The verbs are those that `rpk` and `kcat` share, and where they differ, both:
//!
//! | verb | prints | reads |
//! |---|---|---|
//! | `%t` `%p` `%o` | topic, partition, offset | topic, partition |
//! | `%k` `%v` (or `%s`) | key, value | key, value |
//! | `%K` `%V` (or `%S`) | their sizes in bytes, -1 for null | the size of the next key or value |
//! | `%T` (or `%d`) | timestamp in milliseconds, `%d{rfc3339}` as text | timestamp in milliseconds |
//! | `%h` `%H` | headers `name=value,…`, their number | headers `name=value,…` |
//! | `%e` `%i` | leader epoch, running number from 1 | |
//! | `%%` `\n` `\r` `\t` `\\` `\xHH` | themselves | themselves |
//!
//! A modifier in braces changes the shape: numbers take `{big16}`, `{big32}`, `{big64}`,
//! `{little16}`, `{little32}`, `{little64}`, `{hex}`; bytes take `{hex}`, `{base64}`.

use std::fmt;

/// What a verb stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Topic,
    Partition,
    Offset,
    Key,
    Value,
    KeyBytes,
    ValueBytes,
    Timestamp,
    Headers,
    HeaderCount,
    LeaderEpoch,
    Number,
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberShape {
    Ascii,
    Hex,
    Big { bytes: usize },
    Little { bytes: usize },
    Rfc3339,
}

/// How bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BytesShape {
    Raw,
    Hex,
    Base64,
}

/// The shape of one verb; which half counts depends on the verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) number: NumberShape,
    pub(crate) bytes: BytesShape,
}

impl Shape {
    const PLAIN: Shape = Shape {
        number: NumberShape::Ascii,
        bytes: BytesShape::Raw,
    };
}

/// One piece of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Literal(Vec<u8>),
    Verb(Verb, Shape),
}

/// Why a format string can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    at: usize,
    what: String,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at character {})", self.what, self.at + 1)
    }
}

impl std::error::Error for FormatError {}

/// Splits a format into literals and verbs. Neighbouring literals are joined, so that a reader
/// has one delimiter to look for.
pub(crate) fn parse(text: &str) -> Result<Vec<Piece>, FormatError> {
    let chars: Vec<char> = text.chars().collect();
    let mut pieces = Vec::new();
    let mut literal = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        match chars[at] {
            '%' => {
                let start = at;
                let Some(&name) = chars.get(at + 1) else {
                    return Err(error(
                        start,
                        "a lone % at the end; write %% for a percent sign",
                    ));
                };
                at += 2;
                if name == '%' {
                    literal.push(b'%');
                    continue;
                }
                let verb = verb(name).ok_or_else(|| {
                    error(
                        start,
                        &format!("unknown verb %{name}; see `--help` for the list"),
                    )
                })?;
                let mut shape = Shape::PLAIN;
                if chars.get(at) == Some(&'{') {
                    let end = chars[at..]
                        .iter()
                        .position(|&c| c == '}')
                        .ok_or_else(|| error(at, "a { without its }"))?;
                    let modifier: String = chars[at + 1..at + end].iter().collect();
                    shape = modified(verb, &modifier).ok_or_else(|| {
                        error(at, &format!("%{name} takes no modifier {{{modifier}}}"))
                    })?;
                    at += end + 1;
                }
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::Verb(verb, shape));
            }
            '\\' => {
                let start = at;
                at += 2;
                literal.push(match chars.get(start + 1) {
                    Some('n') => b'\n',
                    Some('r') => b'\r',
                    Some('t') => b'\t',
                    Some('0') => 0,
                    Some('\\') => b'\\',
                    Some('x') => {
                        let digits: String = chars.iter().skip(at).take(2).collect();
                        at += 2;
                        match u8::from_str_radix(&digits, 16) {
                            Ok(byte) if digits.len() == 2 => byte,
                            _ => return Err(error(start, "\\x needs two hexadecimal digits")),
                        }
                    }
                    Some(other) => {
                        return Err(error(start, &format!("unknown escape \\{other}")));
                    }
                    None => return Err(error(start, "a lone \\ at the end")),
                });
            }
            other => {
                let mut buffer = [0; 4];
                literal.extend_from_slice(other.encode_utf8(&mut buffer).as_bytes());
                at += 1;
            }
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

fn error(at: usize, what: &str) -> FormatError {
    FormatError {
        at,
        what: what.to_owned(),
    }
}

fn verb(name: char) -> Option<Verb> {
    Some(match name {
        't' => Verb::Topic,
        'p' => Verb::Partition,
        'o' => Verb::Offset,
        'k' => Verb::Key,
        'v' | 's' => Verb::Value,
        'K' => Verb::KeyBytes,
        'V' | 'S' => Verb::ValueBytes,
        'T' | 'd' => Verb::Timestamp,
        'h' => Verb::Headers,
        'H' => Verb::HeaderCount,
        'e' => Verb::LeaderEpoch,
        'i' => Verb::Number,
        _ => return None,
    })
}

fn modified(verb: Verb, modifier: &str) -> Option<Shape> {
    let is_bytes = matches!(verb, Verb::Key | Verb::Value | Verb::Topic);
    let is_number = !is_bytes && verb != Verb::Headers;
    let number = |number| Shape {
        number,
        ..Shape::PLAIN
    };
    let bytes = |bytes| Shape {
        bytes,
        ..Shape::PLAIN
    };
    Some(match modifier {
        "hex" if is_bytes => bytes(BytesShape::Hex),
        "base64" if is_bytes => bytes(BytesShape::Base64),
        "hex" if is_number => number(NumberShape::Hex),
        "ascii" if is_number => Shape::PLAIN,
        "big16" if is_number => number(NumberShape::Big { bytes: 2 }),
        "big32" if is_number => number(NumberShape::Big { bytes: 4 }),
        "big64" if is_number => number(NumberShape::Big { bytes: 8 }),
        "little16" if is_number => number(NumberShape::Little { bytes: 2 }),
        "little32" if is_number => number(NumberShape::Little { bytes: 4 }),
        "little64" if is_number => number(NumberShape::Little { bytes: 8 }),
        "rfc3339" if verb == Verb::Timestamp => number(NumberShape::Rfc3339),
        _ => return None,
    })
}

/// A record as the printer sees it.
pub struct RecordView<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub offset: i64,
    /// Milliseconds since 1970; -1 is "none".
    pub timestamp: i64,
    /// -1 is "unknown".
    pub leader_epoch: i32,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: Vec<(&'a str, Option<&'a [u8]>)>,
}

/// A compiled format for printing.
#[derive(Clone, Debug)]
pub struct Printer {
    pieces: Vec<Piece>,
    printed: u64,
}

impl Printer {
    /// # Errors
    /// What is wrong with the format, and where.
    pub fn new(format: &str) -> Result<Printer, FormatError> {
        Ok(Printer {
            pieces: parse(format)?,
            printed: 0,
        })
    }

    /// Appends one record to `out`.
    pub fn print(&mut self, record: &RecordView<'_>, out: &mut Vec<u8>) {
        self.printed += 1;
        for piece in &self.pieces {
            match piece {
                Piece::Literal(bytes) => out.extend_from_slice(bytes),
                Piece::Verb(verb, shape) => match verb {
                    Verb::Topic => put_bytes(record.topic.as_bytes(), *shape, out),
                    Verb::Key => put_bytes(record.key.unwrap_or_default(), *shape, out),
                    Verb::Value => put_bytes(record.value.unwrap_or_default(), *shape, out),
                    Verb::Headers => put_headers(&record.headers, out),
                    Verb::Partition => put_number(record.partition.into(), *shape, out),
                    Verb::Offset => put_number(record.offset, *shape, out),
                    Verb::KeyBytes => put_number(size(record.key), *shape, out),
                    Verb::ValueBytes => put_number(size(record.value), *shape, out),
                    Verb::Timestamp => put_number(record.timestamp, *shape, out),
                    Verb::HeaderCount => put_number(count(record.headers.len()), *shape, out),
                    Verb::LeaderEpoch => put_number(record.leader_epoch.into(), *shape, out),
                    Verb::Number => {
                        put_number(i64::try_from(self.printed).unwrap_or(i64::MAX), *shape, out);
                    }
                },
            }
        }
    }
}

fn size(bytes: Option<&[u8]>) -> i64 {
    bytes.map_or(-1, |bytes| count(bytes.len()))
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn put_number(number: i64, shape: Shape, out: &mut Vec<u8>) {
    match shape.number {
        NumberShape::Ascii => out.extend_from_slice(number.to_string().as_bytes()),
        NumberShape::Hex => out.extend_from_slice(format!("{number:x}").as_bytes()),
        NumberShape::Big { bytes } => out.extend_from_slice(&number.to_be_bytes()[8 - bytes..]),
        NumberShape::Little { bytes } => out.extend_from_slice(&number.to_le_bytes()[..bytes]),
        NumberShape::Rfc3339 => {
            out.extend_from_slice(super::time::show_instant(number).as_bytes());
        }
    }
}

fn put_bytes(bytes: &[u8], shape: Shape, out: &mut Vec<u8>) {
    match shape.bytes {
        BytesShape::Raw => out.extend_from_slice(bytes),
        BytesShape::Hex => {
            for byte in bytes {
                out.extend_from_slice(format!("{byte:02x}").as_bytes());
            }
        }
        BytesShape::Base64 => out.extend_from_slice(base64(bytes).as_bytes()),
    }
}

fn put_headers(headers: &[(&str, Option<&[u8]>)], out: &mut Vec<u8>) {
    for (index, (name, value)) in headers.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(name.as_bytes());
        out.push(b'=');
        out.extend_from_slice(value.unwrap_or(b"NULL"));
    }
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Standard base64 with padding (RFC 4648, section 4).
pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().enumerate().fold(0u32, |word, (index, &byte)| {
            word | u32::from(byte) << (16 - 8 * index)
        });
        for index in 0..4 {
            if index <= chunk.len() {
                text.push(char::from(BASE64[(word >> (18 - 6 * index) & 63) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Reads standard base64 with padding; `None` for anything else.
pub(crate) fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let last = text.len().saturating_sub(4);
    for (at, chunk) in text.chunks(4).enumerate() {
        let padding = chunk.iter().rev().take_while(|&&c| c == b'=').count();
        if padding > 2 || (padding > 0 && at * 4 != last) {
            return None;
        }
        let mut word = 0u32;
        for &c in &chunk[..4 - padding] {
            let digit = BASE64.iter().position(|&d| d == c)?;
            word = word << 6 | u32::try_from(digit).ok()?;
        }
        word <<= 6 * padding;
        bytes.extend_from_slice(&word.to_be_bytes()[1..4 - padding]);
    }
    Some(bytes)
}

/// Reads hexadecimal digits, two a byte; `None` for anything else.
pub(crate) fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks(2)
        .map(|pair| {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            u8::try_from(high * 16 + low).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(format: &str) -> Vec<u8> {
        let record = RecordView {
            topic: "orders",
            partition: 3,
            offset: 258,
            timestamp: 1_796_042_096_789,
            leader_epoch: 7,
            key: Some(b"k1"),
            value: None,
            headers: vec![("a", Some(b"1")), ("a", None)],
        };
        let mut out = Vec::new();
        Printer::new(format).expect(format).print(&record, &mut out);
        out
    }

    #[test]
    fn every_verb_prints() {
        for (format, expected) in [
            ("%p %o %k %v\\n", "3 258 k1 \n"),
            ("%t/%p@%o", "orders/3@258"),
            ("%K,%V,%S|%s|", "2,-1,-1||"),
            ("%T %d{rfc3339}", "1796042096789 2026-11-30T12:34:56.789Z"),
            ("%h %H", "a=1,a=NULL 2"),
            ("%e#%i", "7#1"),
            ("100%%\\t\\\\\\x41", "100%\t\\A"),
            ("%k{hex} %k{base64} %o{hex}", "6b31 azE= 102"),
        ] {
            assert_eq!(
                String::from_utf8_lossy(&printed(format)),
                expected,
                "{format}"
            );
        }
        assert_eq!(printed("%o{big16}"), [1, 2]);
        assert_eq!(printed("%o{little32}"), [2, 1, 0, 0]);
        assert_eq!(printed("%V{big32}"), [0xff; 4]);
    }

    #[test]
    fn wrong_formats_say_where() {
        for (format, message) in [
            (
                "%k%",
                "a lone % at the end; write %% for a percent sign (at character 3)",
            ),
            (
                "%q",
                "unknown verb %q; see `--help` for the list (at character 1)",
            ),
            ("%k{big32}", "%k takes no modifier {big32} (at character 3)"),
            ("%k{hex", "a { without its } (at character 3)"),
            ("a\\q", "unknown escape \\q (at character 2)"),
            ("\\x4", "\\x needs two hexadecimal digits (at character 1)"),
        ] {
            let error = Printer::new(format).expect_err(format);
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn base64_and_hex_come_back() {
        for text in ["", "f", "fo", "foo", "foob", "fooba", "foobar"] {
            assert_eq!(
                from_base64(base64(text.as_bytes()).as_bytes()).as_deref(),
                Some(text.as_bytes())
            );
        }
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
        assert_eq!(base64(b"fo"), "Zm8=");
        for wrong in ["a", "a===", "Zm8=Zm8=", "Zm 8"] {
            assert_eq!(from_base64(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(from_hex(b"6b31"), Some(b"k1".to_vec()));
        assert_eq!(from_hex(b"6b3"), None);
        assert_eq!(from_hex(b"zz"), None);
    }
}
