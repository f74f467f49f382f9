//! What a batch must be inside before it enters a log: records, as many as its header counts, in
//! their order, and nothing else.

use bytes::Bytes;
use corduroy_record::{
    Batch, BatchBuilder, BatchError, BuilderOptions, Compression, INSPECT_STEP_BYTES, InspectRules,
    Inspected, KEYLESS_RECORDS_MAX, KeyRule, ValidateRules, crc32c,
};

const RULES: InspectRules = InspectRules {
    output_bytes_max: 8 << 20,
    keys: KeyRule::Optional,
};

/// A batch that claims `count` records and holds `records`, compressed by `codec`; its CRC fits.
fn around(codec: Compression, count: i32, records: &[u8]) -> Batch {
    let stored = codec.compress(records).expect("compress");
    around_stored(codec, count, &stored)
}

fn around_stored(codec: Compression, count: i32, stored: &[u8]) -> Batch {
    let mut wire = BatchBuilder::new(BuilderOptions::default())
        .finish()
        .to_bytes()[..61]
        .to_vec();
    wire[21..23].copy_from_slice(&i16::from(codec.code()).to_be_bytes());
    wire[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    wire[27..35].copy_from_slice(&1_000_i64.to_be_bytes());
    wire[57..61].copy_from_slice(&count.to_be_bytes());
    wire.extend_from_slice(stored);
    let length = (wire.len() - 12) as i32;
    wire[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c(&wire[21..]);
    wire[17..21].copy_from_slice(&crc.to_be_bytes());
    let batch = Batch::parse(Bytes::from(wire)).expect("parse");
    batch
        .validate(&ValidateRules::client(64 << 20))
        .expect("the header alone is valid");
    batch
}

/// Attributes, timestamp delta 3, offset delta 0, key "k", value "vv", one header "h" = null.
const RECORD: [u8; 12] = [0, 6, 0, 2, b'k', 4, b'v', b'v', 2, 2, b'h', 1];

fn framed(record: &[u8]) -> Vec<u8> {
    assert!(record.len() < 64, "a length of one byte");
    let mut bytes = vec![2 * record.len() as u8];
    bytes.extend_from_slice(record);
    bytes
}

/// The record with bytes of it replaced by others.
fn with(at: std::ops::Range<usize>, bytes: &[u8]) -> Vec<u8> {
    let mut record = RECORD.to_vec();
    record.splice(at, bytes.iter().copied());
    framed(&record)
}

#[test]
fn what_is_no_record_is_refused_in_every_codec_with_its_place() {
    let long_number = [0xfe, 0xff, 0xff, 0xff, 0x1f];
    let longest_time = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let over_time = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("no record at all", vec![], "ends before"),
        ("a length alone", vec![24], "ends before"),
        ("half a length", vec![0x80], "ends before"),
        ("a negative length", vec![1], "length is negative"),
        ("a length of 0", vec![0], "no attributes"),
        ("a length beyond 32 bits", long_number.to_vec(), "too long"),
        (
            "a record that is cut",
            framed(&RECORD)[..9].to_vec(),
            "ends before",
        ),
        ("text", b"this is no record batch, or is it".to_vec(), ""),
        ("zeros", vec![0; 40], "no attributes"),
        ("attributes alone", framed(&[0]), "ends before"),
        ("a cut time", framed(&[0, 0x80]), "ends before"),
        (
            "a number beyond its record",
            [&[2], &RECORD[..]].concat(),
            "inside a number",
        ),
        ("a time beyond 64 bits", with(1..2, &over_time), "too long"),
        (
            "a time out of range",
            with(1..2, &longest_time),
            "out of range",
        ),
        ("the second place", with(2..3, &[2]), "offset delta"),
        ("a negative place", with(2..3, &[1]), "offset delta"),
        ("a key too long", with(3..4, &[40]), "key is longer"),
        ("a value too long", with(5..6, &[40]), "value is longer"),
        ("a negative header count", with(8..9, &[1]), "header count"),
        ("too many headers for its size", with(8..9, &[8]), "no room"),
        ("one header too many", with(8..9, &[4]), "no room"),
        ("one header too few", with(8..9, &[0]), "follow its last"),
        ("a nameless header", with(9..10, &[1]), "no name"),
        ("a name too long", with(9..10, &[20]), "name is longer"),
        (
            "a header's value too long",
            with(11..12, &[2]),
            "value is longer",
        ),
        (
            "bytes after the headers",
            framed(&[&RECORD[..], &[7]].concat()),
            "follow its last",
        ),
    ];
    for codec in Compression::ALL {
        let sound = around(codec, 1, &framed(&RECORD)).inspect(&RULES);
        let expected = Inspected {
            max_timestamp: 1_003,
            keyless: vec![],
        };
        assert_eq!(sound, Ok(expected), "{codec:?}: the record itself is sound");
        for (name, records, what) in &cases {
            let verdict = around(codec, 1, records).inspect(&RULES);
            let Err(BatchError::InvalidRecord {
                index: 0,
                what: said,
            }) = verdict
            else {
                panic!("{codec:?}: {name}: {verdict:?}");
            };
            assert!(said.contains(what), "{codec:?}: {name}: {said}");
            // The same behind a sound record: the place is the second's.
            let records = [framed(&RECORD), records.clone()].concat();
            let verdict = around(codec, 2, &records).inspect(&RULES);
            assert!(
                matches!(verdict, Err(BatchError::InvalidRecord { index: 1, .. }))
                    || *name == "the second place",
                "{codec:?}: {name}: {verdict:?}"
            );
        }
        let more = [framed(&RECORD), vec![0]].concat();
        assert_eq!(
            around(codec, 1, &more).inspect(&RULES),
            Err(BatchError::Invalid {
                what: "bytes after the last record"
            })
        );
    }
}

#[test]
fn damaged_streams_are_refused_in_every_codec() {
    let text = framed(&RECORD);
    for codec in [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        let stored = codec.compress(&text).expect("compress");
        let cases = [
            ("garbage", vec![0xab; 50]),
            ("cut", stored[..stored.len() - 1].to_vec()),
            (
                "another codec's",
                Compression::Gzip.compress(b"x").expect("compress").to_vec(),
            ),
            ("nothing", vec![]),
        ];
        for (name, stored) in cases {
            if codec == Compression::Gzip && name == "another codec's" {
                continue;
            }
            let verdict = around_stored(codec, 1, &stored)
                .inspection(&RULES)
                .and_then(|mut inspection| inspection.step());
            assert!(verdict.is_err(), "{codec:?}: {name}: {verdict:?}");
        }
    }
}

/// Records that cross every border of the windows, and more of them than one step reads.
#[test]
fn long_batches_are_read_in_steps_in_every_codec() {
    for compression in Compression::ALL {
        let mut builder = BatchBuilder::new(BuilderOptions {
            compression,
            ..BuilderOptions::default()
        });
        for i in 0..4_000_i64 {
            let value: Vec<u8> = (0..600 + i % 700)
                .map(|at| (i * 31 + at / 9) as u8)
                .collect();
            builder
                .push(5_000 - i, None, Some(&value), &[("name", None)])
                .expect("push");
        }
        let batch = builder.finish();
        let expected = Inspected {
            max_timestamp: 5_000,
            keyless: vec![],
        };
        let mut inspection = batch.inspection(&RULES).expect("begins");
        let mut steps = 1;
        let inspected = loop {
            match inspection.step().expect("sound") {
                Some(inspected) => break inspected,
                None => steps += 1,
            }
        };
        assert_eq!(inspected, expected, "{compression:?}");
        let bytes = 4_000 * 950;
        assert!(
            steps >= bytes / INSPECT_STEP_BYTES,
            "{compression:?}: {steps} steps"
        );
        let short = InspectRules {
            output_bytes_max: 1 << 20,
            ..RULES
        };
        if compression != Compression::None {
            let bytes_max = short.output_bytes_max;
            assert_eq!(
                batch.inspect(&short),
                Err(BatchError::OutputTooLarge { bytes_max })
            );
        }
    }
}

#[test]
fn records_without_a_key_are_named_where_keys_are_required() {
    let mut builder = BatchBuilder::new(BuilderOptions::default());
    for i in 0..2 * KEYLESS_RECORDS_MAX + 6 {
        let key = (i % 2 == 0).then_some(&b""[..]);
        builder.push(1, key, None, &[]).expect("push");
    }
    let batch = builder.finish();
    let required = InspectRules {
        keys: KeyRule::Required,
        ..RULES
    };
    let keyless = batch.inspect(&required).expect("sound").keyless;
    assert_eq!(keyless[..3], [1, 3, 5], "an empty key is a key");
    assert_eq!(keyless.len(), KEYLESS_RECORDS_MAX);
    assert!(batch.inspect(&RULES).expect("sound").keyless.is_empty());
}

#[test]
fn a_corrected_timestamp_leaves_a_valid_batch() {
    let mut batch = around(Compression::Lz4, 1, &framed(&RECORD));
    assert_eq!(batch.header().max_timestamp, -1);
    batch.set_max_timestamp(1_003);
    assert_eq!(batch.validate(&ValidateRules::client(1 << 20)), Ok(()));
    let again = Batch::parse(batch.to_bytes()).expect("parse");
    assert_eq!(again.header().max_timestamp, 1_003);
    assert_eq!(again, batch);
}

/// A zstd frame with a window of 128 MiB is read all the same, without the window.
#[test]
fn a_zstd_frame_with_a_huge_window_is_read() {
    let record = framed(&RECORD);
    // Magic, descriptor, window descriptor (exponent 17: 2^27), one raw last block.
    let mut stored = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3];
    let block = ((record.len() as u32) << 3) | 1;
    stored.extend_from_slice(&block.to_le_bytes()[..3]);
    stored.extend_from_slice(&record);
    let batch = around_stored(Compression::Zstd, 1, &stored);
    assert_eq!(
        batch.inspect(&RULES).map(|seen| seen.max_timestamp),
        Ok(1_003)
    );
    // Behind a frame of the usual kind, too.
    let second = framed(&[&[0, 0, 2][..], &RECORD[3..]].concat());
    let first = Compression::Zstd.compress(&record).expect("compress");
    let at = stored.len() - second.len();
    stored[at..].copy_from_slice(&second);
    let batch = around_stored(Compression::Zstd, 2, &[&first[..], &stored].concat());
    assert_eq!(
        batch.inspect(&RULES).map(|seen| seen.max_timestamp),
        Ok(1_003)
    );
}
