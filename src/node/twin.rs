//! One process per node: asks those who would know whether another one speaks for this node.
//!
//! A data directory can be copied (a backup, a cloned machine), and its copy started beside the
//! original. Asked before the node opens a single replica, so that a copy has neither voted nor led
//! when it learns what it is; asked again whenever a peer refuses this process, and as long as
//! nobody has answered at all. Until somebody has, and nobody refuses, this process is silent: it
//! neither votes nor leads.
//!
//! A question takes at most two seconds: one to be reached, one to be answered; a later answer
//! counts as none. A process with whom nobody talks is **alone**: it opens its replicas all the
//! same, still silent if others are members of its cluster, and goes on asking. Somebody who is
//! reached and says nothing in time may know better, and is waited for as long as a refusal is;
//! after that too the process is alone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_raft::{
    AddressBook, Admission, AdmissionAsk, CallError, ClusterTag, Incarnations, Reservation,
    TwinRefusal, ask_admission,
};
use corduroy_record::NodeId;
use futures::stream::{FuturesUnordered, StreamExt};
use tracing::{error, info, warn};
use uuid::Uuid;

/// How long a process that is refused asks again before it ends: the other one may be dying, and
/// its connections with it.
const TWIN_PATIENCE: Duration = Duration::from_secs(10);
/// First pause between two rounds; it doubles. A random share comes on top: of two that ask at the
/// same time one has to come first.
const ROUND_PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause between two rounds, without that share.
const ROUND_PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long the places stay reserved once this process speaks: by then it is connected.
const HOLD: Duration = Duration::from_secs(10);

/// This process, as it asks for its node's place.
#[derive(Clone)]
pub struct TwinWatch {
    /// The seam.
    pub env: Env,
    /// The node that it is.
    pub node: NodeId,
    /// The data directory's uuid.
    pub uuid: Uuid,
    /// This process.
    pub incarnation: u64,
    /// The cluster, once known.
    pub cluster: ClusterTag,
    /// Where other nodes reach this process.
    pub own: SocketAddr,
    /// Where they reached this node when it last ran.
    pub registered: Option<SocketAddr>,
    /// What may be a copy.
    pub data_dir: PathBuf,
    /// Silence after which peers hold a process for dead.
    pub down_after: Duration,
    /// How often it tells those who keep its place that it lives.
    pub ping_interval: Duration,
    /// Where the members were when this node last ran, and the seeds.
    pub places: Vec<SocketAddr>,
    /// What is known by now of the other members.
    pub peers: Rc<dyn Fn() -> Peers>,
}

/// What a process knows, at one moment, of the other members of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// The identity file names some. It lags behind, and a founder's names all founders for ever.
    pub in_file: bool,
    /// The controller's image names some. Before a replica opens, nobody.
    pub in_book: bool,
    /// This process leads the controller, is its only voter, and has applied all of its log.
    pub leads_alone: bool,
}

impl Peers {
    /// Whether one of them has to know this process before it speaks. Only the controller's own log
    /// overrules the file: what was applied of it so far may be older.
    fn exist(self) -> bool {
        self.in_book || (self.in_file && !self.leads_alone)
    }
}

/// A refusal, and where the other process is, if that is known.
type Refused = (TwinRefusal, Option<SocketAddr>);

/// The places that others keep for this process.
type Held = BTreeMap<SocketAddr, Reservation>;

/// What one of those who were asked says now. What it said before does not count: whoever is silent
/// now knows nothing that could still hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The place is free, and kept for this process.
    Free,
    Refused(Refused),
    /// Somebody listens and does not answer in time; or listens where this node was registered, and
    /// says nothing: perhaps another process of it that is just starting. It is no "free", and no
    /// "nobody" either: it may know another process.
    Unready,
    /// Nobody, or nobody who knows this cluster.
    Nobody,
}

/// What a round of answers comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Everybody who answers keeps the place for this process.
    Free,
    /// Somebody holds another one for this node.
    Refused(Refused),
    /// Another one has taken the place for good.
    Ended(Refused),
    /// Nobody has answered, and somebody may yet.
    Unready,
    /// Nobody has answered.
    Alone,
}

/// Decides, without I/O, from the answers of one round alone.
///
/// One "free" outweighs those that do not answer in time: a peer that stands still must not keep a
/// node from coming back. Whoever says "free" is a member that the other process, if it lived, would
/// be connected with; and the late one, once it goes on, refuses the hello that follows.
fn judge(answers: &[Answer]) -> Verdict {
    let refusals = answers.iter().filter_map(|answer| match answer {
        Answer::Refused(refused) => Some(*refused),
        _ => None,
    });
    // A final one first, then one that says where the other process is.
    let worst =
        refusals.max_by_key(|(refusal, at)| (*refusal == TwinRefusal::Superseded, at.is_some()));
    match worst {
        Some(refused) if refused.0 == TwinRefusal::Superseded => Verdict::Ended(refused),
        Some(refused) => Verdict::Refused(refused),
        None if answers.contains(&Answer::Free) => Verdict::Free,
        None if answers.contains(&Answer::Unready) => Verdict::Unready,
        None => Verdict::Alone,
    }
}

