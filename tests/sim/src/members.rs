//! A consumer group whose members join, read, commit, leave, die and return; and a group without
//! members, whose positions are written and read from outside.

use std::collections::BTreeMap;
use std::time::Duration;

use corduroy_client::{
    Batch, Commits, CommittedOffset, CommittedOffsets, ConfigResource, ErrorCode, From, Group,
    GroupEvent, GroupProtocol, Strategy, TopicPartition,
};
use tokio::time::{Instant, timeout, timeout_at};

use crate::group_ledger::{At, GroupLedger, Identity, Told};
use crate::network::Host;
use crate::random::Random;
use crate::raw;
use crate::workload::{CLIENTS, KEPT, KEPT_PARTITIONS, PATIENT, Workload};
use crate::world::World;

/// The group with members.
const GROUP: &str = "readers";
/// The group without.
const PLAIN: &str = "plain";
/// The text beside a position of [`GROUP`] that somebody who is no member commits.
pub const OUTSIDE: &str = "outside";
/// Members at the same time, at most.
const MEMBERS: u16 = 3;
/// What the first of as many members as there can be is called in all its lives: a static member.
const INSTANCE: &str = "first";
/// A member's longest life, in milliseconds.
const LIFE_MILLIS_MAX: u64 = 15_000;
/// How long joining, a commit, an orderly end may take before they are given up.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How often a member that waits for records looks whether it is to end.
const LOOK: Duration = Duration::from_millis(200);

/// Cluster settings under which groups do in a simulated minute what takes them many otherwise.
const SETTINGS: [(&str, &str); 7] = [
    ("offsets.topic.num.partitions", "1"),
    ("offsets.topic.segment.bytes", "32768"),
    ("group.initial.rebalance.delay.ms", "200"),
    ("group.min.session.timeout.ms", "500"),
    ("group.consumer.session.timeout.ms", "2500"),
    ("group.consumer.heartbeat.interval.ms", "400"),
    ("group.consumer.migration.policy", "bidirectional"),
];

/// Which protocol members speak in a run.
#[derive(Clone, Copy, Debug)]
enum Speech {
    Classic,
    Consumer,
    /// Each member in each of its lives one of them: the group migrates.
    Mixed,
}

/// Sets the cluster's settings; returns once it has.
pub async fn prepare(workload: &Workload) {
    let client = workload.connect(PATIENT).await;
    loop {
        let mut call = client.admin().alter_configs(ConfigResource::Cluster);
        for (name, value) in SETTINGS {
            call = call.set(name, value);
        }
        match call.await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "groups are not set up yet"),
        }
        workload.pause(LOOK.as_millis() as u64).await;
    }
}

/// Begins all of it.
pub fn begin(world: &mut World) {
    let mut random = world.random.fork();
    let speech = random
        .pick(&[Speech::Classic, Speech::Consumer, Speech::Mixed])
        .unwrap_or(Speech::Classic);
    let members = 2 + random.below(u64::from(MEMBERS) - 1) as u16;
    tracing::info!(?speech, members, "a group");
    for slot in 0..members {
        let member = Slot {
            workload: world.workload.clone(),
            ledger: world.ledger.groups(),
            speech,
            instance: (slot == 0 && members == MEMBERS).then_some(INSTANCE),
            next_host: CLIENTS + 1 + slot,
            random: random.fork(),
        };
        world.running.spawn(CLIENTS, member.run());
    }
    let (writer, reader) = (world.workload.clone(), world.workload.clone());
    let ledger = world.ledger.groups();
    let writes = write_outside(writer, ledger.clone(), random.fork());
    world.running.spawn(CLIENTS, writes);
    let reads = read_outside(reader, ledger.clone(), random.fork());
    world.running.spawn(CLIENTS, reads);
    let asks = ask_everybody(world.workload.clone(), ledger, random.fork());
    world.running.spawn(CLIENTS, asks);
}

/// A place in the group that has one member after the other.
struct Slot {
    workload: Workload,
    ledger: GroupLedger,
    speech: Speech,
    instance: Option<&'static str>,
    /// Each life is one on a machine of its own, so that the dead stay dead.
    next_host: Host,
    random: Random,
}

impl Slot {
    async fn run(mut self) {
        while !self.workload.is_quiet() {
            let host = self.next_host;
            self.next_host += MEMBERS;
            self.live(host).await;
            let rest = self.random.between(20, 3_000);
            self.workload.pause(rest).await;
        }
    }

