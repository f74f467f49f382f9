//! Any bytes in: never a panic, never memory beyond the input, the output cap and a constant.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::Bytes;
use corduroy_record::{
    Batch, BatchBuilder, BatchError, BuilderOptions, CODEC_SCRATCH_BYTES_MAX, Compression,
    InspectRules, KeyRule, RECORD_HEADERS_MAX, ValidateRules, crc32c, parse_many, parse_single,
};
use proptest::prelude::*;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// Counts this thread's live bytes. C code (zstd) allocates past it.
struct Counting;

fn count(bytes: isize) {
    // At thread exit the cells may be gone already; nobody reads them then.
    let _ = LIVE_BYTES.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK_BYTES.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

#[expect(
    unsafe_code,
    reason = "a counting allocator for this test alone; it adds no memory rules"
)]
// SAFETY: every call is passed to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `body` and returns the most that it held at once beyond what was live before.
fn peak_bytes(body: impl FnOnce()) -> usize {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    body();
    (PEAK_BYTES.get() - before) as usize
}

const OUTPUT_BYTES_MAX: usize = 64 * 1024;
const INSPECT: InspectRules = InspectRules {
    output_bytes_max: OUTPUT_BYTES_MAX,
    keys: KeyRule::Required,
};
/// A header's `(String, Option<Bytes>)`.
const HEADER_BYTES: usize = 64;

/// Everything a broker or a client does with bytes from the wire.
fn digest(bytes: &Bytes) {
    let allowed = CODEC_SCRATCH_BYTES_MAX
        + RECORD_HEADERS_MAX * HEADER_BYTES
        + 4 * OUTPUT_BYTES_MAX // a growing vector holds its old and its new self for a moment
        + 4 * bytes.len(); // bad UTF-8 in a header's name takes three bytes for one
    let peak = peak_bytes(|| {
        let _ = parse_single(bytes.clone());
        for batch in parse_many(bytes.clone()).flatten() {
            let _ = batch.validate(&ValidateRules::client(1 << 20));
            let _ = (batch.header().next_offset(), batch.header().last_sequence());
            let sound = batch.inspect(&INSPECT).is_ok();
            let dense = batch.header().last_offset_delta == batch.header().record_count - 1;
            if let Ok(records) = batch.records(OUTPUT_BYTES_MAX) {
                for record in records {
                    assert!(record.is_ok() || !sound || !dense, "{record:?}");
                }
            } else {
                assert!(
                    !sound || batch.header().record_count < 0,
                    "sound and not to be read"
                );
            }
            let mut stamped = batch;
            stamped.set_log_append_time(i64::MAX);
        }
        for codec in Compression::ALL {
            if let Ok(out) = codec.decompress(bytes, OUTPUT_BYTES_MAX) {
                assert!(codec == Compression::None || out.len() <= OUTPUT_BYTES_MAX);
            }
        }
    });
    assert!(
        peak <= allowed,
        "{peak} bytes held for an input of {}",
        bytes.len()
    );
}

fn codec() -> impl Strategy<Value = Compression> {
    (0..5_u8).prop_map(|code| Compression::from_code(code).expect("five codecs"))
}

type Fields = (
    i64,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Vec<(String, Option<Vec<u8>>)>,
);

fn fields() -> impl Strategy<Value = Vec<Fields>> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
    let header = ("[a-z\u{e4}]{0,4}", bytes());
    let headers = proptest::collection::vec(header, 0..4);
    proptest::collection::vec(
        (any::<i32>().prop_map(i64::from), bytes(), bytes(), headers),
        1..9,
    )
}

