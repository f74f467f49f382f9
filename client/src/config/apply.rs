//! From a name and a text to a setting.

use std::str::FromStr;
use std::time::Duration;

use corduroy_record::Compression;

use super::settings::{
    Acks, GroupProtocol, GroupSettings, Isolation, OutOfRange, ProducerSettings, Settings, Strategy,
};
use super::table::{self, Support};
use crate::error::Error;

impl Settings {
    /// Applies one property, by Kafka's name.
    ///
    /// # Errors
    /// Kind [`Config`](crate::ErrorKind::Config): unknown name (with the nearest known one), a
    /// value that does not parse, or a setting that would be unsafe to ignore.
    pub(crate) fn apply(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let value = value.trim();
        let Some(property) = table::find(name) else {
            // Security settings come in families; only `security.protocol` decides whether they
            // matter, and that one is refused unless it says PLAINTEXT.
            if name.starts_with("ssl.") || name.starts_with("sasl.") {
                tracing::debug!(name, "ignored: the connection is plaintext");
                return Ok(());
            }
            let help = match table::nearest(name) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "see corduroy_client::PROPERTIES for the known names".to_owned(),
            };
            return Err(Error::config(format!("unknown property `{name}`: {help}")));
        };
        match property.support {
            Support::Obeyed => self.obey(name, value),
            Support::Ignored(why) => {
                tracing::debug!(name, why, "ignored");
                Ok(())
            }
            Support::Refused(_) if value.eq_ignore_ascii_case(property.default) => Ok(()),
            Support::Refused(why) => {
                Err(Error::config(format!("cannot use {name}={value}: {why}")))
            }
        }
    }

    fn obey(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let Settings {
            client,
            producer,
            reader,
            group,
        } = self;
        match name {
            "bootstrap.servers" => client.bootstrap_servers = parse_servers(value)?,
            "client.id" => client.client_id = value.to_owned(),
            "request.timeout.ms" => client.request_timeout = millis(name, value)?,
            "default.api.timeout.ms" => client.api_timeout = millis(name, value)?,
            "retry.backoff.ms" => client.retry_backoff = millis(name, value)?,
            "retry.backoff.max.ms" => client.retry_backoff_max = millis(name, value)?,
            "reconnect.backoff.ms" => client.reconnect_backoff = millis(name, value)?,
            "reconnect.backoff.max.ms" => client.reconnect_backoff_max = millis(name, value)?,
            "socket.connection.setup.timeout.ms" => {
                client.connection_setup_timeout = millis(name, value)?;
            }
            "connections.max.idle.ms" => client.connections_max_idle = millis(name, value)?,
            "metadata.max.age.ms" => client.metadata_max_age = millis(name, value)?,
            "metadata.max.idle.ms" => client.metadata_max_idle = millis(name, value)?,
            "allow.auto.create.topics" => client.auto_create_topics = parse(name, value)?,
            "acks" => producer.acks = parse_acks(value)?,
            "enable.idempotence" => producer.idempotence = Some(parse(name, value)?),
            "linger.ms" => producer.linger = millis(name, value)?,
            "batch.size" => producer.batch_bytes = parse(name, value)?,
            "buffer.memory" => producer.buffer_bytes = parse(name, value)?,
            "max.block.ms" => producer.block_max = millis(name, value)?,
            "max.request.size" => producer.request_bytes_max = parse(name, value)?,
            "max.in.flight.requests.per.connection" => {
                producer.in_flight_max = parse(name, value)?;
            }
            "delivery.timeout.ms" => {
                producer.delivery_timeout = millis(name, value)?;
                producer.delivery_timeout_explicit = true;
            }
            "retries" => producer.retries = parse(name, value)?,
            "compression.type" => producer.compression = parse_compression(value)?,
            "partitioner.ignore.keys" => producer.ignore_keys = parse(name, value)?,
            "partitioner.adaptive.partitioning.enable" => producer.adaptive = parse(name, value)?,
            "fetch.min.bytes" => reader.fetch_bytes_min = parse(name, value)?,
            "fetch.max.bytes" => reader.fetch_bytes_max = parse(name, value)?,
            "max.partition.fetch.bytes" => reader.partition_bytes_max = parse(name, value)?,
            "fetch.max.wait.ms" => reader.wait_max = millis(name, value)?,
            "isolation.level" => reader.isolation = parse_isolation(value)?,
            "check.crcs" => reader.check_crcs = parse(name, value)?,
            "auto.offset.reset" => {
                reader.out_of_range = parse_reset(value)?;
                group.reset = Some(reader.out_of_range);
            }
            "session.timeout.ms" => group.session_timeout = millis(name, value)?,
            "heartbeat.interval.ms" => group.heartbeat_interval = millis(name, value)?,
            "max.poll.interval.ms" => group.poll_interval_max = millis(name, value)?,
            "enable.auto.commit" => group.auto_commit = parse(name, value)?,
            "auto.commit.interval.ms" => group.auto_commit_interval = millis(name, value)?,
            "group.instance.id" => group.instance_id = value.to_owned(),
            "group.protocol" => group.protocol = parse_protocol(value)?,
            "group.remote.assignor" => group.remote_assignor = value.to_owned(),
            "partition.assignment.strategy" => group.strategies = parse_strategies(value)?,
            _ => return Err(Error::config(format!("property `{name}` has no setting"))),
        }
        Ok(())
    }
}

