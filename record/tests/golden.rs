//! Golden bytes: batches written by Apache Kafka's Java client 4.1 (`MemoryRecords`), byte for byte.

use bytes::Bytes;
use corduroy_record::{
    Batch, BatchBuilder, BuilderOptions, Compression, ControlRule, LeaderEpoch, Offset,
    ProducerEpoch, ProducerId, Record, ValidateRules, ZstdRule, parse_many, parse_single,
};

const RECORDS: &str = "2a000000066b65790a76616c756504026802310268010c000a0201000010\
                       0013040001020000";
const PLAIN: &str = "000000000000000700000057ffffffff026a54ae4e0000000000020000018bcfe56800\
                     0000018bcfe56805ffffffffffffffffffffffffffff00000003";
const TRANSACTIONAL: &str = "00000000000000070000005700000009029ff5acf50010000000020000018bcf\
                             e568000000018bcfe56805000000000000126700037ffffffe00000003";
const MARKER: &str = "00000000000000070000004200000009027b4425550030000000000000018bcfe56800\
                      0000018bcfe5680000000000000012670003ffffffff000000012000000008000000010c\
                      00000000000500";
const GZIP: &str = "00000000000000000000006fffffffff023ca8ad5c0001000000020000018bcfe5680000\
                    00018bcfe56802ffffffffffffffffffffffffffff000000031f8b08000000000000fffb\
                    c5c4c0c0c0926df0822939bf28a5b428bf52610831187e31313031b1641b0e5de7b3b0b0\
                    641b0d51e7030038f99adc3d020000";
const SNAPPY: &str = "000000000000000000000086ffffffff023d0cabd60002000000020000018bcfe56800\
                      0000018bcfe56802ffffffffffffffffffffffffffff0000000382534e415050590000\
                      0000010000000100000041bd0448fa02000000046b30e802636f726475726f7920fe09\
                      00fe0900aa09002000fa02000202046b31febf00febf00e6bf00100404046b32febf00\
                      febf00dabf00";
const LZ4: &str = "000000000000000000000074ffffffff021d647c190003000000020000018bcfe568000000\
                   018bcfe56802ffffffffffffffffffffffffffff0000000304224d1860408234000000ff04\
                   fa02000000046b30e802636f726475726f79200900989f00fa02000202046b31bf00a75f04\
                   04046b32bf009f50726f79200000000000";
const ZSTD: &str = "00000000000000000000006bffffffff02aa1f48ff0004000000020000018bcfe5680000\
                    00018bcfe56802ffffffffffffffffffffffffffff0000000328b52ffd00587401001402\
                    fa02000000046b30e802636f726475726f792000fa02000202046b310404046b3203042b\
                    34d037a139512c61010000";

const OUTPUT_BYTES_MAX: usize = 4096;

fn unhex(text: &str) -> Bytes {
    let digits: Vec<u8> = text
        .chars()
        .map(|digit| digit.to_digit(16).expect("a hex digit") as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn three_records(base_offset: i64) -> Vec<Record> {
    let bytes = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    vec![
        Record {
            offset: Offset::new(base_offset),
            timestamp: 1_700_000_000_000,
            key: bytes("key"),
            value: bytes("value"),
            headers: vec![("h".to_owned(), bytes("1")), ("h".to_owned(), None)],
        },
        Record {
            offset: Offset::new(base_offset + 1),
            timestamp: 1_700_000_000_005,
            key: None,
            value: bytes(""),
            headers: vec![],
        },
        Record {
            offset: Offset::new(base_offset + 2),
            timestamp: 1_699_999_999_990,
            key: bytes(""),
            value: None,
            headers: vec![(String::new(), bytes(""))],
        },
    ]
}

fn build(options: BuilderOptions, records: &[Record]) -> Batch {
    let mut builder = BatchBuilder::new(options);
    for record in records {
        builder
            .push_owned(
                record.timestamp,
                record.key.as_deref(),
                record.value.as_deref(),
                &record.headers,
            )
            .expect("push");
    }
    builder.finish()
}

fn read(batch: &Batch) -> Vec<Record> {
    batch
        .records(OUTPUT_BYTES_MAX)
        .expect("records")
        .collect::<Result<_, _>>()
        .expect("record")
}

#[test]
fn plain_batch_is_javas_byte_for_byte() {
    let golden = unhex(&format!("{PLAIN}{RECORDS}"));
    let batch = parse_single(golden.clone()).expect("parse");
    batch.validate(&ValidateRules::client(4096)).expect("valid");
    assert_eq!(read(&batch), three_records(7));

    let header = batch.header();
    assert_eq!(header.base_offset, Offset::new(7));
    assert_eq!(header.last_offset(), Offset::new(9));
    assert_eq!(header.next_offset(), Offset::new(10));
    assert_eq!(header.max_timestamp, 1_700_000_000_005);
    assert_eq!(header.record_count, 3);
    assert_eq!(header.size_bytes(), golden.len());
    assert!(!header.is_idempotent());
    assert_eq!(header.last_sequence(), -1);

    let options = BuilderOptions {
        base_offset: Offset::new(7),
        ..BuilderOptions::default()
    };
    assert_eq!(build(options, &three_records(7)).to_bytes(), golden);
}

#[test]
fn transactional_batch_is_javas_byte_for_byte() {
    let golden = unhex(&format!("{TRANSACTIONAL}{RECORDS}"));
    let batch = parse_single(golden.clone()).expect("parse");
    batch.validate(&ValidateRules::client(4096)).expect("valid");
    let header = batch.header();
    assert!(header.is_idempotent() && header.attributes.is_transactional());
    assert_eq!(header.leader_epoch, LeaderEpoch::new(9));
    assert_eq!(header.base_sequence, i32::MAX - 1);
    assert_eq!(
        header.last_sequence(),
        0,
        "sequence numbers wrap from i32::MAX to 0"
    );

    let options = BuilderOptions {
        producer_id: ProducerId::new(4711),
        producer_epoch: ProducerEpoch::new(3),
        base_sequence: i32::MAX - 1,
        transactional: true,
        base_offset: Offset::new(7),
        leader_epoch: LeaderEpoch::new(9),
        ..BuilderOptions::default()
    };
    assert_eq!(build(options, &three_records(7)).to_bytes(), golden);
}

#[test]
fn transaction_marker_passes_only_from_the_log() {
    let golden = unhex(MARKER);
    let batch = parse_single(golden.clone()).expect("parse");
    assert!(batch.validate(&ValidateRules::client(4096)).is_err());
    let from_log = ValidateRules {
        batch_bytes_max: 4096,
        control: ControlRule::Allow,
        zstd: ZstdRule::Allow,
    };
    batch.validate(&from_log).expect("valid from the log");
    let records = read(&batch);
    let commit: &[u8] = &[0, 0, 0, 1];
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].key.as_deref(), Some(commit));

    let options = BuilderOptions {
        producer_id: ProducerId::new(4711),
        producer_epoch: ProducerEpoch::new(3),
        transactional: true,
        control: true,
        base_offset: Offset::new(7),
        leader_epoch: LeaderEpoch::new(9),
        ..BuilderOptions::default()
    };
    assert_eq!(build(options, &records).to_bytes(), golden);
}

