//! One connection to a broker: requests are pipelined, answers come in their order.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use corduroy_env::{ReadHalf, Stream, WriteHalf};
use corduroy_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use corduroy_protocol::{
    ApiKey, CLIENT_SOFTWARE_NAME, ErrorCode, Request, Response, unready_reason,
};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

use super::api::{Api, StrBytes};
use super::{Net, frame};
use crate::error::{Error, ErrorKind, Outcome};
use crate::sync::Lock;

/// Requests that are written with one system call at most.
const COALESCED_REQUESTS_MAX: usize = 16;

/// A live connection. Dropping the last handle closes it.
pub(crate) struct Connection {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    correlation: AtomicI32,
    client_id: Option<Arc<str>>,
    label: Arc<str>,
    versions: Versions,
    wire: Arc<Wire>,
}

/// The versions that a broker speaks.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    ranges: HashMap<i16, (i16, i16)>,
}

/// What the two directions of a connection share.
struct Wire {
    /// Requests that were written, oldest first.
    pending: Lock<VecDeque<Pending>>,
    /// Why the connection ended, once it has.
    ended: Lock<Option<Error>>,
    close: Notify,
}

struct Outgoing {
    frame: Vec<Bytes>,
    /// `None` = the broker does not answer (`acks=0`).
    correlation: Option<i32>,
    reply: oneshot::Sender<Result<Bytes, Failure>>,
}

struct Pending {
    correlation: i32,
    reply: oneshot::Sender<Result<Bytes, Failure>>,
}

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Bytes of the request may have reached the broker.
    pub(crate) sent: bool,
    pub(crate) error: Error,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let outcome = if failure.sent {
            Outcome::Unknown
        } else {
            Outcome::NotWritten
        };
        failure.error.with_outcome(outcome)
    }
}

/// An answer on its way.
pub(crate) struct Answering {
    reply: oneshot::Receiver<Result<Bytes, Failure>>,
    wire: Arc<Wire>,
    label: Arc<str>,
    /// Keeps the connection open until the answer is there.
    _open: mpsc::UnboundedSender<Outgoing>,
}

impl Answering {
    /// Waits for the answer, for at most `limit`. After that the connection is closed, since the
    /// answers behind it can't come either.
    ///
    /// Dropping it leaves the request on its way; its answer is then thrown away.
    pub(crate) async fn wait(self, limit: Duration) -> Result<Bytes, Failure> {
        match timeout(limit, self.reply).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_dropped)) => Err(self.wire.failure(true)),
            Err(_elapsed) => {
                let message = format!("no answer within {limit:?}");
                let error = Error::new(ErrorKind::RequestTimeout, message).with_broker(&self.label);
                self.wire.end(error.clone());
                Err(Failure { sent: true, error })
            }
        }
    }
}

impl Connection {
    /// Takes over a fresh stream: starts its driver, and agrees on versions.
    pub(super) async fn establish(
        net: &Net,
        stream: Stream,
        label: Arc<str>,
    ) -> Result<Connection, Error> {
        let (outgoing, requests) = mpsc::unbounded_channel();
        let wire = Arc::new(Wire {
            pending: Lock::new(VecDeque::new()),
            ended: Lock::new(None),
            close: Notify::new(),
        });
        let client_id = &net.settings.client_id;
        let mut connection = Connection {
            outgoing,
            correlation: AtomicI32::new(0),
            client_id: (!client_id.is_empty()).then(|| client_id.as_str().into()),
            label: label.clone(),
            versions: Versions::default(),
            wire: wire.clone(),
        };
        net.tasks.spawn(drive(
            stream,
            requests,
            wire,
            label,
            net.settings.connections_max_idle,
        ));
        connection.versions = connection.negotiate(net.settings.request_timeout).await?;
        Ok(connection)
    }

