//! OffsetCommit and OffsetFetch from version 10 on, whose topics go by id instead of by name. The
//! codec reads their requests up to version 9, so these two are ours; all other fields and all
//! answers are as before.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use corduroy_record::TopicId;
use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

use crate::api::CodecResult;
use crate::fetch::put_varint;
use crate::walk::{Misshapen, tagged_fields_length};

/// The first version of both APIs whose topics go by id, and so far the last.
pub(crate) const BY_ID_SINCE: i16 = 10;
/// A partition of OffsetCommit looks as it did in this version, the last that the codec knows.
const PARTITION_LAYOUT: i16 = 9;
/// The longest string that Kafka's protocol has.
const TEXT_BYTES_MAX: usize = i16::MAX as usize;
/// The longest variable-length number of 32 bits.
const VARINT_BYTES_MAX: u32 = 5;

/// OffsetCommit (version 10).
#[derive(Clone, Debug, PartialEq)]
pub struct OffsetCommitByIdRequest {
    /// The group.
    pub group_id: GroupId,
    /// The generation, or the member's epoch; -1 of whoever is no member.
    pub generation_id_or_member_epoch: i32,
    /// The member; empty of whoever is none.
    pub member_id: StrBytes,
    /// `group.instance.id` of a static member.
    pub group_instance_id: Option<StrBytes>,
    /// What is committed.
    pub topics: Vec<OffsetCommitByIdTopic>,
}

/// A topic of an [`OffsetCommitByIdRequest`].
#[derive(Clone, Debug, PartialEq)]
pub struct OffsetCommitByIdTopic {
    /// Its id.
    pub topic_id: TopicId,
    /// Its partitions.
    pub partitions: Vec<OffsetCommitRequestPartition>,
}

/// OffsetFetch (version 10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchByIdRequest {
    /// The groups.
    pub groups: Vec<OffsetFetchByIdGroup>,
    /// Whether offsets of open transactions are waited for.
    pub require_stable: bool,
}

/// A group of an [`OffsetFetchByIdRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchByIdGroup {
    /// The group.
    pub group_id: GroupId,
    /// The member that asks, in groups of the consumer protocol.
    pub member_id: Option<StrBytes>,
    /// That member's epoch; -1 without a member.
    pub member_epoch: i32,
    /// What is asked for; `None`: every topic with a committed offset.
    pub topics: Option<Vec<OffsetFetchByIdTopic>>,
}

/// A topic of an [`OffsetFetchByIdRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchByIdTopic {
    /// Its id.
    pub topic_id: TopicId,
    /// Its partitions.
    pub partition_indexes: Vec<i32>,
}

impl OffsetCommitByIdRequest {
    pub(crate) fn decode(bytes: &mut Bytes, version: i16) -> CodecResult<OffsetCommitByIdRequest> {
        check_version(version)?;
        let request = OffsetCommitByIdRequest {
            group_id: GroupId(required(take_text(bytes)?)?),
            generation_id_or_member_epoch: bytes.try_get_i32().map_err(text)?,
            member_id: required(take_text(bytes)?)?,
            group_instance_id: take_text(bytes)?,
            topics: required(take_array(bytes, |bytes| {
                let topic = OffsetCommitByIdTopic {
                    topic_id: take_topic_id(bytes)?,
                    partitions: required(take_array(bytes, |bytes| {
                        OffsetCommitRequestPartition::decode(bytes, PARTITION_LAYOUT).map_err(text)
                    })?)?,
                };
                skip_tags(bytes)?;
                Ok(topic)
            })?)?,
        };
        skip_tags(bytes)?;
        Ok(request)
    }

    pub(crate) fn encode(&self, out: &mut BytesMut, version: i16) -> CodecResult<()> {
        check_version(version)?;
        put_text(out, Some(&self.group_id.0))?;
        out.put_i32(self.generation_id_or_member_epoch);
        put_text(out, Some(&self.member_id))?;
        put_text(out, self.group_instance_id.as_ref())?;
        put_varint(out, self.topics.len() + 1);
        for topic in &self.topics {
            out.put_slice(&topic.topic_id.bytes());
            put_varint(out, topic.partitions.len() + 1);
            for partition in &topic.partitions {
                partition.encode(out, PARTITION_LAYOUT).map_err(text)?;
            }
            put_varint(out, 0);
        }
        put_varint(out, 0);
        Ok(())
    }

    pub(crate) fn compute_size(&self, version: i16) -> CodecResult<usize> {
        measure(|out| self.encode(out, version))
    }
}

