//! A TCP server on a thread inside a pod. It answers each byte with its name and the client's address, so
//! that a test sees which server answered, and whether NAT changed the source.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::wait::bound;
use crate::worker::Worker;
use crate::world::{Namespace, Pod};

/// Maximum duration of a connection.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Answers each byte with a line.
    Answers,
    /// Answers each byte with a line, and keeps connections until the client closes them.
    Keeps,
    /// Accepts connections but never answers.
    Mute,
}

/// A running server; ends when dropped.
#[derive(Debug)]
pub struct Server {
    served: Arc<AtomicU64>,
    _worker: Worker,
}

impl Server {
    /// Starts a server in a pod, with the pod's name, on both families. It listens when this returns.
    pub fn start(pod: &Pod, port: u16) -> Result<Self> {
        Self::start_as(&pod.ns, &pod.name, port, Manner::Answers)
    }

    pub fn start_as(ns: &Namespace, name: &str, port: u16, manner: Manner) -> Result<Self> {
        let listener = ns
            .run(|| bound(|| listen(port)))
            .with_context(|| format!("listen on {port} in {name}"))?;
        let served = Arc::default();
        let task = serve(listener, name.to_owned(), manner, Arc::clone(&served));
        let worker = super::run(ns, &format!("srv-{name}"), task)?;
        Ok(Self {
            served,
            _worker: worker,
        })
    }

    /// Number of answers so far.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port).into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

async fn serve(listener: TcpListener, name: String, manner: Manner, served: Arc<AtomicU64>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("in a runtime");
    let patience = match manner {
        Manner::Keeps => Duration::MAX,
        Manner::Answers | Manner::Mute => PATIENCE,
    };
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(super::TURN).await;
            continue;
        };
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let line = format!("{name} {peer}\n");
        let answers = answer(stream, line, manner, Arc::clone(&served));
        tokio::spawn(timeout(patience, answers));
    }
}

async fn answer(
    mut stream: TcpStream,
    line: String,
    manner: Manner,
    served: Arc<AtomicU64>,
) -> io::Result<()> {
    let mut bytes = [0; 16];
    while stream.read(&mut bytes).await? > 0 {
        if manner != Manner::Mute {
            served.fetch_add(1, Ordering::Relaxed);
            stream.write_all(line.as_bytes()).await?;
        }
    }
    Ok(())
}
