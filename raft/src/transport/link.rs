//! This shard's own connection to one peer node: dialled on demand, redialled after a pause.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use bytes::Bytes;
use corduroy_record::NodeId;
use tokio::time::{Duration, Instant};

use super::inbound::{ReplyPath, read_frames};
use super::outbox::{Outbox, Packed};
use super::switchboard::Switchboard;
use crate::incarnations::Contact;
use crate::wire::{Beat, Hello, HelloError, Message, Purpose, offer_hello};

/// The peer cannot be reached right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkDown;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not dialled, or broken: the next message dials.
    Idle,
    /// Messages queue until the dial ends.
    Dialling,
    Open,
    /// The last dial failed: refused until then.
    Pausing {
        until: Instant,
    },
    Closed,
}

/// The outgoing connection to one peer node.
pub(crate) struct Link {
    peer: NodeId,
    board: Weak<Switchboard>,
    phase: Cell<Phase>,
    outbox: RefCell<Rc<Outbox>>,
    failures: Cell<u32>,
    /// With whom it is open.
    contact: RefCell<Option<Rc<Contact>>>,
    task: RefCell<Option<tokio::task::JoinHandle<()>>>,
}

impl Link {
    pub(super) fn new(peer: NodeId, board: Weak<Switchboard>) -> Rc<Link> {
        Rc::new(Link {
            peer,
            board,
            phase: Cell::new(Phase::Idle),
            outbox: RefCell::new(Rc::new(Outbox::default())),
            failures: Cell::new(0),
            contact: RefCell::new(None),
            task: RefCell::new(None),
        })
    }

    /// The queue to write to, dialling first if need be.
    pub(crate) fn outbox(self: &Rc<Self>) -> Result<Rc<Outbox>, LinkDown> {
        match self.phase.get() {
            Phase::Closed => return Err(LinkDown),
            Phase::Dialling | Phase::Open => {}
            Phase::Pausing { until } if Instant::now() < until => return Err(LinkDown),
            Phase::Idle | Phase::Pausing { .. } => self.dial()?,
        }
        Ok(self.outbox.borrow().clone())
    }

    pub(crate) fn send(
        self: &Rc<Self>,
        message: &Message,
        payload: Vec<Bytes>,
    ) -> Result<(), LinkDown> {
        if self.outbox()?.push(message, payload) {
            Ok(())
        } else {
            Err(LinkDown)
        }
    }

    pub(crate) fn pack(self: &Rc<Self>, add: impl FnOnce(&mut Packed)) -> Result<(), LinkDown> {
        if self.outbox()?.pack(add) {
            Ok(())
        } else {
            Err(LinkDown)
        }
    }

    /// Adds a beat, which may wait for those of other groups, no longer than `hold`.
    pub(crate) fn pack_beat(self: &Rc<Self>, beat: Beat, hold: Duration) -> Result<(), LinkDown> {
        if self.outbox()?.pack_beat(beat, hold) {
            Ok(())
        } else {
            Err(LinkDown)
        }
    }

    pub(super) fn release_beats(&self) {
        self.outbox.borrow().release_beats();
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.outbox.borrow().queued_bytes()
    }

    pub(super) fn forget_failures(&self) {
        self.failures.set(0);
        if matches!(self.phase.get(), Phase::Pausing { .. }) {
            self.phase.set(Phase::Idle);
        }
    }

    /// Leaves a connection to a process whose place another one has taken; `true` if it did.
    pub(super) fn leave_muted(&self) -> bool {
        let contact = self.contact.borrow();
        if !contact.as_ref().is_some_and(|c| c.is_muted()) {
            return false;
        }
        drop(contact);
        self.end_task();
        self.phase.set(Phase::Idle);
        true
    }

    pub(super) fn close(&self) {
        self.phase.set(Phase::Closed);
        self.end_task();
    }

    fn end_task(&self) {
        self.outbox.borrow().close();
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
        self.contact.borrow_mut().take();
    }

