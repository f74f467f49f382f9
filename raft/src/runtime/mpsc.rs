//! Many senders, one receiver, one thread.
//!
//! `send` never waits: the `buffer` that openraft asks for is a hint. Its core sends to its own
//! notification channel, so a full one would wait for itself for ever. What bounds the queues is
//! outside: the proposal door, the window of every append stream, one open read barrier.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use openraft_rt::mpsc::{Mpsc, MpscReceiver, MpscSender, MpscWeakSender, SendError, TryRecvError};

struct Channel<T> {
    queue: RefCell<VecDeque<T>>,
    waker: RefCell<Option<Waker>>,
    senders: Cell<usize>,
    receiver_alive: Cell<bool>,
}

impl<T> Channel<T> {
    fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The channel family.
pub struct ShardMpsc;

/// A sending half.
pub struct Sender<T>(Rc<Channel<T>>);

/// A sending half that does not keep the channel open.
pub struct WeakSender<T>(Weak<Channel<T>>);

/// The receiving half.
pub struct Receiver<T>(Rc<Channel<T>>);

impl Mpsc for ShardMpsc {
    type Sender<T> = Sender<T>;
    type Receiver<T> = Receiver<T>;
    type WeakSender<T> = WeakSender<T>;

    fn channel<T>(_buffer: usize) -> (Sender<T>, Receiver<T>) {
        let channel = Rc::new(Channel {
            queue: RefCell::new(VecDeque::new()),
            waker: RefCell::new(None),
            senders: Cell::new(1),
            receiver_alive: Cell::new(true),
        });
        (Sender(channel.clone()), Receiver(channel))
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.set(self.0.senders.get() + 1);
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let left = self.0.senders.get() - 1;
        self.0.senders.set(left);
        if left == 0 {
            self.0.wake();
        }
    }
}

impl<T> MpscSender<ShardMpsc, T> for Sender<T> {
    async fn send(&self, msg: T) -> Result<(), SendError<T>> {
        if !self.0.receiver_alive.get() {
            return Err(SendError(msg));
        }
        self.0.queue.borrow_mut().push_back(msg);
        self.0.wake();
        Ok(())
    }

    fn downgrade(&self) -> WeakSender<T> {
        WeakSender(Rc::downgrade(&self.0))
    }
}

impl<T> Clone for WeakSender<T> {
    fn clone(&self) -> Self {
        WeakSender(self.0.clone())
    }
}

impl<T> MpscWeakSender<ShardMpsc, T> for WeakSender<T> {
    fn upgrade(&self) -> Option<Sender<T>> {
        let channel = self.0.upgrade()?;
        if channel.senders.get() == 0 {
            return None;
        }
        channel.senders.set(channel.senders.get() + 1);
        Some(Sender(channel))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.receiver_alive.set(false);
        // Dropped outside the borrow: a message may own a sender of this very channel.
        let queued = std::mem::take(&mut *self.0.queue.borrow_mut());
        drop(queued);
    }
}

impl<T> MpscReceiver<T> for Receiver<T> {
    async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| {
            let next = self.0.queue.borrow_mut().pop_front();
            if next.is_some() {
                return Poll::Ready(next);
            }
            if self.0.senders.get() == 0 {
                return Poll::Ready(None);
            }
            let mut waker = self.0.waker.borrow_mut();
            match &mut *waker {
                Some(known) if known.will_wake(cx.waker()) => {}
                slot => *slot = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }

    fn try_recv(&mut self) -> Result<T, TryRecvError> {
        match self.0.queue.borrow_mut().pop_front() {
            Some(msg) => Ok(msg),
            None if self.0.senders.get() == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
}
