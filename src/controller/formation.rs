//! How a node finds its place: a cluster of its own, a cluster that forms, one that is there.
//!
//! A cluster forms once. The founders are the nodes of one list of seeds, the same on each, all of
//! them with empty disks. The **first seed alone decides** ([`decide`]): ids, controller replicas,
//! first settings; it writes the decision down, and the others adopt it from whoever has it, if
//! their own uuid is in it. So there is one decision, and a founder that lost its disk in between
//! is a newcomer. Everyone else joins: the controller assigns the id.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_record::{NodeId, ReplicaId};
use futures::future::join_all;
use tracing::{info, warn};
use uuid::Uuid;

use super::calls::{
    Answer, Call, Presence, Stage, decode_answer, decode_call, encode_answer, encode_call,
};
use super::error::ControllerError;
use super::identity::{Founding, Identity, IdentityFile, Stored};
use super::image::HostPort;
use super::records::NodeRecord;
use super::requests::{NodeClaim, NodeGrant, Reply};
use crate::config::NodeConfig;

/// Pause between two rounds of questions to the seeds.
const ROUND_PAUSE: Duration = Duration::from_millis(200);
/// How long a seed may take to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a join may take: it waits for the controller's leader.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two words to the person who waits.
const WORD_INTERVAL: Duration = Duration::from_secs(3);

/// Where this node is reached, known once its listeners are bound.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Where clients reach it: advertised, else where it listens.
    pub kafka: HostPort,
    /// Where nodes reach it: advertised, else where it listens.
    pub rpc: SocketAddr,
    /// Where metrics and health are served.
    pub admin: Option<SocketAddr>,
}

struct Inner {
    env: Env,
    file: IdentityFile,
    seeds: Vec<SocketAddr>,
    configs: BTreeMap<String, String>,
    claim: RefCell<NodeClaim>,
    stage: RefCell<Stage>,
    /// Hears what this node waits for.
    waits: RefCell<Box<dyn Fn(String)>>,
    /// A seed that asked with another list of seeds than this node's, and its list.
    disagreement: RefCell<Option<(SocketAddr, Vec<SocketAddr>)>>,
}

/// A node on its way to an identity. Clone = another handle.
///
/// While [`Formation::run`] runs, the rpc port answers calls with [`Formation::answer`].
#[derive(Clone)]
pub struct Formation(Rc<Inner>);

impl Formation {
    /// A node that looks for its place.
    pub fn new(env: Env, config: &NodeConfig, file: IdentityFile, addresses: Addresses) -> Self {
        let claim = NodeClaim {
            uuid: [0; 16],
            node: config.node_id.map(NodeId::get),
            kafka_host: addresses.kafka.host,
            kafka_port: addresses.kafka.port,
            rpc: addresses.rpc,
            admin: addresses.admin,
            rack: config.rack.clone(),
        };
        Formation(Rc::new(Inner {
            env,
            file,
            seeds: config.seeds.clone(),
            configs: config.cluster_overrides.clone(),
            claim: RefCell::new(claim),
            stage: RefCell::new(Stage::Empty {
                configs: config.cluster_overrides.clone(),
            }),
            waits: RefCell::new(Box::new(|_why| {})),
            disagreement: RefCell::default(),
        }))
    }

    /// From now on this hears what the node waits for, again and again.
    pub fn tell_waits(&self, hear: impl Fn(String) + 'static) {
        *self.0.waits.borrow_mut() = Box::new(hear);
    }

    /// Answers a call from the rpc port while this node has no place yet.
    pub fn answer(&self, request: &[u8]) -> Bytes {
        let answer = match decode_call(request) {
            // Before the uuid is on disk there is nobody to answer for.
            Ok(Call::Probe { rpc, seeds }) if self.0.claim.borrow().uuid != [0; 16] => {
                self.compare(rpc, seeds);
                Answer::Presence(Presence {
                    claim: self.0.claim.borrow().clone(),
                    seeds: self.0.seeds.clone(),
                    stage: self.0.stage.borrow().clone(),
                })
            }
            Ok(_) | Err(_) => Answer::TryAgain,
        };
        encode_answer(&answer)
    }

