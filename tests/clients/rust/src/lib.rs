//! What both Rust clients send.

pub mod words;

pub const PARTITIONS: i32 = 6;
pub const RECORDS: usize = 3000;
pub const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];

/// One record of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub partition: i32,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub timestamp_ms: i64,
}

/// Null, empty and repeated keys, tombstones, empty and large values, headers, rising times.
pub fn plan(client: &str, codec: &str, first_timestamp_ms: i64) -> Vec<Planned> {
    (0..RECORDS)
        .map(|number| Planned {
            partition: number as i32 % PARTITIONS,
            key: match number % 4 {
                0 => None,
                1 => Some(Vec::new()),
                2 => Some(format!("key-{}", number % 17).into_bytes()),
                _ => Some(vec![0xff, 0, (number % 251) as u8]),
            },
            value: match number % 50 {
                7 => None,
                11 => Some(Vec::new()),
                13 => Some(
                    (0..2_000 + number * 7)
                        .map(|at| (at * 31 + at / 97) as u8)
                        .collect(),
                ),
                17 => Some(vec![0; 30_000]),
                _ => Some(format!("{client}/{codec}/{number}").into_bytes()),
            },
            headers: match number % 3 {
                0 => vec![
                    ("empty".to_owned(), Vec::new()),
                    ("trace".to_owned(), number.to_string().into_bytes()),
                ],
                _ => Vec::new(),
            },
            timestamp_ms: first_timestamp_ms + number as i64,
        })
        .collect()
}
