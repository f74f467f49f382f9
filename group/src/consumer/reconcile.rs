//! One member's way to its target: it gives up first, then it gets (KIP-848).
//!
//! Law: a partition is given to a member only when nobody holds it. Whoever has it holds it until
//! its owner has said, in a request of its present epoch, that it no longer owns it.
//!
//! What the protocol cannot tell: a member that has not taken a partition yet does not name it, nor
//! does one that gave it up. If the answer that asks it back is lost, the member may take it after
//! its next request. By then its epoch is an older one, so that it commits nothing.

use corduroy_protocol::ErrorCode;
use corduroy_record::{PartitionIndex, TopicId};

use super::state::{MEMBER_EPOCH_AWAY, MEMBER_EPOCH_JOIN};
use crate::GroupError;
use crate::records::{Assignment, CurrentMemberValue, MemberState};

/// A member that has been given nothing yet.
pub(crate) fn newcomer() -> CurrentMemberValue {
    CurrentMemberValue {
        member_epoch: MEMBER_EPOCH_JOIN,
        previous_member_epoch: MEMBER_EPOCH_JOIN,
        state: MemberState::Stable,
        assigned: Assignment::new(),
        pending_revocation: Assignment::new(),
    }
}

/// What the member said in its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said<'a> {
    /// The member epoch of the request.
    pub(crate) epoch: i32,
    /// What it owns; `None`: as it said before.
    pub(crate) owned: Option<&'a Assignment>,
}

/// Whether the epoch of a request may go on; else FENCED_MEMBER_EPOCH.
pub(crate) fn check_epoch(current: &CurrentMemberValue, said: Said<'_>) -> Result<(), GroupError> {
    // Joining (again) is always allowed: the member has abandoned all that it had.
    if said.epoch == current.member_epoch || said.epoch == MEMBER_EPOCH_JOIN {
        return Ok(());
    }
    // The answer with the new epoch may have been lost. What the member owns must be its own still.
    let lost_answer = said.epoch == current.previous_member_epoch
        && current.member_epoch != MEMBER_EPOCH_AWAY
        && said.owned.is_some_and(|owned| {
            all_places(owned).all(|(topic, partition)| {
                has(&current.assigned, topic, partition)
                    || has(&current.pending_revocation, topic, partition)
            })
        });
    if lost_answer {
        return Ok(());
    }
    let relation = if said.epoch > current.member_epoch {
        "greater"
    } else {
        "smaller"
    };
    Err(GroupError::new(
        ErrorCode::FencedMemberEpoch,
        format!(
            "the member's epoch {} is {relation} than {}, the one that the coordinator knows: \
             abandon all partitions and join again",
            said.epoch, current.member_epoch
        ),
    ))
}

/// The next step of a member towards `target`, the target assignment of `target_epoch`.
///
/// `is_free` says whether nobody but this member holds a partition. FENCED_MEMBER_EPOCH if the
/// member's state is of a version that is unknown here and it has partitions.
pub(crate) fn next(
    current: &CurrentMemberValue,
    said: Said<'_>,
    target_epoch: i32,
    target: &Assignment,
    is_free: &dyn Fn(TopicId, PartitionIndex) -> bool,
) -> Result<CurrentMemberValue, GroupError> {
    let rejoins = said.epoch == MEMBER_EPOCH_JOIN;
    let base_epoch = match current.state {
        MemberState::Stable => {
            if current.member_epoch == target_epoch {
                return Ok(current.clone());
            }
            current.member_epoch
        }
        MemberState::UnrevokedPartitions => {
            // Only a request of the present epoch confirms: one that was under way when the member
            // got these partitions would not name them either.
            let confirmed = rejoins
                || (said.epoch == current.member_epoch
                    && said.owned.is_some_and(|owned| {
                        !all_places(owned).any(|(topic, partition)| {
                            has(&current.pending_revocation, topic, partition)
                        })
                    }));
            if !confirmed {
                return Ok(current.clone());
            }
            // A new epoch, so that commits for what was given up are stale from now on.
            current.member_epoch.saturating_add(1).min(target_epoch)
        }
        MemberState::UnreleasedPartitions => current.member_epoch,
        MemberState::Unknown => {
            if !rejoins && said.owned.is_none_or(|owned| !owned.is_empty()) {
                return Err(GroupError::new(
                    ErrorCode::FencedMemberEpoch,
                    "the member is in a state of a newer version: abandon all partitions and \
                     join again",
                ));
            }
            target_epoch
        }
    };
    let (kept, surplus) = split(&current.assigned, target);
    // A member that joins again owns nothing, so it has nothing to give up.
    let next = if !surplus.is_empty() && !rejoins {
        CurrentMemberValue {
            member_epoch: base_epoch,
            previous_member_epoch: current.previous_member_epoch,
            state: MemberState::UnrevokedPartitions,
            assigned: kept,
            pending_revocation: surplus,
        }
    } else {
        let (assigned, complete) = complete(kept, target, is_free);
        CurrentMemberValue {
            member_epoch: target_epoch,
            previous_member_epoch: current.previous_member_epoch,
            state: if complete {
                MemberState::Stable
            } else {
                MemberState::UnreleasedPartitions
            },
            assigned,
            pending_revocation: Assignment::new(),
        }
    };
    Ok(after(current, said.epoch, next))
}

/// The epoch before is the one that the member proved to know: if several answers in a row are lost
/// it can still go on.
fn after(
    current: &CurrentMemberValue,
    said_epoch: i32,
    mut next: CurrentMemberValue,
) -> CurrentMemberValue {
    if next.member_epoch != current.member_epoch {
        next.previous_member_epoch = said_epoch;
    }
    next
}

/// What of `assigned` is in `target`, and what is not.
fn split(assigned: &Assignment, target: &Assignment) -> (Assignment, Assignment) {
    let (mut kept, mut surplus) = (Assignment::new(), Assignment::new());
    for (topic, partition) in all_places(assigned) {
        let side = if has(target, topic, partition) {
            &mut kept
        } else {
            &mut surplus
        };
        side.entry(topic).or_default().push(partition);
    }
    (kept, surplus)
}

/// `kept` and what is free of the rest of `target`; whether that is all of `target`.
fn complete(
    kept: Assignment,
    target: &Assignment,
    is_free: &dyn Fn(TopicId, PartitionIndex) -> bool,
) -> (Assignment, bool) {
    let mut complete = true;
    let mut assigned = Assignment::new();
    for (topic, partition) in all_places(target) {
        if has(&kept, topic, partition) || is_free(topic, partition) {
            assigned.entry(topic).or_default().push(partition);
        } else {
            complete = false;
        }
    }
    (assigned, complete)
}

fn all_places(assignment: &Assignment) -> impl Iterator<Item = (TopicId, PartitionIndex)> {
    assignment.iter().flat_map(|(topic, partitions)| {
        partitions.iter().map(move |partition| (*topic, *partition))
    })
}

/// Makes the law of [`Assignment`] true for what others wrote: ascending, without repetition or
/// topics without partitions.
pub(crate) fn normalise(assignment: &mut Assignment) {
    assignment.retain(|_, partitions| {
        if !partitions.is_sorted_by(|a, b| a < b) {
            partitions.sort_unstable();
            partitions.dedup();
        }
        !partitions.is_empty()
    });
}

pub(crate) fn has(assignment: &Assignment, topic: TopicId, partition: PartitionIndex) -> bool {
    assignment
        .get(&topic)
        .is_some_and(|partitions| partitions.binary_search(&partition).is_ok())
}
