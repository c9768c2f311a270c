//! A client that opens connections at a steady rate, however long earlier ones take. Each connection sends a
//! byte, expects a line, and ends with a reset, so that conntrack stays small.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::tally::Tally;
use crate::packet::mapped;
use crate::wait;
use crate::worker::Worker;
use crate::world::{Family, Namespace, Pod, World};

/// Maximum open connections of a client; further ones are not started and count as skipped.
const OPEN_LIMIT: u64 = 512;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    pub ns: Namespace,
    pub source: IpAddr,
    /// Source ports. They are used in sequence, and again from the start after the last.
    pub ports: Range<u16>,
    pub target: SocketAddr,
    /// Connections a second.
    pub rate: f64,
    /// Timeout of one connection. The kernel retransmits a SYN after 1 s.
    pub patience: Duration,
    /// TCP Fast Open: sends the request in the SYN, if the namespace's sysctls allow it.
    pub fast_open: bool,
}

impl Plan {
    /// A client in a pod: 10 connections a second, with a timeout of 900 ms.
    pub fn from_pod(world: &World, pod: &Pod, target: SocketAddr) -> Self {
        let source = pod.address(Family::of(&mapped(target.ip())));
        Self::new(world, &pod.name, &pod.ns, source, target)
    }

    pub fn from_outside(world: &World, client: u8, target: SocketAddr) -> Self {
        let source = world.outside_client(client, Family::of(&mapped(target.ip())));
        let name = format!("outside-{client}");
        Self::new(world, &name, &world.outside, source, target)
    }

    pub fn from_node(world: &World, target: SocketAddr) -> Self {
        let source = world.node_address(Family::of(&mapped(target.ip())));
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

    /// Sends the request in the SYN.
    pub fn fast_open(mut self) -> Self {
        self.fast_open = true;
        self
    }

    pub fn rate(mut self, rate: f64) -> Self {
        self.rate = rate;
        self
    }

    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub fn start(self) -> Result<Client> {
        let account = Arc::new(Mutex::default());
        let task = self.clone().run(Arc::clone(&account));
        let worker = super::run(&self.ns, &format!("cli-{}", self.name), task)?;
        Ok(Client {
            plan: self,
            account,
            worker,
        })
    }

    /// Opens one connection from the port `skip` places after the start of the range.
    pub fn once(&self, skip: u16) -> Result<Answer, Failure> {
        let dial = self.dial(self.ports.start + skip);
        let runtime = super::runtime()?;
        self.ns.run(|| runtime.block_on(dial))
    }

    async fn run(self, account: Arc<Mutex<Account>>) {
        let interval = Duration::from_secs_f64(1.0 / self.rate);
        let mut due = Instant::now();
        let mut ports = self.ports.clone().cycle();
        loop {
            tokio::time::sleep_until(due.into()).await;
            due += interval;
            // After a pause of the machine, skip the missed connections instead of opening them in a burst.
            if due.elapsed() > Duration::from_millis(500) {
                due = Instant::now();
            }
            if !lock(&account).begin() {
                continue;
            }
            let port = ports.next().expect("a range of ports");
            let (dial, account) = (self.dial(port), Arc::clone(&account));
            tokio::spawn(async move {
                let begun = Instant::now();
                let result = dial.await;
                lock(&account).count(begun, result);
            });
        }
    }

    fn dial(&self, port: u16) -> impl Future<Output = Result<Answer, Failure>> + use<> {
        let source = SocketAddr::new(self.source, port);
        let asked = ask(source, self.target, self.fast_open);
        let patience = self.patience;
        async move {
            let asked = timeout(patience, asked).await;
            let line = asked.map_err(|_| Failure::Timeout)??;
            parse(&line).ok_or_else(|| Failure::Other(format!("a strange answer: {line:?}")))
        }
    }
}

async fn ask(source: SocketAddr, target: SocketAddr, fast_open: bool) -> io::Result<String> {
    let domain = Domain::for_address(source);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    wait::bound(|| socket.bind(&source.into()))?;
    if fast_open {
        // With this option `connect` sends nothing, and the first write sends the SYN with its bytes.
        setsockopt(&socket, sockopt::TcpFastOpenConnect, &true)?;
    }
    let socket = TcpSocket::from_std_stream(socket.into());
    let mut stream = socket.connect(target).await?;
    stream.write_all(b"?").await?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await?;
    Ok(line)
}

fn parse(line: &str) -> Option<Answer> {
    // Reject a line without its end, which was cut off.
    let (server, seen_as) = line.strip_suffix('\n')?.split_once(' ')?;
    Some(Answer {
        server: server.to_owned(),
        seen_as: seen_as.parse().ok()?,
    })
}

/// A running client; ends when dropped.
#[derive(Debug)]
pub struct Client {
    pub plan: Plan,
    account: Arc<Mutex<Account>>,
    worker: Worker,
}

impl Client {
    pub fn tally(&self) -> Tally {
        lock(&self.account).tally
    }

    /// Number of answers of each server.
    pub fn servers(&self) -> BTreeMap<String, u64> {
        lock(&self.account).servers.clone()
    }

    /// Connections that ended since the last call.
    pub fn take_ended(&self) -> Vec<Ended> {
        std::mem::take(&mut lock(&self.account).ended)
    }

    /// Ends the client and returns its final counts.
    pub fn finish(self) -> Tally {
        drop(self.worker);
        lock(&self.account).tally
    }
}

/// A finished connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub begun: Instant,
    pub ok: bool,
}

/// Content of a server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub server: String,
    /// The client's address as the server saw it.
    pub seen_as: SocketAddr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A RST or an ICMP port unreachable.
    Refused,
    /// No answer before the timeout.
    Timeout,
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Other(error.to_string()),
        }
    }
}

#[derive(Debug, Default)]
struct Account {
    tally: Tally,
    servers: BTreeMap<String, u64>,
    ended: Vec<Ended>,
}

fn lock(account: &Mutex<Account>) -> MutexGuard<'_, Account> {
    account.lock().expect("no panic while counting")
}

impl Account {
    /// Counts a new connection; returns whether the limit allows it.
    fn begin(&mut self) -> bool {
        let tally = &mut self.tally;
        let is_free = tally.started - tally.ok - tally.failed() < OPEN_LIMIT;
        let counter = match is_free {
            true => &mut tally.started,
            false => &mut tally.skipped,
        };
        *counter += 1;
        is_free
    }

    fn count(&mut self, begun: Instant, result: Result<Answer, Failure>) {
        let ok = result.is_ok();
        self.ended.push(Ended { begun, ok });
        let counter = match result {
            Ok(answer) => {
                *self.servers.entry(answer.server).or_default() += 1;
                &mut self.tally.ok
            }
            Err(Failure::Refused) => &mut self.tally.refused,
            Err(Failure::Timeout) => &mut self.tally.timeouts,
            Err(Failure::Other(_)) => &mut self.tally.other,
        };
        *counter += 1;
    }
}
