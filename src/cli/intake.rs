//! Records out of a byte stream: lines, lines with a key separator, or a percent format.

use super::format::{
    BytesShape, FormatError, NumberShape, Piece, Shape, Verb, from_base64, from_hex, parse,
};

/// The most bytes that one record may take on the input before we give up on its delimiter.
pub const INPUT_RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A record as read from the input; what the input does not say stays `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputRecord {
    pub topic: Option<String>,
    pub partition: Option<i32>,
    /// Milliseconds since 1970.
    pub timestamp: Option<i64>,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
}

/// How the input is cut into records.
#[derive(Clone, Debug)]
pub enum Intake {
    /// One line, one value.
    Lines,
    /// One line: key, separator, value. A line without the separator is a value without a key.
    KeyedLines { separator: Vec<u8> },
    /// One line, one key; no value at all.
    Tombstones,
    /// A percent format, repeated to the end of the input.
    Format(Vec<FormatPiece>),
}

/// One piece of a compiled input format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatPiece {
    /// Bytes that must stand here.
    Literal(Vec<u8>),
    /// A field that ends before these bytes (empty: at the end of the input).
    Field { field: Field, until: Vec<u8> },
    /// A number of fixed size.
    FixedNumber {
        field: Field,
        bytes: usize,
        big_endian: bool,
    },
    /// A key or value whose size came before it.
    Sized { field: Field },
}

/// What a piece of input fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Topic,
    Partition,
    Timestamp,
    Key(Encoding),
    Value(Encoding),
    KeyBytes,
    ValueBytes,
    Headers,
}

/// How bytes are written in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Raw,
    Hex,
    Base64,
}

/// What [`Intake::next`] found at the front of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A record and the bytes that it took.
    Record { record: InputRecord, bytes: usize },
    /// The rest of it has not arrived.
    More,
    /// Nothing is left.
    End,
}

impl Intake {
    /// Compiles a percent format for reading.
    ///
    /// # Errors
    /// A verb that can't be read, or two fields with nothing between them.
    pub fn from_format(format: &str) -> Result<Intake, String> {
        let pieces = parse(format).map_err(|error: FormatError| error.to_string())?;
        let mut compiled = Vec::new();
        let (mut key_sized, mut value_sized) = (false, false);
        for (at, piece) in pieces.iter().enumerate() {
            let (verb, shape) = match piece {
                Piece::Literal(bytes) => {
                    // A field before it has already asked for it as its end.
                    if at == 0 || !ends_by_literal(compiled.last()) {
                        compiled.push(FormatPiece::Literal(bytes.clone()));
                    }
                    continue;
                }
                Piece::Verb(verb, shape) => (*verb, *shape),
            };
            let field = field(verb, shape)?;
            if let NumberShape::Big { bytes } | NumberShape::Little { bytes } = shape.number {
                let big_endian = matches!(shape.number, NumberShape::Big { .. });
                compiled.push(FormatPiece::FixedNumber {
                    field,
                    bytes,
                    big_endian,
                });
            } else if (matches!(field, Field::Key(_)) && key_sized)
                || (matches!(field, Field::Value(_)) && value_sized)
            {
                compiled.push(FormatPiece::Sized { field });
            } else {
                let until = match pieces.get(at + 1) {
                    Some(Piece::Literal(bytes)) => bytes.clone(),
                    Some(Piece::Verb(..)) => {
                        return Err("two fields need something between them (or a size before \
                                    the second, as in %V{big32}%v)"
                            .to_owned());
                    }
                    None => Vec::new(),
                };
                compiled.push(FormatPiece::Field { field, until });
            }
            key_sized |= field == Field::KeyBytes;
            value_sized |= field == Field::ValueBytes;
        }
        if !compiled
            .iter()
            .any(|piece| !matches!(piece, FormatPiece::Literal(_)))
        {
            return Err("the format names no field, %v for instance".to_owned());
        }
        Ok(Intake::Format(compiled))
    }

    /// What a record of the input is called: a line where each ends with one.
    pub fn unit(&self) -> &'static str {
        match self {
            Intake::Lines | Intake::KeyedLines { .. } | Intake::Tombstones => "line",
            Intake::Format(pieces) => match pieces.last() {
                Some(FormatPiece::Literal(end) | FormatPiece::Field { until: end, .. })
                    if end == b"\n" =>
                {
                    "line"
                }
                _ => "record",
            },
        }
    }

    /// Reads the record at the front of `buffer`. `is_end` says that nothing follows it.
    ///
    /// # Errors
    /// A sentence about input that does not fit the format.
    pub fn next(&self, buffer: &[u8], is_end: bool) -> Result<Next, String> {
        if buffer.is_empty() {
            return Ok(if is_end { Next::End } else { Next::More });
        }
        let found = match self {
            Intake::Format(pieces) => read_format(pieces, buffer, is_end)?,
            _ => self.read_line(buffer, is_end),
        };
        match found {
            Some((record, bytes)) => Ok(Next::Record { record, bytes }),
            None if is_end => Err(format!(
                "the input ends inside a record ({} bytes are left over)",
                buffer.len()
            )),
            None if buffer.len() > INPUT_RECORD_BYTES_MAX => Err(format!(
                "no end of a record within {INPUT_RECORD_BYTES_MAX} bytes"
            )),
            None => Ok(Next::More),
        }
    }

    fn read_line(&self, buffer: &[u8], is_end: bool) -> Option<(InputRecord, usize)> {
        let (line, bytes) = match find(buffer, b"\n") {
            Some(at) => (&buffer[..at], at + 1),
            None if is_end => (buffer, buffer.len()),
            None => return None,
        };
        let mut record = InputRecord::default();
        match self {
            Intake::Tombstones => record.key = Some(line.to_vec()),
            Intake::KeyedLines { separator } => match find(line, separator) {
                Some(at) => {
                    record.key = Some(line[..at].to_vec());
                    record.value = Some(line[at + separator.len()..].to_vec());
                }
                None => record.value = Some(line.to_vec()),
            },
            Intake::Lines | Intake::Format(_) => record.value = Some(line.to_vec()),
        }
        Some((record, bytes))
    }
}

fn ends_by_literal(piece: Option<&FormatPiece>) -> bool {
    matches!(piece, Some(FormatPiece::Field { .. }))
}

fn field(verb: Verb, shape: Shape) -> Result<Field, String> {
    let encoding = match shape.bytes {
        BytesShape::Raw => Encoding::Raw,
        BytesShape::Hex => Encoding::Hex,
        BytesShape::Base64 => Encoding::Base64,
    };
    Ok(match verb {
        Verb::Topic => Field::Topic,
        Verb::Partition => Field::Partition,
        Verb::Timestamp => Field::Timestamp,
        Verb::Key => Field::Key(encoding),
        Verb::Value => Field::Value(encoding),
        Verb::KeyBytes => Field::KeyBytes,
        Verb::ValueBytes => Field::ValueBytes,
        Verb::Headers => Field::Headers,
        Verb::Offset | Verb::HeaderCount | Verb::LeaderEpoch | Verb::Number => {
            return Err(
                "%o, %e, %i and %H can be printed but not read: the log decides them".to_owned(),
            );
        }
    })
}

/// Sizes read so far; `Some(-1)` is null.
#[derive(Default)]
struct Sizes {
    key: Option<i64>,
    value: Option<i64>,
}

fn read_format(
    pieces: &[FormatPiece],
    buffer: &[u8],
    is_end: bool,
) -> Result<Option<(InputRecord, usize)>, String> {
    let mut record = InputRecord::default();
    let mut sizes = Sizes::default();
    let mut at = 0;
    for (index, piece) in pieces.iter().enumerate() {
        let rest = &buffer[at..];
        match piece {
            FormatPiece::Literal(bytes) => {
                let seen = rest.len().min(bytes.len());
                if rest[..seen] != bytes[..seen] {
                    return Err(format!(
                        "expected `{}`, found `{}`",
                        bytes.escape_ascii(),
                        rest[..seen].escape_ascii()
                    ));
                }
                if seen < bytes.len() && !is_end {
                    return Ok(None);
                }
                // A missing last newline is as good as one.
                if seen < bytes.len() && !(index + 1 == pieces.len() && bytes == b"\n") {
                    return Ok(None);
                }
                at += seen;
            }
            FormatPiece::FixedNumber {
                field,
                bytes,
                big_endian,
            } => {
                let Some(raw) = rest.get(..*bytes) else {
                    return Ok(None);
                };
                fill_number(&mut record, &mut sizes, *field, fixed(raw, *big_endian))?;
                at += bytes;
            }
            FormatPiece::Sized { field } => {
                let size = match field {
                    Field::Key(_) => sizes.key,
                    _ => sizes.value,
                };
                let Ok(size) = usize::try_from(size.unwrap_or(-1)) else {
                    continue;
                };
                if size > INPUT_RECORD_BYTES_MAX {
                    return Err(format!("a size of {size} bytes is above the limit"));
                }
                let Some(raw) = rest.get(..size) else {
                    return Ok(None);
                };
                fill(&mut record, &mut sizes, *field, raw)?;
                at += size;
            }
            FormatPiece::Field { field, until } => {
                let is_last = index + 1 == pieces.len();
                let (raw, taken) = match find(rest, until) {
                    Some(end) if !until.is_empty() => (&rest[..end], end + until.len()),
                    _ if is_end && is_last && (until.is_empty() || until == b"\n") => {
                        (rest, rest.len())
                    }
                    _ => return Ok(None),
                };
                fill(&mut record, &mut sizes, *field, raw)?;
                at += taken;
            }
        }
    }
    if at == 0 {
        return Err("the format takes no input".to_owned());
    }
    Ok(Some((record, at)))
}

fn fixed(raw: &[u8], big_endian: bool) -> i64 {
    let mut bytes = [0; 8];
    if big_endian {
        bytes[..raw.len()].copy_from_slice(raw);
    } else {
        for (to, from) in bytes.iter_mut().zip(raw.iter().rev()) {
            *to = *from;
        }
    }
    // Arithmetic shift: a size of -1 stays -1 whatever its width.
    i64::from_be_bytes(bytes) >> (64 - 8 * raw.len())
}

fn fill(
    record: &mut InputRecord,
    sizes: &mut Sizes,
    field: Field,
    raw: &[u8],
) -> Result<(), String> {
    match field {
        Field::Topic => record.topic = Some(String::from_utf8_lossy(raw).into_owned()),
        Field::Key(encoding) => record.key = Some(decode(encoding, raw)?),
        Field::Value(encoding) => record.value = Some(decode(encoding, raw)?),
        Field::Headers => record.headers = headers(raw)?,
        Field::Partition | Field::Timestamp | Field::KeyBytes | Field::ValueBytes => {
            let number = std::str::from_utf8(raw)
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .ok_or_else(|| format!("`{}` is no number", raw.escape_ascii()))?;
            fill_number(record, sizes, field, number)?;
        }
    }
    Ok(())
}

fn fill_number(
    record: &mut InputRecord,
    sizes: &mut Sizes,
    field: Field,
    number: i64,
) -> Result<(), String> {
    match field {
        Field::Partition => {
            record.partition =
                Some(i32::try_from(number).map_err(|_| format!("{number} is no partition"))?);
        }
        Field::Timestamp => record.timestamp = Some(number),
        Field::KeyBytes => sizes.key = Some(number),
        Field::ValueBytes => sizes.value = Some(number),
        Field::Topic | Field::Key(_) | Field::Value(_) | Field::Headers => {
            return Err("this field is no number".to_owned());
        }
    }
    Ok(())
}

fn decode(encoding: Encoding, raw: &[u8]) -> Result<Vec<u8>, String> {
    let decoded = match encoding {
        Encoding::Raw => Some(raw.to_vec()),
        Encoding::Hex => from_hex(raw),
        Encoding::Base64 => from_base64(raw),
    };
    decoded.ok_or_else(|| format!("`{}` is not what the format says", raw.escape_ascii()))
}

fn headers(raw: &[u8]) -> Result<Vec<(String, Vec<u8>)>, String> {
    if raw.is_empty() {
        return Ok(Vec::new());
    }
    raw.split(|&b| b == b',')
        .map(|pair| {
            let at = find(pair, b"=")
                .ok_or_else(|| format!("header `{}` has no =", pair.escape_ascii()))?;
            Ok((
                String::from_utf8_lossy(&pair[..at]).into_owned(),
                pair[at + 1..].to_vec(),
            ))
        })
        .collect()
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    match needle {
        [] => Some(0),
        [byte] => haystack.iter().position(|b| b == byte),
        _ => haystack
            .windows(needle.len())
            .position(|window| window == needle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `input` in pieces of every size; what comes out must not depend on the cut.
    fn check(intake: &Intake, input: &[u8], expected: &[InputRecord]) {
        for chunk in 1..=input.len().max(1) {
            let mut records = Vec::new();
            let mut buffer = Vec::new();
            let mut chunks = input.chunks(chunk).peekable();
            loop {
                let is_end = chunks.peek().is_none();
                match intake.next(&buffer, is_end).expect("readable input") {
                    Next::Record { record, bytes } => {
                        records.push(record);
                        buffer.drain(..bytes);
                    }
                    Next::More => buffer.extend_from_slice(chunks.next().expect("more input")),
                    Next::End => break,
                }
            }
            assert_eq!(records, expected, "in pieces of {chunk} bytes");
        }
    }

    fn pair(key: Option<&str>, value: Option<&str>) -> InputRecord {
        InputRecord {
            key: key.map(|k| k.as_bytes().to_vec()),
            value: value.map(|v| v.as_bytes().to_vec()),
            ..InputRecord::default()
        }
    }

    #[test]
    fn lines_with_and_without_the_last_newline() {
        let expected = [
            pair(None, Some("a")),
            pair(None, Some("")),
            pair(None, Some("b")),
        ];
        check(&Intake::Lines, b"a\n\nb\n", &expected);
        check(&Intake::Lines, b"a\n\nb", &expected);
        check(&Intake::Lines, b"", &[]);
    }

    #[test]
    fn a_key_ends_at_the_first_separator() {
        check(
            &Intake::KeyedLines {
                separator: b"::".to_vec(),
            },
            b"k::v::w\nplain\n::empty key\n",
            &[
                pair(Some("k"), Some("v::w")),
                pair(None, Some("plain")),
                pair(Some(""), Some("empty key")),
            ],
        );
    }

    #[test]
    fn tombstones_have_keys_only() {
        check(
            &Intake::Tombstones,
            b"a\nb",
            &[pair(Some("a"), None), pair(Some("b"), None)],
        );
    }

    #[test]
    fn formats_read_what_the_printer_prints() {
        let lines = Intake::from_format("%k %v\\n").expect("format");
        let expected = [pair(Some("a"), Some("b c")), pair(Some("d"), Some("e"))];
        check(&lines, b"a b c\nd e\n", &expected);
        check(&lines, b"a b c\nd e", &expected);

        let sized = Intake::from_format("%K{big32}%k%V{big32}%v").expect("format");
        check(
            &sized,
            b"\0\0\0\x01a\0\0\0\x02\n:\xff\xff\xff\xff\xff\xff\xff\xff",
            &[pair(Some("a"), Some("\n:")), pair(None, None)],
        );

        let rich = Intake::from_format("%t/%p %T %h|%k{hex}=%v{base64};").expect("format");
        check(
            &rich,
            b"t/3 77 a=1,b=2|6b=Zm8=;",
            &[InputRecord {
                topic: Some("t".to_owned()),
                partition: Some(3),
                timestamp: Some(77),
                key: Some(b"k".to_vec()),
                value: Some(b"fo".to_vec()),
                headers: vec![
                    ("a".to_owned(), b"1".to_vec()),
                    ("b".to_owned(), b"2".to_vec()),
                ],
            }],
        );
    }

    #[test]
    fn wrong_input_is_refused_with_a_reason() {
        let format = Intake::from_format("<%p>\\n").expect("format");
        assert_eq!(
            format.next(b"3", false),
            Err("expected `<`, found `3`".to_owned())
        );
        assert_eq!(
            format.next(b"<x>\n", false),
            Err("`x` is no number".to_owned())
        );
        assert_eq!(
            format.next(b"<3", true),
            Err("the input ends inside a record (2 bytes are left over)".to_owned())
        );
        for wrong in ["%k%v", "%o", "plain", ""] {
            assert!(Intake::from_format(wrong).is_err(), "{wrong}");
        }
    }
}