impl TwinWatch {
    /// Returns once nobody who answers holds another process for this node: what they keep for this
    /// one until it has connected. From then on it speaks, unless nobody has answered who has to.
    ///
    /// # Errors
    /// Another process lives, or has taken this one's place: the words to end with.
    pub async fn ask(
        &self,
        incarnations: &Incarnations,
        book: &AddressBook,
    ) -> Result<Held, String> {
        let started = self.env.now();
        // A machine that lost power closed no connection: its process counts as alive until then.
        let patience = TWIN_PATIENCE.max(self.down_after * 2);
        let mut pause = ROUND_PAUSE_MIN;
        let mut told = false;
        loop {
            let refusals = incarnations.refusals();
            let mut held = Held::new();
            let mut verdict = judge(&self.round(book, &mut held).await);
            if verdict == Verdict::Free {
                // Whoever was silent is asked again while the others keep the place. Of two that
                // start together one finds it taken, at the latest now: they cannot both have been
                // first at one node before the other one's node began to answer.
                verdict = judge(&self.round(book, &mut held).await);
            }
            let waited = self.env.now().duration_since(started);
            match verdict {
                Verdict::Ended(refused) => return Err(self.end(refused)),
                Verdict::Refused(refused) if waited >= patience => return Err(self.end(refused)),
                Verdict::Unready if waited < patience => {}
                Verdict::Refused(_) => {
                    if !std::mem::replace(&mut told, true) {
                        warn!(
                            node = %self.node,
                            patience_seconds = patience.as_secs(),
                            "another process of this node is connected to the cluster; waiting for its end"
                        );
                    }
                }
                Verdict::Free | Verdict::Unready | Verdict::Alone => {
                    if told {
                        info!(node = %self.node, "the other process of this node has ended");
                    }
                    if verdict == Verdict::Free || !(self.peers)().exist() {
                        incarnations.speak(refusals);
                    }
                    return Ok(held);
                }
            }
            // Nobody keeps anything for this process in between: another one may come first.
            drop(held);
            self.pause(&mut pause).await;
        }
    }

    /// Asks again whenever this process may not speak; returns the words to end with.
    pub async fn watch(self, incarnations: Incarnations, book: AddressBook, held: Held) -> String {
        let mut held = Some(held);
        let mut pause = ROUND_PAUSE_MIN;
        loop {
            tokio::select! {
                biased;
                () = incarnations.until_silent() => {}
                () = self.env.sleep(HOLD), if held.is_some() => {
                    held = None;
                    continue;
                }
            }
            match self.ask(&incarnations, &book).await {
                Ok(kept) => held = Some(kept),
                Err(words) => return words,
            }
            if incarnations.speaks() {
                pause = ROUND_PAUSE_MIN;
            } else {
                self.pause(&mut pause).await;
            }
        }
    }

    async fn pause(&self, pause: &mut Duration) {
        let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        let share = Duration::from_micros(self.env.random_below(micros.max(1)));
        self.env.sleep(*pause + share).await;
        *pause = (*pause * 2).min(ROUND_PAUSE_MAX);
    }

    /// Asks everybody who does not keep the place already. Who is refused by one keeps nothing with
    /// the others: another process may be waiting for the place.
    async fn round(&self, book: &AddressBook, held: &mut Held) -> Vec<Answer> {
        held.retain(|_, reservation| reservation.holds());
        let mut places = self.places.clone();
        let known = book.nodes().into_iter();
        places.extend(known.filter_map(|node| book.get(node)));
        places.retain(|place| *place != self.own && !held.contains_key(place));
        places.sort_unstable();
        places.dedup();
        let asks = places.into_iter();
        let asks = asks.map(|place| async move { (place, self.ask_one(place).await) });
        let mut asks: FuturesUnordered<_> = asks.collect();
        let mut answers = vec![Answer::Free; held.len()];
        let mut is_refused = false;
        while let Some((place, (answer, reservation))) = asks.next().await {
            is_refused |= matches!(answer, Answer::Refused(_));
            answers.push(answer);
            held.extend(reservation.map(|reservation| (place, reservation)));
            if is_refused {
                held.clear();
            }
        }
        answers
    }

    async fn ask_one(&self, place: SocketAddr) -> (Answer, Option<Reservation>) {
        let ask = AdmissionAsk {
            node: self.node,
            incarnation: self.incarnation,
            cluster: self.cluster.get(),
            ping_interval: self.ping_interval,
        };
        match ask_admission(&self.env, place, ask).await {
            Ok(Admission::Reserved(reservation)) => (Answer::Free, Some(reservation)),
            Ok(Admission::Refused {
                by,
                refusal,
                registered,
            }) => {
                let at = if by == self.node {
                    Some(place)
                } else {
                    registered.filter(|addr| *addr != self.own)
                };
                (Answer::Refused((refusal, at)), None)
            }
            Ok(Admission::Own) | Err(CallError::Unreachable) => (Answer::Nobody, None),
            Err(CallError::Timeout) => (Answer::Unready, None),
            Err(_) if self.registered == Some(place) => (Answer::Unready, None),
            Err(_) => (Answer::Nobody, None),
        }
    }

