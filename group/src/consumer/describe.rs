//! A group as ConsumerGroupDescribe shows it.

use super::assign::Assignor;
use super::state::{ConsumerGroupState, ConsumerState};
use super::target;
use crate::records::{Assignment, MemberState};

/// Which protocol a member speaks: `MemberType` of ConsumerGroupDescribe version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberType {
    /// JoinGroup and SyncGroup.
    Classic = 0,
    /// ConsumerGroupHeartbeat.
    Consumer = 1,
}

/// A group for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedGroup<'a> {
    /// Its state.
    pub state: ConsumerGroupState,
    /// The group epoch.
    pub epoch: i32,
    /// The epoch of the target assignment.
    pub assignment_epoch: i32,
    /// The assignor that its members chose.
    pub assignor: Assignor,
    /// Its members, by ascending id.
    pub members: Vec<DescribedMember<'a>>,
}

/// A member for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMember<'a> {
    /// Its id.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// The client's rack.
    pub rack_id: Option<&'a str>,
    /// The client's name of itself.
    pub client_id: &'a str,
    /// The client's address, as `/1.2.3.4`.
    pub client_host: &'a str,
    /// Topics by name, ascending.
    pub subscribed_topics: &'a [String],
    /// Topics by regular expression.
    pub subscribed_regex: Option<&'a str>,
    /// The epoch that it has reached; -2: a static member that is away.
    pub member_epoch: i32,
    /// Where it is on its way; `None` before its first answer.
    pub state: Option<MemberState>,
    /// What it may consume.
    pub assigned: Option<&'a Assignment>,
    /// What it should have.
    pub target: &'a Assignment,
    /// Which protocol it speaks.
    pub member_type: MemberType,
}

/// Shows a group.
pub fn describe(state: &ConsumerState) -> DescribedGroup<'_> {
    DescribedGroup {
        state: state.state(),
        epoch: state.epoch(),
        assignment_epoch: state.assignment_epoch(),
        assignor: target::preferred(
            state
                .assignor_votes()
                .iter()
                .map(|(name, count)| (name.as_str(), *count)),
        ),
        members: state
            .members()
            .iter()
            .map(|(id, member)| DescribedMember {
                member_id: id,
                instance_id: member.value.instance_id.as_deref(),
                rack_id: member.value.rack_id.as_deref(),
                client_id: &member.value.client_id,
                client_host: &member.value.client_host,
                subscribed_topics: &member.value.subscribed_topics,
                subscribed_regex: member.value.subscribed_regex.as_deref(),
                member_epoch: member.epoch(),
                state: member.current.as_ref().map(|current| current.state),
                assigned: member.current.as_ref().map(|current| &current.assigned),
                target: &member.target,
                member_type: if member.value.classic.is_some() {
                    MemberType::Classic
                } else {
                    MemberType::Consumer
                },
            })
            .collect(),
    }
}
