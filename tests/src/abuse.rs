//! Abusive clients of a health port: thousands of idle or very slow connections that reconnect when the
//! server closes one, malformed requests, and many requests at once, whose answers nobody may read.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::SockRef;

use crate::prelude::*;
use crate::worker::Worker;

/// Threads that hold the connections.
const HOLDERS: usize = 4;
/// Interval between checks of each idle or slow connection. A slow one sends one byte at each check.
const ROUND: Duration = Duration::from_secs(1);
/// Number of requests that a pipelining client sends at once.
const REQUESTS: usize = 200;
/// Connection timeout; a failed connection is retried in the next round.
const CONNECT: Duration = Duration::from_secs(5);
/// Open connections of [`harass`].
const KEPT: usize = 12;
/// Interval between new connections of [`harass`].
const PACE: Duration = Duration::from_millis(250);

/// A set of connections. All are closed when it is dropped.
#[derive(Debug)]
pub struct Crowd {
    counts: Arc<Counts>,
    _holders: Worker,
    _files: ManyFiles,
}

/// The right to open many files: only one test of a process at a time may, because all of them together could
/// exceed the limit of the process.
#[derive(Debug)]
pub struct ManyFiles {
    _right: MutexGuard<'static, ()>,
}

impl ManyFiles {
    /// Waits for the right, and raises this process's limit of open files to the maximum.
    pub fn open() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        // A test that failed with the right has given it back.
        let _right = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        raise_open_files();
        Self { _right }
    }
}

/// The bytes that a connection sends first, and in each later round.
type Habit = [Vec<u8>; 2];

#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    opened: AtomicUsize,
}

impl Crowd {
    /// Opens `size` connections from a namespace, rounded up to a multiple of `HOLDERS`, and replaces those
    /// that the server closes. Half of them send nothing. The other half begin a header and send one byte of
    /// it each second.
    pub fn gather(from: &Namespace, target: SocketAddr, size: usize) -> Result<Self> {
        let slow = ["GET /healthz HTTP/1.1\r\nX-Slow: ", "x"];
        let habits = [["", ""], slow].map(|habit| habit.map(Vec::from));
        Self::start(from, target, size, habits, ROUND)
    }

    /// Like [`Crowd::gather`], but each connection sends 200 requests at once, and after each `round` it
    /// reads the answers and sends as many again.
    pub fn pipelining(
        from: &Namespace,
        target: SocketAddr,
        size: usize,
        round: Duration,
    ) -> Result<Self> {
        let many = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(REQUESTS);
        let habit = || [Vec::from(many.as_str()), Vec::from(many.as_str())];
        Self::start(from, target, size, [habit(), habit()], round)
    }

    fn start(
        from: &Namespace,
        target: SocketAddr,
        size: usize,
        habits: [Habit; 2],
        round: Duration,
    ) -> Result<Self> {
        let _files = ManyFiles::open();
        let counts = Arc::new(Counts::default());
        let held = Arc::clone(&counts);
        let _holders = Worker::within(from, "strangers", move |stop| {
            let (held, habits) = (&*held, &habits);
            // Threads inherit the network namespace of the thread that starts them.
            thread::scope(|scope| {
                for _ in 0..HOLDERS {
                    let each = size.div_ceil(HOLDERS);
                    scope.spawn(move || hold(stop, held, target, each, habits, round));
                }
            });
        })?;
        Ok(Self {
            counts,
            _holders,
            _files,
        })
    }

    /// Open connections, as of the last round.
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    pub fn opened(&self) -> usize {
        self.counts.opened.load(Ordering::Relaxed)
    }
}

/// Holds connections, of which every second one has the second habit.
fn hold(
    stop: &AtomicBool,
    counts: &Counts,
    target: SocketAddr,
    size: usize,
    habits: &[Habit; 2],
    round: Duration,
) {
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    connections.resize_with(size, || None);
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        for (index, place) in connections.iter_mut().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let [first, later] = &habits[index % 2];
            if (place.as_mut()).is_some_and(|stream| !goes_on(stream, later)) {
                *place = None;
                counts.open.fetch_sub(1, Ordering::Relaxed);
            }
            if place.is_none() {
                *place = connect(target, first);
                let opened = usize::from(place.is_some());
                counts.open.fetch_add(opened, Ordering::Relaxed);
                counts.opened.fetch_add(opened, Ordering::Relaxed);
            }
        }
        thread::sleep(round.saturating_sub(start.elapsed()));
    }
}

/// Whether the connection is still open.
fn goes_on(stream: &mut TcpStream, later: &[u8]) -> bool {
    let waits = |error: io::Error| error.kind() == ErrorKind::WouldBlock;
    let written = match later {
        [] => Ok(0),
        later => stream.write(later),
    };
    written.map_or_else(waits, |_| true) && drained(stream).map_or_else(waits, |()| false)
}

/// Reads until the end of the stream. If the stream goes on, that is an error of the kind `WouldBlock`.
fn drained(stream: &mut TcpStream) -> io::Result<()> {
    while stream.read(&mut [0; 4096])? > 0 {}
    Ok(())
}

fn connect(target: SocketAddr, first: &[u8]) -> Option<TcpStream> {
    let mut stream = open(target).ok()?;
    stream.write_all(first).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// Opens a connection that is closed with a reset: TIME_WAIT would leave tens of thousands of sockets behind.
fn open(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, CONNECT)?;
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(stream)
}

/// Opens a connection, and sends as much of this text as the kernel takes at once. Nothing is read.
pub fn send_unread(target: SocketAddr, text: &str) -> io::Result<TcpStream> {
    let mut stream = open(target)?;
    stream.set_nonblocking(true)?;
    match stream.write(text.as_bytes()).map(drop) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(stream),
    }
}

/// Texts that a server must not answer with 200: requests that are too large, and other protocols.
pub fn malformed() -> [(&'static str, String); 7] {
    let long = "x".repeat(1 << 20);
    let headers = "A: b\r\n".repeat(100_000);
    [
        ("a line", format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n")),
        (
            "a header",
            format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {long}\r\n\r\n"),
        ),
        (
            "many headers",
            format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{headers}\r\n"),
        ),
        ("no request", long),
        ("TLS", "\x16\x03\x01\x02\x00\x01\x00\r\n\r\n".to_owned()),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        (
            "two lengths",
            "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
                .to_owned(),
        ),
    ]
}

/// A thousand requests. Their answers are more than the kernel buffers for a client that reads none.
pub fn pipelined() -> String {
    "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1_000)
}

/// Opens four connections a second until it is dropped. Each sends one of [`malformed`], or [`pipelined`]
/// requests. The last twelve stay open.
pub fn harass(from: &Namespace, target: SocketAddr) -> io::Result<Worker> {
    let texts = malformed().map(|(_, text)| text).into_iter();
    let texts: Vec<String> = texts.chain([pipelined()]).collect();
    Worker::within(from, "harass", move |stop| {
        let mut open = VecDeque::new();
        for text in texts.iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if open.len() == KEPT {
                open.pop_front();
            }
            open.extend(send_unread(target, text).ok());
            thread::sleep(PACE);
        }
    })
}

/// Raises this process's limit of open files to the maximum.
pub fn raise_open_files() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most.min(65_536), most).expect("another limit");
}

/// Keeps all processors busy until it is dropped, with two threads for each.
pub fn burn() -> Worker {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    Worker::here(move |stop| {
        thread::scope(|scope| {
            for _ in 0..2 * processors {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
        });
    })
}