/// Checks what only holds between settings, and fits a default delivery timeout to the others.
pub(crate) fn validate_producer(
    producer: &mut ProducerSettings,
    request_timeout: Duration,
) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::config(message.to_owned()));
    if producer.batch_bytes > producer.buffer_bytes {
        return refuse("batch.size is larger than buffer.memory");
    }
    if producer.in_flight_max == 0 {
        return refuse("max.in.flight.requests.per.connection must be at least 1");
    }
    if !(1..=i32::MAX as usize).contains(&producer.request_bytes_max) {
        return refuse("max.request.size must lie between 1 and 2147483647");
    }
    if producer.idempotence == Some(true) {
        if producer.acks != Acks::All {
            return refuse(
                "enable.idempotence=true needs acks=all: leave it unset to give it up with the \
                 lower acks",
            );
        }
        if producer.in_flight_max > 5 {
            return refuse(
                "enable.idempotence=true needs max.in.flight.requests.per.connection <= 5: \
                 brokers remember five batches of each producer",
            );
        }
        if producer.retries == 0 {
            return refuse("enable.idempotence=true needs retries > 0");
        }
    }
    let shortest = producer.linger.saturating_add(request_timeout);
    if producer.delivery_timeout < shortest {
        if producer.delivery_timeout_explicit {
            return refuse(
                "delivery.timeout.ms must be at least linger.ms + request.timeout.ms: lower those \
                 as well",
            );
        }
        producer.delivery_timeout = shortest;
    }
    Ok(())
}

fn parse<T: FromStr>(name: &str, value: &str) -> Result<T, Error> {
    value.parse().map_err(|_| {
        Error::config(format!(
            "cannot read {name}={value}: expected {}",
            std::any::type_name::<T>()
                .rsplit(':')
                .next()
                .unwrap_or("another value")
        ))
    })
}

fn millis(name: &str, value: &str) -> Result<Duration, Error> {
    parse::<u64>(name, value).map(Duration::from_millis)
}

/// `host:port,host:port`; an IPv6 address stands in brackets.
pub(crate) fn parse_servers(value: &str) -> Result<Vec<String>, Error> {
    let mut servers = Vec::new();
    for server in value
        .split(',')
        .map(str::trim)
        .filter(|server| !server.is_empty())
    {
        // Java's configuration accepts a listener prefix such as `PLAINTEXT://`.
        let server = server.rsplit("://").next().unwrap_or(server);
        let valid = server
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !valid {
            return Err(Error::config(format!(
                "cannot read bootstrap server `{server}`: expected host:port"
            )));
        }
        servers.push(server.to_owned());
    }
    if servers.is_empty() {
        return Err(Error::config(
            "no bootstrap servers: give at least one host:port".to_owned(),
        ));
    }
    Ok(servers)
}