    /// ApiVersions, by KIP-511: in a version that the broker may not know, then in version 0.
    async fn negotiate(&self, limit: Duration) -> Result<Versions, Error> {
        const KEY: ApiKey = ApiKey::ApiVersions;
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str(CLIENT_SOFTWARE_NAME))
            .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
        for version in [3, 0] {
            let request = if version == 0 {
                ApiVersionsRequest::default()
            } else {
                request.clone()
            };
            let (frame, correlation) = self.encode(KEY, version, &Request::ApiVersions(request))?;
            let answer = self
                .submit(frame, correlation)
                .wait(limit)
                .await
                .map_err(Error::from)?;
            let Response::ApiVersions(response) = self.decode(KEY, version, answer)? else {
                return Err(self.malformed("another API's answer"));
            };
            if let Some(reason) = unready_reason(&response) {
                return Err(Error::new(ErrorKind::NotServing, reason).with_broker(&self.label));
            }
            match ErrorCode::from_code(response.error_code) {
                ErrorCode::None => return Ok(Versions::from_response(&response)),
                ErrorCode::UnsupportedVersion if version > 0 => {}
                code => {
                    return Err(Error::broker(code, None)
                        .with_api("ApiVersions")
                        .with_broker(&self.label));
                }
            }
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            "the broker does not answer ApiVersions",
        ))
    }

    /// The broker, for messages.
    pub(crate) fn label(&self) -> &Arc<str> {
        &self.label
    }

    /// Whether requests can still be made.
    pub(crate) fn is_open(&self) -> bool {
        self.wire.ended.lock().is_none()
    }

    /// Closes it; what is on its way fails with `error`.
    pub(crate) fn close(&self, error: Error) {
        self.wire.end(error);
    }

    /// The version of an API that both sides speak best.
    ///
    /// # Errors
    /// Kind `Unsupported`.
    pub(crate) fn version<A: Api>(&self) -> Result<i16, Error> {
        self.versions
            .pick::<A>()
            .map_err(|error| error.with_broker(&self.label))
    }

    /// One typed call: `build` makes the request for the version that was agreed on.
    ///
    /// # Errors
    /// Disconnected, RequestTimeout, Unsupported, Malformed; their outcome says whether the request
    /// may have reached the broker.
    pub(crate) async fn call<A: Api>(
        &self,
        limit: Duration,
        build: impl FnOnce(i16) -> A,
    ) -> Result<A::Response, Error> {
        let version = self.version::<A>()?;
        let (frame, correlation) = self.encode(A::KEY, version, &build(version).into_request())?;
        let answering = self.submit(frame, correlation);
        let answer = answering
            .wait(limit)
            .await
            .map_err(|failure| match failure.sent {
                true => A::lost(failure.error),
                false => Error::from(failure).with_api(A::NAME),
            })?;
        self.typed::<A>(version, answer)
    }

    /// Reads an answer to the request `A`.
    pub(crate) fn typed<A: Api>(&self, version: i16, answer: Bytes) -> Result<A::Response, Error> {
        let response = self.decode(A::KEY, version, answer).map_err(A::lost)?;
        A::from_response(response).ok_or_else(|| self.malformed("another API's answer"))
    }

    /// A frame for [`Connection::submit`], and its correlation id.
    pub(crate) fn encode(
        &self,
        key: ApiKey,
        version: i16,
        request: &Request,
    ) -> Result<(Vec<Bytes>, Option<i32>), Error> {
        let correlation = self.next_correlation();
        let frame = corduroy_protocol::encode_request(
            key,
            version,
            correlation,
            self.client_id.as_deref(),
            request,
        )
        .map_err(|error| {
            Error::new(
                ErrorKind::InvalidRecord,
                format!("cannot encode a request: {error}"),
            )
            .with_broker(&self.label)
        })?;
        Ok((vec![frame], Some(correlation)))
    }

    /// The id of the next request.
    pub(crate) fn next_correlation(&self) -> i32 {
        self.correlation.fetch_add(1, Ordering::Relaxed) & i32::MAX
    }

    /// The name that this client gives itself.
    pub(crate) fn client_id(&self) -> Option<&str> {
        self.client_id.as_deref()
    }

    /// Queues a frame behind the earlier ones, at once. Without a `correlation` the broker does not
    /// answer: then the (empty) answer means that the frame was written to the socket.
    pub(crate) fn submit(&self, frame: Vec<Bytes>, correlation: Option<i32>) -> Answering {
        let (reply, answer) = oneshot::channel();
        let outgoing = Outgoing {
            frame,
            correlation,
            reply,
        };
        if let Err(mpsc::error::SendError(outgoing)) = self.outgoing.send(outgoing) {
            // The receiver may have gone meanwhile as well.
            let _ = outgoing.reply.send(Err(self.wire.failure(false)));
        }
        Answering {
            reply: answer,
            wire: self.wire.clone(),
            label: self.label.clone(),
            _open: self.outgoing.clone(),
        }
    }

    fn decode(&self, key: ApiKey, version: i16, answer: Bytes) -> Result<Response, Error> {
        corduroy_protocol::decode_response(key, version, answer)
            .map(|(_, response)| response)
            .map_err(|error| self.malformed(&error.to_string()))
    }

    fn malformed(&self, what: &str) -> Error {
        let error = Error::new(
            ErrorKind::Malformed,
            format!("cannot read an answer: {what}"),
        )
        .with_broker(&self.label);
        self.wire.end(error.clone());
        error
    }
}

impl Wire {
    /// Ends the connection for the first reason given.
    fn end(&self, error: Error) {
        self.ended.lock().get_or_insert(error);
        self.close.notify_one();
    }

    fn failure(&self, sent: bool) -> Failure {
        let error = self.ended.lock().clone();
        let error = error
            .unwrap_or_else(|| Error::new(ErrorKind::Disconnected, "the connection was closed"));
        Failure { sent, error }
    }
}

