//! Histories as text that one can read aloud.
//!
//! ```text
//! == lost-write: an acknowledged write that later ones passed
//! expect lost-write
//! p1 send 1 -> ok 0
//! p1 send 2 -> ok 1
//! p1 send 3 -> unknown
//! p2 poll 1=2 2=3
//! ```
//!
//! Each line is one call, made one second after the one above has ended; `3..9` before it says from
//! when to when instead, `3..` that it never ended. The partition is `t/0` unless a line says `@t/1#2`.
//! Values are counters of one writer; `!reason` in a value's place is a record that nobody wrote.
//!
//! | line | call |
//! |---|---|
//! | `p1 send V [txn T] [session S] [epoch E] -> ok [OFFSET] \| fail \| unknown` | a send; `epoch` is the producer's |
//! | `p1 poll O=V ... [hw N] [stable N] [start N] [leader-epoch N] [asked SECOND]` | a poll |
//! | `p1 read O=V ... [end N]` | a read of the whole log |
//! | `final O=V ... [end N]`, `replica NODE O=V ... [end N] [epochs O:E ...]` | a final read |
//! | `p1 latest N`, `p1 leader NODE epoch N` | ListOffsets, Metadata |
//! | `p1 assign KEY ...`, `p1 seek N`, `p1 crash` | the consumer's and client's own |
//! | `p1 commit T`, `p1 abort T`, `-> unknown` | the end of a transaction |
//! | `p1 joins`, `p1 assigned [gen N] KEY ...`, `p1 revoked KEY ...` | a member of the group `g`, and what it is given and loses |
//! | `p1 commits OFFSET [gen N] [-> unknown]` | a commit under the assignment of that generation |
//! | `p1 positions N`, `p1 drained END` | the group's committed position; it has read the partition to `END` |
//! | `create [trims]`, `delete [-> fail]` | the topic of the line's partition |
//! | `fault NAME[=MANNER] NODE ...`, `heal NAME`, `missed NAME`, `whole NAME`, `not-whole NAME` | a fault's beginning and end (`missed`: nothing met it), and the cluster whole after it, or still not |
//! | `healed`, `load-end`, `starved`, `read-out` | marks; `8..30 read-out`: consumers went on for so long |
//! | `members NODE ...` | who is there in the end, and has a replica of the line's partition |
//! | `breakdown TEXT` | a node did what it may not |
//! | `settings KEY=VALUE ...` | before the first call |
//! | `plan FAULTS WRITES READS` | minima: each of `a,b` or `-` once, so many writes and reads, a final read |
//! | `plan-long N`, `plan-manner FAULT MANNER` | minima: so many long holds of each fault; a manner that has to come |
//! | `plan-logs [groups]` | minima: the controller's log was compared, and the groups' |
//! | `compared LOGS ENTRIES [controller ENTRIES] [offsets ENTRIES]` | logs of stopped nodes, held against each other |
//! | `group-plan REBALANCES COMMITS CHANGES DRAINED` | minima of a run with groups |
//! | `expect CLASS[xN] ...`, `allows CLASS[xN] ...`, `missing TEXT` | what has to come of it; nothing is the default |

use std::collections::BTreeMap;

use crate::history::*;

use super::histories::Case;

/// A script that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ScriptError {
    pub line: usize,
    pub reason: String,
}

/// The writer of all values of a script.
const WRITER: u32 = 0;
const NODES: u32 = 3;
const SECOND: u64 = 1_000_000_000;

/// All cases of a text.
pub fn parse(text: &str) -> Result<Vec<Case>, ScriptError> {
    let mut cases = Vec::new();
    let mut open: Option<Script> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.split("  --").next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let failed = |reason: String| ScriptError {
            line: number + 1,
            reason,
        };
        if let Some(title) = line.strip_prefix("== ") {
            if let Some(script) = open.replace(Script::new(title)) {
                cases.push(script.finish().map_err(failed)?);
            }
            continue;
        }
        let script = open
            .as_mut()
            .ok_or_else(|| failed("a case begins with `== name: title`".to_owned()))?;
        script
            .line(line)
            .map_err(|reason| failed(format!("`{line}`: {reason}")))?;
    }
    if let Some(script) = open {
        let failed = |reason| ScriptError {
            line: text.lines().count(),
            reason,
        };
        cases.push(script.finish().map_err(failed)?);
    }
    Ok(cases)
}

