//! The settings of one node, from flags, environment, file and defaults.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corduroy_record::NodeId;

use super::key::{ConfigKey, DefaultValue, Scope, ValueError, list_items};
use super::source::{ConfigError, Layer, Layers, Setting, Settings};
use super::table;

/// Where metrics and health are served unless told otherwise.
const ADMIN_PORT: u16 = 9644;

/// Everything one node needs to know before it starts.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The id this node claims; none lets the controller assign one.
    pub node_id: Option<NodeId>,
    /// The directory that holds everything this node stores.
    pub data_dir: PathBuf,
    /// Where Kafka clients connect.
    pub listen: SocketAddr,
    /// The HOST:PORT that Metadata gives out; none means the address that the client used.
    pub advertised: Option<String>,
    /// Where the other nodes connect.
    pub rpc_listen: SocketAddr,
    /// The address that other nodes use to reach `rpc_listen`, where it differs.
    pub rpc_advertised: Option<SocketAddr>,
    /// The founders' rpc addresses; empty means a cluster of its own.
    pub seeds: Vec<SocketAddr>,
    /// Where metrics and health are served; port 0 takes a free one, none serves nothing.
    pub admin_listen: Option<SocketAddr>,
    /// How many shards this node runs.
    pub shards: usize,
    /// The rack of this node.
    pub rack: Option<String>,
    /// What a cluster that forms here starts with. A cluster that exists keeps its own.
    pub cluster_overrides: BTreeMap<String, String>,
    /// The largest request of a client connection.
    pub request_bytes_max: usize,
    /// The size of one journal file.
    pub journal_file_bytes: u64,
    /// Journal files per shard.
    pub journal_files_max: usize,
    /// Bytes of one partition in one flush turn up to which they travel inside the journal.
    pub inline_bytes_max: usize,
    /// The recent-entries cache of one shard.
    pub cache_bytes: usize,
    /// The file per shard that is given up when the disk is full.
    pub reserve_bytes: u64,
    /// Free bytes below which the disk counts as low.
    pub disk_low_bytes: u64,
    /// Free bytes below which produce is refused.
    pub disk_critical_bytes: u64,
    /// How often a node pings each other node.
    pub ping_interval: Duration,
    /// How long a node may stay silent before it counts as down.
    pub down_after: Duration,
    /// How long a partition may stay idle before its Raft group stops ticking.
    pub hibernate_after: Duration,
    /// How often retention is looked at.
    pub retention_check: Duration,
    /// Each key of the node and cluster layers that somebody set, with its place.
    pub settings: BTreeMap<&'static str, Setting>,
    /// Sentences for the person who starts the node.
    pub warnings: Vec<String>,
}

impl Default for NodeConfig {
    /// What holds when nobody sets anything.
    fn default() -> Self {
        NodeConfig::from_layers(&Layers::default())
            .expect("law: the table's defaults pass its own checks (see the table's test)")
    }
}

