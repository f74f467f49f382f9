//! The Fetch response, written around shared batches and read back as slices of the frame.
//!
//! A batch goes out as two pieces: its 16 stamped bytes, packed into the same small buffer as the
//! fields around them, and its body, shared with the log's cache. Nothing copies a record.

use bytes::{BufMut, Bytes, BytesMut};
use corduroy_record::Batch;
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{ApiKey, FetchResponse};
use kafka_protocol::protocol::{Decodable, StrBytes};

use crate::error_code::ErrorCode;
use crate::frame::FRAME_LENGTH_BYTES;
use crate::request::RequestHeader;
use crate::response::{ResponseError, check_shape, take_response_header};

/// First version with compact lengths and tagged fields.
const FLEXIBLE_FROM: i16 = 12;
/// Versions that [`encode_fetch_response`] writes.
const VERSIONS: std::ops::RangeInclusive<i16> = 4..=12;

/// A Fetch response to encode.
#[derive(Clone, Debug)]
pub struct FetchResponseData {
    /// How long the client is throttled.
    pub throttle_ms: i32,
    /// Error of the whole request (version 7 and later).
    pub error: ErrorCode,
    /// Fetch session, 0 = none (version 7 and later).
    pub session_id: i32,
    /// In the request's order.
    pub topics: Vec<FetchTopicData>,
}

/// A topic of a [`FetchResponseData`].
#[derive(Clone, Debug)]
pub struct FetchTopicData {
    /// Its name.
    pub name: StrBytes,
    /// In the request's order.
    pub partitions: Vec<FetchPartitionData>,
}

/// A partition of a [`FetchResponseData`]. With an error, the four offsets are -1 unless the error
/// says more.
#[derive(Clone, Debug)]
pub struct FetchPartitionData {
    /// Its number.
    pub partition: i32,
    /// Error of this partition.
    pub error: ErrorCode,
    /// End of what consumers may read.
    pub high_watermark: i64,
    /// End of what `read_committed` may read.
    pub last_stable_offset: i64,
    /// First offset still there (version 5 and later).
    pub log_start_offset: i64,
    /// Where the client's log departs from ours: epoch, end offset (version 12).
    pub diverging_epoch: Option<(i32, i64)>,
    /// Whom to ask instead: leader, its epoch (version 12, KIP-595).
    pub current_leader: Option<(i32, i32)>,
    /// Aborted transactions: producer id, first offset. `None` for `read_uncommitted`.
    pub aborted: Option<Vec<(i64, i64)>>,
    /// Nearer replica to fetch from, -1 = none (version 11 and later).
    pub preferred_read_replica: i32,
    /// Whole batches in log order.
    pub batches: Vec<Batch>,
}

impl FetchPartitionData {
    /// A partition that answers with an error and nothing else.
    pub fn failed(partition: i32, error: ErrorCode) -> FetchPartitionData {
        FetchPartitionData {
            partition,
            error,
            high_watermark: -1,
            last_stable_offset: -1,
            log_start_offset: -1,
            diverging_epoch: None,
            current_leader: None,
            aborted: None,
            preferred_read_replica: -1,
            batches: Vec::new(),
        }
    }

    fn records_bytes(&self) -> usize {
        self.batches.iter().map(Batch::size_bytes).sum()
    }
}

/// Encodes a Fetch response into a frame in pieces: written one after the other, they are the
/// frame, its length included. Fields that the version does not have are left out.
///
/// # Panics
/// On the laws of the caller: versions 4 to 12 only, as in the version table, and a response below
/// 2 GiB, which the server's own fetch limit keeps.
pub fn encode_fetch_response(header: &RequestHeader, data: &FetchResponseData) -> Vec<Bytes> {
    let version = header.api_version;
    assert!(
        VERSIONS.contains(&version),
        "law: Fetch {version} is outside the version table"
    );
    let mut out = Pieces::new(version, data);
    out.small.put_i32(header.correlation_id);
    out.put_tags_end(); // the response header's
    out.small.put_i32(data.throttle_ms);
    if version >= 7 {
        out.small.put_i16(data.error.code());
        out.small.put_i32(data.session_id);
    }
    out.put_count(data.topics.len());
    for topic in &data.topics {
        out.put_text(&topic.name);
        out.put_count(topic.partitions.len());
        for partition in &topic.partitions {
            out.put_partition(partition);
        }
        out.put_tags_end();
    }
    out.put_tags_end();
    out.seal()
}

