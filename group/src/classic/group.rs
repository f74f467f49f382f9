//! One classic group: its state, its laws, and the small requests (heartbeat, commit, leave).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use corduroy_protocol::ErrorCode;

use super::members::{Member, MemberNumber, Members, Standing};
use super::pending::Pending;
use super::rebalance::InitialPhase;
use super::subscription::{CONSUMER_PROTOCOL_TYPE, add_topics};
use super::timers::{Timer, Timers};
use super::writes::Writes;
use super::{
    ClassicLimits, ClassicState, Effect, JoinAnswer, Leaving, MemberIdentity, MemberView, Ticket,
};
use crate::records::ClassicValue;
use crate::{GroupError, Now};

/// One group of the classic protocol; the module's documentation draws its states.
///
/// Laws, asserted where they move ([`ClassicGroup::verify`] walks them all):
/// - the generation only grows;
/// - there is a leader exactly while there are members, and it is one of them;
/// - nobody is parked in Empty or Dead; in Stable only who waits for a write of its new id;
/// - a member without a parked request has a session deadline: silence always ends;
/// - at most one write is under way.
#[derive(Debug)]
pub struct ClassicGroup {
    pub(super) limits: ClassicLimits,
    pub(super) state: ClassicState,
    /// When the group came into its state, milliseconds since the Unix epoch; -1: unknown.
    pub(super) state_since_ms: i64,
    pub(super) generation: i32,
    /// The highest generation that was ever given out; at least `generation`.
    pub(super) generation_last: i32,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) leader: Option<MemberNumber>,
    pub(super) members: Members,
    pub(super) pending: Pending,
    pub(super) timers: Timers,
    /// There while the first join phase of an Empty group lasts.
    pub(super) initial: Option<InitialPhase>,
    /// Whether the leader of this generation has assigned.
    pub(super) assigned: bool,
    pub(super) writes: Writes,
}

/// Which rules a commit of offsets follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitKind {
    Plain,
    Transactional,
}

impl ClassicGroup {
    /// A group without members. `last_generation` is the highest generation that a group of this
    /// name ever gave out; 0 for a new one.
    pub fn new(limits: ClassicLimits, last_generation: i32) -> ClassicGroup {
        ClassicGroup {
            limits,
            state: ClassicState::Empty,
            state_since_ms: -1,
            generation: last_generation.max(0),
            generation_last: last_generation.max(0),
            protocol_type: None,
            protocol: None,
            leader: None,
            members: Members::default(),
            pending: Pending::default(),
            timers: Timers::default(),
            initial: None,
            assigned: false,
            writes: Writes::default(),
        }
    }

    /// The group as its record has it, at a coordinator that takes over: Stable if it has members,
    /// and every session begins anew. Nobody has to rejoin, except where the record names members
    /// and no leader: those came back from the consumer protocol, and their rebalance is due.
    pub fn from_value(
        limits: ClassicLimits,
        value: &ClassicValue,
        last_generation: i32,
        now: Now,
    ) -> ClassicGroup {
        let mut group = ClassicGroup::new(limits, last_generation.max(value.generation));
        group.generation = value.generation.max(0);
        group.state_since_ms = value.state_timestamp_ms;
        group.protocol_type =
            (!value.protocol_type.is_empty()).then(|| value.protocol_type.clone());
        let protocol = value.protocol.clone().unwrap_or_default();
        for member in &value.members {
            // A record that names a member twice is damaged; the first mention counts.
            let instance_known = member
                .instance_id
                .as_ref()
                .is_some_and(|id| group.members.number_of_instance(id).is_some());
            if instance_known || group.members.number_of(&member.member_id).is_some() {
                continue;
            }
            let number = group.members.add(Member::restored(member, &protocol));
            group.heard(number, now);
        }
        if !group.members.is_empty() {
            group.state = ClassicState::Stable;
            group.protocol = Some(protocol);
            group.assigned = true;
            let leader = value.leader.as_deref();
            group.leader = leader
                .and_then(|id| group.members.number_of(id))
                .or(group.members.eldest());
            if leader.is_none() {
                group.owe_rebalance(now);
            }
        }
        group.assert_laws();
        group
    }

    /// Limits that hold from now on; who is inside stays.
    pub fn set_limits(&mut self, limits: ClassicLimits) {
        self.limits = limits;
    }

    /// The state.
    pub const fn state(&self) -> ClassicState {
        self.state
    }

    /// When the group came into its state, milliseconds since the Unix epoch; -1: unknown.
    pub const fn state_timestamp_ms(&self) -> i64 {
        self.state_since_ms
    }

    /// The generation.
    pub const fn generation(&self) -> i32 {
        self.generation
    }

