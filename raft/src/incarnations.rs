//! Which process of each other node is the living one: at most one speaks for a node at a time.
//!
//! A data directory can be copied, and two processes with one identity would vote twice and lead
//! twice. Each process has a random incarnation; the first one that is heard holds its node's
//! place. Another one gets the place when the holder's connections are closed (its process has
//! ended), or when the holder has been silent for longer than the failure detector's bound. Whoever
//! has lost the place never gets it back.
//!
//! A process that asks for the place before it speaks reserves it: until it takes the place, or lets
//! go, nobody else gets it, and what the one before still says does not count. So two that start at
//! the same moment are never told "free" by the same node.
//!
//! And the other way round: once a peer has refused this very process, it falls silent until nobody
//! refuses it any more ([`Incarnations::speaks`]).
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
use crate::told::Told;
use crate::wire::Hello;

/// Superseded incarnations that are remembered of each node. More restarts than that while one of
/// them still waits in a socket do not happen.
const SUPERSEDED_MAX: usize = 16;

/// Nodes in the table beyond which those without a connection are forgotten: whoever can dial this
/// node could name any number of them.
const NODES_MAX: usize = 4096;

/// How long one of those who are asked for a node's place may take to be reached, and then to
/// answer; a later answer counts as none. Whoever listens answers at once; only the one behind a
/// broken network, or that stands still, makes the asker wait.
pub(crate) const ADMISSION_ANSWER_MAX: Duration = Duration::from_secs(1);
/// The longest that a refusal is withheld, however long the ping interval: what lies unread in this
/// side's sockets is read by then, and the asker still hears the refusal.
const WITHHELD_MAX: Duration = Duration::from_millis(250);
const _: () = assert!(WITHHELD_MAX.as_millis() * 4 <= ADMISSION_ANSWER_MAX.as_millis());

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

impl Speaker {
    /// Whoever says hello.
    pub(crate) fn of(hello: &Hello) -> Speaker {
        Speaker {
            node: hello.node,
            incarnation: hello.incarnation,
        }
    }
}

/// A process that speaks for a node, or is about to.
#[derive(Debug)]
struct Life {
    incarnation: u64,
    /// Connections with it that are open, in either direction.
    connections: AtomicUsize,
    /// When it was heard last, in microseconds of the table's clock.
    heard_micros: AtomicU64,
    /// Another one has the place, or has reserved it: what this one says does not count.
    muted: AtomicBool,
}

impl Life {
    fn new(incarnation: u64, heard_micros: u64) -> Arc<Life> {
        Arc::new(Life {
            incarnation,
            connections: AtomicUsize::new(0),
            heard_micros: AtomicU64::new(heard_micros),
            muted: AtomicBool::new(false),
        })
    }

    fn is_connected(&self) -> bool {
        self.connections.load(Ordering::Acquire) > 0
    }
}

/// Law: `reserved` is never the process of `life`, and while it is there, `life` is muted.
#[derive(Debug, Default)]
struct Known {
    /// The one that speaks, or spoke last.
    life: Option<Arc<Life>>,
    /// The one that may take the place next. It has not spoken yet.
    reserved: Option<Arc<Life>>,
    /// The youngest last; at most [`SUPERSEDED_MAX`].
    superseded: VecDeque<u64>,
    told: Told,
}

/// What a process wants of its node's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// To keep it free of others, before it speaks.
    Reserve,
    /// To speak.
    Take,
}

/// Whether this process may speak for its own node.
#[derive(Clone, Copy, Debug, Default)]
struct Voice {
    is_silent: bool,
    /// How often a peer has refused it.
    refusals: u64,
}

#[derive(Debug)]
struct Shared {
    known: watch::Sender<BTreeMap<NodeId, Known>>,
    /// The table's clock starts when it is first read.
    started: OnceLock<Instant>,
    /// The last connection of some process has closed.
    ended: Notify,
    voice: watch::Sender<Voice>,
    /// The same as the voice's, for those who look at every message.
    is_silent: AtomicBool,
    /// The other processes of this node of which a person has been told.
    told_of_own: watch::Sender<Told>,
}

/// Who speaks for each other node. Clone = another handle; `Send`.
#[derive(Clone, Debug)]
pub struct Incarnations(Arc<Shared>);

