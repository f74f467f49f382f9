//! Where `group seek` moves a group's positions: what was asked for, and the plan. Pure.

use std::str::FromStr;

use serde::Serialize;

use super::time::parse_instant;

/// The value of `group seek --to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The first record that is still there.
    Start,
    /// Behind the last record.
    End,
    /// This offset.
    Offset(i64),
    /// That many records further on, or back where it is negative.
    By(i64),
    /// The first record of at least that time; the text is resolved against the clock later.
    Time(String),
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        match text {
            "start" | "beginning" | "earliest" => return Ok(Goal::Start),
            "end" | "latest" => return Ok(Goal::End),
            _ => {}
        }
        if let Some(time) = text.strip_prefix('@') {
            parse_instant(time, 0)?;
            return Ok(Goal::Time(time.to_owned()));
        }
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        match number {
            Some(by) if digits.len() < text.len() => Ok(Goal::By(by)),
            Some(offset) => Ok(Goal::Offset(offset)),
            None => Err(
                "write start, end, a distance (+10, -10), an offset (17) or a time \
                         (@2026-11-30T12:00:00Z, @-5m)"
                    .to_owned(),
            ),
        }
    }
}

/// `--topic NAME` or `--topic NAME/PARTITION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub topic: String,
    pub partition: Option<i32>,
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Scope, String> {
        let (topic, partition) = match text.split_once('/') {
            None => (text, None),
            Some((topic, number)) => {
                let number = number.parse::<i32>().ok().filter(|number| *number >= 0);
                let number = number.ok_or("write TOPIC or TOPIC/PARTITION, such as orders/3")?;
                (topic, Some(number))
            }
        };
        if topic.is_empty() {
            return Err("write TOPIC or TOPIC/PARTITION, such as orders/3".to_owned());
        }
        Ok(Scope {
            topic: topic.to_owned(),
            partition,
        })
    }
}

/// What is known of a partition before the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub committed: Option<i64>,
    pub start: i64,
    pub end: i64,
    /// The first record of the time that was asked for, if there is one.
    pub at_time: Option<i64>,
}

/// One row of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Move {
    pub topic: String,
    pub partition: i32,
    /// The committed offset, where there is one.
    pub from: Option<i64>,
    pub to: i64,
    /// Records between `to` and the end.
    pub lag: i64,
}

/// Where a partition goes: never outside of what is there. `None` if a distance has nothing to
/// count from.
pub fn target(goal: &Goal, known: Known) -> Option<i64> {
    let to = match goal {
        Goal::Start => known.start,
        Goal::End => known.end,
        Goal::Offset(offset) => *offset,
        Goal::By(distance) => known.committed?.saturating_add(*distance),
        Goal::Time(_) => known.at_time.unwrap_or(known.end),
    };
    Some(to.clamp(known.start, known.end.max(known.start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals() {
        for (text, goal) in [
            ("start", Goal::Start),
            ("end", Goal::End),
            ("17", Goal::Offset(17)),
            ("+10", Goal::By(10)),
            ("-10", Goal::By(-10)),
            ("@-5m", Goal::Time("-5m".to_owned())),
        ] {
            assert_eq!(text.parse(), Ok(goal), "{text}");
        }
        for text in ["", "middle", "+", "+-1", "--1", "1.5", "@", "@yesterday"] {
            assert!(text.parse::<Goal>().is_err(), "{text}");
        }
    }

    #[test]
    fn scopes() {
        let scope = |topic: &str, partition| Scope {
            topic: topic.to_owned(),
            partition,
        };
        assert_eq!("orders".parse(), Ok(scope("orders", None)));
        assert_eq!("orders/3".parse(), Ok(scope("orders", Some(3))));
        for text in ["", "/3", "orders/", "orders/-1", "orders/x"] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
    }

    #[test]
    fn no_target_lies_outside_of_the_log() {
        let known = Known {
            committed: Some(50),
            start: 10,
            end: 100,
            at_time: Some(70),
        };
        for (goal, to) in [
            (Goal::Start, Some(10)),
            (Goal::End, Some(100)),
            (Goal::Offset(3), Some(10)),
            (Goal::Offset(60), Some(60)),
            (Goal::By(20), Some(70)),
            (Goal::By(-20), Some(30)),
            (Goal::By(-99), Some(10)),
            (Goal::By(i64::MAX), Some(100)),
            (Goal::Time(String::new()), Some(70)),
        ] {
            assert_eq!(target(&goal, known), to, "{goal:?}");
        }
        let fresh = Known {
            committed: None,
            at_time: None,
            ..known
        };
        assert_eq!(target(&Goal::By(1), fresh), None);
        assert_eq!(target(&Goal::Time(String::new()), fresh), Some(100));
    }
}
