//! Where to begin reading: `-o start|end|N|-N|@TIME`.

use std::str::FromStr;

use super::time::parse_instant;

/// The value of `consume -o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first record that is still there.
    Start,
    /// Only what comes from now on.
    End,
    /// This offset.
    Offset(i64),
    /// That many records before the end of each partition.
    BeforeEnd(u64),
    /// The first record of at least that time; the text is resolved against the clock later.
    Time(String),
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Position, String> {
        match text {
            "start" | "beginning" | "earliest" => return Ok(Position::Start),
            "end" | "latest" => return Ok(Position::End),
            _ => {}
        }
        if let Some(time) = text.strip_prefix('@') {
            parse_instant(time, 0)?;
            return Ok(Position::Time(time.to_owned()));
        }
        let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let parsed = match text.strip_prefix('-') {
            Some(back) if is_number(back) => back.parse().ok().map(Position::BeforeEnd),
            None if is_number(text) => text.parse().ok().map(Position::Offset),
            _ => None,
        };
        parsed.ok_or_else(|| {
            "write start, end, an offset (17), a distance from the end (-10) or a time \
             (@2026-11-30T12:00:00Z, @-5m)"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions() {
        for (text, position) in [
            ("start", Position::Start),
            ("end", Position::End),
            ("0", Position::Offset(0)),
            ("17", Position::Offset(17)),
            ("-10", Position::BeforeEnd(10)),
            ("@-5m", Position::Time("-5m".to_owned())),
            ("@1796042096789", Position::Time("1796042096789".to_owned())),
        ] {
            assert_eq!(text.parse(), Ok(position), "{text}");
        }
        for text in ["", "middle", "--1", "@", "@yesterday", "1.5"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }
}
