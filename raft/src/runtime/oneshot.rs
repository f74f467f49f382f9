//! One value, once, on one thread.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use openraft_rt::oneshot::{Oneshot, OneshotSender};

struct Slot<T> {
    value: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
    sender_alive: Cell<bool>,
    receiver_alive: Cell<bool>,
}

/// The channel family.
pub struct ShardOneshot;

/// The sending half.
pub struct Sender<T>(Rc<Slot<T>>);

/// The receiving half: a future of the value.
pub struct Receiver<T>(Rc<Slot<T>>);

/// The sender went away without a value.
#[derive(Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender was dropped without a value")
    }
}

impl std::error::Error for Closed {}

impl Oneshot for ShardOneshot {
    type Sender<T> = Sender<T>;
    type Receiver<T> = Receiver<T>;
    type ReceiverError = Closed;

    fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let slot = Rc::new(Slot {
            value: RefCell::new(None),
            waker: RefCell::new(None),
            sender_alive: Cell::new(true),
            receiver_alive: Cell::new(true),
        });
        (Sender(slot.clone()), Receiver(slot))
    }
}

impl<T> OneshotSender<T> for Sender<T> {
    fn send(self, value: T) -> Result<(), T> {
        if !self.0.receiver_alive.get() {
            return Err(value);
        }
        *self.0.value.borrow_mut() = Some(value);
        // The receiver is woken when `self` drops, right below.
        Ok(())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.sender_alive.set(false);
        let waker = self.0.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.receiver_alive.set(false);
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(value) = self.0.value.borrow_mut().take() {
            return Poll::Ready(Ok(value));
        }
        if !self.0.sender_alive.get() {
            return Poll::Ready(Err(Closed));
        }
        *self.0.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}
