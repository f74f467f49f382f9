//! The controller of one node: opened, tended, asked. Runs on shard 0.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_protocol::ErrorCode;
use corduroy_raft::{AddressBook, RaftShard, Role};
use corduroy_record::{NodeId, ReplicaId};
use corduroy_storage::Store;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tracing::{debug, error, info, warn};
use uuid::Uuid;

use super::calls::{Answer, Call, Presence, Stage, decode_call, encode_answer};
use super::error::{ControllerError, RequestError};
use super::formation::{self, Addresses};
use super::handle::ControllerInbox;
use super::identity::{Identity, IdentityFile};
use super::image::{MetadataImage, NodeInfo};
use super::judge::refuse_twin;
use super::leaving::Leaving;
use super::log::{open_log, open_replica, reopen_replica};
use super::machine::{ControllerHooks, ControllerMachine};
use super::members::{Facts, VOTERS_MAX, next_members};
use super::requests::{NodeClaim, Refusal, Reply, Request};
use super::service::{Attempt, Service};
use crate::config::NodeConfig;

/// Closed segments that are kept behind the one that is written, so that a follower that was away
/// for a while needs no snapshot.
const SEGMENTS_KEPT: usize = 2;
/// How long a request from another node may take here.
const CALL_MAX: Duration = Duration::from_secs(10);
/// How often the controller looks around although nothing has rung.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a node that has been removed still gets the log: at least a heartbeat, which tells it that
/// its removal is committed.
const PARTING_PAUSE: Duration = Duration::from_secs(1);
/// How long a new replica may take to catch up before the next newcomer has its turn.
const CATCH_UP_MAX: Duration = Duration::from_secs(10);
/// A node that has heard no leader of the controller for so long asks the others whether it is still
/// a member, as often.
const MEMBERSHIP_DOUBT: Duration = Duration::from_secs(10);
/// Least time between two registrations of a node that finds itself registered elsewhere.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// How often the log is asked whether it has met damage.
const DAMAGE_LOOK: Duration = Duration::from_secs(2);
/// How long a seed may take to say where it is.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// What a controller is made of.
pub struct ControllerParts {
    /// The seam.
    pub env: Env,
    /// Shard 0's replicas and peers.
    pub raft: RaftShard,
    /// Shard 0's storage.
    pub store: Store,
    /// Where peers listen; the controller keeps it up to date.
    pub book: AddressBook,
    /// Who this node is.
    pub identity: Identity,
    /// Where that is written.
    pub file: IdentityFile,
    /// The node's settings.
    pub config: Arc<NodeConfig>,
    /// Where this node is reached.
    pub addresses: Addresses,
    /// Requests of this node.
    pub inbox: ControllerInbox,
    /// What the node hears.
    pub hooks: ControllerHooks,
}

struct Shared {
    service: Rc<Service>,
    identity: RefCell<Identity>,
    file: IdentityFile,
    book: AddressBook,
    seeds: Vec<SocketAddr>,
    claim: NodeClaim,
    /// The image's version that shows this node as it is now, once the cluster has said it.
    admitted: Cell<Option<u64>>,
    /// Why this node is no member (any more), once the cluster has said it. Final.
    parted: RefCell<Option<String>>,
}

/// The controller's replica of this node with its tasks. Clone = another handle.
#[derive(Clone)]
pub struct Controller(Rc<Shared>);

