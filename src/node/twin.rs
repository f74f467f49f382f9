//! One process per node: asks those who would know whether another one speaks for this node.
//!
//! A data directory can be copied (a backup, a cloned machine), and its copy started beside the
//! original. Asked before the node opens a single replica, so that a copy has neither voted nor led
//! when it learns what it is; asked again whenever a peer refuses this process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_raft::{
    AddressBook, Admission, AdmissionAsk, ClusterTag, Incarnations, TwinRefusal, ask_admission,
};
use corduroy_record::NodeId;
use futures::future::join_all;
use tracing::{error, info, warn};
use uuid::Uuid;

/// How long a process that is refused asks again before it ends: the other one may be dying, and
/// its connections with it.
const TWIN_PATIENCE: Duration = Duration::from_secs(10);
/// How long one of those who are asked may take to answer. Whoever listens answers at once; only
/// the one behind a broken network makes the asker wait.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// First pause between two rounds; it doubles.
const ROUND_PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause between two rounds.
const ROUND_PAUSE_MAX: Duration = Duration::from_millis(200);

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
    /// What may be a copy.
    pub data_dir: PathBuf,
    /// Silence after which peers hold a process for dead.
    pub down_after: Duration,
    /// Where the members were when this node last ran, and the seeds.
    pub places: Vec<SocketAddr>,
}

/// A refusal, and where the other process is, if that is known.
type Refused = (TwinRefusal, Option<SocketAddr>);

impl TwinWatch {
    /// Returns once nobody who answers holds another process for this node.
    ///
    /// # Errors
    /// Another process lives, or has taken this one's place: the words to end with.
    pub async fn ask(&self, book: &AddressBook) -> Result<(), String> {
        let started = self.env.now();
        // A machine that lost power closed no connection: its process counts as alive until then.
        let patience = TWIN_PATIENCE.max(self.down_after * 2);
        let mut pause = ROUND_PAUSE_MIN;
        let mut refused: BTreeMap<SocketAddr, Refused> = BTreeMap::new();
        let mut told = false;
        loop {
            self.ask_round(book, &mut refused).await;
            let waited = self.env.now().duration_since(started);
            let Some(worst) = worst_of(&refused) else {
                if told {
                    info!(node = %self.node, "the other process of this node has ended");
                }
                return Ok(());
            };
            if worst.0 == TwinRefusal::Superseded || waited >= patience {
                let words = self.last_words(worst);
                error!("{words}");
                return Err(words);
            }
            if !std::mem::replace(&mut told, true) {
                warn!(
                    node = %self.node,
                    patience_seconds = patience.as_secs(),
                    "another process of this node is connected to the cluster; waiting for its end"
                );
            }
            self.env.sleep(pause).await;
            pause = (pause * 2).min(ROUND_PAUSE_MAX);
        }
    }

    /// Asks again whenever a peer refuses this process; returns the words to end with.
    pub async fn watch(self, incarnations: Incarnations, book: AddressBook) -> String {
        loop {
            incarnations.until_refused().await;
            if let Err(words) = self.ask(&book).await {
                return words;
            }
            self.env.sleep(ROUND_PAUSE_MAX).await;
        }
    }

    async fn ask_round(&self, book: &AddressBook, refused: &mut BTreeMap<SocketAddr, Refused>) {
        let mut places = self.places.clone();
        let known = book.nodes().into_iter();
        places.extend(known.filter_map(|node| book.get(node)));
        places.retain(|place| *place != self.own);
        places.sort_unstable();
        places.dedup();
        let ask = AdmissionAsk {
            node: self.node,
            incarnation: self.incarnation,
            cluster: self.cluster.get(),
        };
        let answers = places.iter().map(|place| async {
            let answer = ask_admission(&self.env, *place, ask, ANSWER_MAX).await;
            (*place, answer)
        });
        for (place, answer) in join_all(answers).await {
            match answer {
                Ok(Admission { refusal: None, .. }) => {
                    refused.remove(&place);
                }
                Ok(Admission {
                    by,
                    refusal: Some(refusal),
                    registered,
                }) => {
                    let at = if by == self.node {
                        Some(place)
                    } else {
                        registered.filter(|addr| *addr != self.own)
                    };
                    refused.insert(place, (refusal, at));
                }
                // Nobody, or nobody with a place in this cluster. One that has just refused and is
                // silent now has not taken it back, unless it was the other process itself.
                Err(_) => {
                    if refused
                        .get(&place)
                        .is_some_and(|(_, at)| *at == Some(place))
                    {
                        refused.remove(&place);
                    }
                }
            }
        }
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

/// The refusal to act on: a final one first, then one that says where the other process is.
fn worst_of(refused: &BTreeMap<SocketAddr, Refused>) -> Option<Refused> {
    let refusals = refused.values().copied();
    refusals.max_by_key(|(refusal, at)| (*refusal == TwinRefusal::Superseded, at.is_some()))
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
            data_dir: PathBuf::from("/copy"),
            down_after: Duration::from_millis(500),
            places: Vec::new(),
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

    #[test]
    fn a_final_refusal_counts_before_all_others() {
        let place = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut refused = BTreeMap::from([(place(1), (TwinRefusal::AnotherLives, None))]);
        assert_eq!(worst_of(&refused), Some((TwinRefusal::AnotherLives, None)));
        refused.insert(place(2), (TwinRefusal::AnotherLives, Some(place(9))));
        let named = (TwinRefusal::AnotherLives, Some(place(9)));
        assert_eq!(worst_of(&refused), Some(named));
        refused.insert(place(3), (TwinRefusal::Superseded, None));
        assert_eq!(worst_of(&refused), Some((TwinRefusal::Superseded, None)));
        assert_eq!(worst_of(&BTreeMap::new()), None);
    }
}
