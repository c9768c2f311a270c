//! A client that opens connections at a steady rate, whatever becomes of the earlier ones: each
//! sends a byte, expects a line and ends with a reset (which keeps conntrack small).
//!
//! Length: one client, the options of its plan, and its account.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::poll::{self, Interest};
use super::tally::Tally;
use crate::wait;
use crate::worker::Worker;
use crate::world::{Family, Namespace, Pod, World};

/// Connections that one client may have open; more are not started and counted as skipped.
const OPEN_LIMIT: usize = 512;

/// What a client does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name for reports.
    pub name: String,
    /// Namespace it runs in.
    pub ns: Namespace,
    /// Source address.
    pub source: IpAddr,
    /// Source ports, taken in sequence, again from the start after the last.
    pub ports: Range<u16>,
    /// What it dials.
    pub target: SocketAddr,
    /// Connections a second.
    pub rate: f64,
    /// How long one connection may take. The kernel repeats a SYN after 1 s.
    pub patience: Duration,
    /// TCP Fast Open: the request goes with the SYN, where the namespace's sysctls allow it.
    pub fast_open: bool,
}

impl Plan {
    /// From a pod, 10 connections a second, 900 ms each.
    pub fn from_pod(world: &World, pod: &Pod, target: SocketAddr) -> Self {
        let source = pod.address(Family::of(target.ip()));
        Self::new(world, &pod.name, &pod.ns, source, target)
    }

    /// From an outside client.
    pub fn from_outside(world: &World, client: u8, target: SocketAddr) -> Self {
        let source = world.outside_client(client, Family::of(target.ip()));
        Self::new(
            world,
            &format!("outside-{client}"),
            &world.outside,
            source,
            target,
        )
    }

    /// From the node itself.
    pub fn from_node(world: &World, target: SocketAddr) -> Self {
        let source = world.node_address(Family::of(target.ip()));
        Self::new(world, "node", &world.node, source, target)
    }

    fn new(world: &World, name: &str, ns: &Namespace, source: IpAddr, target: SocketAddr) -> Self {
        Self {
            name: name.to_owned(),
            ns: ns.clone(),
            source,
            ports: world.source_ports(source),
            target,
            rate: 10.0,
            patience: Duration::from_millis(900),
            fast_open: false,
        }
    }

    /// With the request in the SYN.
    pub fn fast_open(mut self) -> Self {
        self.fast_open = true;
        self
    }

    /// Another rate, in connections a second.
    pub fn rate(mut self, rate: f64) -> Self {
        self.rate = rate;
        self
    }

    /// Another patience.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub fn start(self) -> Result<Client> {
        let counters = Arc::new(Counters::default());
        let mut run = Run {
            counters: Arc::clone(&counters),
            next_port: self.ports.start,
            open: Vec::new(),
            plan: self.clone(),
        };
        let name = format!("cli-{}", self.name);
        let worker = Worker::within(&self.ns, &name, move |stop| run.run(stop))?;
        Ok(Client {
            plan: self,
            counters,
            worker,
        })
    }

    /// Opens one connection with the first port of the range after `skip`.
    pub fn once(&self, skip: u16) -> Result<Answer, Failure> {
        let port = self.ports.start + skip;
        connect_once(
            &self.ns,
            SocketAddr::new(self.source, port),
            self.target,
            self.patience,
        )
    }
}

/// A running client; ends when dropped.
#[derive(Debug)]
pub struct Client {
    plan: Plan,
    counters: Arc<Counters>,
    worker: Worker,
}

impl Client {
    /// What it does.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Counts so far.
    pub fn tally(&self) -> Tally {
        self.counters.tally()
    }

    /// Who answered, and how often.
    pub fn servers(&self) -> BTreeMap<String, u64> {
        self.counters
            .servers
            .lock()
            .expect("no panic while counting")
            .clone()
    }

    /// Connections that ended since this was last asked.
    pub fn take_ended(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.counters.ended.lock().expect("no panic while counting"))
    }

    /// Ends it and gives the last counts.
    pub fn finish(self) -> Tally {
        drop(self.worker);
        self.counters.tally()
    }
}

/// One connection that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When it was begun.
    pub begun: Instant,
    /// Whether it was answered.
    pub ok: bool,
}

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The server's name.
    pub server: String,
    /// The client's address as the server saw it.
    pub seen_as: SocketAddr,
}

/// Why a connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A RST or an ICMP port unreachable.
    Refused,
    /// Nothing within the patience.
    Timeout,
    /// Anything else.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("refused"),
            Self::Timeout => f.write_str("timeout"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::Timeout,
            _ => Self::Other(error.to_string()),
        }
    }
}

/// Opens one connection from an explicit source, from a namespace.
pub fn connect_once(
    ns: &Namespace,
    source: SocketAddr,
    target: SocketAddr,
    patience: Duration,
) -> Result<Answer, Failure> {
    ns.run(|| {
        let socket = bound(source)?;
        socket.set_nonblocking(false)?;
        socket.connect_timeout(&target.into(), patience)?;
        socket.set_read_timeout(Some(patience))?;
        let mut stream = TcpStream::from(socket);
        stream.write_all(b"?")?;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            if stream.read(&mut byte)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            line.push(byte[0]);
        }
        Ok(line)
    })
    .map_err(|error| Failure::of(&error))
    .and_then(|line| parse(&line).ok_or_else(|| Failure::Other("a strange answer".to_owned())))
}

