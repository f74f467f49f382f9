//! Who may commit and fetch offsets of a group of this protocol.

use corduroy_protocol::ErrorCode;

use super::state::{ConsumerState, MEMBER_EPOCH_AWAY};
use crate::GroupError;

/// Whether a commit by this member in this epoch counts.
///
/// A negative epoch is an administrator or a consumer that manages its partitions itself: allowed
/// while the group is empty.
///
/// # Errors
///
/// UNKNOWN_MEMBER_ID; STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a classic member: the epoch is
/// not the member's present one.
pub fn check_commit(
    state: &ConsumerState,
    member_id: &str,
    member_epoch: i32,
) -> Result<(), GroupError> {
    if member_epoch < 0 && state.members().is_empty() {
        return Ok(());
    }
    check(state, member_id, member_epoch, Leniency::None)
}

/// Whether this member in this epoch may fetch committed offsets.
///
/// Without a member id and with a negative epoch anybody may. A member may also fetch in the epoch
/// before its present one: it has not seen the answer that brought the new one yet, and what it
/// reads is the committed offset either way. (Members that scale up together would else be told
/// STALE_MEMBER_EPOCH for no fault of theirs.)
///
/// # Errors
///
/// UNKNOWN_MEMBER_ID; STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a classic member.
pub fn check_fetch(
    state: &ConsumerState,
    member_id: Option<&str>,
    member_epoch: i32,
) -> Result<(), GroupError> {
    match member_id {
        None if member_epoch < 0 => Ok(()),
        id => check(
            state,
            id.unwrap_or_default(),
            member_epoch,
            Leniency::EpochBefore,
        ),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leniency {
    None,
    EpochBefore,
}

fn check(
    state: &ConsumerState,
    member_id: &str,
    member_epoch: i32,
    leniency: Leniency,
) -> Result<(), GroupError> {
    let Some(member) = state.members().get(member_id) else {
        return Err(GroupError::new(
            ErrorCode::UnknownMemberId,
            format!("the group has no member {member_id}"),
        ));
    };
    let is_present = member_epoch == member.epoch() && member_epoch != MEMBER_EPOCH_AWAY;
    let is_before = leniency == Leniency::EpochBefore
        && member.value.classic.is_none()
        && member.current.as_ref().is_some_and(|current| {
            current.member_epoch != MEMBER_EPOCH_AWAY
                && current.previous_member_epoch == member_epoch
        });
    if is_present || is_before {
        return Ok(());
    }
    let code = if member.value.classic.is_some() {
        ErrorCode::IllegalGeneration
    } else {
        ErrorCode::StaleMemberEpoch
    };
    Err(GroupError::new(
        code,
        format!(
            "the member is in epoch {}, not in {member_epoch}",
            member.epoch()
        ),
    ))
}
