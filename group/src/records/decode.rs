//! Bytes to records: all versions that Kafka ever wrote.

use corduroy_record::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};

use super::wire::{Layout, Reader};
use super::{
    Assignment, ClassicMemberValue, ClassicProtocols, ClassicValue, ConsumerMemberValue,
    ConsumerValue, CurrentMemberValue, GroupRecord, MemberState, OffsetValue, RecordError,
    RegexValue, TargetAssignmentValue, kind,
};

impl GroupRecord {
    /// The record of a key and its value (`None`: a tombstone), as they stand in a batch.
    ///
    /// `Ok(None)` is a key of a kind that this program does not keep: of a newer version, of share
    /// and streams groups, and kind 4 (the partition counts that Kafka 4.0 kept per group).
    ///
    /// # Errors
    ///
    /// [`RecordError`] for bytes that are no such record.
    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Option<GroupRecord>, RecordError> {
        let mut key = Reader::new(key, Layout::Fixed);
        let kind = key.i16("kind")?;
        if !kind::KNOWN.contains(&kind) {
            return Ok(None);
        }
        let group = key.text("group")?;
        let record = match kind {
            kind::OFFSET_OLD | kind::OFFSET => {
                let partition = TopicPartition {
                    topic: key.text("topic")?,
                    partition: PartitionIndex::new(key.i32("partition")?),
                };
                let value = versioned("OffsetCommitValue", 4, 4, value, offset)?;
                GroupRecord::Offset {
                    group,
                    partition,
                    value,
                }
            }
            kind::CLASSIC => GroupRecord::Classic {
                group,
                value: versioned("GroupMetadataValue", 4, 4, value, classic)?,
            },
            kind::CONSUMER => GroupRecord::Consumer {
                group,
                value: versioned("ConsumerGroupMetadataValue", 0, 0, value, consumer)?,
            },
            kind::CONSUMER_MEMBER => GroupRecord::ConsumerMember {
                group,
                member: key.text("member")?,
                value: versioned("ConsumerGroupMemberMetadataValue", 0, 0, value, member)?,
            },
            kind::TARGET_ASSIGNMENT => GroupRecord::TargetAssignment {
                group,
                value: versioned(
                    "ConsumerGroupTargetAssignmentMetadataValue",
                    0,
                    0,
                    value,
                    target,
                )?,
            },
            kind::TARGET_MEMBER => GroupRecord::TargetMember {
                group,
                member: key.text("member")?,
                value: versioned(
                    "ConsumerGroupTargetAssignmentMemberValue",
                    0,
                    0,
                    value,
                    target_member,
                )?,
            },
            kind::CURRENT_MEMBER => GroupRecord::CurrentMember {
                group,
                member: key.text("member")?,
                value: versioned(
                    "ConsumerGroupCurrentMemberAssignmentValue",
                    0,
                    0,
                    value,
                    current,
                )?,
            },
            kind::REGEX => GroupRecord::Regex {
                group,
                regex: key.text("regular expression")?,
                value: versioned("ConsumerGroupRegularExpressionValue", 0, 0, value, regex)?,
            },
            _ => return Ok(None),
        };
        key.end("the key")?;
        Ok(Some(record))
    }
}

