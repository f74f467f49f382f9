//! Which process of each other node is the living one: at most one speaks for a node at a time.
//!
//! A data directory can be copied, and two processes with one identity would vote twice and lead
//! twice. Each process has a random incarnation; the first one that is heard holds its node's
//! place. Another one gets the place when the holder's connections are closed (its process has
//! ended), or when the holder has been silent for longer than the failure detector's bound. Whoever
//! has lost the place never gets it back.
//!
//! Shared by the shards of a node, like the address book: a short exclusive turn for each new
//! connection, atomics for everything that happens on one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corduroy_env::Env;
use corduroy_record::NodeId;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::RaftConfig;

/// Superseded incarnations that are remembered of each node. More restarts than that while one of
/// them still waits in a socket do not happen.
const SUPERSEDED_MAX: usize = 16;

/// Nodes in the table beyond which those without a connection are forgotten: whoever can dial this
/// node could name any number of them.
const NODES_MAX: usize = 4096;

/// Why a process may not speak for its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwinRefusal {
    /// Another process of the same node is connected and has just been heard.
    AnotherLives,
    /// Another process has taken the place since; this one was silent for too long. Final.
    Superseded,
}

/// A process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speaker {
    /// Its node.
    pub(crate) node: NodeId,
    /// The process.
    pub(crate) incarnation: u64,
}

/// The process that speaks for a node.
#[derive(Debug)]
struct Life {
    incarnation: u64,
    /// Connections with it that are open, in either direction.
    connections: AtomicUsize,
    /// When it was heard last, in microseconds of the table's clock.
    heard_micros: AtomicU64,
    superseded: AtomicBool,
}

#[derive(Debug)]
struct Known {
    life: Arc<Life>,
    /// The youngest last; at most [`SUPERSEDED_MAX`].
    superseded: VecDeque<u64>,
    /// The process of which a person has been told last.
    told: Option<u64>,
}

#[derive(Debug)]
struct Shared {
    known: watch::Sender<BTreeMap<NodeId, Known>>,
    /// The table's clock starts when it is first read.
    started: OnceLock<Instant>,
    /// A peer has refused this process.
    refused: Notify,
    /// The other process of this node of which a person has been told last.
    told_of_own: AtomicU64,
}

/// Who speaks for each other node. Clone = another handle; `Send`.
#[derive(Clone, Debug)]
pub struct Incarnations(Arc<Shared>);

impl Default for Incarnations {
    fn default() -> Self {
        Incarnations(Arc::new(Shared {
            known: watch::Sender::new(BTreeMap::new()),
            started: OnceLock::new(),
            refused: Notify::new(),
            told_of_own: AtomicU64::new(0),
        }))
    }
}

/// How the known process stands to one that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The asker has the place, or may have it.
    Free,
    /// Another one has it, is connected, and has not been heard for too long.
    Silent,
    Refused(TwinRefusal),
}

impl Known {
    /// Decides, without I/O.
    fn standing(&self, incarnation: u64, silence: Duration, silence_max: Duration) -> Standing {
        if self.life.incarnation == incarnation {
            Standing::Free
        } else if self.superseded.contains(&incarnation) {
            Standing::Refused(TwinRefusal::Superseded)
        } else if self.life.connections.load(Ordering::Acquire) == 0 {
            Standing::Free
        } else if silence > silence_max {
            Standing::Silent
        } else {
            Standing::Refused(TwinRefusal::AnotherLives)
        }
    }

    fn supersede(&mut self, by: Arc<Life>) {
        let before = std::mem::replace(&mut self.life, by);
        before.superseded.store(true, Ordering::Release);
        if self.superseded.len() == SUPERSEDED_MAX {
            self.superseded.pop_front();
        }
        self.superseded.push_back(before.incarnation);
    }

    fn tell(&mut self, asker: Speaker, refusal: TwinRefusal) {
        if self.told.replace(asker.incarnation) == Some(asker.incarnation) {
            return;
        }
        match refusal {
            TwinRefusal::AnotherLives => tracing::warn!(
                node = %asker.node,
                "a second process asks to be a node whose process lives, and is refused: is its \
                 data directory a copy?"
            ),
            TwinRefusal::Superseded => tracing::warn!(
                node = %asker.node,
                "a process that was silent and has been replaced asks to be its node again, and \
                 is refused"
            ),
        }
    }
}