#[test]
fn compressed_batches_of_java_are_read() {
    for (golden, codec) in [
        (GZIP, Compression::Gzip),
        (SNAPPY, Compression::Snappy),
        (LZ4, Compression::Lz4),
        (ZSTD, Compression::Zstd),
    ] {
        let batch = parse_single(unhex(golden)).expect("parse");
        batch.validate(&ValidateRules::client(4096)).expect("valid");
        assert_eq!(batch.header().attributes.compression(), Ok(codec));
        let records = read(&batch);
        assert_eq!(records.len(), 3, "{codec:?}");
        for (i, record) in records.iter().enumerate() {
            assert_eq!(record.timestamp, 1_700_000_000_000 + i as i64);
            assert_eq!(record.key.as_deref(), Some(format!("k{i}").as_bytes()));
            assert_eq!(
                record.value.as_deref(),
                Some("corduroy ".repeat(20).as_bytes())
            );
        }
        let options = BuilderOptions {
            compression: codec,
            ..BuilderOptions::default()
        };
        assert_eq!(
            read(&build(options, &records)),
            records,
            "{codec:?}: ours reads ours"
        );
    }
}

/// Our framings are Java's: the streams themselves may differ where an encoder has a choice.
#[test]
fn compressed_streams_begin_as_javas_do() {
    let text = Bytes::from("corduroy ".repeat(20_000));
    for (codec, beginning) in [
        (Compression::Gzip, "1f8b08"),
        (Compression::Snappy, "82534e4150505900000000010000000100"),
        // Version 1, independent blocks, no checksums, no content size; blocks of 64 KiB.
        (Compression::Lz4, "04224d18604082"),
        (Compression::Zstd, "28b52ffd"),
    ] {
        let compressed = codec.compress(&text).expect("compress");
        assert!(
            compressed.starts_with(&unhex(beginning)),
            "{codec:?}: {compressed:02x?}"
        );
        assert!(compressed.len() < text.len() / 10, "{codec:?}");
        assert_eq!(
            codec.decompress(&compressed, text.len()),
            Ok(text.clone()),
            "{codec:?}"
        );
    }
}

#[test]
fn raw_snappy_is_read() {
    let raw = unhex("b40120636f726475726f7920fe0900fe0900aa0900");
    let text = Bytes::from("corduroy ".repeat(20));
    assert_eq!(Compression::Snappy.decompress(&raw, 180), Ok(text));
}

#[test]
fn fetch_payloads_split_into_batches_and_tolerate_a_cut_tail() {
    let one = unhex(&format!("{PLAIN}{RECORDS}"));
    let two = unhex(ZSTD);
    let whole = Bytes::from([&one[..], &two[..]].concat());
    let sizes = |bytes: Bytes| -> Vec<usize> {
        parse_many(bytes)
            .map(|batch| batch.expect("batch").size_bytes())
            .collect()
    };
    assert_eq!(sizes(whole.clone()), [one.len(), two.len()]);
    for cut in 0..whole.len() {
        let expected = if cut < one.len() { 0 } else { 1 };
        assert_eq!(sizes(whole.slice(..cut)).len(), expected, "cut at {cut}");
    }
    assert!(
        parse_single(whole).is_err(),
        "two batches are one too many for Produce"
    );
    assert!(parse_single(Bytes::new()).is_err());
}
