//! SyncGroup: members fetch their assignment, the leader brings it.

use corduroy_protocol::ErrorCode;

use super::group::Assignments;
use super::members::{Member, MemberNumber, Standing};
use super::timers::Timer;
use super::writes::Purpose;
use super::{ClassicGroup, ClassicState, Effect, SyncRequest, Synced, Ticket};
use crate::{GroupError, Now};

impl ClassicGroup {
    /// SyncGroup. The answer comes at once, or when the leader's assignment is durable.
    pub fn sync(&mut self, request: SyncRequest, ticket: Ticket, now: Now, out: &mut Vec<Effect>) {
        match self.judge_sync(&request) {
            Ok(number) if self.state == ClassicState::Stable => {
                self.answer_assigned(number, ticket, now, out);
            }
            Ok(number) => self.park_sync(number, request.assignments, ticket, out),
            Err(error) => out.push(Effect::Sync(ticket, Err(error))),
        }
        self.assert_laws();
    }

    /// Which member syncs, in CompletingRebalance or Stable.
    fn judge_sync(&self, request: &SyncRequest) -> Result<MemberNumber, GroupError> {
        let number = self.validate_generation(&request.identity)?;
        let differs =
            |told: &Option<String>, known: &Option<String>| told.is_some() && told != known;
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol, &self.protocol)
        {
            return Err(GroupError::new(
                ErrorCode::InconsistentGroupProtocol,
                "the group has another protocol type or protocol",
            ));
        }
        match self.state {
            ClassicState::PreparingRebalance => Err(ErrorCode::RebalanceInProgress.into()),
            _ => Ok(number),
        }
    }

    fn park_sync(
        &mut self,
        number: MemberNumber,
        assignments: Assignments,
        ticket: Ticket,
        out: &mut Vec<Effect>,
    ) {
        let before = self.members.stand(number, Standing::Synced(Some(ticket)));
        self.timers.clear(Timer::Session(number));
        if let Some(older) = before.and_then(Standing::ticket) {
            // It asks again, on another connection: the older request is void.
            let error = GroupError::from(ErrorCode::RebalanceInProgress);
            out.push(Effect::Sync(older, Err(error)));
        }
        self.stop_sync_timer_if_done();
        // A leader that repeats itself changes nothing: one generation has one assignment.
        if self.leader == Some(number) && !self.assigned {
            self.assign(assignments, out);
        }
    }

    fn assign(&mut self, mut assignments: Assignments, out: &mut Vec<Effect>) {
        self.assigned = true;
        let mut unmentioned = 0_usize;
        for number in self.members.numbers() {
            let Some(member) = self.members.get(number) else {
                continue;
            };
            // Not mentioned: nothing assigned, as zero bytes.
            let assignment = assignments.remove(member.id()).unwrap_or_else(|| {
                unmentioned += 1;
                bytes::Bytes::new()
            });
            self.members.set_assignment(number, assignment);
        }
        if unmentioned > 0 {
            let generation = self.generation;
            out.push(Effect::Note(format!(
                "generation {generation}: the leader mentions {unmentioned} members not at all"
            )));
        }
        let generation = self.generation;
        self.request_write(Purpose::Assignment { generation }, out);
    }

    /// CompletingRebalance -> Stable: the assignment is durable, everybody may have it.
    pub(super) fn become_stable(&mut self, now: Now, now_ms: i64, out: &mut Vec<Effect>) {
        assert_eq!(
            self.state,
            ClassicState::CompletingRebalance,
            "an assignment becomes durable in CompletingRebalance"
        );
        self.enter(ClassicState::Stable, now_ms);
        for number in self.members.numbers() {
            let standing = self.members.get(number).map(Member::standing);
            if let Some(Standing::Synced(Some(ticket))) = standing {
                self.answer_assigned(number, ticket, now, out);
            }
        }
        out.push(Effect::Note(format!(
            "generation {} is stable",
            self.generation
        )));
    }

    fn answer_assigned(
        &mut self,
        number: MemberNumber,
        ticket: Ticket,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(member) = self.members.get(number) else {
            return;
        };
        let synced = Synced {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol: self.protocol.clone().unwrap_or_default(),
            assignment: member.assignment.clone(),
        };
        out.push(Effect::Sync(ticket, Ok(synced)));
        // Who still waits for its new id to be durable goes on waiting.
        if !matches!(member.standing(), Standing::Replacing(_)) {
            self.members.stand(number, Standing::Synced(None));
        }
        self.heard(number, now);
        self.stop_sync_timer_if_done();
    }

    fn stop_sync_timer_if_done(&mut self) {
        if self.members.counts().owe_sync == 0 {
            self.timers.clear(Timer::Sync);
        }
    }
}
