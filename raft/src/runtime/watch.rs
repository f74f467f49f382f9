//! The last value of something, and a wake-up when it changes, on one thread.

use std::cell::{Cell, Ref, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use openraft_rt::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};

struct Shared<T> {
    value: RefCell<T>,
    version: Cell<u64>,
    senders: Cell<usize>,
    receivers: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
}

impl<T> Shared<T> {
    fn wake(&self) {
        if self.waiting.borrow().is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for waker in waiting.drain(..) {
            waker.wake();
        }
        // The allocation goes back: a watch fires for every log entry.
        let mut slot = self.waiting.borrow_mut();
        if slot.is_empty() {
            *slot = waiting;
        }
    }

    fn publish(&self) {
        self.version.set(self.version.get() + 1);
        self.wake();
    }
}

/// The channel family.
pub struct ShardWatch;

/// A sending half.
pub struct Sender<T>(Rc<Shared<T>>);

/// A receiving half, with the version that it has seen.
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    seen: u64,
}

impl Watch for ShardWatch {
    type Sender<T> = Sender<T>;
    type Receiver<T> = Receiver<T>;
    type Ref<'a, T: 'a> = Ref<'a, T>;

    fn channel<T>(init: T) -> (Sender<T>, Receiver<T>) {
        let shared = Rc::new(Shared {
            value: RefCell::new(init),
            version: Cell::new(0),
            senders: Cell::new(1),
            receivers: Cell::new(1),
            waiting: RefCell::new(Vec::new()),
        });
        (Sender(shared.clone()), Receiver { shared, seen: 0 })
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

impl<T> WatchSender<ShardWatch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.get() == 0 {
            return Err(SendError(value));
        }
        // Dropped after the borrow: an old value may own a receiver.
        let old = self.0.value.replace(value);
        self.0.publish();
        drop(old);
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let modified = modify(&mut self.0.value.borrow_mut());
        if modified {
            self.0.publish();
        }
        modified
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.0.value.borrow()
    }

    fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.set(self.0.receivers.get() + 1);
        Receiver {
            shared: self.0.clone(),
            seen: self.0.version.get(),
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.set(self.shared.receivers.get() + 1);
        Receiver {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.set(self.shared.receivers.get() - 1);
    }
}

impl<T> WatchReceiver<ShardWatch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        poll_fn(|cx| {
            let version = self.shared.version.get();
            if version != self.seen {
                self.seen = version;
                return Poll::Ready(Ok(()));
            }
            if self.shared.senders.get() == 0 {
                return Poll::Ready(Err(RecvError(())));
            }
            let mut waiting = self.shared.waiting.borrow_mut();
            if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.shared.value.borrow()
    }

    fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.seen = self.shared.version.get();
        self.shared.value.borrow()
    }
}
