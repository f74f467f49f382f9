//! A place between a node and whoever connects to it, which can be cut.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What goes through a [`Proxy`] now; `None` while it is cut.
type Streams = Arc<Mutex<Option<Vec<TcpStream>>>>;

/// Passes connections on to where a node listens, until it is cut.
pub struct Proxy {
    streams: Streams,
}

impl Proxy {
    /// Listens at `addr` and passes on to `target`.
    pub fn start(addr: SocketAddr, target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind(addr).expect("a free port");
        let streams: Streams = Arc::new(Mutex::new(Some(Vec::new())));
        let proxy = Proxy {
            streams: streams.clone(),
        };
        // Ends with the test's process.
        std::thread::spawn(move || {
            for from in listener.incoming().flatten() {
                // A node that is down refuses; so does this one, by closing.
                let _refused = pass_on(&streams, from, target);
            }
        });
        proxy
    }

    /// Ends what goes through; nothing passes any more.
    pub fn cut(&self) {
        for stream in lock(&self.streams).take().into_iter().flatten() {
            // Ended by itself: as good.
            let _ended = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets new connections pass.
    pub fn heal(&self) {
        lock(&self.streams).get_or_insert_default();
    }
}

fn lock(streams: &Streams) -> MutexGuard<'_, Option<Vec<TcpStream>>> {
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pass_on(streams: &Streams, from: TcpStream, target: SocketAddr) -> io::Result<()> {
    let mut passing = lock(streams);
    let Some(passing) = passing.as_mut() else {
        return Ok(());
    };
    let to = TcpStream::connect(target)?;
    for stream in [&from, &to] {
        stream.set_nodelay(true)?;
        passing.push(stream.try_clone()?);
    }
    for (mut source, mut sink) in [(from.try_clone()?, to.try_clone()?), (to, from)] {
        std::thread::spawn(move || {
            // Whichever side ends, both end.
            let _copied = io::copy(&mut source, &mut sink);
            let _ended = sink.shutdown(Shutdown::Both);
            let _ended = source.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