impl Controller {
    /// Opens this node's replica of the controller and starts its tasks. Returns before there is
    /// a leader; [`Controller::joined`] waits for one.
    pub async fn start(parts: ControllerParts) -> Result<Controller, ControllerError> {
        let ControllerParts {
            env,
            raft,
            store,
            book,
            mut identity,
            file,
            ..
        } = parts;
        for member in &identity.members {
            book.set(NodeId::new(member.id), member.rpc);
        }
        let (log, is_only_copy) = open_log(&store, &mut identity, &file).await?;
        let started_before = log.state().last.is_some() || log.state().vote.is_some();
        let changed = Rc::new(Notify::new());
        let machine = Rc::new(RefCell::new(ControllerMachine::new(
            parts.hooks,
            changed.clone(),
        )));
        let replica = open_replica(&raft, &store, log, is_only_copy, &machine, file.dir()).await?;
        if identity.initialize {
            if !started_before {
                replica.initialize(founders(&identity)).await?;
            }
            identity.initialize = false;
            file.save(&identity)?;
        }
        let service = Rc::new(Service {
            env: env.clone(),
            node: identity.node,
            raft,
            replica: RefCell::new(replica),
            machine,
            changed,
            down: RefCell::default(),
            leaving: Leaving::default(),
            turn: Semaphore::new(1),
        });
        let claim = NodeClaim {
            uuid: *identity.uuid.as_bytes(),
            node: Some(identity.node.get()),
            kafka_host: parts.addresses.kafka.host,
            kafka_port: parts.addresses.kafka.port,
            rpc: parts.addresses.rpc,
            admin: parts.addresses.admin,
            rack: parts.config.rack.clone(),
        };
        let controller = Controller(Rc::new(Shared {
            service: service.clone(),
            identity: RefCell::new(identity),
            file,
            book,
            seeds: parts.config.seeds.clone(),
            claim,
            admitted: Cell::new(None),
            parted: RefCell::default(),
        }));
        env.spawn_local(service.serve(parts.inbox));
        env.spawn_local(controller.clone().tend_membership());
        env.spawn_local(controller.clone().tend_presence());
        env.spawn_local(controller.clone().tend_log(store));
        env.spawn_local(controller.clone().announce());
        Ok(controller)
    }