    /// Two seeds with different lists: whoever asks first would refuse to start and leave the
    /// other one waiting without a reason.
    fn compare(&self, rpc: SocketAddr, theirs: Option<Vec<SocketAddr>>) {
        let ours = &self.0.seeds;
        let both_seeds = ours.contains(&rpc) && ours.contains(&self.0.claim.borrow().rpc);
        if let Some(theirs) = theirs.filter(|theirs| both_seeds && theirs != ours) {
            *self.0.disagreement.borrow_mut() = Some((rpc, theirs));
        }
    }

    fn disagreement(&self) -> Result<(), ControllerError> {
        match self.0.disagreement.borrow_mut().take() {
            None => Ok(()),
            Some((seed, theirs)) => Err(ControllerError::SeedsDisagree {
                own: self.0.claim.borrow().rpc,
                ours: self.0.seeds.clone(),
                seed,
                theirs,
            }),
        }
    }

    /// Finds this node's place. Returns at once where the data directory knows it, and waits for
    /// the seeds for ever.
    pub async fn run(&self) -> Result<Identity, ControllerError> {
        let inner = &self.0;
        let asked = inner.claim.borrow().node.map(NodeId::new);
        let uuid = match inner.file.load()? {
            Stored::Placed(identity) => {
                return match asked {
                    Some(asked) if asked != identity.node => Err(ControllerError::ForeignDataDir {
                        path: inner.file.path(),
                        found: identity.node,
                        asked,
                    }),
                    _ => Ok(identity),
                };
            }
            Stored::Unplaced(uuid) => uuid,
            Stored::Empty => {
                let uuid = inner.env.random_uuid();
                inner.file.save_uuid(uuid)?;
                uuid
            }
        };
        inner.claim.borrow_mut().uuid = *uuid.as_bytes();
        if inner.seeds.is_empty() {
            let id = asked.map_or(1, NodeId::get);
            let node = inner.claim.borrow().record(id, 1);
            let founding = Founding {
                nodes: vec![node],
                configs: inner.configs.clone(),
            };
            return self.found(founding);
        }
        self.meet_seeds().await
    }

    async fn meet_seeds(&self) -> Result<Identity, ControllerError> {
        let started = self.0.env.now();
        let mut told_at = None;
        let mut place = Place::Unknown;
        loop {
            let presences = self.probe_all().await;
            let claim = self.0.claim.borrow().clone();
            match judge_round(&claim, &self.0.seeds, &self.0.configs, &presences)? {
                Step::Found(founding) | Step::Adopt(founding) => return self.found(founding),
                Step::Join => {
                    place = Place::Newcomer;
                    if let Some(grant) = self.join(&claim).await? {
                        return self.joined(grant);
                    }
                }
                // Without an existing cluster the lists have to agree.
                Step::Wait => self.disagreement()?,
            }
            (self.0.waits.borrow())(waits_text(&self.0.seeds, &presences, place));
            let now = self.0.env.now();
            if told_at.is_none_or(|at| now.duration_since(at) >= WORD_INTERVAL) {
                self.tell(&presences, place, now.duration_since(started));
                told_at = Some(now);
            }
            self.0.env.sleep(ROUND_PAUSE).await;
        }
    }

    fn tell(&self, presences: &[Option<Presence>], place: Place, waited: Duration) {
        let seconds = waited.as_secs();
        let silent = silent(&self.0.seeds, presences);
        match place {
            Place::Newcomer => {
                warn!(
                    waited_seconds = seconds,
                    "waiting for the cluster's controller to take this node in; it needs a \
                     majority of its members. Clients are turned away until then"
                );
            }
            Place::Unknown if silent.is_empty() => info!("the seeds are forming a cluster"),
            // A moment is normal: nodes do not start at the same time.
            Place::Unknown if waited < WORD_INTERVAL => {
                info!(silent = silent.join(","), "waiting for seeds");
            }
            Place::Unknown => {
                warn!(
                    silent = silent.join(","),
                    waited_seconds = seconds,
                    "waiting for seeds that do not answer: a cluster forms once all have. Start \
                     these nodes, or check --seeds. Clients are turned away until then"
                );
            }
        }
    }

    async fn probe_all(&self) -> Vec<Option<Presence>> {
        join_all(self.0.seeds.iter().map(|seed| self.probe(*seed))).await
    }

