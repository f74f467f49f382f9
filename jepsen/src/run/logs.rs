//! What stopped nodes left: every byte checked by the product itself, and the logs of all replicas
//! compared entry by entry. No client reads the groups' positions or the controller's log, so this
//! is where replicas of those are held against each other.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::cluster::Cluster;

/// Problems and differences of one kind that are spelled out.
const SHOWN_MAX: usize = 3;

/// The name of the controller's log in a dump.
const CONTROLLER: &str = "controller";

/// What came of looking.
#[derive(Debug, Default)]
pub struct Looked {
    /// What is not as it should be, a sentence each.
    pub found: Vec<String>,
    /// Partitions with several replicas whose logs were compared, and their entries.
    pub partitions: u64,
    pub entries: u64,
    /// Of those entries, the controller's, and those of `__consumer_offsets`.
    pub controller_entries: u64,
    pub offsets_entries: u64,
    /// Partitions with several replicas that were left out, as a checkpoint does not say up to where
    /// it knew the log to be committed.
    pub left_out: Vec<String>,
}

/// What has to be known of a run beside the files of its nodes.
pub struct Known<'k> {
    /// The node whose files were damaged on purpose; damage may still lie there where nobody has
    /// looked.
    pub rotted: Option<u32>,
    /// The id of `__consumer_offsets`, as a dump names its partitions.
    pub offsets_topic: Option<&'k str>,
}

/// Lets `corduroy debug log-dump` read all that the nodes left.
pub fn look(binary: &Path, cluster: &Cluster, known: &Known<'_>) -> Looked {
    let mut looked = Looked::default();
    let mut dumps: Vec<(u32, BTreeMap<String, Dumped>)> = Vec::new();
    for node in cluster
        .nodes()
        .iter()
        .filter(|node| Some(node.id()) != known.rotted)
    {
        let output = Command::new(binary)
            .args(["debug", "log-dump", "--verify"])
            .arg(&node.data_dir)
            .output();
        let output = match output {
            Ok(output) => output,
            Err(error) => {
                let what = format!("log-dump of node {}: {error}", node.id());
                looked.found.push(what);
                continue;
            }
        };
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let problems: Vec<&str> = text
                .lines()
                .filter(|line| line.contains("PROBLEM"))
                .take(SHOWN_MAX)
                .map(str::trim)
                .collect();
            looked.found.push(format!(
                "the files of node {} are not as they were written: {} {}",
                node.id(),
                problems.join("; "),
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        dumps.push((node.id(), parse(&text)));
    }
    compare(&dumps, known, &mut looked);
    looked
}

/// A partition's log, as a node holds it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dumped {
    /// The index of its first entry.
    start: u64,
    /// Up to where the node knew that it is committed. Nothing if its last checkpoint does not say:
    /// what came after that lies in the journal alone, where the dump does not show entries.
    committed: Option<u64>,
    /// By index: everything else that the dump says of an entry, its bytes' checksum included.
    entries: BTreeMap<u64, String>,
}

/// The partitions of a dump, by name.
fn parse(text: &str) -> BTreeMap<String, Dumped> {
    let mut partitions: BTreeMap<String, Dumped> = BTreeMap::new();
    let mut name = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |word: &str| word.parse().unwrap_or(0);
        match words.as_slice() {
            ["partition", partition] if !line.starts_with(' ') => {
                partitions.insert((*partition).to_owned(), Dumped::default());
                name = Some((*partition).to_owned());
            }
            ["journal", "of", ..] => name = None,
            words => {
                let Some(log) = name.as_ref().and_then(|name| partitions.get_mut(name)) else {
                    continue;
                };
                match words {
                    ["log", "start", "index", index, ..] => log.start = number(index),
                    ["committed", "index", index, ..] => log.committed = Some(number(index)),
                    [place, "index", index, rest @ ..] if place.starts_with('@') => {
                        log.entries.insert(number(index), rest.join(" "));
                    }
                    _ => {}
                }
            }
        }
    }
    partitions
}

