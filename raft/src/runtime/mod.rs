//! The async runtime that openraft runs on: one thread, `Rc` channels, tokio's tasks and timers.
//!
//! openraft's core wakes its own tasks several times per log entry. With tokio's thread-safe
//! `watch` and `mpsc` those wake-ups are nearly half of the CPU of a round; on a shard nothing
//! crosses threads, so plain cells do. Absent on purpose: any atomic, any lock.

mod instant;
mod mpsc;
mod oneshot;
mod watch;

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) use instant::ShardInstant;

use openraft_rt::AsyncRuntime;

/// Deadlines nearer than this become one yield: tokio's timer has a resolution of 1 ms, and
/// openraft's flush forwarder asks for sleeps of 1 us, which would otherwise delay every commit.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// The runtime type that openraft is instantiated with.
#[derive(Debug)]
pub struct ShardRuntime;

thread_local! {
    // openraft asks for a generator through a static function, so the seed has to live here.
    static SEED: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

/// Seeds this thread's generator; the shard does it once from `Env`, so that one seed gives one
/// trace.
pub(crate) fn seed_randomness(seed: u64) {
    SEED.with(|cell| cell.set(cell.get() ^ seed));
}

/// SplitMix64 over the thread's seed. Election timeouts need spread, not secrecy.
pub struct ShardRng;

impl ShardRng {
    fn next(&mut self) -> u64 {
        SEED.with(|cell| {
            let state = cell.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
            cell.set(state);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        })
    }
}

impl rand::TryRng for ShardRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.next() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next())
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        for chunk in dst.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        Ok(())
    }
}

/// A sleep that is a timer, or one yield when the deadline is closer than the timer can tell.
pub enum ShardSleep {
    /// Ready on the second poll.
    Yield { polled: bool },
    /// A real timer.
    Timer(Pin<Box<tokio::time::Sleep>>),
}

impl Future for ShardSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.get_mut() {
            ShardSleep::Yield { polled: true } => Poll::Ready(()),
            ShardSleep::Yield { polled } => {
                *polled = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            ShardSleep::Timer(timer) => timer.as_mut().poll(cx),
        }
    }
}

/// openraft's mutexes guard state of one thread and are held across awaits.
#[expect(
    clippy::disallowed_types,
    reason = "openraft's trait asks for an async mutex"
)]
pub struct ShardMutex<T>(tokio::sync::Mutex<T>);

impl<T: 'static> openraft_rt::Mutex<T> for ShardMutex<T> {
    type Guard<'a> = tokio::sync::MutexGuard<'a, T>;

    #[expect(
        clippy::disallowed_types,
        reason = "openraft's trait asks for an async mutex"
    )]
    fn new(value: T) -> Self {
        ShardMutex(tokio::sync::Mutex::new(value))
    }

    async fn lock(&self) -> Self::Guard<'_> {
        self.0.lock().await
    }
}

/// A deadline passed.
#[derive(Debug)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadline has passed")
    }
}

/// A future with a deadline.
pub struct ShardTimeout<F>(Pin<Box<tokio::time::Timeout<F>>>);

impl<F: Future> Future for ShardTimeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0
            .as_mut()
            .poll(cx)
            .map(|done| done.map_err(|_| Elapsed))
    }
}

impl AsyncRuntime for ShardRuntime {
    type JoinError = tokio::task::JoinError;
    type JoinHandle<T: 'static> = tokio::task::JoinHandle<T>;
    type Sleep = ShardSleep;
    type Instant = ShardInstant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R>> = ShardTimeout<T>;
    type ThreadLocalRng = ShardRng;
    type Mpsc = mpsc::ShardMpsc;
    type Watch = watch::ShardWatch;
    type Oneshot = oneshot::ShardOneshot;
    type Mutex<T: 'static> = ShardMutex<T>;