/// Small fields in one buffer, and the places where the shared bodies stand between them.
struct Pieces {
    version: i16,
    small: BytesMut,
    /// Each body stands before this position of `small`.
    bodies: Vec<(usize, Bytes)>,
    bodies_bytes: usize,
}

impl Pieces {
    fn new(version: i16, data: &FetchResponseData) -> Pieces {
        let partitions = || data.topics.iter().flat_map(|topic| &topic.partitions);
        let batches: usize = partitions().map(|partition| partition.batches.len()).sum();
        let names: usize = data.topics.iter().map(|topic| topic.name.len()).sum();
        // A partition's fields take at most 77 bytes beside its aborted transactions.
        let estimate = 64
            + names
            + 16 * data.topics.len()
            + 80 * partitions().count()
            + corduroy_record::BATCH_HEAD_BYTES * batches;
        let mut small = BytesMut::with_capacity(estimate);
        small.put_bytes(0, FRAME_LENGTH_BYTES);
        Pieces {
            version,
            small,
            bodies: Vec::with_capacity(batches),
            bodies_bytes: 0,
        }
    }

    fn put_partition(&mut self, partition: &FetchPartitionData) {
        self.small.put_i32(partition.partition);
        self.small.put_i16(partition.error.code());
        self.small.put_i64(partition.high_watermark);
        self.small.put_i64(partition.last_stable_offset);
        if self.version >= 5 {
            self.small.put_i64(partition.log_start_offset);
        }
        match &partition.aborted {
            None => self.put_null(),
            Some(aborted) => {
                self.put_count(aborted.len());
                for (producer_id, first_offset) in aborted {
                    self.small.put_i64(*producer_id);
                    self.small.put_i64(*first_offset);
                    self.put_tags_end();
                }
            }
        }
        if self.version >= 11 {
            self.small.put_i32(partition.preferred_read_replica);
        }
        // No data is an empty field, not null, from version 4 on.
        self.put_count(partition.records_bytes());
        for batch in &partition.batches {
            self.small.put_slice(&batch.head());
            self.bodies_bytes += batch.body().len();
            self.bodies.push((self.small.len(), batch.body().clone()));
        }
        self.put_partition_tags(partition);
    }

    /// Tags ascend: 0 diverging epoch, 1 current leader. Each holds a struct with tags of its own.
    fn put_partition_tags(&mut self, partition: &FetchPartitionData) {
        if !self.is_flexible() {
            return;
        }
        let present = usize::from(partition.diverging_epoch.is_some())
            + usize::from(partition.current_leader.is_some());
        put_varint(&mut self.small, present);
        if let Some((epoch, end_offset)) = partition.diverging_epoch {
            self.small.put_slice(&[0, 4 + 8 + 1]);
            self.small.put_i32(epoch);
            self.small.put_i64(end_offset);
            self.small.put_u8(0);
        }
        if let Some((leader, epoch)) = partition.current_leader {
            self.small.put_slice(&[1, 4 + 4 + 1]);
            self.small.put_i32(leader);
            self.small.put_i32(epoch);
            self.small.put_u8(0);
        }
    }

    fn is_flexible(&self) -> bool {
        self.version >= FLEXIBLE_FROM
    }

    fn put_text(&mut self, text: &str) {
        if self.is_flexible() {
            put_varint(&mut self.small, text.len() + 1);
        } else {
            // A topic's name is at most 249 bytes long; the request could not name a longer one.
            self.small.put_i16(text.len() as i16);
        }
        self.small.put_slice(text.as_bytes());
    }

    /// The length of an array or of bytes.
    fn put_count(&mut self, count: usize) {
        if self.is_flexible() {
            put_varint(&mut self.small, count + 1);
        } else {
            self.small.put_i32(count as i32);
        }
    }

    fn put_null(&mut self) {
        if self.is_flexible() {
            self.small.put_u8(0);
        } else {
            self.small.put_i32(-1);
        }
    }

    /// "No tagged fields", where there could be some.
    fn put_tags_end(&mut self) {
        if self.is_flexible() {
            self.small.put_u8(0);
        }
    }

    fn seal(mut self) -> Vec<Bytes> {
        let length = self.small.len() - FRAME_LENGTH_BYTES + self.bodies_bytes;
        assert!(
            i32::try_from(length).is_ok(),
            "law: a Fetch response of {length} bytes"
        );
        self.small[..FRAME_LENGTH_BYTES].copy_from_slice(&(length as i32).to_be_bytes());
        let mut rest = self.small.freeze();
        let mut taken = 0;
        let mut pieces = Vec::with_capacity(2 * self.bodies.len() + 1);
        for (at, body) in self.bodies {
            pieces.push(rest.split_to(at - taken));
            pieces.push(body);
            taken = at;
        }
        if !rest.is_empty() {
            pieces.push(rest);
        }
        pieces
    }
}

