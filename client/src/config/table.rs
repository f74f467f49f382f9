//! The table of names: what Kafka's clients call it, its default, and what this client does.

/// Who reads a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every part of the client.
    Client,
    /// Producers.
    Producer,
    /// Readers, with and without a group.
    Reader,
    /// Members of groups.
    Group,
}

/// What this client does with a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It obeys.
    Obeyed,
    /// It accepts the name and does nothing, for the reason given: the setting concerns another
    /// kind of client, or cannot change what a program observes.
    Ignored(&'static str),
    /// It refuses any value but the default: to ignore it would be unsafe.
    Refused(&'static str),
}

/// One configuration name.
#[derive(Clone, Copy, Debug)]
pub struct Property {
    /// Kafka's name.
    pub name: &'static str,
    /// Kafka's default, as text. Empty = none.
    pub default: &'static str,
    /// Who reads it.
    pub scope: Scope,
    /// What this client does with it.
    pub support: Support,
    /// What it means.
    pub doc: &'static str,
}

const fn obeyed(
    scope: Scope,
    name: &'static str,
    default: &'static str,
    doc: &'static str,
) -> Property {
    Property {
        name,
        default,
        scope,
        support: Support::Obeyed,
        doc,
    }
}

const fn ignored(scope: Scope, name: &'static str, why: &'static str) -> Property {
    Property {
        name,
        default: "",
        scope,
        support: Support::Ignored(why),
        doc: "",
    }
}

const fn refused(
    scope: Scope,
    name: &'static str,
    default: &'static str,
    why: &'static str,
) -> Property {
    Property {
        name,
        default,
        scope,
        support: Support::Refused(why),
        doc: "",
    }
}

const JAVA: &str = "a class of the Java client; this client takes and gives bytes";
const KERNEL: &str = "the operating system sizes its buffers itself";
const NO_TLS: &str = "this client speaks plaintext only for now";
const NO_SASL: &str = "this client does not authenticate for now";
const BOOTSTRAP: &str = "bootstrap.servers are asked again as soon as no known broker answers";
const METRICS: &str = "this client keeps no metrics reporters";
const POLL: &str = "a batch holds what one fetch brought; max.partition.fetch.bytes bounds it";

use Scope::{Client, Group, Producer, Reader};

/// Every name that this client knows, sorted by scope.
pub const PROPERTIES: &[Property] = &[
    obeyed(
        Client,
        "bootstrap.servers",
        "",
        "host:port list of brokers to ask first",
    ),
    obeyed(
        Client,
        "client.id",
        "",
        "name of this client in the brokers' logs and quotas",
    ),
    obeyed(
        Client,
        "request.timeout.ms",
        "30000",
        "longest wait for one answer",
    ),
    obeyed(
        Client,
        "default.api.timeout.ms",
        "60000",
        "longest wait for an admin call with retries",
    ),
    obeyed(
        Client,
        "retry.backoff.ms",
        "100",
        "first wait before a retry",
    ),
    obeyed(
        Client,
        "retry.backoff.max.ms",
        "1000",
        "longest wait before a retry",
    ),
    obeyed(
        Client,
        "reconnect.backoff.ms",
        "50",
        "first wait before connecting again",
    ),
    obeyed(
        Client,
        "reconnect.backoff.max.ms",
        "1000",
        "longest wait before connecting again",
    ),
    obeyed(
        Client,
        "socket.connection.setup.timeout.ms",
        "10000",
        "longest wait for a connection with its version handshake",
    ),
    obeyed(
        Client,
        "connections.max.idle.ms",
        "540000",
        "an idle connection is closed after this",
    ),
    obeyed(
        Client,
        "metadata.max.age.ms",
        "300000",
        "metadata is refreshed after this at the latest",
    ),
    obeyed(
        Client,
        "metadata.max.idle.ms",
        "300000",
        "a topic that nobody used for this long is no longer refreshed",
    ),
    obeyed(
        Client,
        "allow.auto.create.topics",
        "true",
        "let the broker create an unknown topic that a producer writes to",
    ),
    ignored(
        Client,
        "client.dns.lookup",
        "all addresses of a name are tried in turn",
    ),
    ignored(Client, "client.rack", "readers read from leaders"),
    ignored(Client, "metadata.recovery.strategy", BOOTSTRAP),
    ignored(
        Client,
        "metadata.recovery.rebootstrap.trigger.ms",
        BOOTSTRAP,
    ),
    ignored(
        Client,
        "socket.connection.setup.timeout.max.ms",
        "the setup timeout does not grow with failures",
    ),
    ignored(Client, "send.buffer.bytes", KERNEL),
    ignored(Client, "receive.buffer.bytes", KERNEL),
    ignored(Client, "metric.reporters", METRICS),
    ignored(Client, "metrics.num.samples", METRICS),
    ignored(Client, "metrics.recording.level", METRICS),
    ignored(Client, "metrics.sample.window.ms", METRICS),
    ignored(Client, "enable.metrics.push", METRICS),
    ignored(Client, "auto.include.jmx.reporter", JAVA),
    ignored(Client, "interceptor.classes", JAVA),
    ignored(Client, "config.providers", JAVA),
    ignored(Client, "security.providers", JAVA),
    refused(Client, "security.protocol", "PLAINTEXT", NO_TLS),
    refused(Client, "sasl.mechanism", "GSSAPI", NO_SASL),
    refused(Client, "sasl.jaas.config", "", NO_SASL),
    obeyed(
        Producer,
        "acks",
        "all",
        "when a record counts as written: 0, 1 or all",
    ),
    obeyed(
        Producer,
        "enable.idempotence",
        "true",
        "write every record once and in order, whatever is retried",
    ),
    obeyed(
        Producer,
        "linger.ms",
        "5",
        "how long a batch waits for more records",
    ),
    obeyed(
        Producer,
        "batch.size",
        "16384",
        "bytes at which a batch is full",
    ),
    obeyed(
        Producer,
        "buffer.memory",
        "33554432",
        "bytes of records that may wait",
    ),
    obeyed(
        Producer,
        "max.block.ms",
        "60000",
        "longest wait for buffer space and metadata",
    ),
    obeyed(
        Producer,
        "max.request.size",
        "1048576",
        "largest request, hence largest record",
    ),
    obeyed(
        Producer,
        "max.in.flight.requests.per.connection",
        "5",
        "requests to one broker that wait for their answers at the same time",
    ),
    obeyed(
        Producer,
        "delivery.timeout.ms",
        "120000",
        "longest time from queueing a record to its success or failure",
    ),
    obeyed(
        Producer,
        "retries",
        "2147483647",
        "how often a batch is sent again",
    ),
    obeyed(
        Producer,
        "compression.type",
        "none",
        "codec of batches: none, gzip, snappy, lz4 or zstd",
    ),
    obeyed(
        Producer,
        "partitioner.ignore.keys",
        "false",
        "spread records with keys as well",
    ),
    obeyed(
        Producer,
        "partitioner.adaptive.partitioning.enable",
        "true",
        "records without a key prefer partitions whose queues are short",
    ),
    ignored(
        Producer,
        "partitioner.availability.timeout.ms",
        "records without a key avoid partitions without a leader at once",
    ),
    ignored(
        Producer,
        "compression.gzip.level",
        "each codec has one level",
    ),
    ignored(
        Producer,
        "compression.lz4.level",
        "each codec has one level",
    ),
    ignored(
        Producer,
        "compression.zstd.level",
        "each codec has one level",
    ),
    ignored(Producer, "key.serializer", JAVA),
    ignored(Producer, "value.serializer", JAVA),
    ignored(
        Producer,
        "transaction.timeout.ms",
        "only transactional producers use it",
    ),
    refused(
        Producer,
        "partitioner.class",
        "",
        "only Kafka's default partitioner exists here",
    ),
    refused(
        Producer,
        "transactional.id",
        "",
        "this client has no transactions for now",
    ),
    obeyed(
        Reader,
        "fetch.min.bytes",
        "1",
        "bytes for which a fetch waits",
    ),
    obeyed(
        Reader,
        "fetch.max.bytes",
        "52428800",
        "largest answer to a fetch",
    ),
    obeyed(
        Reader,
        "max.partition.fetch.bytes",
        "1048576",
        "largest share of one partition in it",
    ),
    obeyed(
        Reader,
        "fetch.max.wait.ms",
        "500",
        "longest wait for fetch.min.bytes",
    ),
    obeyed(
        Reader,
        "isolation.level",
        "read_uncommitted",
        "whether records of open and aborted transactions are seen",
    ),
    obeyed(
        Reader,
        "check.crcs",
        "true",
        "verify the checksum of each batch",
    ),
    obeyed(
        Reader,
        "auto.offset.reset",
        "none",
        "where to go on if an offset does not exist: earliest, latest or none (a group's default \
         is `latest`; a reader without a group names its position)",
    ),
    ignored(Reader, "key.deserializer", JAVA),
    ignored(Reader, "value.deserializer", JAVA),
    ignored(Reader, "max.poll.records", POLL),
    obeyed(
        Group,
        "max.poll.interval.ms",
        "300000",
        "a member that takes longer for a batch leaves its group; also the rebalance timeout",
    ),
    obeyed(
        Group,
        "session.timeout.ms",
        "45000",
        "a member that is silent for this long is taken out of its group (classic protocol)",
    ),
    obeyed(
        Group,
        "heartbeat.interval.ms",
        "3000",
        "how often a member shows that it lives (classic protocol)",
    ),
    obeyed(
        Group,
        "enable.auto.commit",
        "true",
        "commit what was processed, before the next batch and on leaving",
    ),
    obeyed(
        Group,
        "auto.commit.interval.ms",
        "5000",
        "how often that is done",
    ),
    obeyed(
        Group,
        "group.instance.id",
        "",
        "name of a static member: it may restart without a rebalance (KIP-345)",
    ),
    obeyed(
        Group,
        "group.protocol",
        "classic",
        "who assigns partitions: classic (a member) or consumer (the coordinator, KIP-848)",
    ),
    obeyed(
        Group,
        "group.remote.assignor",
        "",
        "assignor of the coordinator (consumer protocol): uniform or range",
    ),
    obeyed(
        Group,
        "partition.assignment.strategy",
        "range,cooperative-sticky",
        "assignors of the classic protocol, the preferred one first: range, roundrobin, \
         sticky or cooperative-sticky, also as Java class names; members rebalance cooperatively if all of \
         theirs can",
    ),
    ignored(Group, "group.id", "`Client::group` names the group"),
    ignored(
        Reader,
        "exclude.internal.topics",
        "a reader names its topic",
    ),
];

/// The row of `name`.
pub(crate) fn find(name: &str) -> Option<&'static Property> {
    PROPERTIES.iter().find(|property| property.name == name)
}

/// The known name that is closest to `name`, if one is close enough to be meant.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    PROPERTIES
        .iter()
        .map(|property| (edit_distance(name, property.name), property.name))
        .min()
        .filter(|(distance, _)| *distance <= (name.len() / 3).max(2))
        .map(|(_, name)| name)
}

/// Levenshtein distance in bytes; names are ASCII.
fn edit_distance(left: &str, right: &str) -> usize {
    let right = right.as_bytes();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, r) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(l != *r);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        for (wrong, right) in [
            ("linger.s", Some("linger.ms")),
            ("bootstrap.server", Some("bootstrap.servers")),
            ("compresion.type", Some("compression.type")),
            ("something.else.altogether", None),
        ] {
            assert_eq!(nearest(wrong), right, "{wrong}");
        }
    }

    #[test]
    fn each_name_has_one_row() {
        for (i, property) in PROPERTIES.iter().enumerate() {
            let others = PROPERTIES[i + 1..]
                .iter()
                .filter(|other| other.name == property.name);
            assert_eq!(others.count(), 0, "{}", property.name);
        }
    }
}