/// A value of versions 0 to `version_max`, flexible from `flexible_from` on.
fn versioned<T>(
    name: &'static str,
    version_max: i16,
    flexible_from: i16,
    value: Option<&[u8]>,
    read: impl FnOnce(i16, &mut Reader<'_>) -> Result<T, RecordError>,
) -> Result<Option<T>, RecordError> {
    let Some(value) = value else {
        return Ok(None);
    };
    let mut reader = Reader::new(value, Layout::Fixed);
    let version = reader.i16("version")?;
    if !(0..=version_max).contains(&version) {
        return Err(RecordError::Version {
            value: name,
            version,
        });
    }
    if version >= flexible_from {
        reader.set_layout(Layout::Flexible);
    }
    let value = read(version, &mut reader)?;
    reader.end(name)?;
    Ok(Some(value))
}

fn offset(version: i16, reader: &mut Reader<'_>) -> Result<OffsetValue, RecordError> {
    let offset = Offset::new(reader.i64("offset")?);
    let leader_epoch = if version >= 3 {
        LeaderEpoch::new(reader.i32("leader epoch")?)
    } else {
        LeaderEpoch::NONE
    };
    let metadata = reader.text("metadata")?;
    let commit_timestamp_ms = reader.i64("commit timestamp")?;
    let expire_timestamp_ms = if version == 1 {
        Some(reader.i64("expire timestamp")?).filter(|expire| *expire != -1)
    } else {
        None
    };
    let mut topic_id = None;
    reader.tagged_fields(|tag, field| {
        if tag == 0 {
            // Kafka's default, and its word for "unknown".
            topic_id = Some(field.topic_id("topic id")?).filter(|id| *id != TopicId::default());
        }
        Ok(tag == 0)
    })?;
    Ok(OffsetValue {
        offset,
        leader_epoch,
        metadata,
        commit_timestamp_ms,
        expire_timestamp_ms,
        topic_id,
    })
}

fn classic(version: i16, reader: &mut Reader<'_>) -> Result<ClassicValue, RecordError> {
    let value = ClassicValue {
        protocol_type: reader.text("protocol type")?,
        generation: reader.i32("generation")?,
        protocol: reader.text_or_null("protocol")?,
        leader: reader.text_or_null("leader")?,
        state_timestamp_ms: if version >= 2 {
            reader.i64("state timestamp")?
        } else {
            -1
        },
        members: reader.list("members", |reader| classic_member(version, reader))?,
    };
    reader.no_tagged_fields()?;
    Ok(value)
}

fn classic_member(
    version: i16,
    reader: &mut Reader<'_>,
) -> Result<ClassicMemberValue, RecordError> {
    let member_id = reader.text("member id")?;
    let instance_id = if version >= 3 {
        reader.text_or_null("instance id")?
    } else {
        None
    };
    let client_id = reader.text("client id")?;
    let client_host = reader.text("client host")?;
    let told_ms = if version >= 1 {
        Some(reader.i32("rebalance timeout")?)
    } else {
        None
    };
    let session_timeout_ms = reader.i32("session timeout")?;
    let member = ClassicMemberValue {
        member_id,
        instance_id,
        client_id,
        client_host,
        // Before version 1 the session timeout was the limit of both, and Kafka reads it so.
        rebalance_timeout_ms: told_ms.unwrap_or(session_timeout_ms),
        session_timeout_ms,
        subscription: reader.bytes("subscription")?,
        assignment: reader.bytes("assignment")?,
    };
    reader.no_tagged_fields()?;
    Ok(member)
}

fn consumer(_version: i16, reader: &mut Reader<'_>) -> Result<ConsumerValue, RecordError> {
    let epoch = reader.i32("epoch")?;
    let mut metadata_hash = 0;
    reader.tagged_fields(|tag, field| {
        if tag == 0 {
            metadata_hash = field.i64("metadata hash")?;
        }
        Ok(tag == 0)
    })?;
    Ok(ConsumerValue {
        epoch,
        metadata_hash,
    })
}

fn member(_version: i16, reader: &mut Reader<'_>) -> Result<ConsumerMemberValue, RecordError> {
    let mut value = ConsumerMemberValue {
        instance_id: reader.text_or_null("instance id")?,
        rack_id: reader.text_or_null("rack id")?,
        client_id: reader.text("client id")?,
        client_host: reader.text("client host")?,
        subscribed_topics: reader.list("topics", |reader| reader.text("topic"))?,
        subscribed_regex: reader.text_or_null("regular expression")?,
        rebalance_timeout_ms: reader.i32("rebalance timeout")?,
        server_assignor: reader.text_or_null("server assignor")?,
        classic: None,
    };
    reader.tagged_fields(|tag, field| {
        if tag == 0 {
            value.classic = classic_protocols(field)?;
        }
        Ok(tag == 0)
    })?;
    Ok(value)
}

fn classic_protocols(reader: &mut Reader<'_>) -> Result<Option<ClassicProtocols>, RecordError> {
    if reader.varint("classic member metadata")? == 0 {
        return Ok(None);
    }
    let value = ClassicProtocols {
        session_timeout_ms: reader.i32("session timeout")?,
        supported: reader.list("protocols", |reader| {
            let protocol = (reader.text("protocol")?, reader.bytes("metadata")?);
            reader.no_tagged_fields()?;
            Ok(protocol)
        })?,
    };
    reader.no_tagged_fields()?;
    Ok(Some(value))
}

fn target(_version: i16, reader: &mut Reader<'_>) -> Result<TargetAssignmentValue, RecordError> {
    let assignment_epoch = reader.i32("assignment epoch")?;
    reader.no_tagged_fields()?;
    Ok(TargetAssignmentValue { assignment_epoch })
}

fn target_member(_version: i16, reader: &mut Reader<'_>) -> Result<Assignment, RecordError> {
    let value = reader.assignment("topic partitions")?;
    reader.no_tagged_fields()?;
    Ok(value)
}

fn current(_version: i16, reader: &mut Reader<'_>) -> Result<CurrentMemberValue, RecordError> {
    let value = CurrentMemberValue {
        member_epoch: reader.i32("member epoch")?,
        previous_member_epoch: reader.i32("previous member epoch")?,
        state: match reader.u8("state")? {
            0 => MemberState::Stable,
            1 => MemberState::UnrevokedPartitions,
            2 => MemberState::UnreleasedPartitions,
            _ => MemberState::Unknown,
        },
        assigned: reader.assignment("assigned partitions")?,
        pending_revocation: reader.assignment("partitions pending revocation")?,
    };
    reader.no_tagged_fields()?;
    Ok(value)
}

fn regex(_version: i16, reader: &mut Reader<'_>) -> Result<RegexValue, RecordError> {
    let value = RegexValue {
        topics: reader.list("topics", |reader| reader.text("topic"))?,
        version: reader.i64("version")?,
        timestamp_ms: reader.i64("timestamp")?,
    };
    reader.no_tagged_fields()?;
    Ok(value)
}