    async fn live(&mut self, host: Host) {
        let here = self.workload.on(host, self.random.next());
        let Ok(client) = timeout(WAIT_MAX, here.connect(PATIENT)).await else {
            return;
        };
        let protocol = match self.speech {
            Speech::Classic => GroupProtocol::Classic,
            Speech::Consumer => GroupProtocol::Consumer,
            Speech::Mixed => {
                let both = [GroupProtocol::Classic, GroupProtocol::Consumer];
                self.random.pick(&both).unwrap_or_default()
            }
        };
        let strategies = match self.random.below(2) {
            0 => vec![Strategy::Range],
            _ => vec![Strategy::CooperativeSticky, Strategy::Range],
        };
        let commits = [Commits::AfterProcessing, Commits::Explicit];
        let session = self.random.between(1_500, 4_000);
        let above = self.ledger.durable_generation(GROUP);
        let joining = client
            .group(GROUP)
            .topics([KEPT])
            .from(From::Earliest)
            .commits(self.random.pick(&commits).unwrap_or_default())
            .commit_interval(Duration::from_millis(700))
            .protocol(protocol)
            .strategies(strategies)
            .session_timeout(Duration::from_millis(session))
            .heartbeat_interval(Duration::from_millis(session / 5))
            .max_poll_interval(Duration::from_secs(5));
        let joining = match self.instance {
            Some(instance) => joining.instance_id(instance),
            None => joining,
        };
        let group = match timeout(WAIT_MAX, joining.join()).await {
            Ok(Ok(group)) => group,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a member could not join");
                return;
            }
            Err(_late) => return,
        };
        let mut member = Member {
            here,
            ledger: self.ledger.clone(),
            group,
            instance: self.instance,
            above: Some(above),
            held: None,
        };
        let life = self.random.between(500, LIFE_MILLIS_MAX);
        let end = Instant::now() + Duration::from_millis(life);
        member.work(end, &mut self.random).await;
        match self.random.below(3) {
            // Late is late: the coordinator finds out by itself.
            0 => drop(timeout(WAIT_MAX, member.group.close()).await),
            1 => drop(member.group),
            _ => {
                member.here.cut_off(host, self.random.one_in(2));
                self.ledger.note(Told::MemberDied);
            }
        }
    }
}

/// A member in one of its lives.
struct Member {
    here: Workload,
    ledger: GroupLedger,
    group: Group,
    /// What it is called in all its lives, if it is a static member.
    instance: Option<&'static str>,
    /// The generation that was durable before it began to join.
    above: Option<i32>,
    /// A batch that it has not committed, maybe of a partition that is another's now.
    held: Option<Batch>,
}

impl Member {
    async fn work(&mut self, end: Instant, random: &mut Random) {
        while Instant::now() < end && !self.here.is_quiet() {
            let look = (Instant::now() + LOOK).min(end);
            let event = match timeout_at(look, self.group.next_event()).await {
                Err(_nothing) => continue,
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "a member ends");
                    return;
                }
                Ok(None) => return,
            };
            match event {
                GroupEvent::Assigned { .. } => self.is_member(),
                GroupEvent::Batch(batch) => self.take(batch, random).await,
                _ => {
                    // What it holds is stale now, or is about to be.
                    if random.one_in(2) {
                        self.commit_held().await;
                    }
                }
            }
            let pause = random.between(5, 150);
            self.here.pause(pause).await;
        }
    }

    fn is_member(&mut self) {
        let Some(generation) = self.group.generation() else {
            return;
        };
        let who = Identity {
            member: self.group.member_id(),
            generation,
        };
        self.ledger.note(Told::Member {
            group: GROUP,
            who,
            above: self.above.take(),
            instance: self.instance,
        });
    }

    async fn take(&mut self, batch: Batch, random: &mut Random) {
        let who = Identity {
            member: batch.member_id().to_owned(),
            generation: batch.generation(),
        };
        let at = (batch.topic().to_owned(), batch.partition());
        if who.generation >= 0 {
            self.ledger.remember(who.clone());
            self.ledger.note(Told::Owns {
                group: GROUP,
                who: who.clone(),
                at: at.clone(),
                instance: self.instance,
            });
        }
        match random.below(6) {
            0 | 1 => self.commit(&batch).await,
            2 => {
                let text = who.signature();
                let (env, hosts) = self.here.way();
                let position = (&at, batch.next_offset(), text.as_str());
                let answer = raw::commit_as(env, hosts, GROUP, &who, position).await;
                if answer == Some(ErrorCode::None) {
                    self.ledger.note(Told::Committed {
                        group: GROUP,
                        offset: batch.next_offset(),
                        at,
                        text: Some(text),
                    });
                }
            }
            3 => self.held = Some(batch),
            4 => self.commit_held().await,
            _ => self.commit_as_a_ghost(&at, random).await,
        }
    }

    async fn commit(&self, batch: &Batch) {
        if let Ok(Ok(())) = timeout(WAIT_MAX, batch.commit()).await {
            self.ledger.note(Told::Committed {
                group: GROUP,
                at: (batch.topic().to_owned(), batch.partition()),
                offset: batch.next_offset(),
                text: None,
            });
        }
    }

    async fn commit_held(&mut self) {
        if let Some(batch) = self.held.take() {
            self.commit(&batch).await;
        }
    }

    /// Commits as somebody who was a member in a generation that is over.
    async fn commit_as_a_ghost(&self, at: &At, random: &mut Random) {
        let past = self.ledger.past_members(GROUP);
        let Some(who) = past.get(random.below(past.len() as u64) as usize) else {
            return;
        };
        let (env, hosts) = self.here.way();
        let text = who.signature();
        let answer = raw::commit_as(env, hosts, GROUP, who, (at, 0, &text)).await;
        match answer {
            Some(ErrorCode::None) => self.ledger.note(Told::StaleAccepted {
                group: GROUP,
                who: who.clone(),
            }),
            Some(
                ErrorCode::IllegalGeneration
                | ErrorCode::UnknownMemberId
                | ErrorCode::StaleMemberEpoch
                | ErrorCode::FencedMemberEpoch,
            ) => self.ledger.note(Told::StaleRefused),
            _ => {}
        }
    }
}

