//! What a broker does to a batch: validate, stamp, switch to log append time.

use bytes::Bytes;
use corduroy_record::{
    Batch, BatchBuilder, BatchError, BuilderOptions, Compression, LeaderEpoch, Offset,
    ProducerEpoch, ProducerId, TimestampType, ValidateRules, ZstdRule, crc32c, sequence_after,
};

const SIZE_MAX: usize = 1024;

fn sample(options: BuilderOptions) -> Batch {
    let mut builder = BatchBuilder::new(options);
    for i in 0..3 {
        builder
            .push(1_000 + i, Some(b"k"), Some(b"some value"), &[])
            .expect("push");
    }
    builder.finish()
}

/// Overwrites wire bytes of the sample and refreshes the CRC, as a careless client would.
fn with(at: usize, bytes: &[u8]) -> Bytes {
    let mut wire = sample(BuilderOptions::default()).to_bytes().to_vec();
    wire[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c(&wire[21..]);
    wire[17..21].copy_from_slice(&crc.to_be_bytes());
    Bytes::from(wire)
}

fn judge(wire: Bytes) -> Result<(), BatchError> {
    Batch::parse(wire)?.validate(&ValidateRules::client(SIZE_MAX))
}

#[test]
fn careless_and_hostile_fields_are_refused() {
    let invalid: [(&str, usize, &[u8]); 12] = [
        ("length too small", 8, &48_i32.to_be_bytes()),
        ("length zero", 8, &0_i32.to_be_bytes()),
        ("length negative", 8, &(-1_i32).to_be_bytes()),
        ("length one short", 8, &50_i32.to_be_bytes()),
        ("control bit", 21, &0x20_i16.to_be_bytes()),
        (
            "transactional without a producer",
            21,
            &0x10_i16.to_be_bytes(),
        ),
        ("last delta too small", 23, &1_i32.to_be_bytes()),
        ("last delta too large", 23, &3_i32.to_be_bytes()),
        ("count zero", 57, &0_i32.to_be_bytes()),
        ("count negative", 57, &i32::MIN.to_be_bytes()),
        ("producer id -2", 43, &(-2_i64).to_be_bytes()),
        (
            "producer without epoch and sequence",
            43,
            &5_i64.to_be_bytes(),
        ),
    ];
    for (what, at, bytes) in invalid {
        let verdict = judge(with(at, bytes));
        assert!(
            matches!(verdict, Err(BatchError::Invalid { .. })),
            "{what}: {verdict:?}"
        );
    }
    assert_eq!(judge(with(16, &[0])), Err(BatchError::UnsupportedMagic(0)));
    assert_eq!(judge(with(16, &[1])), Err(BatchError::UnsupportedMagic(1)));
    assert_eq!(judge(with(16, &[3])), Err(BatchError::UnsupportedMagic(3)));
    for codec in 5..8_i16 {
        let verdict = judge(with(21, &codec.to_be_bytes()));
        assert_eq!(verdict, Err(BatchError::UnknownCodec(codec as u8)));
    }
    let long = judge(with(8, &i32::MAX.to_be_bytes()));
    assert!(
        matches!(long, Err(BatchError::Truncated { .. })),
        "{long:?}"
    );
    assert_eq!(judge(with(0, &[])), Ok(()), "the sample itself is valid");
}

#[test]
fn producer_fields_of_an_idempotent_batch() {
    let options = BuilderOptions {
        producer_id: ProducerId::new(9),
        producer_epoch: ProducerEpoch::new(0),
        base_sequence: 0,
        ..BuilderOptions::default()
    };
    let judge = |options| {
        sample(options)
            .validate(&ValidateRules::client(SIZE_MAX))
            .is_ok()
    };
    assert!(judge(options));
    assert!(judge(BuilderOptions {
        transactional: true,
        ..options
    }));
    assert!(!judge(BuilderOptions {
        base_sequence: -1,
        ..options
    }));
    assert!(!judge(BuilderOptions {
        producer_epoch: ProducerEpoch::new(-1),
        ..options
    }));
}

#[test]
fn every_flipped_bit_after_the_head_is_noticed() {
    let wire = sample(BuilderOptions::default()).to_bytes();
    // The base offset and the leader epoch are the log's to write: they are outside the CRC.
    for byte in (8..12).chain(16..wire.len()) {
        for bit in 0..8 {
            let mut flipped = wire.to_vec();
            flipped[byte] ^= 1 << bit;
            assert!(
                judge(Bytes::from(flipped)).is_err(),
                "byte {byte}, bit {bit}"
            );
        }
    }
}

#[test]
fn size_limit_counts_the_whole_batch() {
    let batch = sample(BuilderOptions::default());
    let bytes = batch.size_bytes();
    assert_eq!(batch.validate(&ValidateRules::client(bytes)), Ok(()));
    let bytes_max = bytes - 1;
    assert_eq!(
        batch.validate(&ValidateRules::client(bytes_max)),
        Err(BatchError::TooLarge { bytes, bytes_max })
    );
}

#[test]
fn zstd_can_be_refused() {
    let batch = sample(BuilderOptions {
        compression: Compression::Zstd,
        ..BuilderOptions::default()
    });
    let rules = ValidateRules::client(SIZE_MAX);
    assert_eq!(batch.validate(&rules), Ok(()));
    assert_eq!(
        batch.validate(&ValidateRules {
            zstd: ZstdRule::Refuse,
            ..rules
        }),
        Err(BatchError::CodecRefused(Compression::Zstd))
    );
}

#[test]
fn stamping_copies_nothing_and_keeps_the_crc() {
    let mut batch = sample(BuilderOptions::default());
    let body = batch.body().as_ptr();
    batch.stamp(Offset::new(1 << 40), LeaderEpoch::new(77));
    assert_eq!(batch.body().as_ptr(), body);
    assert_eq!(batch.validate(&ValidateRules::client(SIZE_MAX)), Ok(()));

    let again = Batch::from_parts(batch.head(), batch.body().clone()).expect("from_parts");
    assert_eq!(again, batch);
    assert_eq!(Batch::parse(batch.to_bytes()), Ok(batch.clone()));
    let offsets: Vec<i64> = batch
        .records(SIZE_MAX)
        .expect("records")
        .map(|record| record.expect("record").offset.get() - (1 << 40))
        .collect();
    assert_eq!(offsets, [0, 1, 2]);
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let batch = sample(BuilderOptions::default());
    let body = batch.body();
    for cut in 0..body.len() {
        assert!(
            Batch::from_parts(batch.head(), body.slice(..cut)).is_err(),
            "cut at {cut}"
        );
    }
    let long = Bytes::from([&body[..], b"x"].concat());
    assert!(Batch::from_parts(batch.head(), long).is_err());
}

#[test]
fn log_append_time_rules_all_records() {
    for compression in Compression::ALL {
        let mut batch = sample(BuilderOptions {
            compression,
            ..BuilderOptions::default()
        });
        let before = batch.clone();
        batch.set_log_append_time(5_000);
        let header = batch.header();
        assert_eq!(
            header.attributes.timestamp_type(),
            TimestampType::LogAppendTime
        );
        assert_eq!(header.max_timestamp, 5_000);
        assert_eq!(header.base_timestamp, 1_000, "the base timestamp stays");
        assert_eq!(header.attributes.compression(), Ok(compression));
        assert_eq!(batch.validate(&ValidateRules::client(SIZE_MAX)), Ok(()));
        assert_eq!(
            Batch::parse(batch.to_bytes()),
            Ok(batch.clone()),
            "header and bytes agree"
        );
        for record in batch.records(SIZE_MAX).expect("records") {
            assert_eq!(record.expect("record").timestamp, 5_000);
        }
        assert_eq!(batch.records_bytes(), before.records_bytes());
        assert_eq!(
            before.header().max_timestamp,
            1_002,
            "the other handle is untouched"
        );
    }
}

#[test]
fn records_outside_the_batch_are_refused() {
    // The records claim offsets 0, 1, 2; the header now ends at 1. The CRC is right.
    let batch = Batch::parse(with(23, &1_i32.to_be_bytes())).expect("parse");
    let last = batch.records(SIZE_MAX).expect("records").last();
    assert!(
        matches!(last, Some(Err(BatchError::Invalid { .. }))),
        "{last:?}"
    );
    // One record more, one record fewer than the header counts.
    for count in [2_i32, 4] {
        let batch = Batch::parse(with(57, &count.to_be_bytes())).expect("parse");
        let mut records = batch.records(SIZE_MAX).expect("records");
        assert!(records.any(|record| record.is_err()), "count {count}");
        assert!(records.next().is_none(), "an error ends the iteration");
    }
}

#[test]
fn an_empty_batch_is_built_but_not_valid() {
    for compression in Compression::ALL {
        let options = BuilderOptions {
            compression,
            ..BuilderOptions::default()
        };
        let batch = BatchBuilder::new(options).finish();
        assert!(batch.validate(&ValidateRules::client(SIZE_MAX)).is_err());
        assert_eq!(batch.records(SIZE_MAX).expect("records").count(), 0);
    }
}

#[test]
fn estimate_is_exact_without_a_codec() {
    let mut builder = BatchBuilder::new(BuilderOptions::default());
    for i in 0..200 {
        let header: &[u8] = b"v";
        builder
            .push(i, None, Some(&[7; 90]), &[("name", Some(header))])
            .expect("push");
    }
    let estimate = builder.size_estimate();
    assert_eq!(builder.record_count(), 200);
    assert_eq!(builder.finish().size_bytes(), estimate);
}

#[test]
fn sequence_numbers_wrap() {
    assert_eq!(sequence_after(0, 0), 0);
    assert_eq!(sequence_after(i32::MAX, 1), 0);
    assert_eq!(sequence_after(i32::MAX - 1, 3), 1);
    assert_eq!(sequence_after(0, -1), i32::MAX);
    assert_eq!(sequence_after(i32::MAX, i32::MAX), i32::MAX - 1);
}