struct Script {
    name: String,
    title: String,
    header: Header,
    events: Vec<Event>,
    faults: BTreeMap<String, (u64, Vec<u32>)>,
    /// Healed, and the cluster not yet whole.
    healing: BTreeMap<String, (u64, Vec<u32>)>,
    next_fault: u64,
    now: u64,
    next_id: u64,
    violations: Vec<(String, u64)>,
    tolerated: Vec<(String, u64)>,
    missing: Vec<String>,
}

impl Script {
    fn new(title: &str) -> Script {
        let (name, title) = title.split_once(": ").unwrap_or((title, ""));
        Script {
            name: name.to_owned(),
            title: title.to_owned(),
            header: Header {
                format: FORMAT,
                workload: "script".to_owned(),
                nodes: (1..=NODES).collect(),
                seed: 0,
                started_unix_millis: 0,
                settings: ClientSettings::default(),
                plan: Plan::default(),
            },
            events: Vec::new(),
            faults: BTreeMap::new(),
            healing: BTreeMap::new(),
            next_fault: 0,
            now: 0,
            next_id: 0,
            violations: Vec::new(),
            tolerated: Vec::new(),
            missing: Vec::new(),
        }
    }

    fn finish(self) -> Result<Case, String> {
        let mut events = self.events;
        // Calls overlap, so their ends are put where they belong; ids stay in the order of lines.
        events.sort_by_key(|event| match event {
            Event::Complete(completion) => (1, completion.at),
            _ => (0, Nanos(0)),
        });
        let events = std::iter::once(Event::Header(self.header)).chain(events);
        Ok(Case {
            history: History::from_events(events)?,
            name: self.name,
            title: self.title,
            violations: self.violations,
            tolerated: self.tolerated,
            missing: self.missing,
        })
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "expect" => return expectations(&words[1..], &mut self.violations),
            "allows" => return expectations(&words[1..], &mut self.tolerated),
            "missing" => {
                self.missing.push(words[1..].join(" "));
                return Ok(());
            }
            "settings" => return self.settings(&words[1..]),
            "plan" => return self.plan(&words[1..]),
            "group-plan" => return self.group_plan(&words[1..]),
            "plan-long" => {
                let least = words.get(1).ok_or("expected a number")?;
                self.header.plan.minima.long_holds = number(least)?;
                return Ok(());
            }
            "plan-logs" => {
                let minima = &mut self.header.plan.minima;
                minima.controller_compared = true;
                minima.offsets_compared = words.contains(&"groups");
                return Ok(());
            }
            "plan-manner" => {
                let fault = words.get(1).ok_or("expected a fault")?;
                let manners = self.header.plan.manners.entry((*fault).to_owned());
                manners.or_default().push(words[2..].join(" "));
                return Ok(());
            }
            _ => {}
        }
        let times = self.times(&mut words)?;
        let key = match words.iter().position(|word| word.starts_with('@')) {
            Some(position) => words.remove(position)[1..]
                .parse()
                .map_err(|error: KeyError| error.to_string())?,
            None => Key::new("t", 0),
        };
        let words = words.as_slice();
        match words {
            ["fault", name, nodes @ ..] => return self.fault(name, nodes, times.0),
            ["heal", name] => return self.heal(name, FaultPhase::End, times.0),
            ["missed", name] => return self.heal(name, FaultPhase::Missed, times.0),
            ["whole", name] => return self.whole(name, FaultPhase::Recovered, times.0),
            ["not-whole", name] => return self.whole(name, FaultPhase::Overtaken, times.0),
            ["healed"] => self.mark(Mark::Healed { at: times.0 }),
            ["starved"] => self.mark(Mark::Starved {
                from: times.0,
                until: times.1.unwrap_or(times.0),
            }),
            ["breakdown", what @ ..] => self.mark(Mark::Breakdown {
                at: times.0,
                what: what.join(" "),
            }),
            ["members", nodes @ ..] => {
                let nodes = nodes.iter().map(|node| number(node));
                let nodes: Vec<u32> = nodes.collect::<Result<_, _>>()?;
                self.mark(Mark::Members {
                    at: times.0,
                    replicas: vec![ReplicasOf {
                        topic: key.topic.to_string(),
                        partition: key.partition,
                        nodes: nodes.clone(),
                    }],
                    nodes,
                });
            }
            ["read-out"] => self.mark(Mark::ReadOut {
                from: times.0,
                until: times.1.unwrap_or(times.0),
            }),
            ["compared", partitions, entries, rest @ ..] => {
                let rest = pairs(rest)?;
                let entries_of = |name| rest.get(name).map_or(Ok(0), |text| number(text));
                self.mark(Mark::LogsCompared {
                    at: times.0,
                    partitions: number(partitions)?,
                    entries: number(entries)?,
                    controller_entries: entries_of("controller")?,
                    offsets_entries: entries_of("offsets")?,
                });
            }
            ["load-end"] => self.mark(Mark::LoadEnd { at: times.0 }),
            ["create"] => self.call(
                9,
                times,
                Call::CreateTopic {
                    key,
                    partitions: 1,
                    trims: false,
                },
                done(),
            ),
            ["create", "trims"] => {
                let call = Call::CreateTopic {
                    key,
                    partitions: 1,
                    trims: true,
                };
                self.call(9, times, call, done());
            }
            ["delete", result @ ..] => {
                let outcome = outcome(result.get(1..).unwrap_or_default(), Answer::Done)?;
                self.call(9, times, Call::DeleteTopic { key }, outcome);
            }
            ["final", rest @ ..] => {
                let source = FinalSource::Client;
                let call = Call::FinalRead {
                    key: key.clone(),
                    source,
                };
                self.call(90, times, call, read(key, rest, true)?);
            }
            ["replica", node, rest @ ..] => {
                let source = FinalSource::Replica(number(node)?);
                let call = Call::FinalRead {
                    key: key.clone(),
                    source,
                };
                self.call(91, times, call, read(key, rest, true)?);
            }
            [process, rest @ ..] => {
                let process = process
                    .strip_prefix('p')
                    .ok_or("expected a process, like p1")?;
                self.client(number(process)?, times, key, rest)?;
            }
            [] => {}
        }
        Ok(())
    }

    fn client(
        &mut self,
        process: u32,
        times: Times,
        key: Key,
        words: &[&str],
    ) -> Result<(), String> {
        let (words, result) = match words.iter().position(|word| *word == "->") {
            Some(arrow) => (&words[..arrow], &words[arrow + 1..]),
            None => (words, &[][..]),
        };
        let (call, outcome) = match words {
            ["send", value, options @ ..] => {
                let options = pairs(options)?;
                let option = |name: &str| options.get(name).copied();
                let epoch = option("epoch").map(number).transpose()?;
                let send = SendRecord {
                    key,
                    value: Value::of(WRITER, number(value)?),
                    session: option("session").map_or(Ok(0), number)?,
                    txn: option("txn").map(number).transpose()?.map(TxnId),
                    producer: epoch.map(|epoch| Producer { id: 1, epoch }),
                };
                let offset = result.get(1).map(|text| number(text)).transpose()?;
                (Call::Send(send), outcome(result, Answer::Sent { offset })?)
            }
            ["poll", rest @ ..] => {
                let answer = read(key.clone(), rest, false)?;
                (Call::Poll { keys: vec![key] }, answer)
            }
            ["read", rest @ ..] => {
                let answer = read(key.clone(), rest, true)?;
                (Call::ReadAll { key }, answer)
            }
            ["latest", offset] => {
                let offset = number(offset)?;
                (
                    Call::LatestOffset { key },
                    Outcome::Ok(Answer::Latest { offset }),
                )
            }
            ["leader", node, "epoch", epoch] => {
                let answer = Answer::Leadership {
                    node: Some(number(node)?),
                    epoch: number(epoch)?,
                };
                (Call::Leadership { key }, Outcome::Ok(answer))
            }
            ["assign", keys @ ..] => {
                let keys: Result<Vec<Key>, _> = keys.iter().map(|key| key.parse()).collect();
                let keys = keys.map_err(|error: KeyError| error.to_string())?;
                (Call::Assign { keys }, done())
            }
            ["seek", offset] => {
                let offset = number(offset)?;
                (Call::Seek { key, offset }, done())
            }
            ["crash"] => (Call::Crash, done()),
            [
                "joins" | "assigned" | "revoked" | "commits" | "positions" | "drained",
                ..,
            ] => group_call(times.0, key, words, result)?,
            [end @ ("commit" | "abort"), txn] => {
                let call = Call::EndTxn {
                    txn: TxnId(number(txn)?),
                    commit: *end == "commit",
                };
                (call, outcome(result, Answer::Done)?)
            }
            _ => return Err("no such call".to_owned()),
        };
        self.call(process, times, call, outcome);
        Ok(())
    }

    fn call(&mut self, process: u32, (at, end): Times, call: Call, outcome: Outcome) {
        self.next_id += 1;
        let id = self.next_id;
        self.events.push(Event::Invoke(Invocation {
            id,
            worker: WorkerId(process),
            process: ProcessId(process),
            at,
            call,
        }));
        if let Some(at) = end {
            self.events
                .push(Event::Complete(Completion { id, at, outcome }));
        }
    }

    /// When the line's call begins and ends; takes `3..9` from the words if it is there.
    fn times(&mut self, words: &mut Vec<&str>) -> Result<Times, String> {
        let at = |seconds: u64| Nanos(seconds * SECOND);
        let Some((begin, end)) = words[0].split_once("..") else {
            let begin = self.now + 1;
            self.now = begin + 1;
            return Ok((at(begin), Some(at(begin + 1))));
        };
        let begin: u64 = number(begin)?;
        let end = (!end.is_empty()).then(|| number::<u64>(end)).transpose()?;
        words.remove(0);
        self.now = self.now.max(end.unwrap_or(begin));
        Ok((at(begin), end.map(at)))
    }

    fn mark(&mut self, mark: Mark) {
        self.events.push(Event::Mark(mark));
    }

    fn fault(&mut self, name: &str, nodes: &[&str], at: Nanos) -> Result<(), String> {
        let (name, manner) = name.split_once('=').unwrap_or((name, ""));
        let targets: Vec<u32> = nodes
            .iter()
            .map(|node| number(node))
            .collect::<Result<_, _>>()?;
        self.next_fault += 1;
        let begun = (self.next_fault, targets.clone());
        self.faults.insert(name.to_owned(), begun);
        self.events.push(Event::Fault(FaultEvent {
            id: self.next_fault,
            fault: name.to_owned(),
            phase: FaultPhase::Begin,
            at,
            targets,
            manner: manner.to_owned(),
            detail: String::new(),
        }));
        Ok(())
    }

    fn heal(&mut self, name: &str, phase: FaultPhase, at: Nanos) -> Result<(), String> {
        let (id, targets) = self.faults.remove(name).ok_or("no such fault is active")?;
        self.healing.insert(name.to_owned(), (id, targets.clone()));
        self.events.push(Event::Fault(FaultEvent {
            id,
            fault: name.to_owned(),
            phase,
            at,
            targets,
            manner: String::new(),
            detail: String::new(),
        }));
        Ok(())
    }

    fn whole(&mut self, name: &str, phase: FaultPhase, at: Nanos) -> Result<(), String> {
        let healed = self.healing.remove(name);
        let (id, targets) = healed.ok_or("no such fault was healed")?;
        self.events.push(Event::Fault(FaultEvent {
            id,
            fault: name.to_owned(),
            phase,
            at,
            targets,
            manner: String::new(),
            detail: String::new(),
        }));
        Ok(())
    }

    fn settings(&mut self, words: &[&str]) -> Result<(), String> {
        let settings = &mut self.header.settings;
        for word in words {
            let (name, value) = word.split_once('=').ok_or("expected KEY=VALUE")?;
            let on = value == "on";
            match (name, value) {
                ("acks", "0") => settings.acks = Acks::None,
                ("acks", "1") => settings.acks = Acks::Leader,
                ("acks", "all") => settings.acks = Acks::All,
                ("idempotence", _) => settings.idempotence = on,
                ("retries", _) => settings.retries = on,
                ("retention", _) => settings.retention = on,
                ("compaction", _) => settings.compaction = on,
                ("unclean", _) => settings.unclean_election = on,
                ("isolation", "read_uncommitted") => {
                    settings.isolation = Isolation::ReadUncommitted;
                }
                ("assignment", "subscribe") => settings.assignment = Assignment::Subscribe,
                ("flush", "relaxed") => settings.flush = Flush::Relaxed,
                ("transactions", "v1") => settings.transactions = Transactions::V1,
                ("transactions", "v2") => settings.transactions = Transactions::V2,
                ("min-insync", _) => settings.min_insync_replicas = number(value)?,
                ("nodes", _) => {
                    settings.replication_factor = number(value)?;
                    self.header.nodes = (1..=number(value)?).collect();
                }
                _ => return Err(format!("no such setting: {word}")),
            }
        }
        Ok(())
    }

    fn plan(&mut self, words: &[&str]) -> Result<(), String> {
        let [faults, writes, reads] = words else {
            return Err("expected: plan FAULTS WRITES READS".to_owned());
        };
        let faults = faults.split(',').filter(|fault| *fault != "-");
        self.header.plan = Plan {
            faults: faults.map(str::to_owned).collect(),
            load_seconds: 0,
            minima: Minima {
                times_each_fault: 1,
                writes_in_faults: number(writes)?,
                reads_in_faults: number(reads)?,
                final_read: true,
                ..Minima::default()
            },
            ..Plan::default()
        };
        Ok(())
    }

    fn group_plan(&mut self, words: &[&str]) -> Result<(), String> {
        let [rebalances, commits, changes, drained] = words else {
            return Err("expected: group-plan REBALANCES COMMITS CHANGES DRAINED".to_owned());
        };
        self.header.plan.minima.group = Some(GroupMinima {
            rebalances: number(rebalances)?,
            commits_in_faults: number(commits)?,
            coordinator_changes: number(changes)?,
            drained: number(drained)?,
        });
        Ok(())
    }
}