/// Up to the end that all of them know to be committed, replicas hold the same entries.
fn compare(dumps: &[(u32, BTreeMap<String, Dumped>)], known: &Known<'_>, looked: &mut Looked) {
    let mut names: Vec<&String> = dumps.iter().flat_map(|(_, dump)| dump.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let replicas: Vec<(u32, &Dumped)> = dumps
            .iter()
            .filter_map(|(node, dump)| Some((*node, dump.get(name)?)))
            .collect();
        let Some((&(measure, ours), others)) =
            replicas.split_first().filter(|(_, o)| !o.is_empty())
        else {
            continue;
        };
        let logs = || replicas.iter().map(|(_, log)| log);
        let from = logs().map(|log| log.start).max().unwrap_or(0);
        let committed: Option<Vec<u64>> = logs().map(|log| log.committed).collect();
        let Some(end) = committed.and_then(|ends| ends.into_iter().min()) else {
            looked.left_out.push(name.clone());
            continue;
        };
        looked.partitions += 1;
        let mut different = Vec::new();
        let mut entries = 0;
        for index in from..=end {
            let mine = ours.entries.get(&index);
            entries += u64::from(mine.is_some());
            for (node, theirs) in others {
                let theirs = theirs.entries.get(&index);
                if theirs != mine {
                    let say = |entry: Option<&String>| {
                        entry.map_or("nothing".to_owned(), |entry| format!("`{entry}`"))
                    };
                    different.push(format!(
                        "entry {index} is {} on node {measure} and {} on node {node}",
                        say(mine),
                        say(theirs)
                    ));
                }
            }
        }
        looked.entries += entries;
        let (topic, _) = name.rsplit_once('/').unwrap_or((name, ""));
        if topic == CONTROLLER {
            looked.controller_entries += entries;
        } else if Some(topic) == known.offsets_topic {
            looked.offsets_entries += entries;
        }
        if !different.is_empty() {
            let shown: Vec<&str> = different
                .iter()
                .take(SHOWN_MAX)
                .map(String::as_str)
                .collect();
            looked.found.push(format!(
                "the logs of partition {name} differ in {} entries: {}",
                different.len(),
                shown.join("; ")
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "\
partition controller
  group        controller
  log start    index 1 offset 0
  last         index 4 term 2
  committed    index 3 term 2
  segment 00000000000000000000-1.log: 900 bytes
    @64         index 1        term 1    offset 0        records 0     blank  0 bytes  crc 00000000
    @112        index 2        term 1    offset 0        records 0     internal  70 bytes  crc 1b2c3d4e
    @230        index 3        term 2    offset 0        records 0     blank  0 bytes  crc 00000000
    @278        index 4        term 2    offset 0        records 0     internal  9 bytes  crc aaaaaaaa
journal of shard 0
  turn 7
    controller: committed index 900
";

    fn judged(other: &str) -> Looked {
        let mut looked = Looked::default();
        let known = Known {
            rotted: None,
            offsets_topic: Some("7a0e"),
        };
        let groups = |dump: &str| dump.replace("partition controller", "partition 7a0e/4");
        let both = |dump: &str| {
            let mut both = parse(dump);
            both.extend(parse(&groups(dump)));
            both
        };
        compare(&[(1, both(DUMP)), (2, both(other))], &known, &mut looked);
        looked
    }

    #[test]
    fn logs_are_the_same_up_to_what_all_know_to_be_committed() {
        let looked = judged(&DUMP.replace("aaaaaaaa", "bbbbbbbb"));
        assert_eq!(
            looked.found,
            Vec::<String>::new(),
            "entry 4 is not committed"
        );
        assert_eq!((looked.partitions, looked.entries), (2, 6));
        assert_eq!((looked.controller_entries, looked.offsets_entries), (3, 3));
        let unsettled = judged(&DUMP.replace("  committed    index 3 term 2\n", ""));
        assert_eq!((unsettled.partitions, unsettled.controller_entries), (0, 0));
        assert_eq!(
            unsettled.left_out,
            ["7a0e/4", "controller"],
            "it does not say"
        );
        let purged = DUMP.replace("log start    index 1", "log start    index 3");
        assert!(judged(&purged).found.is_empty());
    }

    #[test]
    fn another_byte_or_a_hole_is_told() {
        for other in [
            DUMP.replace("1b2c3d4e", "1b2c3d4f"),
            DUMP.replace("@112        index 2 ", "@112        index 9 "),
        ] {
            let looked = judged(&other);
            assert_eq!(looked.found.len(), 2, "{looked:?}");
            let what = &looked.found[1];
            assert!(
                what.contains("partition controller differ in 1 entries"),
                "{what}"
            );
            assert!(what.contains("entry 2 is `term 1"), "{what}");
        }
    }
}
