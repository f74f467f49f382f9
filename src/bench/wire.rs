//! One bare connection to a broker: requests in order, each answer with the time that it took.
//!
//! The client crate keeps a member's connections, threads of control and retries to itself, and its
//! work per request is larger than what is measured here. A thousand members in one process need
//! less, and nothing that hides what the broker says.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use corduroy_env::{Env, ReadHalf, Stream, WriteHalf};
use corduroy_protocol::messages::{ApiVersionsRequest, FindCoordinatorRequest};
use corduroy_protocol::{
    ApiKey, ErrorCode, FRAME_LENGTH_BYTES, Request, Response, StrBytes, decode_response,
    encode_request,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::cli::{CliError, CliResult};

/// How long a broker may take to accept a connection and say its versions.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long the coordinators of fresh groups may take to be there: the first of all groups makes the
/// topic of offsets.
const COORDINATOR_WAIT_MAX: Duration = Duration::from_secs(60);

/// How soon a request is made again that the broker is not ready for.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Largest answer that is read: what a group's leader is told of its members is the largest.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

const READ_BYTES: usize = 16 * 1024;

/// The name that brokers know this program by.
const CLIENT_ID: &str = "corduroy-bench";

/// The requests that are made here, each with the versions that the code around it can speak. All
/// are in Apache Kafka since 3.0, the last since 3.7.
const SPOKEN: [(ApiKey, i16, i16); 7] = [
    (ApiKey::FindCoordinator, 4, 6),
    (ApiKey::JoinGroup, 5, 9),
    (ApiKey::SyncGroup, 5, 5),
    (ApiKey::Heartbeat, 3, 4),
    (ApiKey::LeaveGroup, 3, 5),
    (ApiKey::OffsetCommit, 7, 9),
    (ApiKey::ConsumerGroupHeartbeat, 0, 1),
];

/// Where a broker listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    pub(super) node: i32,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Endpoint {
    /// # Errors
    /// A port that is none.
    pub(super) fn new(node: i32, host: &str, port: i32) -> CliResult<Endpoint> {
        let port = u16::try_from(port).map_err(|_range| {
            CliError::failed(format!("node {node} names the port {port}, which is none"))
        })?;
        Ok(Endpoint {
            node,
            host: host.to_owned(),
            port,
        })
    }

    fn label(&self) -> String {
        format!("node {} at {}:{}", self.node, self.host, self.port)
    }
}

/// The version of each request that both sides speak best.
pub(super) struct Versions {
    best: HashMap<i16, i16>,
}

/// A connection. Dropping it closes it.
pub(super) struct Link {
    env: Env,
    reader: ReadHalf,
    writer: WriteHalf,
    buffer: BytesMut,
    versions: Rc<Versions>,
    pending: VecDeque<Sent>,
    correlation: i32,
    label: String,
}

/// A request without an answer so far.
struct Sent {
    correlation: i32,
    key: ApiKey,
    version: i16,
    at: Instant,
}

/// What a broker answered, and after how long.
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) latency: Duration,
}

impl Link {
    /// Connects to a broker and asks which versions it speaks.
    ///
    /// # Errors
    /// No connection; a broker that is too old.
    pub(super) async fn negotiate(env: &Env, at: &Endpoint) -> CliResult<Link> {
        let mut link = Link::open(env, at, &Rc::new(Versions::none())).await?;
        let ask = timeout(OPEN_WAIT_MAX, link.api_versions());
        let versions = ask.await.map_err(|_elapsed| link.silent())??;
        link.versions = Rc::new(versions);
        Ok(link)
    }

    /// Connects to a broker of a cluster whose versions are known.
    ///
    /// # Errors
    /// No connection.
    pub(super) async fn open(env: &Env, at: &Endpoint, versions: &Rc<Versions>) -> CliResult<Link> {
        let label = at.label();
        let fail = |why: String| CliError::failed(format!("cannot connect to {label}: {why}"));
        let stream: Stream = timeout(OPEN_WAIT_MAX, connect(env, at))
            .await
            .map_err(|_elapsed| fail(format!("nothing within {OPEN_WAIT_MAX:?}")))?
            .map_err(|error| fail(error.to_string()))?;
        let (reader, writer) = stream.into_split();
        Ok(Link {
            env: env.clone(),
            reader,
            writer,
            buffer: BytesMut::new(),
            versions: versions.clone(),
            pending: VecDeque::new(),
            correlation: 0,
            label,
        })
    }

