//! "Would you take me for this node?": asked of others before a process speaks as a node, so that
//! one with a copied data directory has neither voted nor led by the time it is refused.
//!
//! Whoever says yes reserves the place as long as the connection stays open and pings come on it.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use corduroy_env::{Env, Stream};
use corduroy_record::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::config::{AddressBook, Identity, RaftConfig};
use crate::error::CallError;
use crate::incarnations::{ADMISSION_ANSWER_MAX, Contact, Speaker, TwinRefusal};
use crate::wire::{
    FrameEncoder, FrameReader, Hello, HelloError, Message, Purpose, WireError, answer_hello,
    check_hello, offer_hello,
};

/// Processes that are being answered, or whose node's place is kept, at the same time: each is a
/// socket. Far more than the nodes of a cluster that start together.
const ADMISSIONS_OPEN_MAX: usize = 256;

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
    /// The asker has met itself, under another address than the one it is registered with: nobody
    /// has answered.
    Own,
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
/// [`CallError::Unreachable`]: nobody listens there. [`CallError::Timeout`]: somebody does, who may
/// know the asker's node, and does not answer in time. Otherwise it answers nothing, or not for this
/// cluster: such an address knows nothing of the asker's node yet.
pub async fn ask_admission(
    env: &Env,
    addr: SocketAddr,
    ask: AdmissionAsk,
) -> Result<Admission, CallError> {
    let connected = tokio::time::timeout(ADMISSION_ANSWER_MAX, env.connect(addr)).await;
    let Ok(Ok(stream)) = connected else {
        return Err(CallError::Unreachable);
    };
    tokio::time::timeout(ADMISSION_ANSWER_MAX, exchange(env, stream, ask))
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
        Ok(theirs) if Speaker::of(&theirs) == Speaker::of(&hello) => Ok(Admission::Own),
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
    env: Env,
    config: RaftConfig,
    identity: Identity,
    book: AddressBook,
    /// Askers with an open connection; at most [`ADMISSIONS_OPEN_MAX`].
    open: Rc<Cell<usize>>,
}

/// One asker's share of the limit.
struct Place(Rc<Cell<usize>>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl AdmissionDesk {
    /// The desk of the process `identity`, which finds in `book` where other nodes are registered.
    pub fn new(
        env: Env,
        config: RaftConfig,
        identity: Identity,
        book: AddressBook,
    ) -> AdmissionDesk {
        AdmissionDesk {
            env,
            config,
            identity,
            book,
            open: Rc::default(),
        }
    }

    /// Answers one asker, and keeps its place while it is heard.
    ///
    /// # Errors
    /// The asker is refused or speaks another protocol; or, when it has got what it wanted or has
    /// ended, its connection.
    pub async fn serve(&self, mut stream: Stream, theirs: Hello) -> Result<(), HelloError> {
        let _place = self.take_place()?;
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

    /// Beyond the limit the newest gets no answer, which counts as nobody's. A "free" that nothing
    /// keeps could be given to two, and a refusal would end a process that nobody stands against.
    fn take_place(&self) -> Result<Place, HelloError> {
        let open = self.open.get();
        if open >= ADMISSIONS_OPEN_MAX {
            return Err(HelloError::Crowded);
        }
        self.open.set(open + 1);
        Ok(Place(self.open.clone()))
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
        // Silent for longer it has lost the place to whoever asks; nobody waits for it for ever.
        let silence_max = self.config.down_after.max(self.config.ping_interval * 2);
        loop {
            let Ok(read) = tokio::time::timeout(silence_max, reader.next()).await else {
                return Err(WireError::Closed);
            };
            let frame = read?;
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

#[cfg(test)]
mod tests {
    use std::future::Future;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::config::ClusterTag;
    use crate::incarnations::Incarnations;
    use crate::wire::read_hello;

    /// Node 1's desk, of the process 7, which waits for nobody.
    fn desk() -> AdmissionDesk {
        let identity = Identity {
            node: NodeId::new(1),
            incarnation: 7,
            shard: 0,
            shards: 1,
            cluster: ClusterTag::unknown(),
            incarnations: Incarnations::default(),
        };
        let config = RaftConfig {
            ping_interval: Duration::from_millis(1),
            down_after: Duration::from_millis(1),
            ..RaftConfig::default()
        };
        AdmissionDesk::new(Env::real(), config, identity, AddressBook::new())
    }

    /// Has `check` talk to `desk` over a socket.
    fn with_desk<F: Future<Output = ()>>(
        desk: AdmissionDesk,
        check: impl FnOnce(Env, SocketAddr) -> F,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let env = Env::real();
            let any = ([127, 0, 0, 1], 0).into();
            let listener = env.listen(any).await.expect("a port");
            let addr = listener.local_addr().expect("its address");
            let serving = async {
                loop {
                    let (mut stream, _) = listener.accept().await.expect("a dialler");
                    if let Ok(hello) = read_hello(&mut stream).await {
                        let _ended = desk.serve(stream, hello).await;
                    }
                }
            };
            tokio::select! {
                () = serving => {}
                () = check(env.clone(), addr) => {}
            }
        });
    }

    fn hello_of(node: i32) -> Hello {
        Hello {
            purpose: Purpose::Admission,
            cluster: None,
            node: NodeId::new(node),
            target_node: NodeId::new(-1),
            incarnation: 7,
            target_shard: 0,
            refusal: None,
        }
    }

    fn ask_of(node: i32) -> AdmissionAsk {
        AdmissionAsk {
            node: NodeId::new(node),
            incarnation: 7,
            cluster: None,
            ping_interval: Duration::from_millis(1),
        }
    }

    #[test]
    fn whoever_meets_itself_is_told_nothing() {
        with_desk(desk(), |env, addr| async move {
            let own = ask_admission(&env, addr, ask_of(1)).await;
            assert!(matches!(own, Ok(Admission::Own)), "{own:?}");
            let other = ask_admission(&env, addr, ask_of(2)).await;
            assert!(matches!(other, Ok(Admission::Reserved(_))), "{other:?}");
        });
    }

    #[test]
    fn whoever_asks_and_falls_silent_is_let_go() {
        with_desk(desk(), |env, addr| async move {
            let mut stream = env.connect(addr).await.expect("connected");
            let answer = offer_hello(&mut stream, &hello_of(2)).await;
            assert!(answer.is_ok(), "{answer:?}");
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest).await;
            assert!(
                ended.is_err() || rest.is_empty(),
                "closed, and nothing said"
            );
        });
    }

    #[test]
    fn beyond_the_limit_nobody_is_answered() {
        let desk = desk();
        let mut places: Vec<Place> = (0..ADMISSIONS_OPEN_MAX)
            .map(|_| desk.take_place().expect("within the limit"))
            .collect();
        with_desk(desk.clone(), |env, addr| async move {
            let asked = ask_admission(&env, addr, ask_of(2)).await;
            assert!(matches!(asked, Err(CallError::Protocol)), "{asked:?}");
        });
        places.pop();
        with_desk(desk, |env, addr| async move {
            let asked = ask_admission(&env, addr, ask_of(2)).await;
            assert!(matches!(asked, Ok(Admission::Reserved(_))), "{asked:?}");
        });
    }
}
