//! What `group list`, `group describe` and `group seek` print. Fields of the JSON are only ever
//! added.

use std::fmt::Write;

use serde::Serialize;

use super::group_seek::Move;
use super::output::{Align, Grid, clean, plural, show_count, show_ids};

/// A row of `group list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupRow {
    pub group: String,
    pub state: Option<String>,
    /// "classic", "consumer" or another type.
    pub group_type: Option<String>,
    pub protocol_type: String,
    pub coordinator: i32,
}

/// The answer of `group describe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupView {
    pub group: String,
    pub state: String,
    pub group_type: String,
    pub protocol_type: String,
    pub assignor: Option<String>,
    pub epoch: Option<i32>,
    pub coordinator: i32,
    /// Records behind the committed offsets, of all partitions that have one and whose end is known;
    /// `None` where there is no such partition.
    pub lag: Option<i64>,
    pub members: Vec<MemberRow>,
    pub partitions: Vec<LagRow>,
}

/// A member of a described group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberRow {
    pub member_id: String,
    pub instance_id: Option<String>,
    pub client_id: String,
    pub host: String,
    pub partitions: usize,
}

/// A partition that a group reads or has read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LagRow {
    pub topic: String,
    pub partition: i32,
    pub committed_offset: Option<i64>,
    /// `None` where the topic is gone or nobody leads it.
    pub end_offset: Option<i64>,
    /// `None` where nothing is committed, or the end is not known.
    pub lag: Option<i64>,
    pub member_id: Option<String>,
    pub metadata: Option<String>,
}

/// The lag of a group: see [`GroupView::lag`].
pub fn total_lag(rows: &[LagRow]) -> Option<i64> {
    let known = rows.iter().filter_map(|row| row.lag);
    known.reduce(i64::saturating_add)
}

/// The table of `group list`.
pub fn list_text(groups: &[GroupRow]) -> String {
    let mut grid = Grid::new(&[
        ("GROUP", Align::Left),
        ("STATE", Align::Left),
        ("TYPE", Align::Left),
        ("PROTOCOL", Align::Left),
        ("COORDINATOR", Align::Right),
    ]);
    for group in groups {
        grid.row([
            group.group.clone(),
            or_dash(group.state.as_deref()),
            or_dash(group.group_type.as_deref()),
            or_dash(Some(&group.protocol_type)),
            group.coordinator.to_string(),
        ]);
    }
    grid.render()
}

/// The text of `group describe`.
pub fn describe_text(group: &GroupView) -> String {
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "group {} ({}, {}, {})",
        clean(&group.group),
        clean(&group.state),
        clean(&group.group_type),
        plural(group.members.len() as u64, "member", "members")
    );
    if let Some(assignor) = &group.assignor {
        let _ = writeln!(text, "assignor     {}", clean(assignor));
    }
    if let Some(epoch) = group.epoch {
        let _ = writeln!(text, "epoch        {epoch}");
    }
    let _ = writeln!(text, "coordinator  {}", group.coordinator);
    // A group that has committed nothing is behind by everything or by nothing: nobody knows.
    let lag = group.lag.and_then(|lag| u64::try_from(lag).ok());
    let lag = lag.map_or_else(|| or_dash(None), show_count);
    let _ = writeln!(text, "lag          {lag}");
    if !group.members.is_empty() {
        text.push('\n');
        text.push_str(&members_text(&group.members));
    }
    if !group.partitions.is_empty() {
        text.push('\n');
        text.push_str(&partitions_text(&group.partitions));
    }
    text
}

fn members_text(members: &[MemberRow]) -> String {
    let mut grid = Grid::new(&[
        ("MEMBER", Align::Left),
        ("INSTANCE", Align::Left),
        ("CLIENT", Align::Left),
        ("HOST", Align::Left),
        ("PARTITIONS", Align::Right),
    ]);
    for member in members {
        grid.row([
            member.member_id.clone(),
            or_dash(member.instance_id.as_deref()),
            or_dash(Some(&member.client_id)),
            member.host.clone(),
            member.partitions.to_string(),
        ]);
    }
    grid.render()
}

