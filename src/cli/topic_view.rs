//! What `topic list` and `topic describe` print. Fields of the JSON are only ever added.

use std::fmt::Write;

use serde::Serialize;

use super::output::{Align, Grid, plural, show_ids};

/// A row of `topic list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopicRow {
    pub name: String,
    pub topic_id: Option<String>,
    pub partitions: usize,
    pub replication_factor: usize,
    pub internal: bool,
}

/// The table of `topic list`.
pub fn list_text(topics: &[TopicRow]) -> String {
    let mut grid = Grid::new(&[
        ("TOPIC", Align::Left),
        ("PARTITIONS", Align::Right),
        ("REPLICAS", Align::Right),
    ]);
    for topic in topics {
        grid.row([
            topic.name.clone(),
            topic.partitions.to_string(),
            topic.replication_factor.to_string(),
        ]);
    }
    grid.render()
}

/// The answer of `topic describe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopicView {
    pub name: String,
    pub topic_id: Option<String>,
    pub internal: bool,
    pub partitions: Vec<PartitionRow>,
    pub configs: Vec<ConfigRow>,
}

/// A partition of a described topic. Offsets are `None` where no leader could be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionRow {
    pub partition: i32,
    pub leader: Option<i32>,
    pub leader_epoch: Option<i32>,
    pub replicas: Vec<i32>,
    pub in_sync: Vec<i32>,
    pub log_start_offset: Option<i64>,
    pub high_watermark: Option<i64>,
    /// Where readers of committed records stop.
    pub last_stable_offset: Option<i64>,
    /// The end of the leader's log, with what is not committed yet.
    pub log_end_offset: Option<i64>,
}

/// A setting of a described topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigRow {
    pub name: String,
    pub value: Option<String>,
    pub default: Option<String>,
    /// Where the value comes from: "topic", "cluster", "node" or "default".
    pub source: String,
}

/// The text of `topic describe`. Settings that nobody changed are left out unless asked for.
pub fn describe_text(topic: &TopicView, with_defaults: bool) -> String {
    let mut text = String::new();
    let replicas = topic
        .partitions
        .iter()
        .map(|row| row.replicas.len())
        .max()
        .unwrap_or(0);
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "topic {} ({}, {}{})",
        topic.name,
        plural(topic.partitions.len() as u64, "partition", "partitions"),
        plural(replicas as u64, "replica", "replicas"),
        if topic.internal { ", internal" } else { "" }
    );
    if let Some(id) = &topic.topic_id {
        let _ = writeln!(text, "id    {id}");
    }
    text.push('\n');
    text.push_str(&partitions_text(&topic.partitions));
    let shown: Vec<&ConfigRow> = topic
        .configs
        .iter()
        .filter(|config| with_defaults || config.source == "topic")
        .collect();
    if !shown.is_empty() {
        let mut grid = Grid::new(&[
            ("CONFIG", Align::Left),
            ("VALUE", Align::Left),
            ("SOURCE", Align::Left),
            ("DEFAULT", Align::Left),
        ]);
        for config in shown {
            let text = |text: &Option<String>| match text.as_deref() {
                None => "-".to_owned(),
                Some("") => r#""""#.to_owned(),
                Some(text) => text.to_owned(),
            };
            grid.row([
                config.name.clone(),
                text(&config.value),
                config.source.clone(),
                text(&config.default),
            ]);
        }
        text.push('\n');
        text.push_str(&grid.render());
    }
    text
}

