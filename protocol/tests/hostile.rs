//! Any bytes in: never a panic, and never memory for elements that are not there.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use corduroy_protocol::{
    ApiKey, REQUEST_ELEMENTS_MAX, RequestError, SERVED, decode_fetch_response, decode_request,
    decode_response,
};
use proptest::prelude::*;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// Counts this thread's live bytes.
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

fn peak_bytes(body: impl FnOnce()) -> usize {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    body();
    (PEAK_BYTES.get() - before) as usize
}

/// The decoder's structs take up to some 130 bytes for an element of one byte on the wire, a
/// tagged field up to some 500 in its tree node. Error texts are short.
fn allowed_bytes(frame: &Bytes) -> usize {
    8 * 1024 + 512 * frame.len()
}

fn digest_request(frame: Bytes) {
    let allowed = allowed_bytes(&frame);
    let peak = peak_bytes(|| {
        let _ = decode_request(frame.clone());
    });
    assert!(peak <= allowed, "{peak} bytes for {frame:02x?}");
}

fn digest_response(key: ApiKey, version: i16, frame: Bytes) {
    let allowed = allowed_bytes(&frame);
    let peak = peak_bytes(|| {
        let _ = decode_response(key, version, frame.clone());
        if key == ApiKey::Fetch {
            let _ = decode_fetch_response(version, frame.clone());
        }
    });
    assert!(
        peak <= allowed,
        "{peak} bytes for {key:?} version {version}: {frame:02x?}"
    );
}

/// A golden frame: kind, key, version, bytes.
type Golden = (&'static str, ApiKey, i16, Vec<u8>);

static GOLDENS: LazyLock<Vec<Golden>> = LazyLock::new(goldens);

fn goldens() -> Vec<Golden> {
    let unhex = |text: &str| -> Vec<u8> {
        let digits: Vec<u8> = text
            .chars()
            .map(|digit| digit.to_digit(16).expect("a hex digit") as u8)
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()
    };
    include_str!("golden/messages.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let words: Vec<&'static str> = line.split(' ').collect();
            let key: i16 = words[1].parse().expect("key");
            let frame = [unhex(words[4]), unhex(words.get(5).copied().unwrap_or(""))].concat();
            let key = ApiKey::try_from(key).expect("known key");
            (words[0], key, words[2].parse().expect("version"), frame)
        })
        .collect()
}

/// At every place of every golden frame, a count of 2^31-1 elements, in both layouts.
#[test]
fn huge_counts_anywhere_reserve_nothing() {
    let counts: [&[u8]; 4] = [
        &[0x7f, 0xff, 0xff, 0xff],
        &[0xff, 0xff, 0xff, 0xff, 0x07],
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0x80, 0x80, 0x80, 0x40],
    ];
    for (kind, key, version, golden) in GOLDENS.iter() {
        for at in 4..golden.len() {
            for count in counts {
                let mut frame = golden.clone();
                frame.truncate(at);
                frame.extend_from_slice(count);
                frame.extend_from_slice(golden.get(at + count.len()..).unwrap_or(&[]));
                match *kind {
                    "request" => digest_request(Bytes::from(frame)),
                    _ => digest_response(*key, *version, Bytes::from(frame)),
                }
            }
        }
    }
}

/// The frame that ends a process with the decoder alone: eight bytes of Metadata version 1.
#[test]
fn the_classic_metadata_bomb() {
    let frame: &[u8] = &[0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff];
    let mut outcome = None;
    let peak = peak_bytes(|| outcome = Some(decode_request(Bytes::from_static(frame))));
    assert!(
        matches!(outcome, Some(Err(RequestError::Malformed { .. }))),
        "{outcome:?}"
    );
    assert!(peak < 4096, "{peak}");
}

/// Elements that are really there, but more than any honest request has.
#[test]
fn too_many_elements_are_refused_before_they_are_decoded() {
    let metadata = |topics: usize| {
        let mut frame = BytesMut::new();
        frame.put_slice(&[0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff]);
        frame.put_i32(topics as i32);
        frame.put_bytes(0, 2 * topics);
        frame.freeze()
    };
    assert!(decode_request(metadata(REQUEST_ELEMENTS_MAX)).is_ok());
    let frame = metadata(REQUEST_ELEMENTS_MAX + 1);
    let mut outcome = None;
    let peak = peak_bytes(|| outcome = Some(decode_request(frame)));
    assert!(
        matches!(outcome, Some(Err(RequestError::Malformed { .. }))),
        "{outcome:?}"
    );
    assert!(peak < 4096, "{peak}");
}

fn api_and_version() -> impl Strategy<Value = (ApiKey, i16)> {
    prop::sample::select(SERVED)
        .prop_flat_map(|range| (Just(range.key), range.served_min..=range.max))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn garbage_frames(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        digest_request(Bytes::from(bytes));
    }

    #[test]
    fn garbage_bodies(
        (key, version) in api_and_version(),
        body in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(1), Just(2)], 0..96),
    ) {
        let mut frame = BytesMut::new();
        frame.put_i16(key as i16);
        frame.put_i16(version);
        frame.put_slice(&[0, 0, 0, 1, 0xff, 0xff]);
        if corduroy_protocol::request_header_version(key, version) == 2 {
            frame.put_u8(0);
        }
        frame.put_slice(&body);
        digest_request(frame.freeze());
        let response = [&[0, 0, 0, 1][..], &body].concat();
        digest_response(key, version, Bytes::from(response));
    }

    #[test]
    fn damaged_goldens(
        which in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let (kind, key, version, mut frame) = which.get(&GOLDENS).clone();
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        match kind {
            "request" => digest_request(Bytes::from(frame)),
            _ => digest_response(key, version, Bytes::from(frame)),
        }
    }
}