    pub(super) fn versions(&self) -> &Rc<Versions> {
        &self.versions
    }

    /// Requests that have no answer so far.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Sends a request; its answer comes after those of the earlier ones.
    ///
    /// # Errors
    /// The connection's; a request that the broker does not know.
    pub(super) async fn send(&mut self, request: impl Into<Request>) -> CliResult {
        let request = request.into();
        let version = self.versions.of(request.key()).map_err(|error| {
            CliError::failed(format!("cannot measure {}: {error}", self.label))
                .help("this needs Apache Kafka 3.0 or later, the consumer protocol needs 4.0")
        })?;
        self.send_version(request, version).await
    }

    async fn send_version(&mut self, request: Request, version: i16) -> CliResult {
        let correlation = self.correlation;
        self.correlation = correlation.wrapping_add(1) & i32::MAX;
        let key = request.key();
        let mut frame = encode_request(key, version, correlation, Some(CLIENT_ID), &request)
            .map_err(|error| CliError::failed(error.to_string()))?;
        self.pending.push_back(Sent {
            correlation,
            key,
            version,
            at: self.env.now(),
        });
        while frame.has_remaining() {
            let written = self.writer.write(&frame).await;
            match written {
                Ok(0) => return Err(self.broken("it takes no more bytes").into()),
                Ok(bytes) => frame.advance(bytes),
                Err(error) => return Err(self.broken(&error.to_string()).into()),
            }
        }
        Ok(())
    }

    /// Waits for the answer to the oldest request. No deadline of its own.
    ///
    /// # Errors
    /// The connection's; an answer that can't be read.
    pub(super) async fn receive(&mut self) -> CliResult<Answer> {
        let frame = self.read_frame().await?;
        let sent = self
            .pending
            .pop_front()
            .ok_or_else(|| self.broken("an answer to nothing"))?;
        let latency = self.env.now() - sent.at;
        let (correlation, response) = decode_response(sent.key, sent.version, frame)
            .map_err(|error| self.broken(&error.to_string()))?;
        if correlation != sent.correlation {
            return Err(self.broken("an answer to another request").into());
        }
        Ok(Answer { response, latency })
    }

    /// One request and its answer.
    ///
    /// # Errors
    /// As [`Link::send`] and [`Link::receive`].
    pub(super) async fn call(&mut self, request: impl Into<Request>) -> CliResult<Answer> {
        self.send(request).await?;
        self.receive().await
    }

    async fn read_frame(&mut self) -> CliResult<Bytes> {
        self.fill(FRAME_LENGTH_BYTES).await?;
        let length = self.buffer.get_i32();
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= ANSWER_BYTES_MAX)
            .ok_or_else(|| self.broken(&format!("an answer of {length} bytes")))?;
        self.fill(length).await?;
        Ok(self.buffer.split_to(length).freeze())
    }

    async fn fill(&mut self, bytes: usize) -> CliResult {
        while self.buffer.len() < bytes {
            self.buffer.reserve(READ_BYTES);
            match self.reader.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(self.broken("it closed the connection").into()),
                Ok(_) => {}
                Err(error) => return Err(self.broken(&error.to_string()).into()),
            }
        }
        Ok(())
    }

    async fn api_versions(&mut self) -> CliResult<Versions> {
        // Version 0 is answered by every broker, and says all that is needed.
        self.send_version(ApiVersionsRequest::default().into(), 0)
            .await?;
        let Response::ApiVersions(answer) = self.receive().await?.response else {
            return Err(self.another());
        };
        let ranges: HashMap<i16, (i16, i16)> = answer
            .api_keys
            .iter()
            .map(|api| (api.api_key, (api.min_version, api.max_version)))
            .collect();
        Ok(Versions::agree(&ranges))
    }

    /// What a wrong body is called.
    pub(super) fn another(&self) -> crate::cli::Stop {
        self.broken("the body of another API").into()
    }

    /// What an error code of a request is called.
    pub(super) fn refused(&self, api: &str, code: i16) -> CliError {
        let code = ErrorCode::from_code(code);
        let refused = CliError::failed(format!("{} refuses {api}: {code:?}", self.label));
        if code == ErrorCode::NotCoordinator {
            return refused
                .help("the coordinator moved meanwhile: measure again on a calm cluster");
        }
        refused
    }

    fn broken(&self, why: &str) -> CliError {
        CliError::failed(format!("the connection to {} broke: {why}", self.label))
    }

    fn silent(&self) -> CliError {
        CliError::failed(format!("{} does not answer", self.label))
    }

    /// The coordinators of `groups`, in their order; waits until there is one for each.
    ///
    /// # Errors
    /// The connection's; a refusal that waiting does not help against.
    pub(super) async fn find_coordinators(
        &mut self,
        groups: &[String],
    ) -> CliResult<Vec<Endpoint>> {
        let keys: Vec<StrBytes> = groups.iter().map(|group| text(group)).collect();
        let deadline = self.env.now() + COORDINATOR_WAIT_MAX;
        loop {
            let request = FindCoordinatorRequest::default()
                .with_key_type(0)
                .with_coordinator_keys(keys.clone());
            let Response::FindCoordinator(answer) = self.call(request).await?.response else {
                return Err(self.another());
            };
            let mut found = HashMap::new();
            let mut refusal = (answer.error_code != 0).then_some(answer.error_code);
            for coordinator in &answer.coordinators {
                if coordinator.error_code != 0 {
                    refusal = Some(coordinator.error_code);
                    continue;
                }
                let at = Endpoint::new(coordinator.node_id.0, &coordinator.host, coordinator.port)?;
                found.insert(coordinator.key.to_string(), at);
            }
            let all: Option<Vec<Endpoint>> = groups
                .iter()
                .map(|group| found.get(group).cloned())
                .collect();
            match (all, refusal) {
                (Some(all), None) => return Ok(all),
                (None, None) => return Err(self.broken("a group without an answer").into()),
                (_, Some(code)) => {
                    let is_late = self.env.now() >= deadline;
                    if is_late || !is_not_ready(ErrorCode::from_code(code)) {
                        return Err(self.refused("FindCoordinator", code).into());
                    }
                    self.env.sleep(RETRY_PAUSE).await;
                }
            }
        }
    }
}