fn parse_acks(value: &str) -> Result<Acks, Error> {
    match value {
        "0" => Ok(Acks::None),
        "1" => Ok(Acks::Leader),
        "all" | "-1" => Ok(Acks::All),
        _ => Err(Error::config(format!(
            "cannot read acks={value}: expected 0, 1 or all"
        ))),
    }
}

fn parse_compression(value: &str) -> Result<Compression, Error> {
    match value {
        "none" => Ok(Compression::None),
        "gzip" => Ok(Compression::Gzip),
        "snappy" => Ok(Compression::Snappy),
        "lz4" => Ok(Compression::Lz4),
        "zstd" => Ok(Compression::Zstd),
        _ => Err(Error::config(format!(
            "cannot read compression.type={value}: expected none, gzip, snappy, lz4 or zstd"
        ))),
    }
}

fn parse_isolation(value: &str) -> Result<Isolation, Error> {
    match value {
        "read_uncommitted" => Ok(Isolation::ReadUncommitted),
        "read_committed" => Ok(Isolation::ReadCommitted),
        _ => Err(Error::config(format!(
            "cannot read isolation.level={value}: expected read_uncommitted or read_committed"
        ))),
    }
}

fn parse_reset(value: &str) -> Result<OutOfRange, Error> {
    match value {
        "none" => Ok(OutOfRange::Fail),
        "earliest" => Ok(OutOfRange::Earliest),
        "latest" => Ok(OutOfRange::Latest),
        _ => Err(Error::config(format!(
            "cannot read auto.offset.reset={value}: expected earliest, latest or none"
        ))),
    }
}

fn parse_protocol(value: &str) -> Result<GroupProtocol, Error> {
    // Java's client compares without case as well.
    match value.to_ascii_lowercase().as_str() {
        "classic" => Ok(GroupProtocol::Classic),
        "consumer" => Ok(GroupProtocol::Consumer),
        _ => Err(Error::config(format!(
            "cannot read group.protocol={value}: expected classic or consumer"
        ))),
    }
}

fn parse_strategies(value: &str) -> Result<Vec<Strategy>, Error> {
    let mut strategies = Vec::new();
    for word in value.split(',').map(str::trim) {
        let name = match word.rsplit('.').next() {
            Some("RangeAssignor") => "range",
            Some("RoundRobinAssignor") => "roundrobin",
            Some("StickyAssignor") => "sticky",
            Some("CooperativeStickyAssignor") => "cooperative-sticky",
            _ => word,
        };
        let Some(strategy) = Strategy::from_name(name) else {
            return Err(Error::config(format!(
                "cannot read partition.assignment.strategy={value}: `{word}` is none of range, \
                 roundrobin, sticky and cooperative-sticky"
            )));
        };
        if !strategies.contains(&strategy) {
            strategies.push(strategy);
        }
    }
    Ok(strategies)
}