impl Default for Incarnations {
    fn default() -> Self {
        Incarnations(Arc::new(Shared {
            known: watch::Sender::new(BTreeMap::new()),
            started: OnceLock::new(),
            ended: Notify::new(),
            voice: watch::Sender::new(Voice::default()),
            is_silent: AtomicBool::new(false),
            told_of_own: watch::Sender::new(Told::default()),
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
    /// Decides, without I/O. `silence` says how long a process has not been heard.
    fn standing(
        &self,
        incarnation: u64,
        silence: impl Fn(&Life) -> Duration,
        silence_max: Duration,
    ) -> Standing {
        if self.superseded.contains(&incarnation) {
            return Standing::Refused(TwinRefusal::Superseded);
        }
        // Who has reserved the place comes before the one that had it.
        let mut standing = Standing::Free;
        for holder in [&self.reserved, &self.life].into_iter().flatten() {
            if holder.incarnation == incarnation {
                return standing;
            }
            if !holder.is_connected() {
                continue;
            }
            if silence(holder) <= silence_max {
                return Standing::Refused(TwinRefusal::AnotherLives);
            }
            standing = Standing::Silent;
        }
        standing
    }

    /// Gives the place to `incarnation`, which may have it.
    fn grant(&mut self, incarnation: u64, wish: Wish, micros: u64) -> Arc<Life> {
        let own = |life: &Arc<Life>| life.incarnation == incarnation;
        let (kept, lost) = match self.reserved.take() {
            Some(reserved) if own(&reserved) => (Some(reserved), None),
            reserved => (None, reserved),
        };
        if let Some(lost) = lost {
            // It was silent for too long, and has to ask again.
            lost.muted.store(true, Ordering::Release);
        }
        if let Some(life) = self.life.clone().filter(own) {
            life.muted.store(false, Ordering::Release);
            return life;
        }
        let next = kept.unwrap_or_else(|| Life::new(incarnation, micros));
        if let Some(before) = &self.life {
            before.muted.store(true, Ordering::Release);
        }
        match wish {
            Wish::Reserve => self.reserved = Some(next.clone()),
            Wish::Take => {
                if let Some(before) = self.life.replace(next.clone()) {
                    self.supersede(before.incarnation);
                }
            }
        }
        next
    }

    fn supersede(&mut self, before: u64) {
        if self.superseded.len() == SUPERSEDED_MAX {
            self.superseded.pop_front();
        }
        self.superseded.push_back(before);
    }

    /// The last connection of `life` has closed. A reservation ends with it: the one that had the
    /// place has it still.
    fn let_go(&mut self, life: &Arc<Life>) {
        let is_reservation = self
            .reserved
            .as_ref()
            .is_some_and(|reserved| Arc::ptr_eq(reserved, life));
        if is_reservation && !life.is_connected() {
            self.reserved = None;
            if let Some(life) = &self.life {
                life.muted.store(false, Ordering::Release);
            }
        }
    }

    fn is_connected(&self) -> bool {
        let mut holders = [&self.life, &self.reserved].into_iter().flatten();
        holders.any(|life| life.is_connected())
    }

    fn tell(&mut self, asker: Speaker, refusal: TwinRefusal) {
        if !self.told.note(asker.incarnation) {
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
        let now = self.micros(now);
        let silence = |life: &Life| {
            let heard = life.heard_micros.load(Ordering::Acquire);
            Duration::from_micros(now.saturating_sub(heard))
        };
        known.standing(asker.incarnation, silence, silence_max)
    }

    /// Gives `asker` its node's place as it wishes and counts a connection with it, or refuses.
    fn enter(
        &self,
        asker: Speaker,
        wish: Wish,
        now: Instant,
        silence_max: Duration,
    ) -> Result<Contact, TwinRefusal> {
        let micros = self.micros(now);
        let mut entered = Err(TwinRefusal::AnotherLives);
        self.0.known.send_if_modified(|table| {
            if table.len() >= NODES_MAX && !table.contains_key(&asker.node) {
                table.retain(|_, known| known.is_connected());
            }
            let known = table.entry(asker.node).or_default();
            match self.judge(known, asker, now, silence_max) {
                Standing::Refused(refusal) => {
                    known.tell(asker, refusal);
                    entered = Err(refusal);
                }
                Standing::Free | Standing::Silent => {
                    let life = known.grant(asker.incarnation, wish, micros);
                    // Counted within the turn: nobody finds the place empty in between.
                    life.connections.fetch_add(1, Ordering::AcqRel);
                    life.heard_micros.fetch_max(micros, Ordering::AcqRel);
                    entered = Ok(Contact {
                        table: self.clone(),
                        node: asker.node,
                        life,
                    });
                }
            }
            // Nobody watches.
            false
        });
        entered
    }

    /// [`Incarnations::enter`], with a second look before somebody loses by what this side has not
    /// read yet: it may have stood still, with a silent process's pings in its sockets, or with the
    /// end of the connections of one that has ended. Never so late that the answer is missed.
    async fn enter_fairly(
        &self,
        env: &Env,
        asker: Speaker,
        wish: Wish,
        config: &RaftConfig,
    ) -> Result<Contact, TwinRefusal> {
        let deadline = env.now() + config.ping_interval.min(WITHHELD_MAX);
        loop {
            let ended = self.0.ended.notified();
            tokio::pin!(ended);
            // From here on none is missed.
            ended.as_mut().enable();
            match self.standing(asker, env.now(), config.down_after) {
                Standing::Free | Standing::Refused(TwinRefusal::Superseded) => break,
                Standing::Silent | Standing::Refused(TwinRefusal::AnotherLives) => {}
            }
            if tokio::time::timeout_at(deadline, ended).await.is_err() {
                break;
            }
        }
        self.enter(asker, wish, env.now(), config.down_after)
    }

    /// Lets a process speak for its node, or refuses it.
    pub(crate) async fn admit(
        &self,
        env: &Env,
        asker: Speaker,
        config: &RaftConfig,
    ) -> Result<Contact, TwinRefusal> {
        self.enter_fairly(env, asker, Wish::Take, config).await
    }

    /// Reserves its node's place for `asker`, as long as the contact lives and is heard, or refuses.
    pub(crate) async fn reserve(
        &self,
        env: &Env,
        asker: Speaker,
        config: &RaftConfig,
    ) -> Result<Contact, TwinRefusal> {
        self.enter_fairly(env, asker, Wish::Reserve, config).await
    }

    /// Another process asks for this very node's place, at the one that has it.
    pub(crate) fn tell_of_own(&self, asker: Speaker) {
        let mut is_new = false;
        self.0.told_of_own.send_if_modified(|told| {
            is_new = told.note(asker.incarnation);
            // Nobody watches.
            false
        });
        if is_new {
            tracing::warn!(
                node = %asker.node,
                "a second process asks to be this node, and is refused: is its data directory a \
                 copy of this one's?"
            );
        }
    }

    fn change_voice(&self, change: impl FnOnce(&mut Voice)) {
        self.0.voice.send_modify(|voice| {
            change(voice);
            self.0.is_silent.store(voice.is_silent, Ordering::Release);
        });
    }

    /// A peer has refused this process, which says nothing more until [`Incarnations::speak`].
    pub(crate) fn refused_by(&self, peer: NodeId, refusal: TwinRefusal) {
        tracing::debug!(%peer, ?refusal, "a peer holds another process for this node");
        self.change_voice(|voice| {
            voice.is_silent = true;
            voice.refusals += 1;
        });
    }

    /// This process may not speak: nobody has said yet that it is its node's.
    pub fn fall_silent(&self) {
        self.change_voice(|voice| voice.is_silent = true);
    }

    /// How often peers have refused this process.
    pub fn refusals(&self) -> u64 {
        self.0.voice.borrow().refusals
    }

    /// It may speak again, unless a peer has refused it since `refusals` were counted.
    pub fn speak(&self, refusals: u64) {
        self.change_voice(|voice| voice.is_silent &= voice.refusals != refusals);
    }

    /// Whether this process may speak for its node: vote, lead, ask for votes, acknowledge.
    pub fn speaks(&self) -> bool {
        !self.0.is_silent.load(Ordering::Acquire)
    }

    /// Waits until it may not.
    pub async fn until_silent(&self) {
        let mut voice = self.0.voice.subscribe();
        // The sender lives in `self`.
        let _silent = voice.wait_for(|voice| voice.is_silent).await;
    }
}

/// One open connection with the process that speaks for a node, or has reserved its place.
/// Dropping it counts it out.
#[derive(Debug)]
pub(crate) struct Contact {
    table: Incarnations,
    node: NodeId,
    life: Arc<Life>,
}

impl Contact {
    /// The process has said something.
    pub(crate) fn heard(&self, now: Instant) {
        let micros = self.table.micros(now);
        self.life.heard_micros.fetch_max(micros, Ordering::AcqRel);
    }

    /// Whether another process has the place, or has reserved it: what comes on this connection
    /// counts no more.
    pub(crate) fn is_muted(&self) -> bool {
        self.life.muted.load(Ordering::Acquire)
    }
}

impl Drop for Contact {
    fn drop(&mut self) {
        let Contact { table, node, life } = self;
        if life.connections.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        table.0.known.send_if_modified(|known| {
            if let Some(known) = known.get_mut(node) {
                known.let_go(life);
            }
            false
        });
        table.0.ended.notify_waiters();
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
            self.incarnations
                .enter(asker, Wish::Take, self.now, SILENCE_MAX)
        }

        fn reserve(&self, incarnation: u64) -> Result<Contact, TwinRefusal> {
            let node = NodeId::new(2);
            let asker = Speaker { node, incarnation };
            self.incarnations
                .enter(asker, Wish::Reserve, self.now, SILENCE_MAX)
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
        assert!(!first.is_muted());
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
        assert!(first.is_muted(), "what it still says counts no more");
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
            let entered = table
                .incarnations
                .enter(stranger, Wish::Take, table.now, SILENCE_MAX);
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
                .enter(third, Wish::Take, table.now, SILENCE_MAX)
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
            let asked = incarnations.reserve(&env, speaker(2), &config).await;
            assert!(asked.is_ok(), "nothing has come");
            drop(asked);
            assert!(
                !first.is_muted(),
                "a question that was dropped changes nothing"
            );
        });
    }

    #[test]
    fn a_refusal_is_heard_however_long_the_ping_interval() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let env = Env::real();
            let config = RaftConfig {
                ping_interval: Duration::from_secs(60),
                down_after: Duration::from_secs(120),
                ..RaftConfig::default()
            };
            let incarnations = Incarnations::default();
            let node = NodeId::new(2);
            let speaker = |incarnation| Speaker { node, incarnation };
            let _first = incarnations.admit(&env, speaker(1), &config).await;
            let asked = incarnations.reserve(&env, speaker(2), &config);
            let answer = tokio::time::timeout(ADMISSION_ANSWER_MAX, asked).await;
            let answer = answer.expect("in time");
            assert_eq!(answer.err(), Some(TwinRefusal::AnotherLives));
        });
    }