/// The group of all scripts.
const GROUP: &str = "g";

/// What a member of the group does, or is told.
fn group_call(
    at: Nanos,
    key: Key,
    words: &[&str],
    result: &[&str],
) -> Result<(Call, Outcome), String> {
    let group = GROUP.to_owned();
    let keys = |words: &[&str]| -> Result<Vec<Key>, String> {
        let keys = words.iter().map(|word| word.parse::<Key>());
        keys.collect::<Result<_, _>>()
            .map_err(|error| error.to_string())
    };
    let call = match words {
        ["joins"] => Call::GroupJoin { group },
        ["assigned", rest @ ..] => {
            let (generation, rest) = match rest {
                ["gen", generation, rest @ ..] => (Some(number(generation)?), rest),
                rest => (None, rest),
            };
            Call::GroupAssigned {
                group,
                generation,
                keys: keys(rest)?,
                since: at,
            }
        }
        ["revoked", rest @ ..] => Call::GroupRevoked {
            group,
            keys: keys(rest)?,
        },
        ["commits", offset, options @ ..] => {
            let generation = pairs(options)?.get("gen").copied();
            Call::GroupCommit {
                group,
                generation: generation.map(number).transpose()?,
                key,
                offset: number(offset)?,
            }
        }
        ["positions", offset] => {
            let positions = vec![(key, number(offset)?)];
            let answer = Outcome::Ok(Answer::Positions(positions));
            return Ok((Call::GroupPositions { group }, answer));
        }
        ["drained", end] => {
            let offset = number(end)?;
            let answer = Outcome::Ok(Answer::Latest { offset });
            return Ok((Call::GroupDrain { group, key }, answer));
        }
        _ => return Err("no such call of a group".to_owned()),
    };
    Ok((call, outcome(result, Answer::Done)?))
}