/// Whether a coordinator says that it will serve soon.
pub(super) fn is_not_ready(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::CoordinatorNotAvailable | ErrorCode::CoordinatorLoadInProgress
    )
}

/// A string for a request.
pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Tries the addresses of the host in turn, IPv4 first.
async fn connect(env: &Env, at: &Endpoint) -> std::io::Result<Stream> {
    let host = at.host.trim_start_matches('[').trim_end_matches(']');
    let mut addresses: Vec<std::net::SocketAddr> =
        tokio::net::lookup_host((host, at.port)).await?.collect();
    addresses.sort_by_key(std::net::SocketAddr::is_ipv6);
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match env.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Versions {
    fn none() -> Versions {
        Versions {
            best: HashMap::new(),
        }
    }

    fn agree(theirs: &HashMap<i16, (i16, i16)>) -> Versions {
        let best = SPOKEN.iter().filter_map(|&(key, our_min, our_max)| {
            let &(min, max) = theirs.get(&(key as i16))?;
            let version = max.min(our_max);
            (version >= min.max(our_min)).then_some((key as i16, version))
        });
        Versions {
            best: best.collect(),
        }
    }

    /// The version of a request that both sides speak.
    ///
    /// # Errors
    /// There is none; in words.
    pub(super) fn of(&self, key: ApiKey) -> Result<i16, String> {
        self.best
            .get(&(key as i16))
            .copied()
            .ok_or_else(|| format!("it does not speak {key:?} in a version that is spoken here"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_common_version_is_spoken() {
        let theirs = HashMap::from([
            (ApiKey::JoinGroup as i16, (2, 7)),
            (ApiKey::SyncGroup as i16, (0, 4)),
            (ApiKey::OffsetCommit as i16, (2, 10)),
        ]);
        let versions = Versions::agree(&theirs);
        assert_eq!(versions.of(ApiKey::JoinGroup), Ok(7));
        assert_eq!(versions.of(ApiKey::OffsetCommit), Ok(9));
        assert!(versions.of(ApiKey::SyncGroup).is_err(), "too old");
        assert!(versions.of(ApiKey::Heartbeat).is_err(), "not offered");
    }

    #[test]
    fn a_port_outside_of_the_range_is_refused() {
        assert!(Endpoint::new(1, "h", 65_536).is_err());
        assert!(Endpoint::new(1, "h", -1).is_err());
        assert_eq!(Endpoint::new(1, "h", 9092).expect("a port").port, 9092);
    }
}