    fn dial(self: &Rc<Self>) -> Result<(), LinkDown> {
        let Some(board) = self.board.upgrade().filter(|board| board.speaks()) else {
            return Err(LinkDown);
        };
        self.phase.set(Phase::Dialling);
        *self.outbox.borrow_mut() = Rc::new(Outbox::new(board.counts.clone()));
        let link = self.clone();
        let env = board.env.clone();
        let task = env.spawn_local(async move { link.run(board).await });
        *self.task.borrow_mut() = Some(task);
        Ok(())
    }

    async fn run(self: Rc<Self>, board: Rc<Switchboard>) {
        let outbox = self.outbox.borrow().clone();
        let dialled = tokio::time::timeout(board.config.connect_max, self.connect(&board)).await;
        let opened = match dialled {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(peer = %self.peer, %error, "dialling a peer failed");
                None
            }
            Err(_) => {
                tracing::debug!(peer = %self.peer, "dialling a peer took too long");
                None
            }
        };
        if let Some((stream, contact)) = opened
            && self.phase.get() == Phase::Dialling
        {
            self.failures.set(0);
            self.phase.set(Phase::Open);
            let contact = Rc::new(contact);
            *self.contact.borrow_mut() = Some(contact.clone());
            let (read, mut write) = stream.into_split();
            let reply = ReplyPath::Connection(outbox.clone());
            // Either half ending ends the connection, and so does a refusal by any peer: from then
            // on this process has no vote, and acknowledges nothing.
            tokio::select! {
                biased;
                () = board.identity.incarnations.until_silent() => {}
                read = read_frames(&board, self.peer, Some(&contact), read, reply) => {
                    if let Err(error) = read {
                        tracing::debug!(peer = %self.peer, %error, "a peer connection ended");
                    }
                }
                written = outbox.write_to(&mut write) => {
                    if let Err(error) = written {
                        tracing::debug!(peer = %self.peer, %error, "a peer connection broke");
                    }
                }
            }
        } else {
            self.failures.set(self.failures.get().saturating_add(1));
        }
        outbox.close();
        self.contact.borrow_mut().take();
        if self.phase.get() != Phase::Closed {
            self.phase.set(self.pause(&board));
        }
        board.link_broke(self.peer);
    }

    /// After a failed dial a growing pause; after a connection that worked, none.
    fn pause(&self, board: &Switchboard) -> Phase {
        let failures = self.failures.get();
        if failures == 0 {
            return Phase::Idle;
        }
        let pause = board
            .config
            .reconnect_min
            .saturating_mul(1 << failures.min(10).saturating_sub(1))
            .min(board.config.reconnect_max);
        Phase::Pausing {
            until: board.env.now() + pause,
        }
    }

    async fn connect(
        &self,
        board: &Switchboard,
    ) -> Result<(corduroy_env::Stream, Contact), HelloError> {
        let Some(addr) = board.book.get(self.peer) else {
            return Err(std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "no address of this node is known",
            )
            .into());
        };
        let mut stream = board.env.connect(addr).await?;
        let hello = Hello {
            purpose: Purpose::Peer,
            cluster: board.identity.cluster.get(),
            node: board.identity.node,
            target_node: self.peer,
            incarnation: board.identity.incarnation,
            target_shard: board.identity.shard,
            refusal: None,
        };
        let theirs = match offer_hello(&mut stream, &hello).await {
            Err(HelloError::Twin { by, refusal, .. }) => {
                board.identity.incarnations.refused_by(by, refusal);
                return Err(HelloError::Twin {
                    node: hello.node,
                    by,
                    refusal,
                });
            }
            offered => offered?,
        };
        let admitted = board.admit(&theirs).await;
        let contact = admitted.map_err(|refusal| HelloError::Twin {
            node: theirs.node,
            by: hello.node,
            refusal,
        })?;
        Ok((stream, contact))
    }
}
