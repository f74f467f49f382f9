//! "Would you take me for this node?": asked of others before a process speaks as a node, so that
//! one with a copied data directory has neither voted nor led by the time it is refused.

use std::net::SocketAddr;
use std::time::Duration;

use corduroy_env::{Env, Stream};
use corduroy_record::NodeId;
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

use crate::error::CallError;
use crate::incarnations::TwinRefusal;
use crate::wire::{
    FrameEncoder, FrameReader, Hello, HelloError, Message, Purpose, answer_hello, offer_hello,
};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionAsk {
    /// The node that the process wants to be.
    pub node: NodeId,
    /// The process.
    pub incarnation: u64,
    /// Its cluster, if known.
    pub cluster: Option<Uuid>,
}

/// A node's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Who answers; the asker's own id if it is the other process itself.
    pub by: NodeId,
    /// Why not; none if the process would be taken.
    pub refusal: Option<TwinRefusal>,
    /// With a refusal: where nodes reach the other process, if the answerer knows.
    pub registered: Option<SocketAddr>,
}

/// Asks whoever listens at `addr`.
///
/// # Errors
/// Nobody answers there in time, or not for this cluster: such an address knows nothing of the
/// asker's node.
pub async fn ask_admission(
    env: &Env,
    addr: SocketAddr,
    ask: AdmissionAsk,
    timeout: Duration,
) -> Result<Admission, CallError> {
    tokio::time::timeout(timeout, exchange(env, addr, ask))
        .await
        .unwrap_or(Err(CallError::Timeout))
}

async fn exchange(env: &Env, addr: SocketAddr, ask: AdmissionAsk) -> Result<Admission, CallError> {
    let mut stream = env
        .connect(addr)
        .await
        .map_err(|_| CallError::Unreachable)?;
    let hello = Hello {
        purpose: Purpose::Admission,
        cluster: ask.cluster,
        node: ask.node,
        target_node: NodeId::new(-1),
        incarnation: ask.incarnation,
        target_shard: 0,
        refusal: None,
    };
    match offer_hello(&mut stream, &hello).await {
        Ok(theirs) => Ok(Admission {
            by: theirs.node,
            refusal: None,
            registered: None,
        }),
        Err(HelloError::Twin { by, refusal, .. }) => Ok(Admission {
            by,
            refusal: Some(refusal),
            registered: read_registered(stream).await,
        }),
        Err(_) => Err(CallError::Protocol),
    }
}

/// The refusal stands without it.
async fn read_registered(stream: Stream) -> Option<SocketAddr> {
    let frame = FrameReader::new(stream).next().await.ok()?;
    let Ok(Message::CallAnswer { .. }) = frame.message() else {
        return None;
    };
    std::str::from_utf8(&frame.payload).ok()?.parse().ok()
}

/// Answers an asker; `ours` says whether it is refused.
pub(crate) async fn answer_admission(
    stream: &mut Stream,
    ours: &Hello,
    theirs: &Hello,
    registered: Option<SocketAddr>,
) -> Result<(), HelloError> {
    let answered = answer_hello(stream, ours, theirs).await;
    if let Err(HelloError::Twin { .. }) = &answered {
        let text = registered.map(|addr| addr.to_string()).unwrap_or_default();
        let head = FrameEncoder::default()
            .encode(&Message::CallAnswer { call: 0 }, text.len())
            .map_err(|error| HelloError::Io(std::io::Error::other(error)))?;
        stream.write_all(&head).await?;
        stream.write_all(text.as_bytes()).await?;
        return Ok(());
    }
    answered
}