impl NodeConfig {
    /// Reads the file, if there is one, and the environment of this process.
    ///
    /// `flags` are (key, value) pairs: `--node-id 3` is `("node.id", "3")`.
    pub fn load(
        flags: &[(String, String)],
        file: Option<&Path>,
    ) -> Result<NodeConfig, ConfigError> {
        let file = match file {
            None => None,
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
                        path: path.to_owned(),
                        source,
                    })?;
                Some((path.to_owned(), text))
            }
        };
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        NodeConfig::from_layers(&Layers {
            flags: flags.to_vec(),
            environment,
            file,
        })
    }

    /// Resolves given layers. Looks up host names of addresses, and touches nothing else.
    pub fn from_layers(layers: &Layers) -> Result<NodeConfig, ConfigError> {
        let settings = Settings::collect(layers)?;
        let read = Reader {
            settings: &settings,
        };
        let seeds = read.seeds()?;
        let admin_listen = match read.text("admin.listen").as_deref() {
            Some("off") => None,
            Some(_) => Some(read.address("admin.listen")?),
            // Several nodes on one machine must not fight for one port.
            None if seeds.is_empty() => Some(loopback(ADMIN_PORT)),
            None => Some(loopback(0)),
        };
        let warnings = settings
            .strange_variables
            .iter()
            .filter(|variable| !OTHER_VARIABLES.contains(&variable.as_str()))
            .map(|variable| format!("the environment variable {variable} means nothing to a node"))
            .collect();
        Ok(NodeConfig {
            node_id: read.number("node.id").map(|id| NodeId::new(id as i32)),
            data_dir: PathBuf::from(read.text("data.dir").unwrap_or_default()),
            listen: read.address("listen")?,
            advertised: read.advertised()?,
            rpc_listen: read.address("rpc.listen")?,
            rpc_advertised: match read.text("rpc.advertised") {
                Some(_) => Some(read.address("rpc.advertised")?),
                None => None,
            },
            seeds,
            admin_listen,
            shards: read
                .number("shards")
                .map_or_else(cores, |shards| shards as usize),
            rack: read.text("broker.rack"),
            cluster_overrides: settings
                .cluster
                .iter()
                .map(|(name, setting)| ((*name).to_owned(), setting.value.clone()))
                .collect(),
            request_bytes_max: read.count("socket.request.max.bytes") as usize,
            journal_file_bytes: read.count("storage.journal.file.bytes") / 4096 * 4096,
            journal_files_max: read.count("storage.journal.files.max") as usize,
            inline_bytes_max: read.count("storage.inline.bytes.max") as usize,
            cache_bytes: read.count("storage.cache.bytes") as usize,
            reserve_bytes: read.count("storage.reserve.bytes"),
            disk_low_bytes: read.count("storage.disk.low.bytes"),
            disk_critical_bytes: read.count("storage.disk.critical.bytes"),
            ping_interval: Duration::from_millis(read.count("raft.ping.interval.ms")),
            down_after: Duration::from_millis(read.count("raft.down.after.ms")),
            hibernate_after: Duration::from_millis(read.count("raft.hibernate.after.ms")),
            retention_check: Duration::from_millis(read.count("log.retention.check.interval.ms")),
            warnings,
            settings: settings.node.into_iter().chain(settings.cluster).collect(),
        })
    }

    /// Every node and cluster key with its value and place, for `config print`.
    pub fn print(&self) -> Vec<(&'static str, String, Layer)> {
        let keys = table::of(Scope::Node)
            .iter()
            .chain(table::of(Scope::Cluster));
        keys.map(|key| match self.settings.get(key.name) {
            Some(setting) => (key.name, setting.value.clone(), setting.layer),
            None => (key.name, self.default_text(key), Layer::Default),
        })
        .collect()
    }

    /// The value of one node key as DescribeConfigs shows it; none where it has none.
    pub fn node_value(&self, key: &ConfigKey) -> Option<String> {
        if let Some(setting) = self.settings.get(key.name) {
            return Some(setting.value.clone());
        }
        Some(self.default_text(key)).filter(|text| !text.is_empty())
    }

    fn default_text(&self, key: &ConfigKey) -> String {
        match (key.default, key.name) {
            (DefaultValue::Fixed(value), _) => value.to_owned(),
            (DefaultValue::Unset, _) => String::new(),
            (_, "shards") => self.shards.to_string(),
            (_, "admin.listen") => self
                .admin_listen
                .map_or_else(|| "off".to_owned(), |addr| addr.to_string()),
            (_, "rpc.advertised") => self.rpc_listen.to_string(),
            (DefaultValue::Computed(rule), _) => rule.to_owned(),
        }
    }
}

/// `CORDUROY_…` variables that other commands of the binary read.
const OTHER_VARIABLES: &[&str] = &[
    "CORDUROY_BROKERS",
    "CORDUROY_CLIENT_CONFIG",
    "CORDUROY_CONFIG",
    "CORDUROY_LOG",
];

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

