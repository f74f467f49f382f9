//! The machines that run: one set of tasks each, all on this thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::task::LocalSet;

use crate::network::Host;

/// The running machines. Clone = the same ones.
#[derive(Clone, Default)]
pub struct Machines(Rc<RefCell<BTreeMap<Host, LocalSet>>>);

impl Machines {
    /// Starts a machine with its first task.
    pub fn start(&self, host: Host, first: impl Future<Output = ()> + 'static) {
        let local = LocalSet::new();
        local.spawn_local(first);
        self.0.borrow_mut().insert(host, local);
    }

    /// Adds a task to a machine that runs.
    pub fn spawn(&self, host: Host, task: impl Future<Output = ()> + 'static) {
        if let Some(local) = self.0.borrow().get(&host) {
            local.spawn_local(task);
        }
    }

    /// Ends a machine: its tasks are dropped where they stand.
    pub fn stop(&self, host: Host) {
        let ended = self.0.borrow_mut().remove(&host);
        drop(ended);
    }

    /// Runs the machines while `control` lasts. Only `control` starts and stops machines.
    pub async fn run<T>(&self, control: impl Future<Output = T>) -> T {
        let mut control = pin!(control);
        poll_fn(|cx| {
            if let Poll::Ready(result) = control.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            self.poll_all(cx);
            Poll::Pending
        })
        .await
    }

    fn poll_all(&self, cx: &mut Context<'_>) {
        for local in self.0.borrow_mut().values_mut() {
            // A machine without tasks is done; it stays until it is stopped.
            let _idle = Pin::new(local).poll(cx);
        }
    }
}