impl Versions {
    fn from_response(response: &ApiVersionsResponse) -> Versions {
        let ranges = response
            .api_keys
            .iter()
            .map(|api| (api.api_key, (api.min_version, api.max_version)))
            .collect();
        Versions { ranges }
    }

    fn pick<A: Api>(&self) -> Result<i16, Error> {
        let unsupported = |why: String| Error::new(ErrorKind::Unsupported, why).with_api(A::NAME);
        let Some((min, max)) = self.ranges.get(&(A::KEY as i16)).copied() else {
            return Err(unsupported("the broker does not offer this API".to_owned()));
        };
        let (our_min, our_max) = A::VERSIONS;
        let version = max.min(our_max);
        if version < min.max(our_min) {
            return Err(unsupported(format!(
                "the broker speaks versions {min} to {max}, this client {our_min} to {our_max}"
            )));
        }
        Ok(version)
    }
}

/// Runs both directions until either ends or somebody closes; then fails what is left.
async fn drive(
    stream: Stream,
    mut requests: mpsc::UnboundedReceiver<Outgoing>,
    wire: Arc<Wire>,
    label: Arc<str>,
    idle_max: Duration,
) {
    let (mut reader, mut writer) = stream.into_split();
    let ended = tokio::select! {
        ended = send_requests(&mut writer, &mut requests, &wire, idle_max) => ended,
        ended = take_answers(&mut reader, &wire) => ended,
        () = wire.close.notified() => Err(io::ErrorKind::ConnectionAborted.into()),
    };
    wire.end(match ended {
        Ok(why) => Error::new(ErrorKind::Disconnected, why).with_broker(&label),
        Err(error) => Error::new(
            ErrorKind::Disconnected,
            format!("the connection broke: {error}"),
        )
        .with_broker(&label)
        .with_source(error),
    });
    requests.close();
    let pending = std::mem::take(&mut *wire.pending.lock());
    for request in pending {
        // Who gave up waiting needs no answer.
        let _ = request.reply.send(Err(wire.failure(true)));
    }
    while let Ok(request) = requests.try_recv() {
        let _ = request.reply.send(Err(wire.failure(false)));
    }
}

/// Writes requests in the order in which they come. Ends when no handle is left, or when the
/// connection has been idle.
async fn send_requests(
    writer: &mut WriteHalf,
    requests: &mut mpsc::UnboundedReceiver<Outgoing>,
    wire: &Wire,
    idle_max: Duration,
) -> io::Result<&'static str> {
    let mut chunks = Vec::new();
    let mut unanswered = Vec::new();
    loop {
        let first = match timeout(idle_max, requests.recv()).await {
            Ok(Some(first)) => first,
            Ok(None) => return Ok("the connection was closed by this client"),
            Err(_elapsed) if wire.pending.lock().is_empty() => {
                return Ok("the connection was idle (connections.max.idle.ms)");
            }
            Err(_elapsed) => continue,
        };
        let mut next = Some(first);
        let mut taken = 0;
        while let Some(request) = next {
            taken += 1;
            chunks.extend(request.frame);
            // Counted as sent from here on: a broken write may have carried any part of it.
            match request.correlation {
                Some(correlation) => {
                    let pending = Pending {
                        correlation,
                        reply: request.reply,
                    };
                    wire.pending.lock().push_back(pending);
                }
                None => unanswered.push(request.reply),
            }
            next = if taken < COALESCED_REQUESTS_MAX {
                requests.try_recv().ok()
            } else {
                None
            };
        }
        let written = frame::write(writer, &mut chunks).await;
        chunks.clear();
        let broke = written.is_err();
        for reply in unanswered.drain(..) {
            let answer = if broke {
                Err(wire.failure(true))
            } else {
                Ok(Bytes::new())
            };
            let _ = reply.send(answer);
        }
        written?;
    }
}

/// Hands answers to the requests in front. Ends when the broker closes.
async fn take_answers(reader: &mut ReadHalf, wire: &Wire) -> io::Result<&'static str> {
    let mut buffer = BytesMut::new();
    loop {
        let Some(answer) = frame::read(reader, &mut buffer).await? else {
            return Ok("the broker closed the connection");
        };
        // `frame::read` gives four bytes or more.
        let correlation = i32::from_be_bytes([answer[0], answer[1], answer[2], answer[3]]);
        let pending = wire.pending.lock().pop_front();
        match pending {
            Some(pending) if pending.correlation == correlation => {
                let _ = pending.reply.send(Ok(answer));
            }
            other => {
                let expected = other.as_ref().map(|pending| pending.correlation);
                // Put back so that it fails with the others.
                wire.pending.lock().extend(other);
                let what = format!("answer {correlation} where {expected:?} was expected");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
}
