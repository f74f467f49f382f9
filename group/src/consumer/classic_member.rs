//! Members of a consumer group that speak the classic protocol (KIP-848, "online migration"):
//! JoinGroup, SyncGroup, Heartbeat and LeaveGroup as requests to a group whose coordinator assigns.
//!
//! A member's epoch is its generation. Nobody leads: whoever joins is told its epoch at once and
//! syncs to learn what it may have, which is what ConsumerGroupHeartbeat would have told it. A
//! heartbeat says REBALANCE_IN_PROGRESS where the member has to join again to go on: the group is
//! in another epoch, it has something to give up, or what it waits for has become free.
//!
//! Where this differs from Apache Kafka: a member that owns nothing of what it has to give up when it
//! joins (every eager one) need not join once more to say so, where its metadata shows that it
//! speaks of its present epoch.

use std::collections::BTreeSet;

use corduroy_protocol::ErrorCode;

use super::advance::{GivesUp, NO_TARGET, Says, Speaker, advance};
use super::classic_embedded::{PROTOCOL_TYPE, Subscription, by_id, encode_assignment};
use super::heartbeat::{ConsumerLimits, remove_members, unknown_member};
use super::reconcile::{self, Said};
use super::state::{ConsumerMember, ConsumerState, MEMBER_EPOCH_JOIN};
use super::topics::Topics;
use crate::GroupError;
use crate::classic::{
    ClassicLimits, JoinAnswer, JoinRequest, Joined, Leaving, MemberIdentity, SyncAnswer,
    SyncRequest, Synced,
};
use crate::records::{ClassicProtocols, ConsumerMemberValue, GroupRecord, MemberState};

/// What a JoinGroup does: the records to make durable, and what to answer once they are applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicJoin {
    /// To be proposed together, in this order; may be empty.
    pub records: Vec<GroupRecord>,
    /// To be sent when they have been applied.
    pub answer: JoinAnswer,
}

/// JoinGroup to a group of the consumer protocol, decided from its committed state.
///
/// `now_ms` is wall time. Decisions follow one another as those of
/// [`heartbeat`](super::heartbeat) do.
///
/// # Errors
///
/// In the answer, without records: INVALID_SESSION_TIMEOUT; INCONSISTENT_GROUP_PROTOCOL (not of type
/// "consumer", metadata that cannot be read, nothing in common with the other classic members);
/// MEMBER_ID_REQUIRED; GROUP_MAX_SIZE_REACHED; UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID for static
/// members.
pub fn classic_join(
    group: &str,
    state: &ConsumerState,
    request: &JoinRequest,
    topics: &dyn Topics,
    limits: (&ConsumerLimits, &ClassicLimits),
    now_ms: i64,
) -> ClassicJoin {
    let needs_id = request.member_id.is_empty()
        && request.instance_id.is_none()
        && request.requires_known_member_id;
    let id = match request.member_id.as_str() {
        "" => &request.fresh_member_id,
        id => id,
    };
    let result = judge(state, id, request, limits)
        .and_then(|subscription| match needs_id {
            true => Err((id.to_owned(), ErrorCode::MemberIdRequired.into())),
            false => Ok(subscription),
        })
        .and_then(|subscription| {
            join(group, state, id, request, &subscription, topics, now_ms)
                .map_err(|error| (request.member_id.clone(), error))
        });
    match result {
        Ok((records, joined)) => ClassicJoin {
            records,
            answer: JoinAnswer {
                member_id: id.to_owned(),
                result: Ok(joined),
            },
        },
        Err((member_id, error)) => ClassicJoin {
            records: Vec::new(),
            answer: JoinAnswer {
                member_id,
                result: Err(error),
            },
        },
    }
}