fn partitions_text(partitions: &[LagRow]) -> String {
    let mut grid = Grid::new(&[
        ("TOPIC", Align::Left),
        ("PARTITION", Align::Right),
        ("COMMITTED", Align::Right),
        ("END", Align::Right),
        ("LAG", Align::Right),
        ("MEMBER", Align::Left),
    ]);
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    for row in partitions {
        grid.row([
            row.topic.clone(),
            row.partition.to_string(),
            number(row.committed_offset),
            number(row.end_offset),
            number(row.lag),
            or_dash(row.member_id.as_deref()),
        ]);
    }
    grid.render()
}

/// The plan of `group seek`.
pub fn plan_text(moves: &[Move]) -> String {
    let mut grid = Grid::new(&[
        ("TOPIC", Align::Left),
        ("PARTITION", Align::Right),
        ("FROM", Align::Right),
        ("TO", Align::Right),
        ("LAG THEN", Align::Right),
    ]);
    for step in moves {
        grid.row([
            step.topic.clone(),
            step.partition.to_string(),
            step.from
                .map_or_else(|| "-".to_owned(), |from| from.to_string()),
            step.to.to_string(),
            step.lag.to_string(),
        ]);
    }
    grid.render()
}

fn or_dash(text: Option<&str>) -> String {
    match text {
        None | Some("") => show_ids::<i32>(&[]),
        Some(text) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> GroupView {
        GroupView {
            group: "billing".to_owned(),
            state: "Stable".to_owned(),
            group_type: "classic".to_owned(),
            protocol_type: "consumer".to_owned(),
            assignor: Some("range".to_owned()),
            epoch: None,
            coordinator: 2,
            lag: Some(1_200),
            members: vec![MemberRow {
                member_id: "a-1".to_owned(),
                instance_id: None,
                client_id: "a".to_owned(),
                host: "/127.0.0.1".to_owned(),
                partitions: 1,
            }],
            partitions: vec![
                LagRow {
                    topic: "orders".to_owned(),
                    partition: 0,
                    committed_offset: Some(34),
                    end_offset: Some(1_234),
                    lag: Some(1_200),
                    member_id: Some("a-1".to_owned()),
                    metadata: None,
                },
                LagRow {
                    topic: "orders".to_owned(),
                    partition: 1,
                    committed_offset: None,
                    end_offset: None,
                    lag: None,
                    member_id: None,
                    metadata: None,
                },
            ],
        }
    }

    #[test]
    fn a_group_for_people() {
        assert_eq!(
            describe_text(&sample()),
            "group billing (Stable, classic, 1 member)\n\
             assignor     range\n\
             coordinator  2\n\
             lag          1,200\n\
             \n\
             MEMBER  INSTANCE  CLIENT  HOST        PARTITIONS\n\
             a-1     -         a       /127.0.0.1           1\n\
             \n\
             TOPIC   PARTITION  COMMITTED   END   LAG  MEMBER\n\
             orders          0         34  1234  1200  a-1\n\
             orders          1          -     -     -  -\n"
        );
    }

    #[test]
    fn a_group_that_has_committed_nothing_has_no_lag() {
        let mut group = sample();
        assert_eq!(total_lag(&group.partitions), Some(1_200));
        group.partitions[0].lag = Some(0);
        assert_eq!(total_lag(&group.partitions), Some(0), "it has read all");
        group.partitions.remove(0);
        group.lag = total_lag(&group.partitions);
        assert!(describe_text(&group).contains("\nlag          -\n"));
        let json = serde_json::to_value(&group).expect("serialises");
        assert_eq!(json["lag"], serde_json::Value::Null);
    }

    #[test]
    fn a_group_for_programs() {
        let json = serde_json::to_value(sample()).expect("serialises");
        assert_eq!(json["partitions"][0]["lag"], 1_200);
        assert_eq!(
            json["partitions"][1]["committed_offset"],
            serde_json::Value::Null
        );
        assert_eq!(json["members"][0]["member_id"], "a-1");
        assert_eq!(json["state"], "Stable");
    }

    #[test]
    fn a_plan() {
        let step = Move {
            topic: "orders".to_owned(),
            partition: 3,
            from: Some(17),
            to: 0,
            lag: 20,
        };
        assert_eq!(
            plan_text(&[step]),
            "TOPIC   PARTITION  FROM  TO  LAG THEN\norders          3    17   0        20\n"
        );
    }
}