    #[expect(
        clippy::disallowed_methods,
        reason = "openraft spawns through a static function that has no `Env`; this is its door"
    )]
    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + 'static,
        T::Output: 'static,
    {
        tokio::task::spawn_local(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        if duration < TIMER_RESOLUTION {
            return ShardSleep::Yield { polled: false };
        }
        ShardSleep::Timer(Box::pin(tokio::time::sleep(duration)))
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        // Never before the deadline: openraft's ticks wait for points of a fixed grid, and one that
        // came too early would be sent again and again until the clock is there.
        if deadline.tokio() <= tokio::time::Instant::now() {
            return ShardSleep::Yield { polled: false };
        }
        ShardSleep::Timer(Box::pin(tokio::time::sleep_until(deadline.tokio())))
    }

    fn timeout<R, F: Future<Output = R>>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        ShardTimeout(Box::pin(tokio::time::timeout(duration, future)))
    }

    fn timeout_at<R, F: Future<Output = R>>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        ShardTimeout(Box::pin(tokio::time::timeout_at(deadline.tokio(), future)))
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        join_error.is_panic()
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        ShardRng
    }

    fn new(_threads: usize) -> Self {
        ShardRuntime
    }

    // openraft never calls this one; its trait wants it for its own test suite. A runtime of our
    // own would be a second clock, so it runs on a fresh tokio one.
    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a current-thread runtime needs only an epoll descriptor");
        tokio::task::LocalSet::new().block_on(&runtime, future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft_rt::{
        Mpsc, MpscReceiver, MpscSender, MpscWeakSender, Oneshot, OneshotSender, TryRecvError,
        Watch, WatchReceiver, WatchSender,
    };

    fn run<F: Future>(future: F) -> F::Output {
        ShardRuntime.block_on(future)
    }

    #[test]
    fn mpsc_keeps_order_and_ends_with_its_last_sender() {
        run(async {
            let (tx, mut rx) = mpsc::ShardMpsc::channel::<u32>(1);
            let weak = tx.downgrade();
            for n in 0..3 {
                tx.send(n).await.expect("receiver lives");
            }
            assert_eq!(rx.try_recv(), Ok(0));
            assert_eq!(rx.recv().await, Some(1));
            assert!(weak.upgrade().is_some());
            drop(tx);
            assert!(weak.upgrade().is_none());
            assert_eq!(rx.recv().await, Some(2));
            assert_eq!(rx.try_recv(), Err(TryRecvError::Disconnected));
            assert_eq!(rx.recv().await, None);
        });
    }

    #[test]
    fn mpsc_refuses_after_the_receiver_is_gone() {
        run(async {
            let (tx, rx) = mpsc::ShardMpsc::channel::<u32>(1);
            drop(rx);
            assert_eq!(tx.send(7).await.expect_err("closed").0, 7);
        });
    }

    #[test]
    fn watch_wakes_every_receiver_once_per_value() {
        run(async {
            let (tx, mut one) = watch::ShardWatch::channel(0u32);
            let mut two = tx.subscribe();
            let waiter = ShardRuntime::spawn(async move {
                two.changed().await.expect("sender lives");
                let seen = *two.borrow_watched();
                (seen, two)
            });
            tokio::task::yield_now().await;
            tx.send(5).expect("receivers live");
            one.changed().await.expect("sender lives");
            assert_eq!(*one.borrow_and_update(), 5);
            let (seen, mut two) = waiter.await.expect("no panic");
            assert_eq!(seen, 5);
            assert!(!tx.send_if_modified(|_| false));
            drop(tx);
            assert!(one.changed().await.is_err());
            assert!(two.changed().await.is_err());
        });
    }

    #[test]
    fn oneshot_delivers_or_reports_a_dropped_sender() {
        run(async {
            let (tx, rx) = oneshot::ShardOneshot::channel::<u32>();
            tx.send(9).expect("receiver lives");
            assert_eq!(rx.await.expect("sent"), 9);
            let (tx, rx) = oneshot::ShardOneshot::channel::<u32>();
            drop(tx);
            assert!(rx.await.is_err());
            let (tx, rx) = oneshot::ShardOneshot::channel::<u32>();
            drop(rx);
            assert_eq!(tx.send(3), Err(3));
        });
    }

    #[test]
    fn a_sleep_below_the_timer_resolution_is_a_yield() {
        run(async {
            let before = tokio::time::Instant::now();
            for _ in 0..1000 {
                ShardRuntime::sleep(Duration::from_micros(1)).await;
            }
            assert!(before.elapsed() < Duration::from_millis(500));
        });
    }
}
