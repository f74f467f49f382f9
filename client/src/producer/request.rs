//! The Produce request, written around its batches: no record is copied.

use bytes::{BufMut, Bytes, BytesMut};
use corduroy_record::Batch;

/// The key of Produce.
const API_KEY: i16 = 0;
/// From this version on lengths are varints and structs carry tagged fields (KIP-482).
const FLEXIBLE_FROM: i16 = 9;

/// What stands before the topics.
pub(crate) struct Head<'a> {
    pub(crate) version: i16,
    pub(crate) correlation: i32,
    pub(crate) client_id: Option<&'a str>,
    pub(crate) acks: i16,
    pub(crate) timeout_ms: i32,
}

/// One batch with its address.
pub(crate) struct Addressed<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: i32,
    pub(crate) batch: &'a Batch,
}

/// Encodes a whole frame, its length included, for versions 3 to 12. Batches of one topic stand
/// next to each other in `batches`, each partition at most once.
pub(crate) fn encode(head: &Head<'_>, batches: &[Addressed<'_>]) -> Vec<Bytes> {
    let mut frame = Frame {
        flexible: head.version >= FLEXIBLE_FROM,
        done: Vec::new(),
        open: BytesMut::with_capacity(256),
    };
    frame.open.put_i32(0);
    frame.open.put_i16(API_KEY);
    frame.open.put_i16(head.version);
    frame.open.put_i32(head.correlation);
    frame.client_id(head.client_id);
    frame.tags();
    frame.null_string();
    frame.open.put_i16(head.acks);
    frame.open.put_i32(head.timeout_ms);
    let topics = batches.chunk_by(|left, right| left.topic == right.topic);
    frame.length(topics.clone().count());
    for topic in topics {
        frame.string(topic[0].topic);
        frame.length(topic.len());
        for addressed in topic {
            frame.open.put_i32(addressed.partition);
            frame.batch(addressed.batch);
            frame.tags();
        }
        frame.tags();
    }
    frame.tags();
    frame.seal()
}

struct Frame {
    flexible: bool,
    done: Vec<Piece>,
    open: BytesMut,
}

enum Piece {
    Ours(BytesMut),
    Body(Bytes),
}

impl Frame {
    /// The same layout in both header versions: a 16-bit length.
    fn client_id(&mut self, client_id: Option<&str>) {
        match client_id.and_then(|id| Some((id, i16::try_from(id.len()).ok()?))) {
            Some((id, length)) => {
                self.open.put_i16(length);
                self.open.put_slice(id.as_bytes());
            }
            None => self.open.put_i16(-1),
        }
    }

    fn tags(&mut self) {
        if self.flexible {
            self.open.put_u8(0);
        }
    }

    fn null_string(&mut self) {
        if self.flexible {
            self.open.put_u8(0);
        } else {
            self.open.put_i16(-1);
        }
    }

    fn string(&mut self, text: &str) {
        if self.flexible {
            self.varint(text.len() + 1);
        } else {
            // Topic names have at most 249 characters; a longer one is refused by the broker.
            self.open.put_i16(text.len().min(i16::MAX as usize) as i16);
        }
        self.open.put_slice(text.as_bytes());
    }

    /// Of an array.
    fn length(&mut self, length: usize) {
        if self.flexible {
            self.varint(length + 1);
        } else {
            self.open.put_i32(length as i32);
        }
    }

    fn batch(&mut self, batch: &Batch) {
        self.length(batch.size_bytes());
        self.open.put_slice(&batch.head());
        self.done.push(Piece::Ours(std::mem::take(&mut self.open)));
        self.done.push(Piece::Body(batch.body().clone()));
    }

    fn varint(&mut self, mut value: usize) {
        while value >= 0x80 {
            self.open.put_u8((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.open.put_u8(value as u8);
    }

    fn seal(mut self) -> Vec<Bytes> {
        self.done.push(Piece::Ours(self.open));
        let total: usize = self.done.iter().map(Piece::len).sum();
        let length = ((total - 4) as i32).to_be_bytes();
        let mut first = true;
        self.done
            .into_iter()
            .map(|piece| match piece {
                Piece::Ours(mut bytes) => {
                    if std::mem::take(&mut first) {
                        bytes[..4].copy_from_slice(&length);
                    }
                    bytes.freeze()
                }
                Piece::Body(bytes) => bytes,
            })
            .collect()
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Ours(bytes) => bytes.len(),
            Piece::Body(bytes) => bytes.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use corduroy_protocol::{Request, decode_request};
    use corduroy_record::{BatchBuilder, BuilderOptions};

    use super::*;

    fn batch(value: &[u8]) -> Batch {
        let mut builder = BatchBuilder::new(BuilderOptions::default());
        builder.push(1, None, Some(value), &[]).expect("fits");
        builder.finish()
    }

    #[test]
    fn every_version_is_read_back_as_it_was_meant() {
        let (small, large) = (batch(b"v"), batch(&[7; 40_000]));
        let batches = [
            Addressed {
                topic: "orders",
                partition: 0,
                batch: &small,
            },
            Addressed {
                topic: "orders",
                partition: 300,
                batch: &large,
            },
            Addressed {
                topic: "payments",
                partition: 1,
                batch: &small,
            },
        ];
        for version in 3..=12 {
            for client_id in [None, Some("me")] {
                let head = Head {
                    version,
                    correlation: 77,
                    client_id,
                    acks: -1,
                    timeout_ms: 30_000,
                };
                let frame = Bytes::from(encode(&head, &batches).concat());
                assert_eq!(frame[..4], (frame.len() as i32 - 4).to_be_bytes());
                let (header, request) = decode_request(frame.slice(4..)).expect("valid");
                assert_eq!((header.api_version, header.correlation_id), (version, 77));
                assert_eq!(header.client_id.as_deref(), client_id);
                let Request::Produce(request) = request else {
                    panic!("another API");
                };
                assert_eq!((request.acks, request.timeout_ms), (-1, 30_000));
                assert!(request.transactional_id.is_none());
                let found: Vec<(String, i32, Bytes)> = request
                    .topic_data
                    .iter()
                    .flat_map(|topic| {
                        topic
                            .partition_data
                            .iter()
                            .map(|p| (topic.name.to_string(), p))
                    })
                    .map(|(name, p)| (name, p.index, p.records.clone().expect("a batch")))
                    .collect();
                let expected: Vec<(String, i32, Bytes)> = batches
                    .iter()
                    .map(|b| (b.topic.to_owned(), b.partition, b.batch.to_bytes()))
                    .collect();
                assert_eq!(found, expected, "version {version}");
            }
        }
    }
}