struct Reader<'a> {
    settings: &'a Settings,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Option<String> {
        if let Some(setting) = self.settings.node.get(name) {
            return Some(setting.value.clone()).filter(|value| !value.is_empty());
        }
        match table::find(Scope::Node, name)?.default {
            DefaultValue::Fixed(value) => Some(value.to_owned()),
            DefaultValue::Computed(_) | DefaultValue::Unset => None,
        }
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    /// A number that has a default in the table and is never negative there.
    fn count(&self, name: &str) -> u64 {
        self.number(name)
            .and_then(|number| u64::try_from(number).ok())
            .unwrap_or_default()
    }

    fn address(&self, name: &'static str) -> Result<SocketAddr, ConfigError> {
        let text = self.text(name).unwrap_or_default();
        resolve(&text).map_err(|reason| self.invalid(name, &text, reason))
    }

    fn advertised(&self) -> Result<Option<String>, ConfigError> {
        const NAME: &str = "advertised.listeners";
        let Some(text) = self.text(NAME) else {
            return Ok(None);
        };
        // Kafka's own form has the listener's name before the address.
        let plain = text
            .strip_prefix("PLAINTEXT://")
            .unwrap_or(&text)
            .to_owned();
        match plain.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Some(plain))
            }
            _ => Err(self.invalid(NAME, &text, "must be HOST:PORT".into())),
        }
    }

    fn seeds(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        // As it was given: an empty list is not the same as none.
        let Some(setting) = self.settings.node.get("seeds") else {
            return Ok(Vec::new());
        };
        let text = setting.value.clone();
        let mut seeds = Vec::new();
        for item in list_items(&text) {
            let address = resolve(item).map_err(|reason| self.invalid("seeds", item, reason))?;
            if seeds.contains(&address) {
                return Err(self.invalid("seeds", &text, format!("{address} is named twice")));
            }
            seeds.push(address);
        }
        if seeds.is_empty() {
            // A variable that a script left empty must not found a second cluster.
            let reason = "names nobody; leave it out where the node is to be a cluster of its own";
            return Err(self.invalid("seeds", &text, reason.into()));
        }
        Ok(seeds)
    }

    fn invalid(&self, name: &'static str, value: &str, reason: String) -> ConfigError {
        let layer = self
            .settings
            .node
            .get(name)
            .map_or(Layer::Default, |setting| setting.layer);
        ConfigError::InvalidValue {
            place: format!("from the {layer}"),
            error: ValueError {
                name,
                value: value.to_owned(),
                reason,
            },
        }
    }
}