/// Writes positions of the group without members, each once and higher than the one before; and
/// sometimes tries to set those of the group with members, which works only while it has none.
async fn write_outside(workload: Workload, ledger: GroupLedger, mut random: Random) {
    let client = workload.connect(PATIENT).await;
    let mut next = 0;
    while !workload.is_quiet() {
        next += 1;
        let (group, offset, text) = match random.one_in(12) {
            true => (GROUP, 0, OUTSIDE.to_owned()),
            false => (PLAIN, next, format!("write {next}")),
        };
        let partition = random.below(KEPT_PARTITIONS as u64) as i32;
        let mut position = CommittedOffset::at(offset);
        position.metadata = Some(text.clone());
        let offsets = CommittedOffsets::from([(TopicPartition::new(KEPT, partition), position)]);
        let admin = client.admin();
        let written = timeout(WAIT_MAX, admin.set_group_offsets(group, &offsets)).await;
        if let Ok(Ok(())) = written {
            ledger.note(Told::Committed {
                group,
                at: (KEPT.to_owned(), partition),
                offset,
                text: Some(text),
            });
        }
        workload.pause(random.between(5, 400)).await;
    }
}

/// Reads the positions of both groups.
async fn read_outside(workload: Workload, ledger: GroupLedger, mut random: Random) {
    let client = workload.connect(PATIENT).await;
    while !workload.is_quiet() {
        let group = random.pick(&[GROUP, PLAIN]).unwrap_or(PLAIN);
        let began = Instant::now();
        let admin = client.admin();
        if let Ok(Ok(found)) = timeout(WAIT_MAX, admin.group_offsets(group)).await {
            let offsets: BTreeMap<At, i64> = found
                .into_iter()
                .map(|(at, position)| ((at.topic.to_string(), at.partition), position.offset))
                .collect();
            ledger.note(Told::Fetched {
                group,
                began,
                offsets,
            });
        }
        workload.pause(random.between(5, 400)).await;
    }
}

/// Asks nodes for the positions of both groups, those too that coordinate them no more: no client
/// library asks anybody but the coordinator that it knows.
async fn ask_everybody(workload: Workload, ledger: GroupLedger, mut random: Random) {
    let (env, hosts) = workload.way();
    let hosts: Vec<Host> = hosts.to_vec();
    while !workload.is_quiet() {
        let group = random.pick(&[GROUP, PLAIN]).unwrap_or(PLAIN);
        let Some(host) = random.pick(&hosts) else {
            return;
        };
        let began = Instant::now();
        if let Some(offsets) = raw::positions(env, host, group).await {
            ledger.note(Told::Fetched {
                group,
                began,
                offsets,
            });
        }
        workload.pause(random.between(10, 250)).await;
    }
}
