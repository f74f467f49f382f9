//! Hands connections to shards: clients in turn, peers to the shard they ask for.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use corduroy_env::{Env, Listener, Stream};
use corduroy_protocol::{
    CLIENT_SOFTWARE_NAME, Request, Response, UNREADY_SINCE, decode_request, encode_response,
    unready_response,
};
use corduroy_raft::{AdmissionDesk, Purpose, read_hello, serve_anonymous};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::boot::CallAnswer;
use super::waiting::Waiting;
use crate::shard::{ShardHandle, ShardMessage};

/// Pause after a failed accept: most often the process is out of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Clients that are being told at the same time why they are turned away; others only are.
const TOLD_AT_ONCE_MAX: u32 = 64;
/// How long such a client may take to ask, and to take its answer.
const TELL_WAIT_MAX: Duration = Duration::from_secs(1);
/// The longest first request that is read for it: it names versions of software.
const QUESTION_BYTES_MAX: usize = 1024;

/// Accepts clients for ever; each goes to the next shard.
pub async fn accept_clients(env: Env, listener: Listener, handles: Vec<ShardHandle>) {
    let next = Cell::new(0usize);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "a client's connection could not be accepted");
                env.sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let turn = next.replace(next.get().wrapping_add(1));
        let Some(handle) = handles.get(turn % handles.len().max(1)) else {
            return;
        };
        match stream.detach() {
            Ok(stream) => {
                if handle.send(ShardMessage::Client(stream)).await.is_err() {
                    return;
                }
            }
            Err(error) => warn!(%error, "a client's connection could not be handed over"),
        }
    }
}

/// The clients' port of a node that does not serve yet: whoever connects is turned away at once,
/// rather than kept waiting for an answer that may be minutes away. Our own client is told why.
pub struct TurnedAway {
    stop: oneshot::Sender<()>,
    listener: oneshot::Receiver<Listener>,
}

impl TurnedAway {
    /// Turns clients away until [`TurnedAway::take`].
    pub fn start(env: &Env, listener: Listener, waiting: Waiting) -> TurnedAway {
        let (stop, mut stopped) = oneshot::channel();
        let (give_back, given_back) = oneshot::channel();
        let pausing = env.clone();
        let told = Rc::new(Cell::new(0));
        env.spawn_local(async move {
            loop {
                let accepted = tokio::select! {
                    biased;
                    // Also when the node gave up: then the listener ends with it.
                    _ = &mut stopped => break,
                    accepted = listener.accept() => accepted,
                };
                match accepted {
                    Ok((stream, addr)) => {
                        debug!(%addr, "a client is turned away: this node does not serve yet");
                        if told.get() >= TOLD_AT_ONCE_MAX {
                            continue;
                        }
                        told.set(told.get() + 1);
                        let (told, waiting) = (told.clone(), waiting.clone());
                        pausing.spawn_local(async move {
                            // A client that does not listen needs no answer.
                            let _gone = timeout(TELL_WAIT_MAX, tell_why(stream, &waiting)).await;
                            told.set(told.get() - 1);
                        });
                    }
                    Err(_) => pausing.sleep(ACCEPT_RETRY).await,
                }
            }
            let _gone = give_back.send(listener);
        });
        TurnedAway {
            stop,
            listener: given_back,
        }
    }

    /// The listener, from now on the caller's; none if its task has ended with the node.
    pub async fn take(self) -> Option<Listener> {
        let _gone = self.stop.send(());
        self.listener.await.ok()
    }
}

/// Reads one request. If it is a question of our own client about versions, answers why this node
/// does not serve; anybody else sees the connection close, as from a broker that is not there.
async fn tell_why(mut stream: Stream, waiting: &Waiting) -> io::Result<()> {
    let length = usize::try_from(stream.read_i32().await?).unwrap_or(usize::MAX);
    if length > QUESTION_BYTES_MAX {
        return Ok(());
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    let Ok((header, Request::ApiVersions(request))) = decode_request(frame.into()) else {
        return Ok(());
    };
    if header.api_version < UNREADY_SINCE || &*request.client_software_name != CLIENT_SOFTWARE_NAME
    {
        return Ok(());
    }
    let response = Response::ApiVersions(unready_response(&waiting.why()));
    let answer = encode_response(&header, &response).map_err(io::Error::other)?;
    stream.write_all(&answer).await?;
    stream.flush().await
}

/// What the peers' acceptor hands connections to, once it exists.
#[derive(Clone, Default)]
pub struct PeerTargets {
    inner: Rc<PeerTargetsInner>,
}

#[derive(Default)]
struct PeerTargetsInner {
    handles: std::cell::RefCell<Vec<ShardHandle>>,
    answer: std::cell::RefCell<Option<CallAnswer>>,
    desk: std::cell::RefCell<Option<AdmissionDesk>>,
}

impl PeerTargets {
    /// Who answers calls while the node has no place yet.
    pub fn set_answer(&self, answer: CallAnswer) {
        *self.inner.answer.borrow_mut() = Some(answer);
    }

    /// Who answers other processes that ask for their node's place, once this one knows who it is.
    pub fn set_desk(&self, desk: AdmissionDesk) {
        *self.inner.desk.borrow_mut() = Some(desk);
    }

    /// The shards, once the node has its place; they answer everything else from then on.
    pub fn set_shards(&self, handles: Vec<ShardHandle>) {
        *self.inner.handles.borrow_mut() = handles;
    }
}

/// Accepts peers for ever.
pub async fn accept_peers(env: Env, listener: Listener, targets: PeerTargets) {
    loop {
        match listener.accept().await {
            Ok((stream, addr)) => {
                let targets = targets.clone();
                env.spawn_local(async move {
                    if let Err(error) = take_peer(stream, targets).await {
                        debug!(%addr, %error, "a peer's connection was refused");
                    }
                });
            }
            Err(error) => {
                warn!(%error, "a peer's connection could not be accepted");
                env.sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn take_peer(mut stream: Stream, targets: PeerTargets) -> Result<(), String> {
    let hello = read_hello(&mut stream)
        .await
        .map_err(|error| error.to_string())?;
    let desk = targets.inner.desk.borrow().clone();
    if let Some(desk) = desk.filter(|_| hello.purpose == Purpose::Admission) {
        let served = desk.serve(stream, hello).await;
        return served.map_err(|error| error.to_string());
    }
    let handle = {
        let handles = targets.inner.handles.borrow();
        let shard = match hello.purpose {
            Purpose::Peer => usize::from(hello.target_shard) % handles.len().max(1),
            Purpose::Detector | Purpose::Anonymous | Purpose::Admission => 0,
        };
        handles.get(shard).cloned()
    };
    if let Some(handle) = handle {
        let stream = stream.detach().map_err(|error| error.to_string())?;
        let message = ShardMessage::PeerStream(stream, hello);
        return handle
            .send(message)
            .await
            .map_err(|error| error.to_string());
    }
    if hello.purpose != Purpose::Anonymous {
        return Err("this node has no id yet".to_owned());
    }
    let answer = targets.inner.answer.borrow().clone();
    let answer = answer.ok_or("this node is not ready to answer")?;
    serve_anonymous(stream, hello, move |request| answer(request))
        .await
        .map_err(|error| error.to_string())
}