/// An address as written, or the first one that its host name has, IPv4 before IPv6.
fn resolve(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if !text.contains(':') {
        return Err("must be HOST:PORT".into());
    }
    let found: Vec<SocketAddr> = text
        .to_socket_addrs()
        .map_err(|error| format!("must be HOST:PORT, and the host must be known: {error}"))?
        .collect();
    let first = found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first());
    first
        .copied()
        .ok_or_else(|| "the host has no address".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(flags: &[(&str, &str)], environment: &[(&str, &str)], file: &str) -> Layers {
        let own = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| (k.to_string(), v.to_string()))
                .collect()
        };
        Layers {
            flags: own(flags),
            environment: own(environment),
            file: Some((PathBuf::from("corduroy.toml"), file.to_owned())),
        }
    }

    #[test]
    fn the_journals_threshold_is_the_one_that_was_measured() {
        let measured = corduroy_storage::StoreConfig::new(PathBuf::new(), 0);
        let config = NodeConfig::default();
        assert_eq!(config.inline_bytes_max, measured.inline_bytes_max);
    }

    #[test]
    fn nothing_set_is_a_single_node_on_loopback() {
        let config = NodeConfig::default();
        assert_eq!(config.listen.to_string(), "127.0.0.1:9092");
        assert_eq!(config.rpc_listen.to_string(), "127.0.0.1:33145");
        assert_eq!(
            config.admin_listen.map(|a| a.to_string()).as_deref(),
            Some("127.0.0.1:9644")
        );
        assert_eq!(config.data_dir, PathBuf::from("./corduroy-data"));
        assert!(config.seeds.is_empty() && config.node_id.is_none() && config.shards >= 1);
        assert!(config.warnings.is_empty() && config.cluster_overrides.is_empty());
    }

    #[test]
    fn flag_beats_environment_beats_file_beats_default() {
        let file = "listen = \"127.0.0.1:1001\"\nshards = 1\n\
                    [node]\nid = 4\n[cluster]\nnum.partitions = 7\n";
        let environment = [
            ("CORDUROY_LISTEN", "127.0.0.1:1002"),
            ("CORDUROY_SHARDS", "2"),
        ];
        let config = NodeConfig::from_layers(&layers(&[("shards", "3")], &environment, file))
            .expect("valid");
        assert_eq!(config.shards, 3);
        assert_eq!(config.listen.port(), 1002);
        assert_eq!(config.node_id, Some(NodeId::new(4)));
        assert_eq!(config.cluster_overrides["num.partitions"], "7");
        let printed = config.print();
        let layer_of = |name| printed.iter().find(|row| row.0 == name).map(|row| row.2);
        assert_eq!(layer_of("shards"), Some(Layer::Flag));
        assert_eq!(layer_of("listen"), Some(Layer::Environment));
        assert_eq!(layer_of("node.id"), Some(Layer::File));
        assert_eq!(layer_of("data.dir"), Some(Layer::Default));
    }

    #[test]
    fn sections_and_arrays_of_the_file_are_understood() {
        let file = "[node]\nseeds = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\nrpc.listen = \"127.0.0.1:1\"\n\
                    [cluster]\nauto.create.topics.enable = false\n";
        let config = NodeConfig::from_layers(&layers(&[], &[], file)).expect("valid");
        assert_eq!(config.seeds.len(), 2);
        assert_eq!(config.rpc_listen.port(), 1);
        assert_eq!(
            config.admin_listen.map(|a| a.port()),
            Some(0),
            "a free port with seeds"
        );
        assert_eq!(
            config.cluster_overrides["auto.create.topics.enable"],
            "false"
        );
    }

    #[test]
    fn a_refusal_names_the_place_and_the_way_out() {
        type Pairs = &'static [(&'static str, &'static str)];
        let cases: &[(Pairs, Pairs, &str, &[&str])] = &[
            (
                &[("shard", "1")],
                &[],
                "",
                &["\"shard\"", "command line", "did you mean shards?"],
            ),
            (
                &[],
                &[],
                "[cluster]\nnum.partition = 1\n",
                &["corduroy.toml", "num.partitions"],
            ),
            (
                &[],
                &[],
                "[cluster]\nretention.ms = 1\n",
                &["belongs to a topic", "log.retention.ms"],
            ),
            (
                &[],
                &[],
                "[node]\nnum.partitions = 1\n",
                &["node.num.partitions"],
            ),
            (&[("shards", "0")], &[], "", &["shards", "at least 1"]),
            (
                &[],
                &[("CORDUROY_SHARDS", "many")],
                "",
                &["CORDUROY_SHARDS", "whole number"],
            ),
            (
                &[("listen", "9092")],
                &[],
                "",
                &["listen", "HOST:PORT", "flag"],
            ),
            (
                &[("seeds", "127.0.0.1:1,127.0.0.1:1")],
                &[],
                "",
                &["named twice"],
            ),
            (&[("seeds", "")], &[], "", &["seeds", "names nobody"]),
            (&[("seeds", " , ")], &[], "", &["names nobody"]),
            (
                &[],
                &[("CORDUROY_SEEDS", "")],
                "",
                &["environment", "names nobody"],
            ),
            (&[], &[], "[node]\nseeds = []\n", &["names nobody"]),
            (&[], &[], "listen = \n", &["not valid TOML"]),
        ];
        for (flags, environment, file, wants) in cases {
            let error = NodeConfig::from_layers(&layers(flags, environment, file))
                .expect_err("must be refused")
                .to_string();
            for want in *wants {
                assert!(error.contains(want), "{error:?} lacks {want:?}");
            }
        }
    }

    #[test]
    fn a_strange_variable_is_a_warning() {
        let environment = [
            ("CORDUROY_SHARD", "1"),
            ("CORDUROY_BROKERS", "x:1"),
            ("HOME", "/"),
        ];
        let config = NodeConfig::from_layers(&layers(&[], &environment, "")).expect("valid");
        assert_eq!(config.warnings.len(), 1);
        assert!(config.warnings[0].contains("CORDUROY_SHARD"));
    }
}