impl Incarnations {
    fn micros(&self, now: Instant) -> u64 {
        let started = *self.0.started.get_or_init(|| now);
        let since = now.saturating_duration_since(started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn standing(&self, asker: Speaker, now: Instant, silence_max: Duration) -> Standing {
        let known = self.0.known.borrow();
        known.get(&asker.node).map_or(Standing::Free, |known| {
            self.judge(known, asker, now, silence_max)
        })
    }

    fn judge(
        &self,
        known: &Known,
        asker: Speaker,
        now: Instant,
        silence_max: Duration,
    ) -> Standing {
        let heard = known.life.heard_micros.load(Ordering::Acquire);
        let silence = Duration::from_micros(self.micros(now).saturating_sub(heard));
        known.standing(asker.incarnation, silence, silence_max)
    }

    /// Gives `asker` its node's place and counts a connection with it, or refuses.
    pub(crate) fn enter(
        &self,
        asker: Speaker,
        now: Instant,
        silence_max: Duration,
    ) -> Result<Contact, TwinRefusal> {
        let micros = self.micros(now);
        let mut entered = Err(TwinRefusal::AnotherLives);
        self.0.known.send_if_modified(|table| {
            let new_life = || {
                Arc::new(Life {
                    incarnation: asker.incarnation,
                    connections: AtomicUsize::new(0),
                    heard_micros: AtomicU64::new(micros),
                    superseded: AtomicBool::new(false),
                })
            };
            if table.len() >= NODES_MAX && !table.contains_key(&asker.node) {
                table.retain(|_, known| known.life.connections.load(Ordering::Acquire) > 0);
            }
            let known = table.entry(asker.node).or_insert_with(|| Known {
                life: new_life(),
                superseded: VecDeque::new(),
                told: None,
            });
            match self.judge(known, asker, now, silence_max) {
                Standing::Refused(refusal) => {
                    known.tell(asker, refusal);
                    entered = Err(refusal);
                }
                Standing::Free | Standing::Silent => {
                    if known.life.incarnation != asker.incarnation {
                        known.supersede(new_life());
                    }
                    // Counted within the turn: nobody finds the place empty in between.
                    known.life.connections.fetch_add(1, Ordering::AcqRel);
                    known.life.heard_micros.fetch_max(micros, Ordering::AcqRel);
                    entered = Ok(Contact {
                        table: self.clone(),
                        life: known.life.clone(),
                    });
                }
            }
            // Nobody watches.
            false
        });
        entered
    }

    /// [`Incarnations::enter`], with a second look before a silent process loses its place: this
    /// side may be the one that stood still, with the other's pings in its sockets.
    pub(crate) async fn admit(
        &self,
        env: &Env,
        asker: Speaker,
        config: &RaftConfig,
    ) -> Result<Contact, TwinRefusal> {
        if self.standing(asker, env.now(), config.down_after) == Standing::Silent {
            env.sleep(config.ping_interval).await;
        }
        self.enter(asker, env.now(), config.down_after)
    }

    /// Whether `asker` would get its node's place now. Changes nothing.
    pub(crate) async fn examine(
        &self,
        env: &Env,
        asker: Speaker,
        config: &RaftConfig,
    ) -> Result<(), TwinRefusal> {
        if self.standing(asker, env.now(), config.down_after) == Standing::Silent {
            env.sleep(config.ping_interval).await;
        }
        let Standing::Refused(refusal) = self.standing(asker, env.now(), config.down_after) else {
            return Ok(());
        };
        self.0.known.send_if_modified(|table| {
            if let Some(known) = table.get_mut(&asker.node) {
                known.tell(asker, refusal);
            }
            false
        });
        Err(refusal)
    }

    /// Another process asks for this very node's place, at the one that has it.
    pub(crate) fn tell_of_own(&self, asker: Speaker) {
        let before = self.0.told_of_own.swap(asker.incarnation, Ordering::AcqRel);
        if before != asker.incarnation {
            tracing::warn!(
                node = %asker.node,
                "a second process asks to be this node, and is refused: is its data directory a \
                 copy of this one's?"
            );
        }
    }

    /// A peer has refused this process.
    pub(crate) fn refused_by(&self, peer: NodeId, refusal: TwinRefusal) {
        tracing::debug!(%peer, ?refusal, "a peer holds another process for this node");
        self.0.refused.notify_one();
    }

    /// Waits until a peer refuses this process because another one speaks for its node. For one
    /// waiter; a refusal before the call counts.
    pub async fn until_refused(&self) {
        self.0.refused.notified().await;
    }
}

/// One open connection with the process that speaks for a node. Dropping it counts it out.
#[derive(Debug)]
pub(crate) struct Contact {
    table: Incarnations,
    life: Arc<Life>,
}

impl Contact {
    /// The process has said something.
    pub(crate) fn heard(&self, now: Instant) {
        let micros = self.table.micros(now);
        self.life.heard_micros.fetch_max(micros, Ordering::AcqRel);
    }

    /// Whether another process has taken the place: what comes on this connection counts no more.
    pub(crate) fn is_superseded(&self) -> bool {
        self.life.superseded.load(Ordering::Acquire)
    }
}

impl Drop for Contact {
    fn drop(&mut self) {
        self.life.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE_MAX: Duration = Duration::from_millis(500);

    /// A table with a clock that the test moves.
    struct Table {
        incarnations: Incarnations,
        now: Instant,
    }

    impl Table {
        fn new() -> Table {
            Table {
                incarnations: Incarnations::default(),
                now: Instant::now(),
            }
        }

        fn pass(&mut self, millis: u64) {
            self.now += Duration::from_millis(millis);
        }

        fn enter(&self, incarnation: u64) -> Result<Contact, TwinRefusal> {
            let node = NodeId::new(2);
            let asker = Speaker { node, incarnation };
            self.incarnations.enter(asker, self.now, SILENCE_MAX)
        }

        fn refusal(&self, incarnation: u64) -> Option<TwinRefusal> {
            self.enter(incarnation).err()
        }
    }

    #[test]
    fn a_second_process_is_refused_while_the_first_is_connected_and_heard() {
        let mut table = Table::new();
        let first = table.enter(1).expect("nobody has the place");
        assert_eq!(table.refusal(2), Some(TwinRefusal::AnotherLives));
        for _ in 0..10 {
            table.pass(400);
            first.heard(table.now);
            assert_eq!(table.refusal(2), Some(TwinRefusal::AnotherLives));
        }
        assert!(!first.is_superseded());
        assert!(table.enter(1).is_ok(), "the first goes on undisturbed");
    }

    #[test]
    fn a_restart_is_taken_at_once_when_the_last_connection_has_closed() {
        let table = Table::new();
        let (one, other) = (table.enter(1).expect("free"), table.enter(1).expect("own"));
        drop(one);
        assert_eq!(table.refusal(2), Some(TwinRefusal::AnotherLives));
        drop(other);
        let _second = table.enter(2).expect("in the same millisecond");
        assert_eq!(table.refusal(1), Some(TwinRefusal::Superseded));
    }

    #[test]
    fn a_silent_process_loses_its_place_for_good() {
        let mut table = Table::new();
        let first = table.enter(1).expect("free");
        table.pass(500);
        assert_eq!(table.refusal(2), Some(TwinRefusal::AnotherLives));
        table.pass(1);
        let second = table.enter(2).expect("its host is gone, it seems");
        assert!(first.is_superseded(), "what it still says counts no more");
        first.heard(table.now);
        assert_eq!(table.refusal(1), Some(TwinRefusal::Superseded));
        drop((first, second));
        assert_eq!(table.refusal(1), Some(TwinRefusal::Superseded));
        assert!(table.enter(3).is_ok());
    }

    #[test]
    fn strangers_who_name_many_nodes_fill_no_memory() {
        let table = Table::new();
        let _second = table.enter(1).expect("node 2");
        for node in 3..20_000 {
            let stranger = Speaker {
                node: NodeId::new(node),
                incarnation: 1,
            };
            let entered = table.incarnations.enter(stranger, table.now, SILENCE_MAX);
            drop(entered.expect("nobody has the place"));
        }
        assert!(table.incarnations.0.known.borrow().len() <= NODES_MAX);
        assert_eq!(
            table.refusal(2),
            Some(TwinRefusal::AnotherLives),
            "who is connected stays"
        );
    }

    #[test]
    fn nodes_do_not_get_in_each_others_way() {
        let table = Table::new();
        let _second = table.enter(1).expect("node 2");
        let third = Speaker {
            node: NodeId::new(3),
            incarnation: 9,
        };
        assert!(
            table
                .incarnations
                .enter(third, table.now, SILENCE_MAX)
                .is_ok()
        );
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "shards are threads")]
    fn a_place_is_given_once_however_many_shards_are_asked() {
        for _ in 0..200 {
            let table = Table::new();
            let entered: Vec<Result<Contact, TwinRefusal>> = std::thread::scope(|scope| {
                let table = &table;
                let shards: Vec<_> = (1..=4)
                    .map(|incarnation| scope.spawn(move || table.enter(incarnation)))
                    .collect();
                let ended = shards.into_iter().map(|shard| shard.join().expect("ended"));
                ended.collect()
            });
            assert_eq!(entered.iter().filter(|entry| entry.is_ok()).count(), 1);
        }
    }

    #[test]
    fn this_side_looks_twice_before_it_gives_a_silent_processs_place_away() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let env = Env::real();
            let config = RaftConfig::default();
            let incarnations = Incarnations::default();
            let node = NodeId::new(2);
            let speaker = |incarnation| Speaker { node, incarnation };
            let first = incarnations
                .admit(&env, speaker(1), &config)
                .await
                .expect("free");
            // This side stands still; then the first one's pings are read beside the question.
            tokio::time::advance(Duration::from_secs(5)).await;
            let (second, ()) = tokio::join!(incarnations.admit(&env, speaker(2), &config), async {
                first.heard(env.now())
            });
            assert_eq!(second.err(), Some(TwinRefusal::AnotherLives));
            tokio::time::advance(Duration::from_secs(5)).await;
            let asked = incarnations.examine(&env, speaker(2), &config).await;
            assert_eq!(asked, Ok(()), "nothing has come");
            assert!(!first.is_superseded(), "a question changes nothing");
        });
    }
}
