//! JoinGroup: who asks, whether it may, and what its coming sets off.

use std::time::Duration;

use corduroy_protocol::ErrorCode;

use super::group::refuse_join;
use super::members::{Member, MemberNumber, Standing, millis};
use super::timers::Timer;
use super::writes::Purpose;
use super::{
    ClassicGroup, ClassicState, Effect, JoinAnswer, JoinRequest, Joined, JoinedMember, Ticket,
};
use crate::{GroupError, Now};

/// How long a new member may wait for its first join to end. It does not heartbeat while it waits,
/// and one whose client has retried under another id would otherwise stay for as long as rebalances
/// follow one another. Kafka's coordinator has the same five minutes.
const NEW_MEMBER_JOIN_MAX: Duration = Duration::from_secs(5 * 60);

/// What a JoinGroup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinKind {
    /// A dynamic member that first has to come again with the id that it is given now.
    NeedsId,
    /// A member that was not there: with a fresh id, or with the one that it was given.
    New,
    /// A static member that lost its id.
    Replacement(MemberNumber),
    /// A member that is there.
    Rejoin(MemberNumber),
}

impl ClassicGroup {
    /// JoinGroup. The answer comes at once, or when the join phase has ended.
    pub fn join(
        &mut self,
        request: JoinRequest,
        ticket: Ticket,
        now: Now,
        now_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        match self.judge_join(&request) {
            Ok(JoinKind::NeedsId) => self.give_id(&request, ticket, now, out),
            Ok(JoinKind::New) => self.join_new(request, ticket, now, now_ms, out),
            Ok(JoinKind::Replacement(number)) => {
                self.join_replacement(number, request, ticket, now, now_ms, out);
            }
            Ok(JoinKind::Rejoin(number)) => {
                self.rejoin(number, request, ticket, now, now_ms, out);
            }
            Err(error) => {
                let full = error.code == ErrorCode::GroupMaxSizeReached;
                let named = self.members.number_of(&request.member_id);
                out.push(refuse_join(ticket, &request.member_id, error));
                if let (true, Some(number)) = (full, named) {
                    // The limit was lowered, and others were quicker: this member is out.
                    self.remove_member(number, out);
                    self.after_removal("the group is over its size", now, now_ms, out);
                }
            }
        }
        self.assert_laws();
    }

