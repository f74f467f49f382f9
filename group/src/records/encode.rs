//! Records to bytes: the versions that Kafka itself writes.

use bytes::Bytes;
use corduroy_record::LeaderEpoch;

use super::wire::{Layout, Writer};
use super::{
    Assignment, ClassicValue, ConsumerMemberValue, ConsumerValue, CurrentMemberValue, GroupRecord,
    OffsetValue, RecordError, RegexValue, TEXT_BYTES_MAX, TargetAssignmentValue, kind,
};

impl GroupRecord {
    /// The key's bytes: the kind as big-endian i16, then the fields.
    ///
    /// Law: [`GroupRecord::check`] holds. A text that is too long is cut at a character, so that
    /// what is written can always be read.
    pub fn encode_key(&self) -> Bytes {
        let key = |kind: i16| {
            let mut writer = Writer::new(kind, Layout::Fixed);
            writer.text(self.group());
            writer
        };
        let two_part_key = |kind: i16, part: &str| {
            let mut writer = key(kind);
            writer.text(part);
            writer
        };
        let writer = match self {
            GroupRecord::Offset { partition, .. } => {
                let mut writer = two_part_key(kind::OFFSET, &partition.topic);
                writer.i32(partition.partition.get());
                writer
            }
            GroupRecord::Classic { .. } => key(kind::CLASSIC),
            GroupRecord::Consumer { .. } => key(kind::CONSUMER),
            GroupRecord::ConsumerMember { member, .. } => {
                two_part_key(kind::CONSUMER_MEMBER, member)
            }
            GroupRecord::TargetAssignment { .. } => key(kind::TARGET_ASSIGNMENT),
            GroupRecord::TargetMember { member, .. } => two_part_key(kind::TARGET_MEMBER, member),
            GroupRecord::CurrentMember { member, .. } => two_part_key(kind::CURRENT_MEMBER, member),
            GroupRecord::Regex { regex, .. } => two_part_key(kind::REGEX, regex),
        };
        writer.finish()
    }

    /// The value's bytes: the version as big-endian i16, then the fields; `None` for a tombstone.
    ///
    /// An offset with an expiry of its own is written as version 1, which has no leader epoch and no
    /// topic id (so does Kafka); law and cutting as in [`GroupRecord::encode_key`].
    pub fn encode_value(&self) -> Option<Bytes> {
        match self {
            GroupRecord::Offset { value, .. } => value.as_ref().map(offset),
            GroupRecord::Classic { value, .. } => value.as_ref().map(classic),
            GroupRecord::Consumer { value, .. } => value.as_ref().map(consumer),
            GroupRecord::ConsumerMember { value, .. } => value.as_ref().map(member),
            GroupRecord::TargetAssignment { value, .. } => value.as_ref().map(target),
            GroupRecord::TargetMember { value, .. } => value.as_ref().map(target_member),
            GroupRecord::CurrentMember { value, .. } => value.as_ref().map(current),
            GroupRecord::Regex { value, .. } => value.as_ref().map(regex),
        }
    }

    /// Whether Kafka's layout can hold this record: every text of a key, and of the two values of
    /// the fixed layout, has at most [`TEXT_BYTES_MAX`] bytes. To be asked of all that came from a
    /// client, before it is proposed.
    ///
    /// # Errors
    ///
    /// [`RecordError::TooLong`] with the field.
    pub fn check(&self) -> Result<(), RecordError> {
        fits("group", self.group())?;
        match self {
            GroupRecord::Offset {
                partition, value, ..
            } => {
                fits("topic", &partition.topic)?;
                value
                    .as_ref()
                    .map_or(Ok(()), |value| fits("metadata", &value.metadata))
            }
            GroupRecord::Classic { value, .. } => value.as_ref().map_or(Ok(()), classic_fits),
            GroupRecord::ConsumerMember { member, .. }
            | GroupRecord::TargetMember { member, .. }
            | GroupRecord::CurrentMember { member, .. } => fits("member", member),
            GroupRecord::Regex { regex, .. } => fits("regular expression", regex),
            GroupRecord::Consumer { .. } | GroupRecord::TargetAssignment { .. } => Ok(()),
        }
    }
}

fn fits(field: &'static str, text: &str) -> Result<(), RecordError> {
    if text.len() <= TEXT_BYTES_MAX {
        return Ok(());
    }
    let bytes = text.len();
    Err(RecordError::TooLong { field, bytes })
}

fn classic_fits(value: &ClassicValue) -> Result<(), RecordError> {
    fits("protocol type", &value.protocol_type)?;
    fits("protocol", value.protocol.as_deref().unwrap_or_default())?;
    fits("leader", value.leader.as_deref().unwrap_or_default())?;
    for member in &value.members {
        fits("member id", &member.member_id)?;
        fits(
            "instance id",
            member.instance_id.as_deref().unwrap_or_default(),
        )?;
        fits("client id", &member.client_id)?;
        fits("client host", &member.client_host)?;
    }
    Ok(())
}

