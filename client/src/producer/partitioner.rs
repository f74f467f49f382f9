//! Which partition a record goes to: Kafka's default partitioner (KIP-480, KIP-794). Pure.

use corduroy_record::partition_for_key;

/// The partition of a key, among `partitions` (at least 1).
pub(crate) fn partition_of_key(key: &[u8], partitions: usize) -> usize {
    partition_for_key(key, partitions as u32) as usize
}

/// Where records without a key go: to one partition until it has received a batch's worth of
/// bytes, then to another, so that batches fill up and every partition gets the same share.
#[derive(Debug, Default)]
pub(crate) struct Sticky {
    current: Option<usize>,
    bytes: usize,
}

/// One partition as the partitioner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Batches that wait in its queue.
    pub(crate) queued: usize,
    /// It has a leader.
    pub(crate) available: bool,
}

impl Sticky {
    /// The partition that is stuck to, if any.
    pub(crate) fn current(&self) -> Option<usize> {
        self.current
    }

    /// Counts a record of `bytes`, and lets go of the partition when its share is full: at the end
    /// of a batch, so that none is left half empty, and at twice the share in any case.
    pub(crate) fn count(&mut self, bytes: usize, share_bytes: usize, batch_full: bool) {
        self.bytes += bytes;
        if (batch_full && self.bytes >= share_bytes) || self.bytes >= 2 * share_bytes {
            self.current = None;
        }
    }

    /// Sticks to another partition. `random` is any random number.
    ///
    /// With `adaptive`, a partition's chance falls with the length of its queue, so that a slow
    /// broker gets less (KIP-794). Partitions without a leader get nothing while there are others.
    pub(crate) fn choose(&mut self, loads: &[Load], adaptive: bool, random: u64) -> usize {
        let any_available = loads.iter().any(|load| load.available);
        let longest = loads.iter().map(|load| load.queued).max().unwrap_or(0);
        let weight = |load: &Load| -> u64 {
            if any_available && !load.available {
                0
            } else if adaptive {
                (longest + 1 - load.queued) as u64
            } else {
                1
            }
        };
        let total: u64 = loads.iter().map(weight).sum();
        let mut rest = random % total.max(1);
        let chosen = loads
            .iter()
            .position(|load| {
                let weight = weight(load);
                if rest < weight {
                    return true;
                }
                rest -= weight;
                false
            })
            .unwrap_or(0);
        self.current = Some(chosen);
        self.bytes = 0;
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(queued: usize) -> Load {
        Load {
            queued,
            available: true,
        }
    }

    #[test]
    fn keys_hash_as_in_kafka_and_the_empty_key_is_a_key() {
        // Kafka's own vectors (org.apache.kafka.common.utils.UtilsTest, murmur2), masked.
        let table: [(&[u8], u32); 4] = [
            (b"21", (-973_932_308_i32 as u32) & 0x7fff_ffff),
            (b"foobar", (-790_332_482_i32 as u32) & 0x7fff_ffff),
            (
                b"a-little-bit-long-string",
                (-985_981_536_i32 as u32) & 0x7fff_ffff,
            ),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in table {
            assert_eq!(partition_of_key(key, 1000), (hash % 1000) as usize);
        }
        assert_eq!(partition_of_key(b"", 7), partition_of_key(b"", 7));
        assert!(partition_of_key(b"", 7) < 7);
    }

    #[test]
    fn a_partition_is_kept_for_a_batch_of_bytes() {
        let mut sticky = Sticky::default();
        let chosen = sticky.choose(&[load(0), load(0)], true, 1);
        assert_eq!((chosen, sticky.current()), (1, Some(1)));
        sticky.count(99, 100, true);
        assert_eq!(sticky.current(), Some(1));
        sticky.count(1, 100, false);
        assert_eq!(sticky.current(), Some(1), "not in the middle of a batch");
        sticky.count(1, 100, true);
        assert_eq!(sticky.current(), None);
        assert_eq!(sticky.choose(&[load(0), load(0)], true, 0), 0);
        sticky.count(99, 100, true);
        assert_eq!(
            sticky.current(),
            Some(0),
            "the count starts over with each choice"
        );
    }

    #[test]
    fn chances_follow_free_queue_space_when_adaptive() {
        let loads = [load(0), load(3), load(2)];
        let mut hits = [0; 3];
        for random in 0..7 {
            hits[Sticky::default().choose(&loads, true, random)] += 1;
        }
        assert_eq!(hits, [4, 1, 2]);
        let mut hits = [0; 3];
        for random in 0..9 {
            hits[Sticky::default().choose(&loads, false, random)] += 1;
        }
        assert_eq!(hits, [3, 3, 3]);
    }

    #[test]
    fn partitions_without_a_leader_are_avoided_while_there_are_others() {
        let dead = Load {
            queued: 0,
            available: false,
        };
        for random in 0..5 {
            assert_eq!(
                Sticky::default().choose(&[dead, load(9), dead], true, random),
                1
            );
            assert!(Sticky::default().choose(&[dead, dead], true, random) < 2);
        }
    }
}