pub(crate) fn put_varint(out: &mut BytesMut, value: usize) {
    let mut rest = value;
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

/// A Fetch response as a client reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchedView {
    /// How long the broker throttles this client.
    pub throttle_ms: i32,
    /// Error of the whole request.
    pub error: ErrorCode,
    /// Fetch session, 0 = none.
    pub session_id: i32,
    /// In the request's order.
    pub topics: Vec<FetchedTopic>,
}

/// A topic of a [`FetchedView`].
#[derive(Clone, Debug, PartialEq)]
pub struct FetchedTopic {
    /// Its name.
    pub name: StrBytes,
    /// In the request's order.
    pub partitions: Vec<FetchedPartition>,
}

/// A partition of a [`FetchedView`].
#[derive(Clone, Debug, PartialEq)]
pub struct FetchedPartition {
    /// Its number.
    pub partition: i32,
    /// Error of this partition.
    pub error: ErrorCode,
    /// End of what consumers may read, -1 with an error.
    pub high_watermark: i64,
    /// End of what `read_committed` may read.
    pub last_stable_offset: i64,
    /// First offset still there, -1 = unknown.
    pub log_start_offset: i64,
    /// Where the client's log departs from the leader's: epoch, end offset.
    pub diverging_epoch: Option<(i32, i64)>,
    /// Whom to ask instead: leader, its epoch.
    pub current_leader: Option<(i32, i32)>,
    /// Aborted transactions: producer id, first offset.
    pub aborted: Option<Vec<(i64, i64)>>,
    /// Nearer replica to fetch from, -1 = none.
    pub preferred_read_replica: i32,
    /// Batches, for [`corduroy_record::parse_many`]: a slice of the frame. The last one may be cut.
    pub records: Bytes,
}

/// Reads a Fetch response from a frame (without its length) and returns its correlation id with it.
/// The records share the frame.
///
/// # Errors
/// As [`decode_response`](crate::decode_response).
pub fn decode_fetch_response(
    version: i16,
    frame: Bytes,
) -> Result<(i32, FetchedView), ResponseError> {
    let fail = |what: String| ResponseError {
        key: ApiKey::Fetch,
        version,
        what,
    };
    let (correlation_id, mut rest) = take_response_header(ApiKey::Fetch, version, frame)?;
    check_shape(ApiKey::Fetch, version, &rest)?;
    let body =
        FetchResponse::decode(&mut rest, version).map_err(|error| fail(error.to_string()))?;
    if !rest.is_empty() {
        return Err(fail(format!("{} bytes too many", rest.len())));
    }
    Ok((correlation_id, FetchedView::from(body)))
}

impl From<FetchResponse> for FetchedView {
    fn from(body: FetchResponse) -> FetchedView {
        let topics = body.responses.into_iter().map(|topic| FetchedTopic {
            name: topic.topic.0,
            partitions: topic
                .partitions
                .into_iter()
                .map(FetchedPartition::from)
                .collect(),
        });
        FetchedView {
            throttle_ms: body.throttle_time_ms,
            error: ErrorCode::from_code(body.error_code),
            session_id: body.session_id,
            topics: topics.collect(),
        }
    }
}

impl From<PartitionData> for FetchedPartition {
    fn from(data: PartitionData) -> FetchedPartition {
        let diverging = &data.diverging_epoch;
        let leader = &data.current_leader;
        let aborted = data.aborted_transactions.map(|aborted| {
            aborted
                .iter()
                .map(|one| (one.producer_id.0, one.first_offset))
                .collect()
        });
        FetchedPartition {
            partition: data.partition_index,
            error: ErrorCode::from_code(data.error_code),
            high_watermark: data.high_watermark,
            last_stable_offset: data.last_stable_offset,
            log_start_offset: data.log_start_offset,
            // Both are left out of the wire when they hold their defaults of -1.
            diverging_epoch: (diverging.epoch >= 0)
                .then_some((diverging.epoch, diverging.end_offset)),
            current_leader: (leader.leader_epoch >= 0)
                .then_some((leader.leader_id.0, leader.leader_epoch)),
            aborted,
            preferred_read_replica: data.preferred_read_replica.0,
            records: data.records.unwrap_or_default(),
        }
    }
}