impl OffsetFetchByIdRequest {
    pub(crate) fn decode(bytes: &mut Bytes, version: i16) -> CodecResult<OffsetFetchByIdRequest> {
        check_version(version)?;
        let groups = take_array(bytes, |bytes| {
            let group = OffsetFetchByIdGroup {
                group_id: GroupId(required(take_text(bytes)?)?),
                member_id: take_text(bytes)?,
                member_epoch: bytes.try_get_i32().map_err(text)?,
                topics: take_array(bytes, |bytes| {
                    let topic = OffsetFetchByIdTopic {
                        topic_id: take_topic_id(bytes)?,
                        partition_indexes: required(take_array(bytes, |bytes| {
                            bytes.try_get_i32().map_err(text)
                        })?)?,
                    };
                    skip_tags(bytes)?;
                    Ok(topic)
                })?,
            };
            skip_tags(bytes)?;
            Ok(group)
        });
        let request = OffsetFetchByIdRequest {
            groups: required(groups?)?,
            require_stable: bytes.try_get_i8().map_err(text)? != 0,
        };
        skip_tags(bytes)?;
        Ok(request)
    }

    pub(crate) fn encode(&self, out: &mut BytesMut, version: i16) -> CodecResult<()> {
        check_version(version)?;
        put_varint(out, self.groups.len() + 1);
        for group in &self.groups {
            put_text(out, Some(&group.group_id.0))?;
            put_text(out, group.member_id.as_ref())?;
            out.put_i32(group.member_epoch);
            match &group.topics {
                None => put_varint(out, 0),
                Some(topics) => {
                    put_varint(out, topics.len() + 1);
                    for topic in topics {
                        out.put_slice(&topic.topic_id.bytes());
                        put_varint(out, topic.partition_indexes.len() + 1);
                        for partition in &topic.partition_indexes {
                            out.put_i32(*partition);
                        }
                        put_varint(out, 0);
                    }
                }
            }
            put_varint(out, 0);
        }
        out.put_u8(u8::from(self.require_stable));
        put_varint(out, 0);
        Ok(())
    }

    pub(crate) fn compute_size(&self, version: i16) -> CodecResult<usize> {
        measure(|out| self.encode(out, version))
    }
}

fn check_version(version: i16) -> CodecResult<()> {
    match version == BY_ID_SINCE {
        true => Ok(()),
        false => Err(format!("topics do not go by id in version {version}")),
    }
}

/// What a request takes when it is encoded. Nodes only read them, so it need not be fast.
fn measure(encode: impl FnOnce(&mut BytesMut) -> CodecResult<()>) -> CodecResult<usize> {
    let mut out = BytesMut::new();
    encode(&mut out)?;
    Ok(out.len())
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn take_topic_id(bytes: &mut Bytes) -> CodecResult<TopicId> {
    let mut id = [0; 16];
    bytes.try_copy_to_slice(&mut id).map_err(text)?;
    Ok(TopicId::from_bytes(id))
}

/// An array of structs, or null. Each element takes a byte or more on the wire, so no more is
/// reserved than the frame has room for.
fn take_array<T>(
    bytes: &mut Bytes,
    mut element: impl FnMut(&mut Bytes) -> CodecResult<T>,
) -> CodecResult<Option<Vec<T>>> {
    let Some(count) = take_compact_length(bytes)? else {
        return Ok(None);
    };
    if count > bytes.len() {
        return Err("an array has fewer elements than it claims".to_owned());
    }
    let mut elements = Vec::with_capacity(count);
    for _ in 0..count {
        elements.push(element(bytes)?);
    }
    Ok(Some(elements))
}

fn required<T>(field: Option<T>) -> CodecResult<T> {
    field.ok_or_else(|| "a field is null".to_owned())
}

/// A string, or null, that shares the frame.
fn take_text(bytes: &mut Bytes) -> CodecResult<Option<StrBytes>> {
    let Some(length) = take_compact_length(bytes)? else {
        return Ok(None);
    };
    if length > bytes.len() {
        return Err("a string is shorter than it claims".to_owned());
    }
    StrBytes::from_utf8(bytes.split_to(length))
        .map(Some)
        .map_err(text)
}

fn put_text(out: &mut BytesMut, content: Option<&StrBytes>) -> CodecResult<()> {
    let Some(content) = content else {
        put_varint(out, 0);
        return Ok(());
    };
    if content.len() > TEXT_BYTES_MAX {
        return Err(format!("a string of {} bytes is too long", content.len()));
    }
    put_varint(out, content.len() + 1);
    out.put_slice(content.as_bytes());
    Ok(())
}

/// A length, stored plus one; 0 is null.
fn take_compact_length(bytes: &mut Bytes) -> CodecResult<Option<usize>> {
    let mut stored = 0_u64;
    for position in 0..VARINT_BYTES_MAX {
        let byte = bytes.try_get_u8().map_err(text)?;
        stored |= u64::from(byte & 0x7f) << (7 * position);
        if byte < 0x80 {
            let length = stored.checked_sub(1).map(usize::try_from);
            return length.transpose().map_err(text);
        }
    }
    Err("a number is too long".to_owned())
}

/// Passes over tagged fields: neither request has any that is known.
fn skip_tags(bytes: &mut Bytes) -> CodecResult<()> {
    let length = tagged_fields_length(bytes).map_err(|Misshapen(what)| what.to_owned())?;
    bytes.advance(length);
    Ok(())
}