    /// Decides what a JoinGroup is, and whether it is allowed; changes nothing.
    fn judge_join(&self, request: &JoinRequest) -> Result<JoinKind, GroupError> {
        if self.state == ClassicState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable.into());
        }
        let session_timeout = millis(request.session_timeout_ms);
        let (least, most) = (
            self.limits.session_timeout_min,
            self.limits.session_timeout_max,
        );
        if request.session_timeout_ms < 0 || session_timeout < least || session_timeout > most {
            return Err(GroupError::new(
                ErrorCode::InvalidSessionTimeout,
                format!("{session_timeout:?} is not between {least:?} and {most:?}"),
            ));
        }
        let kind = self.judge_identity(request)?;
        self.judge_protocols(request, kind)?;
        self.judge_size(request, kind)?;
        Ok(kind)
    }

    fn judge_identity(&self, request: &JoinRequest) -> Result<JoinKind, GroupError> {
        let instance_id = request.instance_id.as_deref();
        if !request.member_id.is_empty() {
            if instance_id.is_none() && self.pending.contains(&request.member_id) {
                return Ok(JoinKind::New);
            }
            return self
                .validate_member(&request.member_id, instance_id)
                .map(JoinKind::Rejoin);
        }
        let fresh = &request.fresh_member_id;
        if self.members.number_of(fresh).is_some() || self.pending.contains(fresh) {
            return Err(GroupError::new(
                ErrorCode::UnknownServerError,
                "the coordinator drew a member id that is taken",
            ));
        }
        Ok(match instance_id {
            Some(id) => match self.members.number_of_instance(id) {
                Some(number) => JoinKind::Replacement(number),
                None => JoinKind::New,
            },
            None if request.requires_known_member_id => JoinKind::NeedsId,
            None => JoinKind::New,
        })
    }

    fn judge_protocols(&self, request: &JoinRequest, kind: JoinKind) -> Result<(), GroupError> {
        let refusal = |message: String| {
            Err(GroupError::new(
                ErrorCode::InconsistentGroupProtocol,
                message,
            ))
        };
        if request.protocol_type.is_empty() || request.protocols.is_empty() {
            return refusal("a member needs a protocol type and a protocol".to_owned());
        }
        if self.members.is_empty() {
            return Ok(());
        }
        match &self.protocol_type {
            Some(group_type) if *group_type != request.protocol_type => {
                return refusal(format!("the group's protocol type is {group_type}"));
            }
            _ => {}
        }
        // What a member said before does not bind it: the others do.
        let except = match kind {
            JoinKind::Replacement(number) | JoinKind::Rejoin(number) => Some(number),
            JoinKind::NeedsId | JoinKind::New => None,
        };
        if self.members.all_support_one_of(&request.protocols, except) {
            Ok(())
        } else {
            refusal("the other members share none of these protocols".to_owned())
        }
    }

    /// While members are joining, who has come counts and who is missing does not: a place goes to
    /// the quicker one. Ids that were given out hold a place against those who have none.
    fn judge_size(&self, request: &JoinRequest, kind: JoinKind) -> Result<(), GroupError> {
        let joining = self.state == ClassicState::PreparingRebalance;
        let present = match joining {
            true => self.members.counts().joined,
            false => self.members.len(),
        };
        let taken = match kind {
            JoinKind::Replacement(number) | JoinKind::Rejoin(number) => {
                let inside = self
                    .members
                    .get(number)
                    .is_some_and(|member| matches!(member.standing(), Standing::Joined(_)));
                if !joining || inside {
                    return Ok(());
                }
                present
            }
            JoinKind::New if self.pending.contains(&request.member_id) => present,
            JoinKind::New | JoinKind::NeedsId => present.saturating_add(self.pending.len()),
        };
        if taken < self.limits.members_max {
            Ok(())
        } else {
            Err(GroupError::new(
                ErrorCode::GroupMaxSizeReached,
                format!("a group may have {} members", self.limits.members_max),
            ))
        }
    }

    fn give_id(&mut self, request: &JoinRequest, ticket: Ticket, now: Now, out: &mut Vec<Effect>) {
        let number = self.pending.add(&request.fresh_member_id);
        let deadline = now.saturating_add(millis(request.session_timeout_ms));
        self.timers.set(Timer::Pending(number), deadline);
        out.push(refuse_join(
            ticket,
            &request.fresh_member_id,
            ErrorCode::MemberIdRequired.into(),
        ));
    }

    fn join_new(
        &mut self,
        request: JoinRequest,
        ticket: Ticket,
        now: Now,
        now_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        let id = match request.member_id.is_empty() {
            true => request.fresh_member_id.clone(),
            false => request.member_id.clone(),
        };
        if let Some(pending) = self.pending.remove(&id) {
            self.timers.clear(Timer::Pending(pending));
        }
        if self.members.is_empty() {
            self.protocol_type = Some(request.protocol_type.clone());
        }
        let why = why(&request, &id, "joins");
        let member = Member::joining(id, request, ticket);
        let patience = member.rebalance_timeout();
        match self.state {
            ClassicState::Empty => self.begin_initial(now, now_ms, &why, out),
            ClassicState::CompletingRebalance | ClassicState::Stable => {
                self.begin_rebalance(&why, now, now_ms, out);
            }
            ClassicState::PreparingRebalance | ClassicState::Dead => {}
        }
        let number = self.members.add(member);
        let deadline = now.saturating_add(NEW_MEMBER_JOIN_MAX);
        self.timers.set(Timer::Session(number), deadline);
        if self.leader.is_none() {
            self.leader = Some(number);
        }
        self.extend_initial(now, patience);
        self.advance(now, now_ms, out);
    }

    /// A static member comes back without its id (KIP-345): its process restarted, or a second one
    /// runs under the same name. The old id is fenced from here on.
    fn join_replacement(
        &mut self,
        number: MemberNumber,
        request: JoinRequest,
        ticket: Ticket,
        now: Now,
        now_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        let Some(member) = self.members.get(number) else {
            return;
        };
        let (old_id, standing) = (member.id().to_owned(), member.standing());
        let fenced = || GroupError::from(ErrorCode::FencedInstanceId);
        match standing {
            Standing::Joined(Some(parked)) | Standing::Replacing(Some(parked)) => {
                out.push(refuse_join(parked, &old_id, fenced()));
            }
            Standing::Synced(Some(parked)) => out.push(Effect::Sync(parked, Err(fenced()))),
            _ => {}
        }
        let id = request.fresh_member_id.clone();
        let (why, skips) = (
            why(&request, &id, "takes over"),
            request.supports_skip_assignment,
        );
        self.members.rename(number, id.clone());
        self.members.update(number, request);
        self.timers.clear(Timer::Session(number));

        if self.state == ClassicState::Stable && self.members.vote() == self.protocol {
            self.members
                .stand(number, Standing::Replacing(Some(ticket)));
            let leads = self.leader == Some(number);
            // A client that can't be told to skip the assignment must not take itself for the
            // leader: it is shown the id that it had.
            let shown_leader = (leads && !skips).then_some(old_id);
            self.request_write(
                Purpose::Replacement {
                    generation: self.generation,
                    number,
                    member_id: id,
                    shown_leader,
                },
                out,
            );
            return;
        }
        // In CompletingRebalance the old id is already with the leader: only a new generation
        // brings the new one an assignment.
        self.members.stand(number, Standing::Joined(Some(ticket)));
        if self.state != ClassicState::PreparingRebalance {
            self.begin_rebalance(&why, now, now_ms, out);
        }
        self.advance(now, now_ms, out);
    }

    fn rejoin(
        &mut self,
        number: MemberNumber,
        request: JoinRequest,
        ticket: Ticket,
        now: Now,
        now_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        let Some(member) = self.members.get(number) else {
            return;
        };
        let same = member.matches(&request.protocols);
        let why = why(&request, member.id(), "rejoins");
        self.members.update(number, request);
        let has_generation = match self.state {
            ClassicState::CompletingRebalance => same,
            // A leader that rejoins wants to assign anew: what it knows of topics has changed.
            ClassicState::Stable => same && self.leader != Some(number),
            _ => false,
        };
        if has_generation {
            // It missed the answer to its join. Nothing has to change for that.
            if self.members.get(number).map(Member::standing) == Some(Standing::Away) {
                self.owe_sync(number, now);
            }
            self.heard(number, now);
            if let Some(answer) = self.answer_joined(number) {
                out.push(Effect::Join(ticket, answer));
            }
            return;
        }
        if self.state != ClassicState::PreparingRebalance {
            self.begin_rebalance(&why, now, now_ms, out);
        }
        let before = self.members.stand(number, Standing::Joined(Some(ticket)));
        match before {
            // It asks again, on another connection: the older request is void.
            Some(Standing::Joined(Some(older))) => {
                let error = ErrorCode::RebalanceInProgress.into();
                let id = self.members.get(number).map_or("", Member::id);
                out.push(refuse_join(older, id, error));
            }
            // Whoever is parked does not expire. (A new member that asks again, above, keeps the
            // deadline of its first wait.)
            _ => self.timers.clear(Timer::Session(number)),
        }
        self.advance(now, now_ms, out);
    }

    /// The generation as a member is told of it.
    pub(super) fn answer_joined(&self, number: MemberNumber) -> Option<JoinAnswer> {
        let member = self.members.get(number)?;
        let leads = self.leader == Some(number);
        let protocol = self.protocol.clone().unwrap_or_default();
        let members = match leads {
            true => self.joined_members(&protocol),
            false => Vec::new(),
        };
        Some(JoinAnswer {
            member_id: member.id().to_owned(),
            result: Ok(Joined {
                generation: self.generation,
                protocol_type: self.protocol_type.clone().unwrap_or_default(),
                protocol,
                leader: self.leader().unwrap_or_default().to_owned(),
                skip_assignment: false,
                members,
            }),
        })
    }

    fn joined_members(&self, protocol: &str) -> Vec<JoinedMember> {
        self.members
            .iter()
            .map(|(_, member)| JoinedMember {
                member_id: member.id().to_owned(),
                instance_id: member.instance_id().map(str::to_owned),
                metadata: member.metadata(protocol).cloned().unwrap_or_default(),
            })
            .collect()
    }
}

fn why(request: &JoinRequest, id: &str, verb: &str) -> String {
    match &request.reason {
        Some(reason) => format!("member {id} {verb}: {reason}"),
        None => format!("member {id} {verb}"),
    }
}