fn offset(value: &OffsetValue) -> Bytes {
    let (version, layout) = match (value.expire_timestamp_ms, value.topic_id) {
        (Some(_), _) => (1, Layout::Fixed),
        (None, None) => (3, Layout::Fixed),
        (None, Some(_)) => (4, Layout::Flexible),
    };
    let mut writer = Writer::new(version, layout);
    writer.i64(value.offset.get());
    if version >= 3 {
        writer.i32(value.leader_epoch.get());
    }
    writer.text(&value.metadata);
    writer.i64(value.commit_timestamp_ms);
    match (value.expire_timestamp_ms, value.topic_id) {
        (Some(expire_timestamp_ms), _) => writer.i64(expire_timestamp_ms),
        (None, Some(id)) => writer.one_tagged_field(0, |field| field.topic_id(id)),
        (None, None) => {}
    }
    writer.finish()
}

impl OffsetValue {
    /// What a reader of the written record sees: version 1 has no leader epoch and no topic id, and
    /// reads the expiry -1 as none.
    pub(crate) fn into_written(mut self) -> OffsetValue {
        if self.expire_timestamp_ms.is_some() {
            self.leader_epoch = LeaderEpoch::NONE;
            self.topic_id = None;
            self.expire_timestamp_ms = self.expire_timestamp_ms.filter(|expire| *expire != -1);
        }
        self
    }
}

fn classic(value: &ClassicValue) -> Bytes {
    let mut writer = Writer::new(3, Layout::Fixed);
    writer.text(&value.protocol_type);
    writer.i32(value.generation);
    writer.text_or_null(value.protocol.as_deref());
    writer.text_or_null(value.leader.as_deref());
    writer.i64(value.state_timestamp_ms);
    writer.list(value.members.iter(), |writer, member| {
        writer.text(&member.member_id);
        writer.text_or_null(member.instance_id.as_deref());
        writer.text(&member.client_id);
        writer.text(&member.client_host);
        writer.i32(member.rebalance_timeout_ms);
        writer.i32(member.session_timeout_ms);
        writer.bytes(&member.subscription);
        writer.bytes(&member.assignment);
    });
    writer.finish()
}

fn consumer(value: &ConsumerValue) -> Bytes {
    let mut writer = Writer::new(0, Layout::Flexible);
    writer.i32(value.epoch);
    if value.metadata_hash == 0 {
        writer.no_tagged_fields();
    } else {
        writer.one_tagged_field(0, |field| field.i64(value.metadata_hash));
    }
    writer.finish()
}

fn member(value: &ConsumerMemberValue) -> Bytes {
    let mut writer = Writer::new(0, Layout::Flexible);
    writer.text_or_null(value.instance_id.as_deref());
    writer.text_or_null(value.rack_id.as_deref());
    writer.text(&value.client_id);
    writer.text(&value.client_host);
    writer.list(value.subscribed_topics.iter(), |writer, topic| {
        writer.text(topic);
    });
    writer.text_or_null(value.subscribed_regex.as_deref());
    writer.i32(value.rebalance_timeout_ms);
    writer.text_or_null(value.server_assignor.as_deref());
    match &value.classic {
        None => writer.no_tagged_fields(),
        Some(classic) => writer.one_tagged_field(0, |field| {
            field.present();
            field.i32(classic.session_timeout_ms);
            field.list(classic.supported.iter(), |field, (name, metadata)| {
                field.text(name);
                field.bytes(metadata);
                field.no_tagged_fields();
            });
            field.no_tagged_fields();
        }),
    }
    writer.finish()
}

fn target(value: &TargetAssignmentValue) -> Bytes {
    let mut writer = Writer::new(0, Layout::Flexible);
    writer.i32(value.assignment_epoch);
    writer.no_tagged_fields();
    writer.finish()
}

fn target_member(value: &Assignment) -> Bytes {
    let mut writer = Writer::new(0, Layout::Flexible);
    writer.assignment(value);
    writer.no_tagged_fields();
    writer.finish()
}

fn current(value: &CurrentMemberValue) -> Bytes {
    let mut writer = Writer::new(0, Layout::Flexible);
    writer.i32(value.member_epoch);
    writer.i32(value.previous_member_epoch);
    writer.i8(value.state as i8);
    writer.assignment(&value.assigned);
    writer.assignment(&value.pending_revocation);
    writer.no_tagged_fields();
    writer.finish()
}

fn regex(value: &RegexValue) -> Bytes {
    let mut writer = Writer::new(0, Layout::Flexible);
    writer.list(value.topics.iter(), |writer, topic| writer.text(topic));
    writer.i64(value.version);
    writer.i64(value.timestamp_ms);
    writer.no_tagged_fields();
    writer.finish()
}