/// Whether the group can have the member; what it subscribes to.
fn judge<'a>(
    state: &ConsumerState,
    id: &str,
    request: &'a JoinRequest,
    (consumer, classic): (&ConsumerLimits, &ClassicLimits),
) -> Result<Subscription<'a>, (String, GroupError)> {
    let refusal = |code, message: &str| {
        let error = GroupError::new(code, message);
        Err((request.member_id.clone(), error))
    };
    let session_timeout = super::timers::millis(request.session_timeout_ms);
    let (least, most) = (classic.session_timeout_min, classic.session_timeout_max);
    if request.session_timeout_ms < 0 || session_timeout < least || session_timeout > most {
        return refusal(
            ErrorCode::InvalidSessionTimeout,
            &format!("{session_timeout:?} is not between {least:?} and {most:?}"),
        );
    }
    let inside = state.members().contains_key(id)
        || request
            .instance_id
            .as_deref()
            .is_some_and(|instance| state.instance(instance).is_some());
    if !inside && state.members().len() >= consumer.members_max {
        return refusal(
            ErrorCode::GroupMaxSizeReached,
            &format!("the group has {} members already", consumer.members_max),
        );
    }
    let inconsistent = ErrorCode::InconsistentGroupProtocol;
    if request.protocol_type != PROTOCOL_TYPE {
        return refusal(inconsistent, "the group's protocol type is consumer");
    }
    let Some((_, metadata)) = request.protocols.first() else {
        return refusal(inconsistent, "a member needs a protocol");
    };
    // What a member said before does not bind it: the other classic members do.
    let mut common: BTreeSet<&str> = request
        .protocols
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    for (other, member) in state.members() {
        let same_instance =
            request.instance_id.is_some() && member.value.instance_id == request.instance_id;
        if other != id
            && !same_instance
            && let Some(classic) = &member.value.classic
        {
            common.retain(|name| classic.supported.iter().any(|(other, _)| other == name));
        }
    }
    if common.is_empty() {
        return refusal(
            inconsistent,
            "the other classic members share none of these protocols",
        );
    }
    match Subscription::decode(metadata) {
        Some(subscription) => Ok(subscription),
        None => refusal(inconsistent, "the metadata is no subscription to topics"),
    }
}

fn join(
    group: &str,
    state: &ConsumerState,
    id: &str,
    request: &JoinRequest,
    subscription: &Subscription<'_>,
    topics: &dyn Topics,
    now_ms: i64,
) -> Result<(Vec<GroupRecord>, Joined), GroupError> {
    let (speaker, joins) = identify(state, id, request)?;
    // A generation that is not the member's: an older request, which was under way for long.
    let speaks_of_now = subscription.generation == speaker.current.member_epoch;
    let owned = by_id(&subscription.owned, topics);
    let said = match joins {
        Joins::Anew => Said {
            epoch: MEMBER_EPOCH_JOIN,
            owned: None,
        },
        Joins::Again => Said {
            epoch: speaker.current.member_epoch,
            owned: (speaks_of_now || subscription.generation < 0).then_some(&owned),
        },
    };
    let value = value(speaker.value, request, subscription);
    let says = Says {
        value,
        said,
        gives_up: if speaks_of_now {
            GivesUp::Already
        } else {
            GivesUp::Later
        },
    };
    let step = advance(group, state, &speaker, says, topics, now_ms)?;
    let joined = Joined {
        generation: step.current.member_epoch,
        protocol_type: PROTOCOL_TYPE.to_owned(),
        protocol: first_protocol(&request.protocols),
        // Nobody leads, so nobody assigns.
        leader: String::new(),
        skip_assignment: false,
        members: Vec::new(),
    };
    Ok((step.records, joined))
}

/// Whether a member has abandoned all that it had.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joins {
    /// It is new, or not the process that it was.
    Anew,
    /// It says what it owns still.
    Again,
}

