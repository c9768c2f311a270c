//! Strangers at a health port: thousands of connections that say nothing or next to nothing, kept
//! open against a server that closes them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::SockRef;

use crate::worker::Worker;
use crate::world::Namespace;

/// Threads that hold the connections.
const HOLDERS: usize = 4;
/// Each connection is looked at this often; a slow one gets a byte more.
const ROUND: Duration = Duration::from_secs(1);
/// One that is not open by then is tried again in the next round.
const CONNECT: Duration = Duration::from_secs(5);

/// A crowd of connections. Dropped, all are closed.
#[derive(Debug)]
pub struct Crowd {
    shared: Arc<Shared>,
    holders: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    open: AtomicUsize,
    opened: AtomicUsize,
}

impl Crowd {
    /// Opens so many connections from a namespace, and others in place of those that are closed. Half
    /// say nothing; half begin a header and send a byte of it a second.
    pub fn gather(from: &Namespace, target: SocketAddr, size: usize) -> Result<Self> {
        raise_open_files();
        let shared = Arc::new(Shared::default());
        let holders = (0..HOLDERS).map(|holder| {
            let shared = Arc::clone(&shared);
            let mine = size / HOLDERS + usize::from(holder < size % HOLDERS);
            let started = from.spawn("stranger", move || hold(&shared, target, mine));
            started.context("start a stranger")
        });
        let holders = holders.collect::<Result<_>>()?;
        Ok(Self { shared, holders })
    }

    /// Connections that are open, as last looked at.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Connections that were opened so far.
    pub fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for holder in self.holders.drain(..) {
            let _ = holder.join();
        }
    }
}

fn hold(shared: &Shared, target: SocketAddr, size: usize) {
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    connections.resize_with(size, || None);
    while !shared.stop.load(Ordering::Relaxed) {
        let round = Instant::now();
        for (index, place) in connections.iter_mut().enumerate() {
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
            let slow = index % 2 == 1;
            if place.as_mut().is_some_and(|stream| !goes_on(stream, slow)) {
                *place = None;
                shared.open.fetch_sub(1, Ordering::Relaxed);
            }
            if place.is_none() {
                *place = connect(target, slow);
                if place.is_some() {
                    shared.open.fetch_add(1, Ordering::Relaxed);
                    shared.opened.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        thread::sleep(ROUND.saturating_sub(round.elapsed()));
    }
}

/// Whether the server still has it.
fn goes_on(stream: &mut TcpStream, slow: bool) -> bool {
    if slow
        && stream
            .write(b"x")
            .is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
    {
        return false;
    }
    let mut some = [0; 64];
    match stream.read(&mut some) {
        Ok(read) => read > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

fn connect(target: SocketAddr, slow: bool) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&target, CONNECT).ok()?;
    // A reset instead of TIME_WAIT, of which there would be tens of thousands.
    SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .ok()?;
    if slow {
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            .ok()?;
    }
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// Lets this process have as many files open as it may.
pub fn raise_open_files() {
    // SAFETY: both calls get a valid pointer to a struct of the right kind.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max.min(65_536);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

/// Threads that do nothing but keep processors busy. Dropped, they end.
#[derive(Debug)]
pub struct Burners(#[expect(dead_code, reason = "dropped with it")] Vec<Worker>);

impl Burners {
    /// Two for each processor.
    pub fn start() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let burn = |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        Self((0..2 * processors).map(|_| Worker::here(burn)).collect())
    }
}