    async fn probe(&self, seed: SocketAddr) -> Option<Presence> {
        {
            let claim = self.0.claim.borrow();
            if claim.rpc == seed {
                return Some(Presence {
                    claim: claim.clone(),
                    seeds: self.0.seeds.clone(),
                    stage: self.0.stage.borrow().clone(),
                });
            }
        }
        let probe = Call::Probe {
            rpc: self.0.claim.borrow().rpc,
            seeds: Some(self.0.seeds.clone()),
        };
        match call(&self.0.env, seed, &probe, PROBE_TIMEOUT).await? {
            Answer::Presence(presence) => Some(presence),
            _ => None,
        }
    }

    /// Asks each seed in turn to be taken in.
    async fn join(&self, claim: &NodeClaim) -> Result<Option<NodeGrant>, ControllerError> {
        let request = *self.0.env.random_uuid().as_bytes();
        for seed in self.0.seeds.iter().filter(|seed| **seed != claim.rpc) {
            let join = Call::Join {
                request,
                claim: claim.clone(),
            };
            match call(&self.0.env, *seed, &join, JOIN_TIMEOUT).await {
                Some(Answer::Reply(Reply::Node(grant))) => return Ok(Some(grant)),
                Some(Answer::Reply(Reply::Refused(refusal))) => {
                    let code = corduroy_protocol::ErrorCode::from_code(refusal.code);
                    if !code.is_retriable() {
                        return Err(ControllerError::JoinRefused(refusal.message));
                    }
                    warn!(%seed, reason = refusal.message, "the cluster cannot take this node in yet");
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Writes down that this node is one of the founders.
    fn found(&self, founding: Founding) -> Result<Identity, ControllerError> {
        let uuid = self.0.claim.borrow().uuid;
        let Some(own) = founding.nodes.iter().find(|node| node.uuid == uuid) else {
            return Err(ControllerError::JoinRefused(
                "the founders' decision does not name this node".into(),
            ));
        };
        let identity = Identity {
            uuid: Uuid::from_bytes(uuid),
            node: NodeId::new(own.id),
            controller_replica: ReplicaId::new(own.controller_replica),
            cluster_id: None,
            controller_created: false,
            initialize: founding
                .nodes
                .first()
                .is_some_and(|first| first.uuid == uuid),
            members: founding.nodes.clone(),
            founding: Some(founding.clone()),
        };
        self.0.file.save(&identity)?;
        *self.0.stage.borrow_mut() = Stage::Founding(founding);
        info!(node = %identity.node, "this node founds the cluster");
        Ok(identity)
    }

    fn joined(&self, grant: NodeGrant) -> Result<Identity, ControllerError> {
        let identity = Identity {
            uuid: Uuid::from_bytes(self.0.claim.borrow().uuid),
            node: NodeId::new(grant.node),
            controller_replica: ReplicaId::new(grant.controller_replica),
            cluster_id: Some(Uuid::from_bytes(grant.cluster_id)),
            controller_created: false,
            initialize: false,
            founding: None,
            members: grant.nodes,
        };
        self.0.file.save(&identity)?;
        *self.0.stage.borrow_mut() = Stage::Member {
            cluster_id: Some(grant.cluster_id),
        };
        info!(node = %identity.node, "this node joined the cluster");
        Ok(identity)
    }
}

/// The seeds that do not answer.
fn silent(seeds: &[SocketAddr], presences: &[Option<Presence>]) -> Vec<String> {
    let asked = seeds.iter().zip(presences);
    let silent = asked.filter(|(_, presence)| presence.is_none());
    silent.map(|(seed, _)| seed.to_string()).collect()
}

/// What a round of answers leaves this node waiting for.
fn waits_text(seeds: &[SocketAddr], presences: &[Option<Presence>], place: Place) -> String {
    let silent = silent(seeds, presences);
    match place {
        Place::Newcomer => {
            "it waits for the cluster to take it in, which needs a majority of its members"
                .to_owned()
        }
        Place::Unknown if silent.is_empty() => "its seeds are forming the cluster".to_owned(),
        Place::Unknown => format!(
            "to form the cluster it waits for seeds that do not answer ({}); start the nodes there",
            silent.join(", ")
        ),
    }
}

#[derive(Clone, Copy)]
enum Place {
    Unknown,
    Newcomer,
}

/// One call to an address; none if there is no understandable answer.
pub(super) async fn call(
    env: &Env,
    to: SocketAddr,
    call: &Call,
    timeout: Duration,
) -> Option<Answer> {
    let request = encode_call(call).ok()?;
    let answer = corduroy_raft::call_address(env, to, request, timeout)
        .await
        .ok()?;
    decode_answer(&answer).ok()
}

/// What one round of questions leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This node is the first seed, and everyone is there: the cluster forms.
    Found(Founding),
    /// The cluster forms as the first seed decided.
    Adopt(Founding),
    /// There is a cluster without this node.
    Join,
    /// Not everyone is there.
    Wait,
}

/// Decides what a round of answers means. `presences` are in the order of `seeds`; this node's own
/// is among them if it is a seed.
pub(super) fn judge_round(
    own: &NodeClaim,
    seeds: &[SocketAddr],
    configs: &BTreeMap<String, String>,
    presences: &[Option<Presence>],
) -> Result<Step, ControllerError> {
    for presence in presences.iter().flatten() {
        if let Stage::Founding(founding) = &presence.stage {
            let known = founding.nodes.iter().any(|node| node.uuid == own.uuid);
            return Ok(if known {
                Step::Adopt(founding.clone())
            } else {
                Step::Join
            });
        }
    }
    let member = |presence: &Presence| matches!(presence.stage, Stage::Member { .. });
    let is_seed = seeds.contains(&own.rpc);
    if presences.iter().flatten().any(member) {
        return Ok(Step::Join);
    }
    if !is_seed {
        return Ok(Step::Wait);
    }
    for (seed, presence) in seeds.iter().zip(presences) {
        let Some(presence) = presence else { continue };
        if presence.seeds != seeds {
            return Err(ControllerError::SeedsDisagree {
                own: own.rpc,
                ours: seeds.to_vec(),
                seed: *seed,
                theirs: presence.seeds.clone(),
            });
        }
        if presence.claim.rpc != *seed {
            return Err(ControllerError::SeedElsewhere {
                seed: *seed,
                rpc: presence.claim.rpc,
            });
        }
    }
    let claims: Vec<&NodeClaim> = presences
        .iter()
        .flatten()
        .map(|presence| &presence.claim)
        .collect();
    if claims.len() < seeds.len() {
        return Ok(Step::Wait);
    }
    // Every seed checks, so that each of them tells its person what is wrong.
    let nodes = assign(&claims)?;
    if seeds.first() == Some(&own.rpc) {
        return Ok(Step::Found(Founding {
            nodes,
            configs: configs.clone(),
        }));
    }
    Ok(Step::Wait)
}

/// Ids of the founders: what they claim, else their place in the list, from 1.
fn assign(claims: &[&NodeClaim]) -> Result<Vec<NodeRecord>, ControllerError> {
    let mut nodes: Vec<NodeRecord> = Vec::with_capacity(claims.len());
    for (position, claim) in claims.iter().enumerate() {
        // Few seeds: a list of more than 2^31 does not fit a command line.
        let place = position as i32 + 1;
        let node = claim.record(claim.node.unwrap_or(place), position as u64 + 1);
        if let Some(other) = nodes.iter().find(|other| other.uuid == node.uuid) {
            return Err(ControllerError::SameDataDir {
                uuid: Uuid::from_bytes(node.uuid),
                first: other.rpc,
                second: node.rpc,
            });
        }
        if let Some(other) = nodes.iter().find(|other| other.id == node.id) {
            return Err(ControllerError::ClaimedTwice {
                node: node.id,
                first: other.rpc,
                second: node.rpc,
            });
        }
        nodes.push(node);
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn claim(port: u16, node: Option<i32>) -> NodeClaim {
        NodeClaim {
            uuid: [port as u8; 16],
            node,
            kafka_host: "h".into(),
            kafka_port: 1,
            rpc: address(port),
            admin: None,
            rack: None,
        }
    }

    fn presence(claim: NodeClaim, seeds: &[u16], stage: Stage) -> Option<Presence> {
        Some(Presence {
            claim,
            seeds: seeds.iter().map(|port| address(*port)).collect(),
            stage,
        })
    }

    fn empty() -> Stage {
        Stage::Empty {
            configs: BTreeMap::new(),
        }
    }

    fn judge(own: u16, presences: &[Option<Presence>]) -> Result<Step, String> {
        let seeds = [address(1), address(2), address(3)];
        judge_round(&claim(own, None), &seeds, &BTreeMap::new(), presences)
            .map_err(|error| error.to_string())
    }

    fn founding(ports: &[u16]) -> Founding {
        let nodes = ports
            .iter()
            .map(|port| claim(*port, None).record(1, 1))
            .collect();
        Founding {
            nodes,
            configs: BTreeMap::new(),
        }
    }

    #[test]
    fn the_first_seed_decides_when_everyone_is_there() {
        let all: Vec<_> = (1..=3)
            .map(|port| presence(claim(port, None), &[1, 2, 3], empty()))
            .collect();
        let Ok(Step::Found(founding)) = judge(1, &all) else {
            panic!("everyone is there")
        };
        let ids: Vec<_> = founding
            .nodes
            .iter()
            .map(|node| (node.id, node.controller_replica))
            .collect();
        assert_eq!(ids, [(1, 1), (2, 2), (3, 3)]);
        assert_eq!(
            judge(2, &all),
            Ok(Step::Wait),
            "the others wait for the decision"
        );
        let two = [all[0].clone(), None, all[2].clone()];
        assert_eq!(judge(1, &two), Ok(Step::Wait), "not everyone is there");
    }

    #[test]
    fn claims_are_ids_and_may_not_meet() {
        let with = |claims: [Option<i32>; 3]| -> Vec<Option<Presence>> {
            (1..)
                .zip(claims)
                .map(|(port, node)| presence(claim(port, node), &[1, 2, 3], empty()))
                .collect()
        };
        let Ok(Step::Found(founding)) = judge(1, &with([Some(30), None, Some(10)])) else {
            panic!("the claims are distinct");
        };
        let ids: Vec<_> = founding.nodes.iter().map(|node| node.id).collect();
        assert_eq!(ids, [30, 2, 10]);
        let error = judge(2, &with([Some(3), None, None])).expect_err("3 is also a place");
        assert!(error.contains("both want id 3"), "{error}");
    }

    #[test]
    fn seeds_that_disagree_are_named() {
        let peers = [
            presence(claim(1, None), &[1, 2, 3], empty()),
            presence(claim(2, None), &[1, 2], empty()),
            None,
        ];
        let error = judge(1, &peers).expect_err("the lists differ");
        for words in [
            "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
            "at 127.0.0.1:2",
            "--seeds",
        ] {
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
        let elsewhere = [None, presence(claim(9, None), &[1, 2, 3], empty()), None];
        let error = judge(1, &elsewhere).expect_err("it is not at that address");
        assert!(error.contains("rpc.advertised=127.0.0.1:2"), "{error}");
    }

    #[test]
    fn a_copied_data_directory_is_no_second_node() {
        let mut copy = claim(2, None);
        copy.uuid = [1; 16];
        let peers = [
            presence(claim(1, None), &[1, 2, 3], empty()),
            presence(copy, &[1, 2, 3], empty()),
            presence(claim(3, None), &[1, 2, 3], empty()),
        ];
        let error = judge(3, &peers).expect_err("two with one uuid");
        assert!(error.contains("same data directory"), "{error}");
    }

    #[test]
    fn a_decision_is_adopted_by_those_it_names() {
        let decision = founding(&[1, 2, 3]);
        let peers = [
            presence(
                claim(1, None),
                &[1, 2, 3],
                Stage::Founding(decision.clone()),
            ),
            presence(claim(2, None), &[1, 2, 3], empty()),
            None,
        ];
        assert_eq!(judge(2, &peers), Ok(Step::Adopt(decision)));
        let without = [
            presence(
                claim(1, None),
                &[1, 2, 3],
                Stage::Founding(founding(&[1, 7, 3])),
            ),
            presence(claim(2, None), &[1, 2, 3], empty()),
            None,
        ];
        assert_eq!(
            judge(2, &without),
            Ok(Step::Join),
            "its disk was another when they decided"
        );
    }

    #[test]
    fn an_existing_cluster_is_joined_and_never_founded_again() {
        let member = Stage::Member { cluster_id: None };
        let peers = [
            presence(claim(1, None), &[1, 2, 3], empty()),
            presence(claim(2, Some(2)), &[], member.clone()),
            presence(claim(3, None), &[1, 2, 3], empty()),
        ];
        assert_eq!(
            judge(1, &peers),
            Ok(Step::Join),
            "a seed with an empty disk"
        );
        assert_eq!(
            judge(9, &[None, peers[1].clone(), None]),
            Ok(Step::Join),
            "outside the list"
        );
        assert_eq!(judge(9, &[None, None, None]), Ok(Step::Wait));
    }
}