fn identify<'a>(
    state: &'a ConsumerState,
    id: &'a str,
    request: &JoinRequest,
) -> Result<(Speaker<'a>, Joins), GroupError> {
    let known = state.members().get(id);
    let mut source = known;
    let mut replaces = None;
    if let Some(instance) = &request.instance_id {
        match state.instance(instance) {
            Some((former, _)) if former == id => {}
            // Whoever speaks the classic protocol may take an instance over at any time (KIP-345),
            // also from a member of the other protocol, which is fenced then.
            Some((former, member)) if request.member_id.is_empty() => {
                source = Some(member);
                replaces = Some(former);
            }
            Some((former, _)) => {
                return Err(GroupError::new(
                    ErrorCode::FencedInstanceId,
                    format!("instance {instance} is member {former} now"),
                ));
            }
            None if request.member_id.is_empty() => {}
            None => return Err(unknown_member(&format!("with instance id {instance}"))),
        }
    }
    let mut current = source
        .and_then(|member| member.current.clone())
        .unwrap_or_else(reconcile::newcomer);
    let spoke_classic = known.is_some_and(|member| member.value.classic.is_some());
    let joins = match replaces.is_none() && spoke_classic {
        true => Joins::Again,
        false => Joins::Anew,
    };
    if joins == Joins::Anew {
        current.member_epoch = MEMBER_EPOCH_JOIN;
        current.previous_member_epoch = MEMBER_EPOCH_JOIN;
    }
    let gone = replaces.and_then(|former| state.members().get(former));
    let before = || known.into_iter().chain(gone);
    let speaker = Speaker {
        id,
        value: source.map(|member| &member.value),
        target: source.map_or(&NO_TARGET, |member| &member.target),
        current,
        replaces,
        holds: before()
            .filter_map(|member| member.current.as_ref())
            .collect(),
        regexes: before()
            .filter_map(|member| member.value.subscribed_regex.as_deref())
            .collect(),
    };
    Ok((speaker, joins))
}

/// What the member says about itself from now on.
fn value(
    before: Option<&ConsumerMemberValue>,
    request: &JoinRequest,
    subscription: &Subscription<'_>,
) -> ConsumerMemberValue {
    let instance_before = before.and_then(|before| before.instance_id.clone());
    let mut seen = BTreeSet::new();
    ConsumerMemberValue {
        instance_id: request.instance_id.clone().or(instance_before),
        rack_id: subscription.rack.map(str::to_owned),
        client_id: request.client_id.clone(),
        client_host: request.client_host.clone(),
        subscribed_topics: sorted(&subscription.topics),
        subscribed_regex: None,
        rebalance_timeout_ms: request.rebalance_timeout_ms,
        server_assignor: None,
        classic: Some(ClassicProtocols {
            session_timeout_ms: request.session_timeout_ms,
            supported: request
                .protocols
                .iter()
                .filter(|(name, _)| seen.insert(name.as_str()))
                .cloned()
                .collect(),
        }),
    }
}

/// Topics as a member's record has them.
pub(super) fn sorted(topics: &[&str]) -> Vec<String> {
    let topics: BTreeSet<&str> = topics.iter().copied().collect();
    topics.into_iter().map(str::to_owned).collect()
}

fn first_protocol<T>(protocols: &[(String, T)]) -> String {
    protocols
        .first()
        .map(|(name, _)| name.clone())
        .unwrap_or_default()
}

/// SyncGroup: what the member may have, as of its last join.
///
/// # Errors
///
/// UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL;
/// REBALANCE_IN_PROGRESS: the group is in a later epoch, so the member shall join again.
pub fn classic_sync(
    state: &ConsumerState,
    request: &SyncRequest,
    topics: &dyn Topics,
) -> SyncAnswer {
    let member = validate(state, &request.identity)?;
    let supported = member
        .value
        .classic
        .as_ref()
        .map(|c| c.supported.as_slice());
    let supported = supported.unwrap_or_default();
    let protocol = first_protocol(supported);
    let other =
        |told: &Option<String>, known: &str| told.as_ref().is_some_and(|told| told != known);
    if other(&request.protocol_type, PROTOCOL_TYPE) || other(&request.protocol, &protocol) {
        return Err(GroupError::new(
            ErrorCode::InconsistentGroupProtocol,
            format!("the member joined with protocol {protocol} of type {PROTOCOL_TYPE}"),
        ));
    }
    let state_now = member.current.as_ref().map(|current| current.state);
    if state.epoch() > member.epoch() && state_now != Some(MemberState::UnrevokedPartitions) {
        return Err(rebalances(state, member));
    }
    let version = supported
        .first()
        .and_then(|(_, metadata)| Subscription::decode(metadata))
        .map_or(0, |subscription| subscription.version);
    let assigned = member.current.as_ref().map(|current| &current.assigned);
    Ok(Synced {
        protocol_type: PROTOCOL_TYPE.to_owned(),
        protocol,
        assignment: encode_assignment(assigned.unwrap_or(&NO_TARGET), version, topics),
    })
}