    /// Waits until the controller's leader has confirmed this node and its addresses, and this
    /// replica has applied everything up to there: from then on the image is not one of an
    /// earlier life. Needs a majority; waits for it for ever.
    pub async fn joined(&self) {
        let service = &self.0.service;
        loop {
            let mut changed = std::pin::pin!(service.changed.notified());
            changed.as_mut().enable();
            let version = service.machine.borrow().state().image().version;
            if self
                .0
                .admitted
                .get()
                .is_some_and(|admitted| version >= admitted)
            {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the cluster has said that this node is no member (any more); returns why. Ids
    /// never return, so it is one never again.
    pub async fn parted(&self) -> String {
        loop {
            let mut changed = std::pin::pin!(self.0.service.changed.notified());
            changed.as_mut().enable();
            if let Some(reason) = self.0.parted.borrow().clone() {
                return reason;
            }
            changed.await;
        }
    }

    fn part(&self, reason: String) {
        error!(reason, "this node is no member of the cluster");
        *self.0.parted.borrow_mut() = Some(reason);
        self.0.service.changed.notify_waiters();
    }

    /// The image as of the last applied entry; a copy.
    pub fn image(&self) -> MetadataImage {
        self.0.service.machine.borrow().state().image().clone()
    }

    /// Whether this node's replica leads.
    pub fn is_leader(&self) -> bool {
        self.0.service.replica().view().role == Role::Leader
    }

    /// The node whose replica leads, as far as this one knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.0.service.replica().view().leader.map(|(_, node)| node)
    }

    /// Nodes whose replicas are members, and whether they vote, as far as this one knows.
    #[cfg(test)]
    pub(super) fn members(&self) -> BTreeMap<i32, bool> {
        let members = self.0.service.replica().members();
        members
            .into_iter()
            .map(|(_, node, votes)| (node.get(), votes))
            .collect()
    }

    /// Takes in the failure detector's word: new replicas avoid a node that is down.
    pub fn set_down(&self, node: NodeId, down: bool) {
        let mut nodes = self.0.service.down.borrow_mut();
        if down {
            nodes.insert(node.get());
        } else {
            nodes.remove(&node.get());
        }
    }

    /// Moves the leadership to another replica, if this one leads and another is there.
    pub async fn transfer_away(&self) {
        if !self.is_leader() || self.0.service.replica().members().len() < 2 {
            return;
        }
        if let Err(error) = self.0.service.replica().transfer_leader(None).await {
            warn!(%error, "the controller's leadership did not move away");
        }
    }

    /// Answers a call from the rpc port; `request` begins with the service byte. `from` is
    /// negative for a caller without an id.
    pub async fn on_call(&self, from: NodeId, request: Bytes) -> Bytes {
        let answer = match decode_call(&request) {
            Ok(Call::Probe { .. }) => Answer::Presence(self.presence()),
            Ok(Call::Join { request, claim }) => {
                if let Some(refusal) = self.refuse_twin(&claim) {
                    return encode_answer(&Answer::Reply(Reply::Refused(refusal)));
                }
                let deadline = self.0.service.env.now() + CALL_MAX;
                let join = Request::RegisterNode(claim);
                match self.0.service.carry(request, join, deadline).await {
                    Ok(reply) => Answer::Reply(reply),
                    Err(_) => Answer::TryAgain,
                }
            }
            // Whoever has no id has no business beyond joining.
            Ok(Call::Execute { .. }) if from.get() < 0 => Answer::TryAgain,
            Ok(Call::Execute { request, body }) => match self.refuse_carried(from, &body) {
                Some(refusal) => Answer::Reply(Reply::Refused(refusal)),
                None => self.execute(request, body).await,
            },
            Err(error) => {
                warn!(%from, %error, "a call to the controller cannot be read");
                Answer::TryAgain
            }
        };
        encode_answer(&answer)
    }

    /// A registration that another node carries here is a stranger's.
    fn refuse_carried(&self, from: NodeId, request: &Request) -> Option<Refusal> {
        let Request::RegisterNode(claim) = request else {
            return None;
        };
        if claim.node == Some(from.get()) {
            return None;
        }
        self.refuse_twin(claim)
    }

    fn refuse_twin(&self, claim: &NodeClaim) -> Option<Refusal> {
        let service = &self.0.service;
        let machine = service.machine.borrow();
        refuse_twin(machine.state(), claim, &service.down.borrow())
    }

    async fn execute(&self, id: [u8; 16], request: Request) -> Answer {
        let service = &self.0.service;
        if !self.is_leader() {
            return Answer::NotLeader {
                leader: self.leader().map(NodeId::get),
            };
        }
        match service
            .execute(id, request, service.env.now() + CALL_MAX)
            .await
        {
            Attempt::Done(reply) => Answer::Reply(reply),
            Attempt::NotLeader => Answer::NotLeader {
                leader: self.leader().map(NodeId::get),
            },
            Attempt::TryAgain => Answer::TryAgain,
        }
    }

    fn presence(&self) -> Presence {
        let formed = self.0.service.machine.borrow().state().cluster_id();
        let identity = self.0.identity.borrow();
        let known = formed.or(identity.cluster_id.map(|id| *id.as_bytes()));
        let stage = match (known, &identity.founding) {
            (None, Some(founding)) => Stage::Founding(founding.clone()),
            (cluster_id, _) => Stage::Member { cluster_id },
        };
        Presence {
            claim: self.0.claim.clone(),
            seeds: self.0.seeds.clone(),
            stage,
        }
    }

    /// As leader: forms the cluster once, and makes the group's members match the nodes.
    async fn tend_membership(self) {
        let service = &self.0.service;
        let mut attempt = 0;
        loop {
            let mut changed = std::pin::pin!(service.changed.notified());
            changed.as_mut().enable();
            if service.replica().view().leader_ready {
                self.form_once().await;
                self.step_membership(attempt).await;
                attempt += 1;
            }
            let _ = timeout(LOOK_INTERVAL, changed).await;
        }
    }

    async fn form_once(&self) {
        let service = &self.0.service;
        if service.machine.borrow().state().cluster_id().is_some() {
            return;
        }
        let Some(founding) = self.0.identity.borrow().founding.clone() else {
            return;
        };
        let cluster_id = service.env.random_uuid();
        let form = Request::Form {
            cluster_id: *cluster_id.as_bytes(),
            nodes: founding.nodes,
            configs: founding.configs,
        };
        let id = *service.env.random_uuid().as_bytes();
        let deadline = service.env.now() + CALL_MAX;
        if let Attempt::Done(Reply::Done) = service.execute(id, form, deadline).await {
            info!(%cluster_id, "the cluster has formed");
        }
    }

    async fn step_membership(&self, attempt: usize) {
        let service = &self.0.service;
        let nodes: BTreeMap<ReplicaId, NodeId> = {
            let machine = service.machine.borrow();
            let nodes = machine.state().nodes().values();
            nodes
                .map(|node| {
                    (
                        ReplicaId::new(node.controller_replica),
                        NodeId::new(node.id),
                    )
                })
                .collect()
        };
        if nodes.is_empty() {
            return;
        }
        let down = service.down.borrow().clone();
        let is_down = |node: NodeId| down.contains(&node.get());
        let members = service.replica().members();
        let facts = Facts {
            is_down: &is_down,
            is_leaving: &|node| service.leaving.contains(node),
        };
        let Some(next) = next_members(&members, &nodes, &facts, attempt) else {
            return;
        };
        let nodes_of = |members: &[(ReplicaId, NodeId)]| -> String {
            let nodes: Vec<String> = members.iter().map(|(_, node)| node.to_string()).collect();
            nodes.join(",")
        };
        let (voters, learners) = (nodes_of(&next.voters), nodes_of(&next.learners));
        if members
            .iter()
            .any(|(id, node, _)| !nodes.contains_key(id) && !is_down(*node))
        {
            // Whoever leaves gets to know it from the log, if it is there; then it gets no more.
            service.env.sleep(PARTING_PAUSE).await;
        }
        let changed = service
            .replica()
            .arrange_members(next.voters, &next.learners, CATCH_UP_MAX)
            .await;
        match changed {
            Ok(()) => info!(%voters, %learners, "the controller's members changed"),
            Err(error) => {
                debug!(%voters, %learners, %error, "the controller's members did not change yet")
            }
        }
    }

    /// On every node: keeps the address book, the identity file and this node's own entry in the
    /// cluster up to date, and the log short.
    async fn tend_presence(self) {
        let service = &self.0.service;
        // Of an earlier life: some may have left the cluster since.
        let mut known: BTreeSet<NodeId> = {
            let identity = self.0.identity.borrow();
            let members = identity.members.iter();
            members.map(|node| NodeId::new(node.id)).collect()
        };
        let mut asked_at = service.env.now();
        let mut renewed_at = None;
        loop {
            let mut changed = std::pin::pin!(service.changed.notified());
            changed.as_mut().enable();
            let image = self.image();
            let admitted = self.0.admitted.get();
            if admitted.is_some_and(|admitted| image.version >= admitted)
                && !image.nodes.contains_key(&service.node)
            {
                self.part(format!("node {} was decommissioned", service.node));
                return;
            }
            let now = service.env.now();
            if admitted.is_some_and(|admitted| image.version >= admitted)
                && let Some(registered) = image.nodes.get(&service.node)
                && !self.is_registered_as(registered)
                && renewed_at.is_none_or(|at| now.duration_since(at) >= RENEW_INTERVAL)
            {
                // Somebody else was taken for this node. Whoever speaks for it by now is asked by
                // the transport, not here: a process without the place does not get through.
                error!(
                    found = %registered.rpc,
                    own = %self.0.claim.rpc,
                    "the cluster knows this node by other addresses than its own: was a copy of its \
                     data directory started? It registers again"
                );
                renewed_at = Some(now);
                self.0.admitted.set(None);
                service.env.spawn_local(self.clone().announce());
            }
            let silence = service.replica().leader_silent_for();
            if silence >= MEMBERSHIP_DOUBT
                && service.env.now().duration_since(asked_at) >= MEMBERSHIP_DOUBT
            {
                // A node that was away while it was removed is told of nothing any more; one whose
                // replica never got an entry does not even know whom to register with.
                asked_at = service.env.now();
                service.env.spawn_local(self.clone().ask_whether_member());
            }
            if image.nodes.is_empty() {
                // Nothing is known of the cluster yet.
                if service.replica().view().leader.is_none() {
                    self.look_for_peers(&image).await;
                }
                let _ = timeout(LOOK_INTERVAL, changed).await;
                continue;
            }
            for (id, node) in &image.nodes {
                self.0.book.set(*id, node.rpc);
            }
            for gone in known.iter().filter(|id| !image.nodes.contains_key(id)) {
                self.0.book.remove(*gone);
            }
            known = image.nodes.keys().copied().collect();
            for left in service.machine.borrow().state().burnt_nodes() {
                self.0.book.retire(left);
            }
            self.write_cluster_id(&image);
            self.write_members();
            self.shorten_log().await;
            if service.replica().view().leader.is_none() {
                self.look_for_peers(&image).await;
            }
            let _ = timeout(LOOK_INTERVAL, changed).await;
        }
    }

    fn is_registered_as(&self, node: &NodeInfo) -> bool {
        let claim = &self.0.claim;
        node.kafka.host == claim.kafka_host
            && node.kafka.port == claim.kafka_port
            && node.rpc == claim.rpc
    }

    /// Opens the replica again when it has met damage in its log: without vote, and without what
    /// is damaged, until its leader has sent it again (safety law 8).
    async fn tend_log(self, store: Store) {
        let service = &self.0.service;
        loop {
            service.env.sleep(DAMAGE_LOOK).await;
            let replica = service.replica();
            // What the only copy still holds is worth more than nothing.
            if !replica.log().must_reopen() || replica.members().len() < 2 {
                continue;
            }
            error!("the controller's replica met damage in its log; it is rebuilt");
            self.transfer_away().await;
            match reopen_replica(&service.raft, &store, &replica, &service.machine).await {
                Ok(replica) => {
                    service.replica.replace(replica);
                    service.changed.notify_waiters();
                }
                Err(error) => {
                    error!(%error, "the controller's replica stays closed until a restart");
                    return;
                }
            }
        }
    }

    fn write_cluster_id(&self, image: &MetadataImage) {
        if image.cluster_id.is_nil() || self.0.identity.borrow().cluster_id.is_some() {
            return;
        }
        let mut identity = self.0.identity.borrow_mut();
        identity.cluster_id = Some(image.cluster_id);
        if let Err(error) = self.0.file.save(&identity) {
            // Not lost: the controller's log has it too.
            warn!(%error, "the cluster's id was not written to the identity file");
            identity.cluster_id = None;
        }
    }

    /// Keeps the members in the identity file up to date: where to look for the controller, and
    /// whether anybody else has a copy of its log.
    fn write_members(&self) {
        let mut identity = self.0.identity.borrow_mut();
        let nodes: Vec<_> = {
            let machine = self.0.service.machine.borrow();
            machine.state().nodes().values().cloned().collect()
        };
        let is_placed = identity.cluster_id.is_some() && !identity.initialize;
        if !is_placed || nodes.is_empty() || identity.members == nodes {
            return;
        }
        let before = std::mem::replace(&mut identity.members, nodes);
        if let Err(error) = self.0.file.save(&identity) {
            warn!(%error, "the members were not written to the identity file");
            identity.members = before;
        }
    }

    /// Tells the cluster that this node is there, and where; ends when the cluster knows.
    async fn announce(self) {
        let service = &self.0.service;
        loop {
            let id = *service.env.random_uuid().as_bytes();
            let request = Request::RegisterNode(self.0.claim.clone());
            match service
                .carry(id, request, service.env.now() + CALL_MAX)
                .await
            {
                Ok(Reply::Node(grant)) => {
                    self.0.admitted.set(Some(grant.version));
                    service.changed.notify_waiters();
                    return;
                }
                Ok(Reply::Refused(refusal)) => {
                    if !ErrorCode::from_code(refusal.code).is_retriable() {
                        self.part(refusal_reason(&refusal.message));
                        return;
                    }
                    service.env.sleep(LOOK_INTERVAL).await;
                }
                Ok(_) => service.env.sleep(LOOK_INTERVAL).await,
                Err(RequestError::Stopping) => return,
                Err(_) => {
                    info!("this node waits for a majority of the controller's replicas");
                    // A replica that has stopped says so at once, and for ever.
                    service.env.sleep(LOOK_INTERVAL).await;
                }
            }
        }
    }

    /// Asks the other members, as a stranger would, to take this node in.
    async fn ask_whether_member(self) {
        let service = &self.0.service;
        // The seeds too: a node that could not note its members knows nobody else.
        let others: BTreeSet<SocketAddr> = {
            let identity = self.0.identity.borrow();
            let members = identity.members.iter().map(|node| node.rpc);
            let known = members.chain(self.0.seeds.iter().copied());
            known.filter(|rpc| *rpc != self.0.claim.rpc).collect()
        };
        for rpc in others {
            let join = Call::Join {
                request: *service.env.random_uuid().as_bytes(),
                claim: self.0.claim.clone(),
            };
            match formation::call(&service.env, rpc, &join, MEMBERSHIP_DOUBT).await {
                Some(Answer::Reply(Reply::Refused(refusal)))
                    if !ErrorCode::from_code(refusal.code).is_retriable() =>
                {
                    self.part(refusal_reason(&refusal.message));
                    return;
                }
                Some(Answer::Reply(_)) => return,
                _ => {}
            }
        }
    }

    /// Cuts the log behind the tables of a segment's end. Each replica on its own: nothing but
    /// the state ever reads this log.
    async fn shorten_log(&self) {
        let replica = self.0.service.replica();
        let boundaries = replica.log().segment_boundaries();
        let Some(kept) = boundaries
            .len()
            .checked_sub(SEGMENTS_KEPT + 1)
            .filter(|cut| *cut > 0)
        else {
            return;
        };
        if let Err(error) = replica.purge_to(boundaries[kept].first_index).await {
            debug!(%error, "the controller's log is not cut yet");
        }
    }

    /// Without a leader the addresses of the book may be old: asks the seeds who they are.
    async fn look_for_peers(&self, image: &MetadataImage) {
        let uuids: BTreeMap<[u8; 16], NodeId> = {
            let identity = self.0.identity.borrow();
            let founders = identity
                .members
                .iter()
                .map(|node| (node.uuid, NodeId::new(node.id)));
            let nodes = image
                .nodes
                .values()
                .map(|node| (*node.uuid.as_bytes(), node.id));
            founders.chain(nodes).collect()
        };
        let env = &self.0.service.env;
        let probes = self
            .0
            .seeds
            .iter()
            .filter(|seed| **seed != self.0.claim.rpc)
            .map(|seed| async {
                let probe = Call::Probe {
                    rpc: self.0.claim.rpc,
                    seeds: None,
                };
                let answer = formation::call(env, *seed, &probe, PROBE_TIMEOUT).await;
                match answer {
                    Some(Answer::Presence(presence)) => Some((*seed, presence.claim.uuid)),
                    _ => None,
                }
            });
        for (seed, uuid) in futures::future::join_all(probes)
            .await
            .into_iter()
            .flatten()
        {
            match uuids.get(&uuid) {
                Some(node) => self.0.book.set(*node, seed),
                None => debug!(%seed, uuid = %Uuid::from_bytes(uuid), "a seed is not a member"),
            }
        }
    }
}

/// A refusal without its advice, which is for a node that has no data directory yet.
fn refusal_reason(message: &str) -> String {
    let lines = message.lines().filter(|line| !line.starts_with("  help"));
    lines.collect::<Vec<_>>().join("\n")
}

fn founders(identity: &Identity) -> Vec<(ReplicaId, NodeId)> {
    let founders = identity
        .founding
        .iter()
        .flat_map(|founding| &founding.nodes);
    // The others learn, once they have registered.
    founders
        .take(VOTERS_MAX)
        .map(|node| {
            (
                ReplicaId::new(node.controller_replica),
                NodeId::new(node.id),
            )
        })
        .collect()
}
