//! From the command line to a connected client, and from a client's error to a sentence with a
//! way out.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use corduroy_client::{Client, Error, ErrorKind};

use super::Context;
use super::error::{CliError, CliResult};

/// Where a cluster is looked for if nobody says where: a node's own default.
const BROKERS_DEFAULT: &str = "127.0.0.1:9092";

/// Where to find the cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct ConnectArgs {
    /// Brokers to ask first [env: CORDUROY_BROKERS, KAFKA_BOOTSTRAP_SERVERS] [default:
    /// 127.0.0.1:9092]
    #[arg(long, global = true, value_name = "HOST:PORT,…", help_heading = "Connection")]
    pub brokers: Option<String>,

    /// A standard client .properties file [env: CORDUROY_CLIENT_CONFIG]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Connection")]
    pub client_config: Option<PathBuf>,
}
