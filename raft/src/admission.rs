//! "Would you take me for this node?": asked of others before a process speaks as a node, so that
//! one with a copied data directory has neither voted nor led by the time it is refused.
//!
//! Whoever says yes reserves the place as long as the connection stays open and pings come on it.

use std::net::SocketAddr;
use std::time::Duration;

use corduroy_env::{Env, Stream};
use corduroy_record::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::config::{AddressBook, Identity, RaftConfig};
use crate::error::CallError;
use crate::incarnations::{Contact, Speaker, TwinRefusal};
use crate::wire::{
    FrameEncoder, FrameReader, Hello, HelloError, Message, Purpose, WireError, answer_hello,
    check_hello, offer_hello,
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
    /// How often it says that it still wants the place.
    pub ping_interval: Duration,
}

/// A node's answer.
#[derive(Debug)]
pub enum Admission {
    /// The place is the asker's if it wants it, and nobody else's while this is held.
    Reserved(Reservation),
    /// Another process has it.
    Refused {
        /// Who answers; the asker's own id if it is the other process itself.
        by: NodeId,
        /// Why not.
        refusal: TwinRefusal,
        /// Where nodes reach the other process, if the answerer knows.
        registered: Option<SocketAddr>,
    },
}

/// A node's place, kept free for this process by one peer. Dropping it lets go.
#[derive(Debug)]
pub struct Reservation(JoinHandle<()>);

impl Reservation {
    /// Whether the peer still keeps it.
    pub fn holds(&self) -> bool {
        !self.0.is_finished()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Asks whoever listens at `addr`.
///
/// # Errors
/// [`CallError::Unreachable`]: nobody listens there. Otherwise somebody does, who does not answer in
/// time, or not for this cluster: such an address knows nothing of the asker's node yet.
pub async fn ask_admission(
    env: &Env,
    addr: SocketAddr,
    ask: AdmissionAsk,
    timeout: Duration,
) -> Result<Admission, CallError> {
    let connected = tokio::time::timeout(timeout, env.connect(addr)).await;
    let Ok(Ok(stream)) = connected else {
        return Err(CallError::Unreachable);
    };
    tokio::time::timeout(timeout, exchange(env, stream, ask))
        .await
        .unwrap_or(Err(CallError::Timeout))
}

async fn exchange(
    env: &Env,
    mut stream: Stream,
    ask: AdmissionAsk,
) -> Result<Admission, CallError> {
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
        Ok(_) => {
            let holding = hold(env.clone(), stream, ask.ping_interval);
            Ok(Admission::Reserved(Reservation(env.spawn_local(holding))))
        }
        Err(HelloError::Twin { by, refusal, .. }) => Ok(Admission::Refused {
            by,
            refusal,
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

/// Pings until the connection ends. Who reserves nothing (an older release) closes it at once.
async fn hold(env: Env, stream: Stream, ping_interval: Duration) {
    let (read, mut write) = stream.into_split();
    let mut reader = FrameReader::new(read);
    let pings = async {
        let mut encoder = FrameEncoder::default();
        for count in 1.. {
            env.sleep(ping_interval).await;
            let Ok(ping) = encoder.encode(&Message::Ping { count }, 0) else {
                return;
            };
            if write.write_all(&ping).await.is_err() {
                return;
            }
        }
    };
    let pongs = async { while reader.next().await.is_ok() {} };
    tokio::select! {
        () = pings => {}
        () = pongs => {}
    }
}

/// Answers those who ask, from the moment when this node knows who it is: it may itself be asking.
#[derive(Clone, Debug)]
pub struct AdmissionDesk {
    /// The seam.
    pub env: Env,
    /// Timing.
    pub config: RaftConfig,
    /// This process.
    pub identity: Identity,
    /// Where other nodes are registered.
    pub book: AddressBook,
}

impl AdmissionDesk {
    /// Answers one asker, and keeps its place while it is heard.
    ///
    /// # Errors
    /// The asker is refused or speaks another protocol; or, when it has got what it wanted or has
    /// ended, its connection.
    pub async fn serve(&self, mut stream: Stream, theirs: Hello) -> Result<(), HelloError> {
        let mut ours = Hello {
            purpose: theirs.purpose,
            cluster: self.identity.cluster.get(),
            node: self.identity.node,
            target_node: theirs.node,
            incarnation: self.identity.incarnation,
            target_shard: 0,
            refusal: None,
        };
        // A stranger of another cluster has no place here.
        let fits = check_hello(&ours, &theirs).is_ok();
        let reserved = if fits {
            self.reserve(&theirs).await
        } else {
            Err(TwinRefusal::AnotherLives)
        };
        ours.refusal = reserved.as_ref().err().copied().filter(|_| fits);
        let answered = answer_hello(&mut stream, &ours, &theirs).await;
        let contact = match (answered, reserved) {
            (Ok(()), Ok(contact)) => contact,
            (Err(HelloError::Twin { .. }), _) => {
                return self.tell_registered(&mut stream, theirs.node).await;
            }
            (answered, _) => return answered,
        };
        let ended = self.keep(stream, contact).await;
        ended.map_err(|error| HelloError::Io(std::io::Error::other(error)))
    }

    async fn reserve(&self, theirs: &Hello) -> Result<Contact, TwinRefusal> {
        self.identity.refuse_own(theirs)?;
        let table = &self.identity.incarnations;
        let asker = Speaker::of(theirs);
        table.reserve(&self.env, asker, &self.config).await
    }

    async fn tell_registered(&self, stream: &mut Stream, node: NodeId) -> Result<(), HelloError> {
        let registered = self.book.get(node);
        let text = registered.map(|addr| addr.to_string()).unwrap_or_default();
        let head = FrameEncoder::default()
            .encode(&Message::CallAnswer { call: 0 }, text.len())
            .map_err(|error| HelloError::Io(std::io::Error::other(error)))?;
        stream.write_all(&head).await?;
        stream.write_all(text.as_bytes()).await?;
        Ok(())
    }

    async fn keep(&self, stream: Stream, contact: Contact) -> Result<(), WireError> {
        let (read, mut write) = stream.into_split();
        let mut reader = FrameReader::new(read);
        let mut encoder = FrameEncoder::default();
        loop {
            let frame = reader.next().await?;
            if contact.is_muted() {
                return Err(WireError::Closed);
            }
            contact.heard(self.env.now());
            if let Message::Ping { count } = frame.message()? {
                let pong = encoder.encode(&Message::Pong { count }, 0)?;
                write.write_all(&pong).await?;
            }
        }
    }
}