/// Heartbeat. The member lives, whatever the answer says of rebalances.
///
/// # Errors
///
/// UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION; REBALANCE_IN_PROGRESS: it shall join
/// again.
pub fn classic_heartbeat(
    state: &ConsumerState,
    identity: &MemberIdentity,
) -> Result<(), GroupError> {
    let member = validate(state, identity)?;
    let shall_join = member.epoch() < state.epoch()
        || member.current.as_ref().is_some_and(|current| {
            let waits = || {
                member.target.iter().any(|(topic, partitions)| {
                    partitions.iter().any(|partition| {
                        !reconcile::has(&current.assigned, *topic, *partition)
                            && state.holders(*topic, *partition) > 0
                    })
                })
            };
            match current.state {
                MemberState::UnrevokedPartitions => true,
                MemberState::UnreleasedPartitions => !waits(),
                MemberState::Stable | MemberState::Unknown => false,
            }
        });
    match shall_join {
        true => Err(rebalances(state, member)),
        false => Ok(()),
    }
}

fn rebalances(state: &ConsumerState, member: &ConsumerMember) -> GroupError {
    GroupError::new(
        ErrorCode::RebalanceInProgress,
        format!(
            "the group is in epoch {}, the member in {}: join again",
            state.epoch(),
            member.epoch()
        ),
    )
}

fn validate<'a>(
    state: &'a ConsumerState,
    identity: &MemberIdentity,
) -> Result<&'a ConsumerMember, GroupError> {
    let id = identity.member_id.as_str();
    let member = find(state, id, identity.instance_id.as_deref())?.1;
    if member.epoch() != identity.generation {
        return Err(GroupError::new(
            ErrorCode::IllegalGeneration,
            format!(
                "the member is in epoch {}, not in {}",
                member.epoch(),
                identity.generation
            ),
        ));
    }
    Ok(member)
}

/// The classic member of these names.
fn find<'a>(
    state: &'a ConsumerState,
    id: &str,
    instance: Option<&str>,
) -> Result<(&'a str, &'a ConsumerMember), GroupError> {
    let found = match instance {
        None => state
            .members()
            .get_key_value(id)
            .map(|(id, member)| (id.as_str(), member)),
        Some(instance) => {
            let owner = state.instance(instance);
            if let Some((owner, _)) = owner.filter(|(owner, _)| *owner != id) {
                return Err(GroupError::new(
                    ErrorCode::FencedInstanceId,
                    format!("instance {instance} is member {owner} now"),
                ));
            }
            owner
        }
    };
    found
        .filter(|(_, member)| member.value.classic.is_some())
        .ok_or_else(|| unknown_member(id))
}

/// LeaveGroup: one result for each member named, and the records to make durable before they are
/// told. An empty member id with an instance id removes that static member, whoever it is now.
pub fn classic_leave(
    group: &str,
    state: &ConsumerState,
    leaving: &[Leaving],
) -> (Vec<GroupRecord>, Vec<Result<(), GroupError>>) {
    let mut gone: Vec<&str> = Vec::new();
    let results = leaving
        .iter()
        .map(|leaving| {
            let instance = leaving.instance_id.as_deref();
            let owner = instance.and_then(|instance| state.instance(instance));
            let id = match (leaving.member_id.as_str(), owner) {
                ("", Some((owner, _))) => owner,
                (id, _) => id,
            };
            let (id, _) = find(state, id, instance)?;
            gone.push(id);
            Ok(())
        })
        .collect();
    (remove_members(group, state, &gone), results)
}