fn bound(source: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(source);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    wait::bound(|| socket.bind(&source.into()))?;
    Ok(socket)
}

fn parse(line: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(line).ok()?;
    let (server, seen_as) = text.trim_end().split_once(' ')?;
    Some(Answer {
        server: server.to_owned(),
        seen_as: seen_as.parse().ok()?,
    })
}

#[derive(Debug, Default)]
struct Counters {
    started: AtomicU64,
    ok: AtomicU64,
    refused: AtomicU64,
    timeouts: AtomicU64,
    other: AtomicU64,
    skipped: AtomicU64,
    servers: Mutex<BTreeMap<String, u64>>,
    ended: Mutex<Vec<Ended>>,
}

impl Counters {
    fn tally(&self) -> Tally {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Tally {
            started: read(&self.started),
            ok: read(&self.ok),
            refused: read(&self.refused),
            timeouts: read(&self.timeouts),
            other: read(&self.other),
            skipped: read(&self.skipped),
        }
    }

    fn count(&self, begun: Instant, result: Result<Answer, Failure>) {
        let ok = result.is_ok();
        let mut ended = self.ended.lock().expect("no panic while counting");
        ended.push(Ended { begun, ok });
        drop(ended);
        let counter = match result {
            Ok(answer) => {
                let mut servers = self.servers.lock().expect("no panic while counting");
                *servers.entry(answer.server).or_insert(0) += 1;
                &self.ok
            }
            Err(Failure::Refused) => &self.refused,
            Err(Failure::Timeout) => &self.timeouts,
            Err(Failure::Other(_)) => &self.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// One open connection.
struct Connection {
    stream: TcpStream,
    since: Instant,
    asked: bool,
    line: Vec<u8>,
}

impl Connection {
    fn interest(&self) -> Interest {
        let fd = self.stream.as_raw_fd();
        if self.asked {
            Interest::read(fd)
        } else {
            Interest::write(fd)
        }
    }

    /// Goes on after poll; gives a result when done.
    fn advance(&mut self) -> Option<Result<Answer, Failure>> {
        match self.step() {
            Ok(()) if self.line.ends_with(b"\n") => {
                Some(parse(&self.line).ok_or_else(|| Failure::Other("a strange answer".to_owned())))
            }
            Ok(()) => None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(Err(Failure::of(&error))),
        }
    }

    fn step(&mut self) -> io::Result<()> {
        if !self.asked {
            if let Some(error) = SockRef::from(&self.stream).take_error()? {
                return Err(error);
            }
            self.stream.write_all(b"?")?;
            self.asked = true;
            return Ok(());
        }
        let mut bytes = [0; 128];
        let count = self.stream.read(&mut bytes)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.line.extend_from_slice(&bytes[..count]);
        Ok(())
    }
}

struct Run {
    plan: Plan,
    counters: Arc<Counters>,
    next_port: u16,
    open: Vec<Connection>,
}

impl Run {
    fn run(&mut self, stop: &AtomicBool) {
        let interval = Duration::from_secs_f64(1.0 / self.plan.rate);
        let mut due = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= due {
                self.start_one(now);
                due += interval;
                // After a pause of the machine: no burst to catch up.
                if now.saturating_duration_since(due) > Duration::from_millis(500) {
                    due = now;
                }
                continue;
            }
            let mut interests: Vec<Interest> = self.open.iter().map(Connection::interest).collect();
            let pause = (due - now).min(Duration::from_millis(20));
            if poll::wait(&mut interests, pause).is_err() {
                return;
            }
            self.collect(&interests);
        }
    }

    fn start_one(&mut self, now: Instant) {
        if self.open.len() >= OPEN_LIMIT {
            self.counters.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let source = SocketAddr::new(self.plan.source, self.next_port);
        self.next_port += 1;
        if self.next_port >= self.plan.ports.end {
            self.next_port = self.plan.ports.start;
        }
        self.counters.started.fetch_add(1, Ordering::Relaxed);
        match connecting(source, self.plan.target, self.plan.fast_open) {
            Ok(stream) => {
                self.open.push(Connection {
                    stream,
                    since: now,
                    asked: false,
                    line: Vec::new(),
                });
            }
            Err(error) => self.counters.count(now, Err(Failure::of(&error))),
        }
    }

    fn collect(&mut self, interests: &[Interest]) {
        let mut came = interests.iter().map(Interest::came);
        let patience = self.plan.patience;
        let counters = &self.counters;
        self.open.retain_mut(|connection| {
            let ready = came.next().unwrap_or(false);
            let mut result = if ready { connection.advance() } else { None };
            if result.is_none() && connection.since.elapsed() > patience {
                result = Some(Err(Failure::Timeout));
            }
            let goes_on = result.is_none();
            if let Some(result) = result {
                counters.count(connection.since, result);
            }
            goes_on
        });
    }
}

fn connecting(source: SocketAddr, target: SocketAddr, fast_open: bool) -> io::Result<TcpStream> {
    let socket = bound(source)?;
    if fast_open {
        put_off_until_written(&socket)?;
    }
    match socket.connect(&target.into()) {
        Ok(()) => Ok(socket.into()),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error),
    }
}

/// `connect` then sends nothing: the first write does, with its bytes in the SYN.
fn put_off_until_written(socket: &Socket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option reads one int at `on`, which lives for the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN_CONNECT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