/// When a call is made, and when it ends, if ever.
type Times = (Nanos, Option<Nanos>);

fn done() -> Outcome {
    Outcome::Ok(Answer::Done)
}

fn outcome(words: &[&str], answer: Answer) -> Result<Outcome, String> {
    match words.first().copied() {
        None | Some("ok") => Ok(Outcome::Ok(answer)),
        Some("fail") => Ok(Outcome::Fail {
            error: "MESSAGE_TOO_LARGE".to_owned(),
        }),
        Some("unknown") => Ok(Outcome::Unknown {
            error: "TIMEOUT".to_owned(),
        }),
        Some(other) => Err(format!("no such outcome: {other}")),
    }
}

/// `0=1 1=!checksum hw 5 end 2 epochs 0:1 5:2`
fn read(key: Key, words: &[&str], whole: bool) -> Result<Outcome, String> {
    let mut read = PartitionRead::at(key, 0);
    let mut end = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if let Some((offset, value)) = word.split_once('=') {
            let offset = number(offset)?;
            read.next = read.next.max(offset + 1);
            match value.strip_prefix('!') {
                Some(reason) => read.foreign.push(Foreign {
                    offset,
                    reason: reason.to_owned(),
                    bytes: "00".to_owned(),
                }),
                None => read
                    .values
                    .push((offset, Value::of(WRITER, number(value)?))),
            }
        } else if let Some((offset, epoch)) = word.split_once(':') {
            read.epochs.push((number(offset)?, number(epoch)?));
        } else if *word != "epochs" {
            let value = words.next().ok_or("a number is missing at the end")?;
            match *word {
                "hw" => read.high_watermark = Some(number(value)?),
                "start" => read.log_start = Some(number(value)?),
                "leader-epoch" => read.leader_epoch = Some(number(value)?),
                "stable" => read.last_stable = Some(number(value)?),
                "asked" => read.asked = Some(Nanos(number::<u64>(value)? * SECOND)),
                "end" => end = Some(number(value)?),
                _ => return Err(format!("no such detail of a read: {word}")),
            }
        }
    }
    if whole {
        read.next = end.unwrap_or(read.next);
        read.high_watermark = read.high_watermark.or(Some(read.next));
    } else if let Some((first, _)) = read.values.first() {
        read.from = *first;
    }
    Ok(Outcome::Ok(Answer::Read(vec![read])))
}

fn pairs<'w>(words: &[&'w str]) -> Result<BTreeMap<&'w str, &'w str>, String> {
    let chunks = words.chunks(2);
    chunks
        .map(|pair| match pair {
            [name, value] => Ok((*name, *value)),
            _ => Err("an option without its value".to_owned()),
        })
        .collect()
}

fn expectations(words: &[&str], into: &mut Vec<(String, u64)>) -> Result<(), String> {
    for word in words {
        // No class name holds an x followed by a number.
        let counted = word.rsplit_once('x').and_then(|(name, count)| {
            let count = count.parse().ok()?;
            Some((name.to_owned(), count))
        });
        into.push(counted.unwrap_or(((*word).to_owned(), 1)));
    }
    Ok(())
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}