    /// The members' protocol type, also after the last one left; `None`: there never was one.
    pub fn protocol_type(&self) -> Option<&str> {
        self.protocol_type.as_deref()
    }

    /// The protocol (assignor) of this generation.
    pub fn protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    /// Member id of the leader.
    pub fn leader(&self) -> Option<&str> {
        let leader = self.members.get(self.leader?)?;
        Some(leader.id())
    }

    /// Whether the group is in state Empty.
    pub fn is_empty(&self) -> bool {
        self.state == ClassicState::Empty
    }

    /// How many members there are, those that have been given an id and have not joined not counted.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// How many members have been given an id and have not joined with it.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// The members in the order in which they joined, as DescribeGroups shows them: metadata is there
    /// in Stable only; an assignment is shown until the next generation begins.
    pub fn members(&self) -> impl Iterator<Item = MemberView<'_>> {
        let protocol = match self.state {
            ClassicState::Stable => self.protocol.as_deref(),
            _ => None,
        };
        self.members.iter().map(move |(_, member)| MemberView {
            member_id: member.id(),
            instance_id: member.instance_id(),
            client_id: &member.client_id,
            client_host: &member.client_host,
            metadata: protocol
                .and_then(|protocol| member.metadata(protocol))
                .cloned()
                .unwrap_or_default(),
            assignment: member.assignment.clone(),
        })
    }

    /// Whether the members' protocol type is "consumer": its metadata says what they subscribe to.
    pub fn is_of_consumers(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE)
    }

    /// The topics that the members subscribed to, for groups of type "consumer". `None`: nobody can
    /// tell (another type, or metadata that is something else), so every topic counts as subscribed.
    pub fn subscribed_topics(&self) -> Option<BTreeSet<String>> {
        if !self.is_of_consumers() {
            return None;
        }
        let mut topics = BTreeSet::new();
        for (_, member) in self.members.iter() {
            let metadata = member.metadata(self.protocol.as_deref()?)?;
            add_topics(metadata, &mut topics)?;
        }
        Some(topics)
    }

    /// When [`ClassicGroup::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Now> {
        self.timers.next()
    }

    /// Heartbeat.
    ///
    /// # Errors
    /// REBALANCE_IN_PROGRESS (the member is alive, and shall rejoin), UNKNOWN_MEMBER_ID,
    /// ILLEGAL_GENERATION, FENCED_INSTANCE_ID, COORDINATOR_NOT_AVAILABLE.
    pub fn heartbeat(&mut self, identity: &MemberIdentity, now: Now) -> Result<(), GroupError> {
        let number = self.validate_generation(identity)?;
        self.heard(number, now);
        match self.state {
            ClassicState::PreparingRebalance => Err(ErrorCode::RebalanceInProgress.into()),
            _ => Ok(()),
        }
    }

    /// Whether this member may commit offsets now. A member that may shows that it lives.
    ///
    /// # Errors
    /// As [`ClassicGroup::heartbeat`], but REBALANCE_IN_PROGRESS in CompletingRebalance: who still
    /// has partitions of the generation before may commit them while it joins.
    pub fn check_commit(&mut self, identity: &MemberIdentity, now: Now) -> Result<(), GroupError> {
        self.judge_commit(identity, now, CommitKind::Plain)
    }

    /// Whether a transaction may commit offsets of this group: old clients name no member, and the
    /// phase of the rebalance does not matter.
    ///
    /// # Errors
    /// As [`ClassicGroup::heartbeat`], without REBALANCE_IN_PROGRESS.
    pub fn check_transactional_commit(
        &mut self,
        identity: &MemberIdentity,
        now: Now,
    ) -> Result<(), GroupError> {
        self.judge_commit(identity, now, CommitKind::Transactional)
    }

    fn judge_commit(
        &mut self,
        identity: &MemberIdentity,
        now: Now,
        kind: CommitKind,
    ) -> Result<(), GroupError> {
        if self.state == ClassicState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable.into());
        }
        let names_no_generation = identity.generation < 0;
        if names_no_generation && self.state == ClassicState::Empty {
            // A consumer that assigns itself, or an administrator.
            return Ok(());
        }
        let names_nobody = identity.member_id.is_empty() && identity.instance_id.is_none();
        if names_no_generation && names_nobody {
            return match kind {
                CommitKind::Transactional => Ok(()),
                CommitKind::Plain => Err(ErrorCode::UnknownMemberId.into()),
            };
        }
        let number = self.validate_generation(identity)?;
        if self.state == ClassicState::CompletingRebalance {
            return match kind {
                CommitKind::Transactional => Ok(()),
                CommitKind::Plain => Err(ErrorCode::RebalanceInProgress.into()),
            };
        }
        self.heard(number, now);
        Ok(())
    }

    /// LeaveGroup: one result for each member named. An empty member id with an instance id removes
    /// that static member, whoever it is now.
    pub fn leave(
        &mut self,
        leaving: Vec<Leaving>,
        now: Now,
        now_ms: i64,
        out: &mut Vec<Effect>,
    ) -> Vec<Result<(), GroupError>> {
        let before = self.members.len();
        let results = leaving
            .into_iter()
            .map(|leaving| self.leave_one(leaving, out))
            .collect();
        if self.members.len() < before {
            self.after_removal("members left", now, now_ms, out);
        } else {
            // A pending member that left may be the one that the join phase waited for.
            self.advance(now, now_ms, out);
        }
        self.assert_laws();
        results
    }

    fn leave_one(&mut self, leaving: Leaving, out: &mut Vec<Effect>) -> Result<(), GroupError> {
        if self.state == ClassicState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable.into());
        }
        if let Some(pending) = self.pending.remove(&leaving.member_id) {
            self.timers.clear(Timer::Pending(pending));
            return Ok(());
        }
        let instance_id = leaving.instance_id.as_deref();
        let number = if leaving.member_id.is_empty() {
            instance_id
                .and_then(|id| self.members.number_of_instance(id))
                .ok_or(ErrorCode::UnknownMemberId)?
        } else {
            self.validate_member(&leaving.member_id, instance_id)?
        };
        if let Some(member) = self.remove_member(number, out) {
            let reason = leaving.reason.as_deref().unwrap_or("no reason given");
            out.push(Effect::Note(format!(
                "member {} left: {reason}",
                member.id()
            )));
        }
        Ok(())
    }

    /// The client of a parked request went away: it gets no answer. What it asked for still counts,
    /// and from now on its session runs.
    pub fn forget(&mut self, ticket: Ticket, now: Now) {
        if let Some(number) = self.members.forget(ticket) {
            self.heard(number, now);
        }
    }

    /// Lets every deadline act that has passed.
    pub fn tick(&mut self, now: Now, now_ms: i64, out: &mut Vec<Effect>) {
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Join => self.complete_join(now, now_ms, out),
                Timer::Sync => self.remove_unsynced(now, now_ms, out),
                Timer::WriteAgain => self.write_empty(out),
                Timer::Session(number) => {
                    if let Some(member) = self.remove_member(number, out) {
                        let reason = format!("member {} was not heard of in time", member.id());
                        out.push(Effect::Note(reason.clone()));
                        self.after_removal(&reason, now, now_ms, out);
                    }
                }
                Timer::Pending(number) => {
                    if let Some(id) = self.pending.remove_number(number) {
                        out.push(Effect::Note(format!("{id} never joined with its new id")));
                        self.advance(now, now_ms, out);
                    }
                }
            }
        }
        self.assert_laws();
    }

    /// Answers everybody who is parked with `error` and ends this group's life here: the coordinator
    /// stops leading, or the group has been deleted. From now on every request is refused.
    pub fn close(&mut self, error: ErrorCode, out: &mut Vec<Effect>) {
        for (_, member) in self.members.iter() {
            match member.standing() {
                Standing::Joined(Some(ticket)) | Standing::Replacing(Some(ticket)) => {
                    out.push(refuse_join(ticket, member.id(), error.into()));
                }
                Standing::Synced(Some(ticket)) => out.push(Effect::Sync(ticket, Err(error.into()))),
                _ => {}
            }
        }
        self.members = Members::default();
        self.leader = None;
        self.pending.clear();
        self.timers.clear_all();
        self.initial = None;
        self.writes.clear();
        self.state = ClassicState::Dead;
        self.assert_laws();
    }

    /// Which member this is.
    pub(super) fn validate_member(
        &self,
        member_id: &str,
        instance_id: Option<&str>,
    ) -> Result<MemberNumber, GroupError> {
        let named = self.members.number_of(member_id);
        if let Some(instance) = instance_id {
            match self.members.number_of_instance(instance) {
                None => return Err(ErrorCode::UnknownMemberId.into()),
                Some(current) if named != Some(current) => {
                    return Err(GroupError::new(
                        ErrorCode::FencedInstanceId,
                        format!("{instance} is another member by now"),
                    ));
                }
                Some(_) => {}
            }
        }
        named.ok_or_else(|| ErrorCode::UnknownMemberId.into())
    }

    /// Which member of this generation this is.
    pub(super) fn validate_generation(
        &self,
        identity: &MemberIdentity,
    ) -> Result<MemberNumber, GroupError> {
        if self.state == ClassicState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable.into());
        }
        let number = self.validate_member(&identity.member_id, identity.instance_id.as_deref())?;
        if identity.generation != self.generation {
            return Err(GroupError::new(
                ErrorCode::IllegalGeneration,
                format!("the group is in generation {}", self.generation),
            ));
        }
        Ok(number)
    }

    /// A member showed that it lives. Who is parked needs no deadline: the group owes it an answer.
    pub(super) fn heard(&mut self, number: MemberNumber, now: Now) {
        let Some(member) = self.members.get(number) else {
            return;
        };
        if member.standing().ticket().is_none() {
            let deadline = now.saturating_add(member.session_timeout());
            self.timers.set(Timer::Session(number), deadline);
        }
    }

    /// Removes a member and answers what it had parked. The caller lets the group react.
    pub(super) fn remove_member(
        &mut self,
        number: MemberNumber,
        out: &mut Vec<Effect>,
    ) -> Option<Member> {
        let member = self.members.remove(number)?;
        self.timers.clear(Timer::Session(number));
        let error = GroupError::from(ErrorCode::UnknownMemberId);
        match member.standing() {
            Standing::Joined(Some(ticket)) | Standing::Replacing(Some(ticket)) => {
                out.push(refuse_join(ticket, "", error));
            }
            Standing::Synced(Some(ticket)) => out.push(Effect::Sync(ticket, Err(error))),
            _ => {}
        }
        if self.leader == Some(number) {
            self.leader = self.members.eldest();
        }
        Some(member)
    }

    /// The laws that cost nothing to look at; called when a request or a tick is done.
    pub(super) fn assert_laws(&self) {
        let counts = self.members.counts();
        assert_eq!(
            self.leader.is_some(),
            !self.members.is_empty(),
            "a group has a leader exactly while it has members"
        );
        assert!(
            self.leader
                .is_none_or(|leader| self.members.get(leader).is_some()),
            "the leader is a member"
        );
        let (joined, parked_sync, replacing) =
            (counts.joined, counts.parked_sync, counts.replacing);
        match self.state {
            ClassicState::Empty | ClassicState::Dead => {
                assert!(
                    self.members.is_empty(),
                    "a group without life has no members"
                );
            }
            ClassicState::PreparingRebalance => {
                assert_eq!(
                    counts.owe_sync + parked_sync + replacing,
                    0,
                    "all shall join"
                );
            }
            ClassicState::CompletingRebalance => {
                assert_eq!(joined + replacing, 0, "nobody is left waiting for a join");
            }
            ClassicState::Stable => {
                assert_eq!(
                    joined + parked_sync,
                    0,
                    "nobody is parked in a stable group"
                );
            }
        }
    }

    /// Walks every law of the group, in O(members log members): for tests.
    ///
    /// # Errors
    /// The law that does not hold.
    pub fn verify(&self) -> Result<(), String> {
        self.assert_laws();
        self.members.verify()?;
        let law = |holds: bool, law: &str| match holds {
            true => Ok(()),
            false => Err(format!("{law}: {self:?}")),
        };
        law(
            self.generation <= self.generation_last,
            "no generation is above the last",
        )?;
        for (number, member) in self.members.iter() {
            let deadline = self.timers.get(Timer::Session(number));
            match member.standing() {
                // A new member that waits has a deadline for that wait.
                Standing::Joined(Some(_)) => {}
                standing => law(
                    deadline.is_some() == standing.ticket().is_none(),
                    "a member has a deadline exactly while it is not parked",
                )?,
            }
        }
        for number in self.pending.numbers() {
            law(
                self.timers.get(Timer::Pending(number)).is_some(),
                "a pending member has a deadline",
            )?;
        }
        let counts = self.members.counts();
        let preparing = self.state == ClassicState::PreparingRebalance;
        law(
            !preparing || counts.joined == 0 || self.timers.get(Timer::Join).is_some(),
            "a join phase that somebody waits for ends",
        )?;
        law(
            !preparing || self.timers.get(Timer::Sync).is_none(),
            "nobody is asked to sync in a join phase",
        )?;
        law(
            counts.owe_sync == 0 || self.timers.get(Timer::Sync).is_some(),
            "a sync phase that somebody is missing from ends",
        )?;
        law(
            counts.parked_sync == 0 || counts.owe_sync > 0 || self.writes.is_under_way(),
            "who is parked in a sync waits for a member or for a write",
        )?;
        law(
            counts.replacing == 0 || self.writes.is_under_way(),
            "who waits for its new id waits for a write",
        )?;
        law(
            preparing || self.initial.is_none(),
            "the first phase is a join phase",
        )
    }
}

/// The answer to a JoinGroup that failed.
pub(super) fn refuse_join(ticket: Ticket, member_id: &str, error: GroupError) -> Effect {
    let answer = JoinAnswer {
        member_id: member_id.to_owned(),
        result: Err(error),
    };
    Effect::Join(ticket, answer)
}

/// Assignments by member id, as a leader sends them.
pub(super) type Assignments = BTreeMap<String, Bytes>;