    fn end(&self, refused: Refused) -> String {
        let words = self.last_words(refused);
        error!("{words}");
        words
    }

    fn last_words(&self, (refusal, at): Refused) -> String {
        let TwinWatch { node, uuid, .. } = self;
        let dir = self.data_dir.display();
        let at = at.map(|addr| format!(" at {addr}")).unwrap_or_default();
        match refusal {
            TwinRefusal::AnotherLives => format!(
                "another process runs as node {node} (uuid {uuid}){at}: is {dir} a copy of its data \
                 directory?\n  \
                 help    stop one of the two. A copy must never be started beside its original; a \
                 new node needs an empty --data-dir"
            ),
            TwinRefusal::Superseded => format!(
                "another process has taken the place of this one as node {node} (uuid {uuid}){at}: \
                 this one was silent for too long\n  \
                 help    the other process is the node now, with all that was written since. Do not \
                 start {dir} again: it lacks that, and a node must not forget what it has \
                 acknowledged"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> TwinWatch {
        TwinWatch {
            env: Env::real(),
            node: NodeId::new(2),
            uuid: Uuid::from_u128(7),
            incarnation: 1,
            cluster: ClusterTag::unknown(),
            own: ([127, 0, 0, 1], 1).into(),
            registered: None,
            data_dir: PathBuf::from("/copy"),
            down_after: Duration::from_millis(500),
            ping_interval: Duration::from_millis(100),
            places: Vec::new(),
            peers: Rc::new(|| Peers {
                in_file: true,
                in_book: false,
                leads_alone: false,
            }),
        }
    }

    #[test]
    fn the_last_words_say_who_where_and_what_to_do() {
        let at: SocketAddr = ([10, 0, 0, 2], 9644).into();
        let words = watch().last_words((TwinRefusal::AnotherLives, Some(at)));
        for part in [
            "node 2 (uuid 00000000-0000-0000-0000-000000000007) at 10.0.0.2:9644",
            "is /copy a copy of its data directory?",
            "stop one of the two",
            "must never be started beside its original",
        ] {
            assert!(words.contains(part), "{words:?} lacks {part:?}");
        }
    }

    fn refused(port: u16) -> Answer {
        let at: SocketAddr = ([127, 0, 0, 1], port).into();
        Answer::Refused((TwinRefusal::AnotherLives, Some(at)))
    }

    #[test]
    fn a_final_refusal_counts_before_all_others() {
        let unplaced = (TwinRefusal::AnotherLives, None);
        let last = (TwinRefusal::Superseded, None);
        assert_eq!(
            judge(&[Answer::Free, Answer::Refused(unplaced)]),
            Verdict::Refused(unplaced)
        );
        let Answer::Refused(named) = refused(9) else {
            unreachable!()
        };
        assert_eq!(
            judge(&[Answer::Refused(unplaced), refused(9)]),
            Verdict::Refused(named)
        );
        assert_eq!(
            judge(&[refused(9), Answer::Refused(last), Answer::Free]),
            Verdict::Ended(last)
        );
    }

    #[test]
    fn who_is_silent_has_no_say_whatever_it_said_before() {
        // A quick restart: one peer has not read the end of the process before.
        let (mut one, mut other) = (Answer::Free, refused(9));
        assert!(matches!(judge(&[one, other]), Verdict::Refused(_)));
        // It dies with that.
        other = Answer::Nobody;
        assert_eq!(judge(&[one, other]), Verdict::Free);
        // So does the one that knew better: this process is alone, and says nothing.
        one = Answer::Nobody;
        assert_eq!(judge(&[one, other]), Verdict::Alone);
        assert_eq!(judge(&[]), Verdict::Alone);
        // Back, and of its old opinion.
        assert!(matches!(judge(&[one, refused(9)]), Verdict::Refused(_)));
    }

    #[test]
    fn the_file_is_overruled_by_the_controllers_log_alone() {
        let check = |in_file, in_book, leads_alone, exist: bool| {
            let peers = Peers {
                in_file,
                in_book,
                leads_alone,
            };
            assert_eq!(peers.exist(), exist, "{peers:?}");
        };
        check(false, false, false, false);
        check(true, false, false, true);
        // The cluster shrank to this node.
        check(true, true, true, true);
        check(true, false, true, false);
        // It was alone when it started, and is no more.
        check(false, true, false, true);
    }

    #[test]
    fn one_that_is_just_starting_is_waited_for_unless_somebody_knows() {
        assert_eq!(judge(&[Answer::Unready, Answer::Nobody]), Verdict::Unready);
        assert_eq!(judge(&[Answer::Unready, Answer::Free]), Verdict::Free);
        assert!(matches!(
            judge(&[Answer::Unready, refused(9)]),
            Verdict::Refused(_)
        ));
    }
}
