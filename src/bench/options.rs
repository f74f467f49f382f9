//! What a measurement is told.

use std::time::Duration;

use clap::Args;
use corduroy_client::Acks;
use corduroy_record::Compression;

use crate::cli::{AcksArg, Codec, parse_duration};

/// How long a measurement takes where nobody says how many records.
pub(super) const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// What every measurement needs.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// Use this topic and keep it [default: a fresh one, deleted at the end]
    #[arg(long, value_name = "NAME")]
    pub topic: Option<String>,

    /// Partitions of a topic that is created
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub partitions: i32,

    /// Replicas of a topic that is created [default: the cluster's]
    #[arg(short = 'r', long, value_name = "N",
          value_parser = clap::value_parser!(i16).range(1..=100))]
    pub replication: Option<i16>,

    /// End after this many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub records: Option<u64>,

    /// Bytes of each value; the end-to-end measurement needs 16 for itself
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(16..=900_000))]
    pub bytes: u32,

    /// End after this long [default: 10s, unless --records says when]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Report the CPU and memory of this process, a node for instance; repeatable
    #[arg(long, value_name = "PID")]
    pub watch_pid: Vec<u32>,

    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

impl LoadArgs {
    /// When to end: after so many records, or so long, whichever comes first.
    pub(super) fn limit(&self) -> Limit {
        let duration = match (self.duration, self.records) {
            (Some(duration), _) => duration,
            (None, Some(_)) => Duration::MAX,
            (None, None) => DURATION_DEFAULT,
        };
        Limit {
            records: self.records.unwrap_or(u64::MAX),
            duration,
        }
    }
}

/// When a measurement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) records: u64,
    pub(super) duration: Duration,
}

/// How the producer works.
#[derive(Clone, Debug, Args)]
pub struct ProducerArgs {
    /// When a record counts as written: never (0), by its leader (1), by all in sync
    #[arg(long, value_enum, default_value_t, value_name = "0|1|all")]
    pub acks: AcksArg,

    /// Records on their way at once
    #[arg(long, value_name = "N", default_value_t = 32_768,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub window: u32,

    /// How long a batch waits for more records, like 5ms; 0 sends at once
    #[arg(long, value_name = "DURATION", default_value = "5ms", value_parser = parse_duration)]
    pub linger: Duration,

    /// Bytes at which a batch is full
    #[arg(long, value_name = "N", default_value_t = 131_072,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batch_bytes: u32,

    /// Records a second [default: as many as the cluster takes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,

    /// Compress batches; values are random bytes, which do not get smaller
    #[arg(short = 'z', long, value_enum, value_name = "CODEC", default_value_t)]
    pub compression: Codec,
}

impl ProducerArgs {
    pub(super) fn acks(&self) -> Acks {
        self.acks.into()
    }

    pub(super) fn compression(&self) -> Compression {
        self.compression.into()
    }

    /// The settings as reports name them.
    pub(super) fn describe(&self) -> Vec<(&'static str, String)> {
        let acks = match self.acks {
            AcksArg::None => "0",
            AcksArg::Leader => "1",
            AcksArg::All => "all",
        };
        let mut settings = vec![
            ("acks", acks.to_owned()),
            ("window", self.window.to_string()),
            (
                "linger_ms",
                (self.linger.as_micros() as f64 / 1000.0).to_string(),
            ),
            ("batch_bytes", self.batch_bytes.to_string()),
        ];
        if let Some(rate) = self.rate {
            settings.push(("rate", rate.to_string()));
        }
        if self.compression != Codec::None {
            settings.push((
                "compression",
                format!("{:?}", self.compression).to_lowercase(),
            ));
        }
        settings
    }
}

/// `bench produce`.
#[derive(Clone, Debug, Args)]
pub struct ProduceArgs {
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub producer: ProducerArgs,
}

/// `bench consume`.
#[derive(Clone, Debug, Args)]
pub struct ConsumeArgs {
    #[command(flatten)]
    pub load: LoadArgs,
}

/// `bench end-to-end`.
#[derive(Clone, Debug, Args)]
pub struct EndToEndArgs {
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub producer: ProducerArgs,
}
