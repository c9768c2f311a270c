//! Clients in a closed loop: each opens a connection, asks, is answered, resets, and begins again.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::Range;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::{Domain, Protocol, Socket, Type};

use crate::world::{Namespace, World};

/// Longer than a SYN that is repeated once.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where connections come from and go to.
#[derive(Clone, Debug)]
pub struct Dialers {
    ns: Namespace,
    source: IpAddr,
    target: SocketAddr,
    threads: usize,
    /// Time from one connection of a client to its next at least.
    pause: Duration,
}

/// What the clients felt.
#[derive(Clone, Debug, Default)]
pub struct Felt {
    /// From SYN to SYN-ACK, of each connection that was answered.
    pub times: Vec<Duration>,
    /// Connections that were not answered.
    pub failed: usize,
}

impl Dialers {
    /// So many clients at one address.
    pub fn new(ns: &Namespace, source: IpAddr, target: SocketAddr, threads: usize) -> Self {
        Self {
            ns: ns.clone(),
            source,
            target,
            threads,
            pause: Duration::ZERO,
        }
    }

    /// All clients together open so many connections a second at most.
    #[must_use]
    pub fn at_rate(mut self, rate: f64) -> Self {
        self.pause = Duration::from_secs_f64(self.threads as f64 / rate);
        self
    }

    /// Starts them for so long; each has source ports of its own.
    pub fn start(&self, world: &World, lasts: Duration) -> Result<Vec<JoinHandle<Felt>>> {
        let client = |_| {
            let (source, target, pause) = (self.source, self.target, self.pause);
            let ports = world.source_ports(source);
            self.ns
                .spawn("dialer", move || dial(source, ports, target, lasts, pause))
        };
        Ok((0..self.threads).map(client).collect::<io::Result<_>>()?)
    }
}

impl Felt {
    /// Takes in what others felt.
    pub fn join(&mut self, threads: Vec<JoinHandle<Self>>) {
        for thread in threads {
            if let Ok(felt) = thread.join() {
                self.times.extend(felt.times);
                self.failed += felt.failed;
            }
        }
    }
}

fn dial(
    source: IpAddr,
    ports: Range<u16>,
    target: SocketAddr,
    lasts: Duration,
    pause: Duration,
) -> Felt {
    let mut felt = Felt::default();
    let mut due = Instant::now();
    let end = due + lasts;
    // In sequence: a port that the kernel chooses may meet the entry of an earlier connection.
    for port in ports.cycle().take_while(|_| Instant::now() < end) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due += pause;
        match once(SocketAddr::new(source, port), target) {
            Ok(time) => felt.times.push(time),
            Err(_) => felt.failed += 1,
        }
    }
    felt
}

fn once(source: SocketAddr, target: SocketAddr) -> io::Result<Duration> {
    let socket = Socket::new(
        Domain::for_address(source),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A reset instead of TIME_WAIT, and instead of conntrack entries that stay for two minutes.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&source.into())?;
    let start = Instant::now();
    socket.connect_timeout(&target.into(), PATIENCE)?;
    let time = start.elapsed();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"?")?;
    let mut line = [0; 128];
    match stream.read(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(time),
    }
}
