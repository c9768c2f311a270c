//! A TCP server on a thread inside a pod. It answers a byte with its own name and the client's
//! address as it sees it, so that a test can tell who served and whether NAT put another source.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use super::poll::{self, Interest};
use crate::wait::bound;
use crate::worker::Worker;
use crate::world::{Namespace, Pod};

/// How long a connection may stay open.
const PATIENCE: Duration = Duration::from_secs(3);

/// How a server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Answers each byte with a line.
    Answers,
    /// The same, and keeps connections for as long as their clients do.
    Keeps,
    /// Accepts and says nothing.
    Mute,
}

/// A running server; ends when dropped.
#[derive(Debug)]
pub struct Server {
    served: Arc<AtomicU64>,
    _worker: Worker,
}

impl Server {
    /// Starts a server in a pod, under the pod's name, on both families. It listens when this
    /// returns.
    pub fn start(pod: &Pod, port: u16) -> Result<Self> {
        Self::start_as(&pod.ns, &pod.name, port, Manner::Answers)
    }

    /// Starts a server in a namespace.
    pub fn start_as(ns: &Namespace, name: &str, port: u16, manner: Manner) -> Result<Self> {
        let listener = ns
            .run(|| bound(|| listen(port)))
            .with_context(|| format!("listen on {port} in {name}"))?;
        let served = Arc::new(AtomicU64::new(0));
        let service = Service {
            listener,
            name: name.to_owned(),
            manner,
            served: Arc::clone(&served),
        };
        let name = format!("srv-{name}");
        let worker = Worker::within(ns, &name, move |stop| service.run(stop))?;
        Ok(Self {
            served,
            _worker: worker,
        })
    }

    /// Connections answered so far.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port).into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

struct Service {
    listener: TcpListener,
    name: String,
    manner: Manner,
    served: Arc<AtomicU64>,
}

impl Service {
    fn run(&self, stop: &AtomicBool) {
        let mut open: Vec<(TcpStream, SocketAddr, Instant)> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let mut interests = vec![Interest::read(self.listener.as_raw_fd())];
            interests.extend(
                open.iter()
                    .map(|(stream, ..)| Interest::read(stream.as_raw_fd())),
            );
            if poll::wait(&mut interests, Duration::from_millis(20)).is_err() {
                return;
            }
            let mut came = interests.iter().skip(1).map(Interest::came);
            open.retain_mut(|(stream, peer, since)| {
                let ready = came.next().unwrap_or(false);
                let is_kept = self.manner == Manner::Keeps || since.elapsed() < PATIENCE;
                is_kept && (!ready || self.serve(stream, *peer))
            });
            while let Ok((stream, peer)) = self.listener.accept() {
                if stream.set_nonblocking(true).is_ok() {
                    open.push((stream, unmapped(peer), Instant::now()));
                }
            }
        }
    }

    /// Answers what came; gives whether the connection goes on.
    fn serve(&self, stream: &mut TcpStream, peer: SocketAddr) -> bool {
        let mut byte = [0; 16];
        match stream.read(&mut byte) {
            Ok(0) => false,
            Ok(_) if self.manner == Manner::Mute => true,
            Ok(_) => {
                self.served.fetch_add(1, Ordering::Relaxed);
                stream
                    .write_all(format!("{} {peer}\n", self.name).as_bytes())
                    .is_ok()
            }
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

fn unmapped(peer: SocketAddr) -> SocketAddr {
    let address = match peer.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    };
    SocketAddr::new(address, peer.port())
}
