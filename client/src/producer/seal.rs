//! From gathered records to the batch that is sent: who sends it, and at which place in order.

use bytes::{Bytes, BytesMut};
use corduroy_record::{BATCH_HEAD_BYTES, Batch, ProducerEpoch, ProducerId, crc32c, sequence_after};

/// Under which name a producer writes to a partition (KIP-98).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: ProducerId,
    pub(crate) epoch: ProducerEpoch,
}

/// The last epoch before an id is used up (KIP-360: 32767 itself is never given).
const EPOCH_MAX: i16 = i16::MAX - 1;

impl Identity {
    /// The same id in its next epoch; `None` if the id is used up.
    pub(crate) fn bumped(self) -> Option<Identity> {
        (self.epoch.get() < EPOCH_MAX).then(|| Identity {
            id: self.id,
            epoch: ProducerEpoch::new(self.epoch.get() + 1),
        })
    }
}

/// A place in the order of one identity's records within one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) identity: Identity,
    pub(crate) sequence: i32,
}

impl Stamp {
    /// The place `records` further on.
    pub(crate) fn after(self, records: u32) -> Stamp {
        // A batch is far smaller than 2^31 records: its bytes are counted in 30 bits.
        Stamp {
            sequence: sequence_after(self.sequence, records as i32),
            ..self
        }
    }
}

// Where the batch header has these fields (protocol guide, record batch v2), within the body.
const CRC_AT: usize = 17 - BATCH_HEAD_BYTES;
const CRC_FROM: usize = 21 - BATCH_HEAD_BYTES;
const PRODUCER_AT: usize = 43 - BATCH_HEAD_BYTES;
const PRODUCER_BYTES: usize = 8 + 2 + 4;

/// Writes `stamp` into the batch, unless it says so already, and renews the CRC. Copies the body
/// only where somebody else still holds it.
pub(crate) fn stamp(batch: Batch, stamp: Stamp) -> Batch {
    let header = batch.header();
    if header.producer_id == stamp.identity.id
        && header.producer_epoch == stamp.identity.epoch
        && header.base_sequence == stamp.sequence
    {
        return batch;
    }
    let head = batch.head();
    let body = batch.body().clone();
    drop(batch);
    let mut body = into_mut(body);
    let mut fields = [0; PRODUCER_BYTES];
    fields[..8].copy_from_slice(&stamp.identity.id.get().to_be_bytes());
    fields[8..10].copy_from_slice(&stamp.identity.epoch.get().to_be_bytes());
    fields[10..].copy_from_slice(&stamp.sequence.to_be_bytes());
    body[PRODUCER_AT..PRODUCER_AT + PRODUCER_BYTES].copy_from_slice(&fields);
    let crc = crc32c(&body[CRC_FROM..]);
    body[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
    Batch::from_parts(head, body.freeze())
        .expect("law of Batch: the pieces of a batch, neither resized, make a batch")
}

fn into_mut(bytes: Bytes) -> BytesMut {
    bytes
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}

#[cfg(test)]
mod tests {
    use corduroy_record::{BatchBuilder, BuilderOptions, ValidateRules};

    use super::*;

    fn batch() -> Batch {
        let mut builder = BatchBuilder::new(BuilderOptions::default());
        builder.push(7, Some(b"k"), Some(b"v"), &[]).expect("fits");
        builder.push(8, None, Some(b"w"), &[]).expect("fits");
        builder.finish()
    }

    fn place(epoch: i16, sequence: i32) -> Stamp {
        let identity = Identity {
            id: ProducerId::new(9),
            epoch: ProducerEpoch::new(epoch),
        };
        Stamp { identity, sequence }
    }

    #[test]
    fn a_stamped_batch_is_valid_and_keeps_its_records() {
        let kept = batch();
        for original in [batch(), kept.clone()] {
            let stamped = stamp(original, place(3, 11));
            stamped
                .validate(&ValidateRules::client(1 << 20))
                .expect("valid CRC");
            assert_eq!(stamped.header().producer_epoch.get(), 3);
            assert_eq!(stamped.header().base_sequence, 11);
            assert_eq!(stamped.records_bytes(), kept.records_bytes());
        }
        kept.validate(&ValidateRules::client(1 << 20))
            .expect("the shared original is untouched");
        assert_eq!(kept.header().producer_id, ProducerId::NONE);
    }

    #[test]
    fn sequences_wrap_and_epochs_end() {
        assert_eq!(place(0, i32::MAX).after(1).sequence, 0);
        assert_eq!(place(0, i32::MAX - 1).after(3).sequence, 1);
        assert_eq!(place(0, 5).identity.bumped(), Some(place(1, 5).identity));
        assert_eq!(place(EPOCH_MAX, 5).identity.bumped(), None);
    }
}