fn build(codec: Compression, fields: &[Fields]) -> Batch {
    let mut builder = BatchBuilder::new(BuilderOptions {
        compression: codec,
        ..BuilderOptions::default()
    });
    for (timestamp, key, value, headers) in fields {
        let headers: Vec<(&str, Option<&[u8]>)> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect();
        builder
            .push(*timestamp, key.as_deref(), value.as_deref(), &headers)
            .expect("push");
    }
    builder.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn garbage(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        digest(&Bytes::from(bytes));
    }

    /// Valid batches with bytes overwritten, cut or repeated, and a CRC that is right again, so that
    /// the damage reaches the codecs and the records.
    #[test]
    fn damaged_batches_with_a_right_crc(
        codec in codec(),
        fields in fields(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut wire = build(codec, &fields).to_bytes().to_vec();
        for (at, byte) in damage {
            let at = at.index(wire.len());
            wire[at] = byte;
        }
        if let Some(cut) = cut {
            wire.truncate(61 + cut.index(wire.len() - 60));
            let length = (wire.len() - 12) as i32;
            wire[8..12].copy_from_slice(&length.to_be_bytes());
        }
        wire[16] = 2;
        let crc = crc32c(&wire[21..]);
        wire[17..21].copy_from_slice(&crc.to_be_bytes());
        let wire = Bytes::from(wire);
        digest(&wire);
        digest(&wire.slice(61..));
    }

    #[test]
    fn what_is_built_is_read_back(codec in codec(), fields in fields()) {
        let batch = build(codec, &fields);
        prop_assert_eq!(batch.validate(&ValidateRules::client(1 << 20)), Ok(()));
        let inspected = batch.inspect(&INSPECT).expect("sound");
        prop_assert_eq!(inspected.max_timestamp, batch.header().max_timestamp.max(-1));
        let keyless = (0..).zip(&fields).filter(|(_, (_, key, ..))| key.is_none());
        prop_assert_eq!(inspected.keyless, keyless.map(|(at, _)| at).collect::<Vec<i32>>());
        let again = Batch::parse(batch.to_bytes()).expect("parse");
        let records = again.records(1 << 20).expect("records");
        let read: Vec<Fields> = records
            .map(|record| {
                let record = record.expect("record");
                let owned = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.to_vec());
                let headers = record.headers.into_iter().map(|(name, value)| (name, owned(value)));
                (record.timestamp, owned(record.key), owned(record.value), headers.collect())
            })
            .collect();
        prop_assert_eq!(read, fields);
    }

    #[test]
    fn codecs_roundtrip_and_respect_their_cap(
        codec in codec(),
        seed in proptest::collection::vec(any::<u8>(), 0..200),
        repeat in 0..1200_usize,
    ) {
        let text = Bytes::from(seed.repeat(repeat));
        let compressed = codec.compress(&text).expect("compress");
        prop_assert_eq!(codec.decompress(&compressed, text.len()), Ok(text.clone()));
        if codec != Compression::None && !text.is_empty() {
            let bytes_max = text.len() - 1;
            prop_assert_eq!(
                codec.decompress(&compressed, bytes_max),
                Err(BatchError::OutputTooLarge { bytes_max })
            );
            for cut in [compressed.len() - 1, compressed.len() / 2, 1] {
                let outcome = codec.decompress(&compressed.slice(..cut), text.len());
                prop_assert!(outcome.is_err() || codec == Compression::Snappy, "cut at {}", cut);
            }
        }
    }
}

/// 32 MiB of zeros compress to a few KiB; none of them may grow beyond the cap.
#[test]
fn bombs_are_capped() {
    let zeros = vec![0; 32 << 20];
    for codec in [
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ] {
        let bomb = codec.compress(&zeros).expect("compress");
        let mut outcome = None;
        let peak = peak_bytes(|| outcome = Some(codec.decompress(&bomb, OUTPUT_BYTES_MAX)));
        let bytes_max = OUTPUT_BYTES_MAX;
        assert_eq!(
            outcome,
            Some(Err(BatchError::OutputTooLarge { bytes_max })),
            "{codec:?}"
        );
        assert!(
            peak < CODEC_SCRATCH_BYTES_MAX + 4 * OUTPUT_BYTES_MAX,
            "{codec:?}: {peak}"
        );
    }
}

/// A claim of 4 GiB in seven bytes, alone and inside the framing.
#[test]
fn claimed_sizes_reserve_nothing() {
    let raw: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0x0f, 0x00, 0x61];
    let framed = [
        b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\0\0\0\x07".as_slice(),
        raw,
    ]
    .concat();
    for bytes in [Bytes::from_static(raw), Bytes::from(framed)] {
        let mut outcome = None;
        let peak =
            peak_bytes(|| outcome = Some(Compression::Snappy.decompress(&bytes, usize::MAX)));
        assert_eq!(
            outcome,
            Some(Err(BatchError::Decompress(Compression::Snappy)))
        );
        assert!(peak < 1024, "{peak}");
    }
}

/// A zstd frame header that declares a window of 128 MiB, and one that declares 1 TiB of content.
#[test]
fn declared_windows_and_contents_reserve_nothing() {
    // Magic, descriptor, window descriptor (exponent 17: 2^27), one raw last block "a".
    let window = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 0x09, 0, 0, b'a'];
    let codec = Compression::Zstd;
    assert_eq!(
        codec.decompress(&Bytes::copy_from_slice(&window), OUTPUT_BYTES_MAX),
        Ok(Bytes::from_static(b"a"))
    );
    let content = [
        0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0, 0x09, 0, 0, b'a',
    ];
    let mut outcome = None;
    let peak = peak_bytes(|| {
        outcome = Some(codec.decompress(&Bytes::copy_from_slice(&content), OUTPUT_BYTES_MAX));
    });
    assert!(matches!(outcome, Some(Err(_))), "{outcome:?}");
    assert!(peak <= 2 * OUTPUT_BYTES_MAX, "{peak}");
}

/// A record that counts two thousand million headers in a few bytes.
#[test]
fn hostile_header_counts_reserve_nothing() {
    let mut wire = build(Compression::None, &[(0, None, None, vec![])])
        .to_bytes()
        .to_vec();
    wire.truncate(61);
    // Length, attributes, two deltas, null key, null value, a header count of i32::MAX.
    wire.extend_from_slice(&[20, 0, 0, 0, 1, 1, 0xfe, 0xff, 0xff, 0xff, 0x0f]);
    let length = (wire.len() - 12) as i32;
    wire[8..12].copy_from_slice(&length.to_be_bytes());
    let batch = Batch::parse(Bytes::from(wire)).expect("parse");
    let mut outcome = None;
    let peak = peak_bytes(|| outcome = batch.records(1024).expect("records").next());
    assert!(
        matches!(outcome, Some(Err(BatchError::Invalid { .. }))),
        "{outcome:?}"
    );
    assert!(peak < 1024, "{peak}");
}