/// Checks what only holds between settings of a member.
pub(crate) fn validate_group(group: &GroupSettings) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::config(message.to_owned()));
    if group.poll_interval_max.is_zero() {
        return refuse("max.poll.interval.ms must be at least 1");
    }
    if group.protocol == GroupProtocol::Consumer {
        return Ok(());
    }
    if group.heartbeat_interval.is_zero() || group.heartbeat_interval >= group.session_timeout {
        return refuse(
            "heartbeat.interval.ms must lie between 1 and session.timeout.ms, and be about a \
             third of it: a member that is heard too seldom is taken out of its group",
        );
    }
    if group.strategies.is_empty() {
        return refuse("partition.assignment.strategy names no strategy");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::table::PROPERTIES;
    use super::*;

    #[test]
    fn every_obeyed_default_is_the_typed_default() {
        let mut settings = Settings::default();
        for property in PROPERTIES {
            if property.support == Support::Obeyed && property.name != "bootstrap.servers" {
                settings
                    .apply(property.name, property.default)
                    .expect(property.name);
            }
        }
        // Told explicitly, these three are remembered as such.
        assert_eq!(settings.group.reset.take(), Some(OutOfRange::Fail));
        assert_eq!(settings.producer.idempotence.take(), Some(true));
        assert!(std::mem::take(
            &mut settings.producer.delivery_timeout_explicit
        ));
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn each_obeyed_name_changes_something() {
        let values: &[(&str, &str)] = &[
            ("bootstrap.servers", "a:1, [::1]:2"),
            ("client.id", "me"),
            ("allow.auto.create.topics", "false"),
            ("acks", "1"),
            ("enable.idempotence", "false"),
            ("compression.type", "zstd"),
            ("partitioner.ignore.keys", "true"),
            ("partitioner.adaptive.partitioning.enable", "false"),
            ("isolation.level", "read_committed"),
            ("check.crcs", "false"),
            ("auto.offset.reset", "earliest"),
            ("enable.auto.commit", "false"),
            ("group.instance.id", "a"),
            ("group.protocol", "consumer"),
            ("group.remote.assignor", "range"),
            (
                "partition.assignment.strategy",
                "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            ),
        ];
        for property in PROPERTIES
            .iter()
            .filter(|row| row.support == Support::Obeyed)
        {
            let mut settings = Settings::default();
            let value = values
                .iter()
                .find(|(name, _)| *name == property.name)
                .map_or("7", |(_, value)| *value);
            settings.apply(property.name, value).expect(property.name);
            assert_ne!(settings, Settings::default(), "{}", property.name);
        }
    }

    #[test]
    fn refusals_say_what_to_do() {
        for (name, value, expected) in [
            ("lingerms", "5", "did you mean `linger.ms`"),
            ("linger.ms", "soon", "cannot read linger.ms=soon"),
            ("acks", "2", "expected 0, 1 or all"),
            ("security.protocol", "SASL_SSL", "plaintext only"),
            ("bootstrap.servers", "localhost", "expected host:port"),
            ("transactional.id", "billing", "no transactions"),
            ("group.protocol", "share", "expected classic or consumer"),
            (
                "partition.assignment.strategy",
                "range,best",
                "`best` is none of",
            ),
        ] {
            let error = Settings::default().apply(name, value).expect_err(name);
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn a_standard_plaintext_file_is_accepted() {
        let mut settings = Settings::default();
        for (name, value) in [
            ("security.protocol", "PLAINTEXT"),
            ("ssl.truststore.location", "/etc/trust.jks"),
            (
                "key.serializer",
                "org.apache.kafka.common.serialization.StringSerializer",
            ),
            ("group.id", "billing"),
        ] {
            settings.apply(name, value).expect(name);
        }
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn lower_acks_give_up_idempotence_unless_it_was_asked_for() {
        let timeout = Duration::from_secs(30);
        let mut producer = ProducerSettings {
            acks: Acks::Leader,
            ..Default::default()
        };
        validate_producer(&mut producer, timeout).expect("valid");
        assert!(!producer.is_idempotent());
        producer.idempotence = Some(true);
        let error = validate_producer(&mut producer, timeout).expect_err("a contradiction");
        assert!(error.to_string().contains("needs acks=all"), "{error}");
        assert!(ProducerSettings::default().is_idempotent());
    }

    #[test]
    fn the_default_delivery_timeout_gives_way_and_an_explicit_one_does_not() {
        let mut producer = ProducerSettings {
            linger: Duration::from_secs(200),
            ..Default::default()
        };
        validate_producer(&mut producer, Duration::from_secs(30)).expect("valid");
        assert_eq!(producer.delivery_timeout, Duration::from_secs(230));
        producer.delivery_timeout = Duration::from_secs(1);
        producer.delivery_timeout_explicit = true;
        assert!(validate_producer(&mut producer, Duration::from_secs(30)).is_err());
    }
}
