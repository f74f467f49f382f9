//! Live traffic: orders at a steady rate, each remembered until its fate is known.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use corduroy_client::{Acks, Client, Outcome, Producer, Record, Ticket};
use corduroy_env::Env;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::ledger::{Ledger, Place, RecordId};
use super::sample::{self, CUSTOMERS, TOPIC};
use crate::cli::{CliError, CliResult, meanwhile};

/// How often records that are due go out.
const TICK: Duration = Duration::from_millis(5);

/// Records on their way; beyond it the traffic waits for the cluster.
const IN_FLIGHT_MAX: usize = 50_000;

/// A producer at work.
pub(super) struct Traffic {
    ledger: Rc<RefCell<Ledger>>,
    is_stopping: Rc<Cell<bool>>,
    task: oneshot::Receiver<CliResult>,
}

impl Traffic {
    /// Starts to produce `rate` records a second with acks=all.
    pub(super) fn start(env: &Env, client: &Client, rate: u32) -> Traffic {
        let producer = client.producer().acks(Acks::All).build();
        let ledger = Rc::new(RefCell::new(Ledger::default()));
        let is_stopping = Rc::new(Cell::new(false));
        let sender = Sender {
            env: env.clone(),
            producer,
            ledger: ledger.clone(),
            is_stopping: is_stopping.clone(),
            started: env.now(),
            in_flight: JoinSet::new(),
        };
        let task = meanwhile(env, sender.run(rate));
        Traffic {
            ledger,
            is_stopping,
            task,
        }
    }

    /// What was sent and acknowledged so far.
    pub(super) fn ledger(&self) -> &RefCell<Ledger> {
        &self.ledger
    }

    /// Sends nothing more and waits until the fate of every record is known.
    pub(super) async fn stop(self) -> CliResult<Rc<RefCell<Ledger>>> {
        self.is_stopping.set(true);
        self.task
            .await
            .map_err(|_| CliError::failed("the demo's traffic panicked"))??;
        Ok(self.ledger)
    }
}

struct Sender {
    env: Env,
    producer: Producer,
    ledger: Rc<RefCell<Ledger>>,
    is_stopping: Rc<Cell<bool>>,
    started: Instant,
    in_flight: JoinSet<()>,
}

impl Sender {
    async fn run(mut self, rate: u32) -> CliResult {
        let mut ticks = tokio::time::interval(TICK);
        let mut sent: u64 = 0;
        while !self.is_stopping.get() {
            ticks.tick().await;
            let elapsed = self.env.now() - self.started;
            let due = (elapsed.as_secs_f64() * f64::from(rate)) as u64;
            while sent < due && !self.is_stopping.get() {
                self.send(sent).await?;
                sent += 1;
            }
        }
        while self.in_flight.join_next().await.is_some() {}
        Ok(())
    }

    /// Customers take turns, so that the numbers of each ascend.
    async fn send(&mut self, sequence: u64) -> CliResult {
        while self.in_flight.try_join_next().is_some() {}
        while self.in_flight.len() >= IN_FLIGHT_MAX {
            self.in_flight.join_next().await;
        }
        let customers = u64::from(CUSTOMERS);
        let id = RecordId {
            key: (sequence % customers) as u32,
            number: sequence / customers + 1,
        };
        self.ledger.borrow_mut().sent(id);
        let record = Record::to(TOPIC)
            .key(sample::key(id))
            .value(sample::value(id));
        match self.producer.queue(record).await {
            Ok(ticket) => {
                let ledger = self.ledger.clone();
                let (env, started) = (self.env.clone(), self.started);
                self.in_flight
                    .spawn_local(settle(ledger, id, ticket, env, started));
            }
            Err(error) => {
                let may_exist = error.outcome() != Outcome::NotWritten;
                self.ledger.borrow_mut().failed(id, may_exist);
                tracing::debug!(%error, "a record could not be queued");
            }
        }
        Ok(())
    }
}

/// Writes the fate of one record down.
async fn settle(
    ledger: Rc<RefCell<Ledger>>,
    id: RecordId,
    ticket: Ticket,
    env: Env,
    started: Instant,
) {
    let result = ticket.await;
    let mut ledger = ledger.borrow_mut();
    match result {
        Ok(metadata) => match metadata.offset {
            Some(offset) => {
                let place = Place {
                    partition: metadata.partition,
                    offset,
                };
                ledger.acknowledged(id, place, env.now() - started);
            }
            // A duplicate whose place the broker has forgotten: it is there, somewhere.
            None => ledger.acknowledged_somewhere(id),
        },
        Err(error) => {
            tracing::debug!(%error, "a record failed");
            ledger.failed(id, error.outcome() != Outcome::NotWritten);
        }
    }
}