fn partitions_text(partitions: &[PartitionRow]) -> String {
    // Only open transactions make the two differ.
    let with_stable = partitions
        .iter()
        .any(|row| row.last_stable_offset != row.high_watermark);
    let mut columns = vec![
        ("PARTITION", Align::Right),
        ("LEADER", Align::Right),
        ("EPOCH", Align::Right),
        ("REPLICAS", Align::Left),
        ("IN SYNC", Align::Left),
        ("LOG START", Align::Right),
        ("HIGH WATERMARK", Align::Right),
        ("LOG END", Align::Right),
    ];
    if with_stable {
        columns.push(("LAST STABLE", Align::Right));
    }
    let mut grid = Grid::new(&columns);
    for row in partitions {
        let number = |number: Option<i32>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let offset = |offset: Option<i64>| offset.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let leader = row
            .leader
            .map_or_else(|| "none".to_owned(), |leader| leader.to_string());
        let mut cells = vec![
            row.partition.to_string(),
            leader,
            number(row.leader_epoch),
            show_ids(&row.replicas),
            show_ids(&row.in_sync),
            offset(row.log_start_offset),
            offset(row.high_watermark),
            offset(row.log_end_offset),
        ];
        if with_stable {
            cells.push(offset(row.last_stable_offset));
        }
        grid.row(cells);
    }
    let mut text = grid.render();
    let records: i64 = partitions
        .iter()
        .filter_map(|row| Some(row.high_watermark? - row.log_start_offset?))
        .sum();
    if let Ok(records) = u64::try_from(records) {
        // Offsets of compacted and control records count too: an upper bound.
        let records = plural(records, "record", "records");
        let _ = writeln!(text, "{:>9}  up to {records}", "total");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> TopicView {
        TopicView {
            name: "orders".to_owned(),
            topic_id: Some("9e107d9d-372b-4b6f-8d81-1ad2b5e4a0cc".to_owned()),
            internal: false,
            partitions: vec![
                PartitionRow {
                    partition: 0,
                    leader: Some(2),
                    leader_epoch: Some(7),
                    replicas: vec![2, 3, 1],
                    in_sync: vec![2, 3],
                    log_start_offset: Some(0),
                    high_watermark: Some(1200),
                    last_stable_offset: Some(1200),
                    log_end_offset: Some(1203),
                },
                PartitionRow {
                    partition: 1,
                    leader: None,
                    leader_epoch: None,
                    replicas: vec![3, 1, 2],
                    in_sync: vec![],
                    log_start_offset: None,
                    high_watermark: None,
                    last_stable_offset: None,
                    log_end_offset: None,
                },
            ],
            configs: vec![
                ConfigRow {
                    name: "min.insync.replicas".to_owned(),
                    value: Some("2".to_owned()),
                    default: Some("1".to_owned()),
                    source: "topic".to_owned(),
                },
                ConfigRow {
                    name: "retention.ms".to_owned(),
                    value: Some("604800000".to_owned()),
                    default: Some("604800000".to_owned()),
                    source: "default".to_owned(),
                },
            ],
        }
    }

    #[test]
    fn the_description_for_people() {
        let expected = "\
topic orders (2 partitions, 3 replicas)
id    9e107d9d-372b-4b6f-8d81-1ad2b5e4a0cc

PARTITION  LEADER  EPOCH  REPLICAS  IN SYNC  LOG START  HIGH WATERMARK  LOG END
        0       2      7  2,3,1     2,3              0            1200     1203
        1    none      -  3,1,2     -                -               -        -
    total  up to 1,200 records

CONFIG               VALUE  SOURCE  DEFAULT
min.insync.replicas  2      topic   1
";
        assert_eq!(describe_text(&sample(), false), expected);
        assert!(describe_text(&sample(), true).contains("retention.ms"));
    }

    #[test]
    fn the_description_for_programs() {
        let mut topic = sample();
        topic.partitions.truncate(1);
        topic.configs.truncate(1);
        let expected = serde_json::json!({
            "name": "orders",
            "topic_id": "9e107d9d-372b-4b6f-8d81-1ad2b5e4a0cc",
            "internal": false,
            "partitions": [{
                "partition": 0, "leader": 2, "leader_epoch": 7, "replicas": [2, 3, 1],
                "in_sync": [2, 3], "log_start_offset": 0, "high_watermark": 1200,
                "last_stable_offset": 1200, "log_end_offset": 1203,
            }],
            "configs": [{
                "name": "min.insync.replicas", "value": "2", "default": "1", "source": "topic",
            }],
        });
        assert_eq!(serde_json::to_value(&topic).expect("JSON"), expected);
    }

    #[test]
    fn the_list() {
        let topics = [
            TopicRow {
                name: "orders".to_owned(),
                topic_id: None,
                partitions: 12,
                replication_factor: 3,
                internal: false,
            },
            TopicRow {
                name: "t".to_owned(),
                topic_id: None,
                partitions: 1,
                replication_factor: 1,
                internal: false,
            },
        ];
        assert_eq!(
            list_text(&topics),
            "TOPIC   PARTITIONS  REPLICAS\norders          12         3\nt                1         1\n"
        );
        assert_eq!(
            serde_json::to_value(&topics[1]).expect("JSON"),
            serde_json::json!({
                "name": "t", "topic_id": null, "partitions": 1, "replication_factor": 1,
                "internal": false,
            })
        );
    }
}