    #[test]
    fn this_side_reads_the_end_of_a_process_before_it_refuses_the_next_one() {
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
            let first = incarnations.admit(&env, speaker(1), &config).await;
            let started = env.now();
            let (second, ()) = tokio::join!(
                incarnations.admit(&env, speaker(2), &config),
                // The end of its connection lay unread in the socket.
                async { drop(first) }
            );
            assert!(second.is_ok(), "the first one has ended");
            assert_eq!(env.now(), started, "nobody waits longer than for that");
        });
    }

    #[test]
    fn a_reserved_place_is_given_to_nobody_else() {
        let table = Table::new();
        let reserved = table.reserve(1).expect("nobody has the place");
        assert_eq!(table.reserve(2).err(), Some(TwinRefusal::AnotherLives));
        assert_eq!(table.refusal(2), Some(TwinRefusal::AnotherLives));
        let again = table.reserve(1).expect("its own");
        let taken = table.enter(1).expect("its own");
        drop((reserved, again));
        assert_eq!(table.refusal(2), Some(TwinRefusal::AnotherLives));
        drop(taken);
        let _second = table.enter(2).expect("the first one has ended");
        assert_eq!(table.refusal(1), Some(TwinRefusal::Superseded));
    }

    #[test]
    fn a_reservation_that_is_let_go_has_superseded_nobody() {
        let mut table = Table::new();
        let first = table.enter(1).expect("free");
        assert_eq!(table.reserve(2).err(), Some(TwinRefusal::AnotherLives));
        table.pass(501);
        let reserved = table.reserve(2).expect("the first one is silent");
        assert!(first.is_muted(), "it may wake up meanwhile");
        assert_eq!(table.refusal(1), Some(TwinRefusal::AnotherLives));
        drop(reserved);
        assert!(!first.is_muted());
        let _again = table.enter(1).expect("nobody has taken the place");
        // Two that start together and both let go: each may come again.
        let table = Table::new();
        drop(table.reserve(1));
        drop(table.reserve(2).expect("let go"));
        assert!(table.enter(1).is_ok());
    }

    #[test]
    fn a_reservation_ends_with_its_process_or_its_silence() {
        let mut table = Table::new();
        let reserved = table.reserve(1).expect("free");
        table.pass(500);
        assert_eq!(table.reserve(2).err(), Some(TwinRefusal::AnotherLives));
        reserved.heard(table.now);
        table.pass(500);
        assert_eq!(table.reserve(2).err(), Some(TwinRefusal::AnotherLives));
        table.pass(1);
        let next = table.enter(2).expect("its machine is gone, it seems");
        drop(reserved);
        assert_eq!(table.refusal(3), Some(TwinRefusal::AnotherLives));
        drop(next);
        assert!(table.enter(3).is_ok());
    }

    #[test]
    fn a_refused_process_is_silent_until_nobody_refuses_it() {
        let own = Incarnations::default();
        assert!(own.speaks());
        own.refused_by(NodeId::new(1), TwinRefusal::AnotherLives);
        assert!(!own.speaks());
        let asked_at = own.refusals();
        own.refused_by(NodeId::new(3), TwinRefusal::AnotherLives);
        own.speak(asked_at);
        assert!(!own.speaks(), "refused again since it asked");
        own.speak(own.refusals());
        assert!(own.speaks());
    }
}
