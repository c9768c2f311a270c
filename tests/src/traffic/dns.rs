//! DNS as the observer sees it: UDP queries with an id, and servers that answer or stay silent.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use super::server::Manner;
use crate::packet::mapped;
use crate::worker::Worker;
use crate::world::{Family, Namespace, Pod};

/// Timeout of a query.
const PATIENCE: Duration = Duration::from_millis(300);

/// A resolver's query: id, flags, one question, its name, type A, class IN.
pub fn question(id: u16) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in ["kubernetes", "default", "svc"] {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// The answer to a query: the same id, the answer bit, and an address.
pub fn answer(question: &[u8]) -> Vec<u8> {
    let mut bytes = question.to_vec();
    if let Some(flags) = bytes.get_mut(2) {
        *flags |= 0x80;
    }
    bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 10, 96, 0, 1]);
    bytes
}

/// Starts a server on both families in a pod; it ends when the worker is dropped. A mute server reads
/// queries without answering.
pub fn serve(pod: &Pod, port: u16, manner: Manner) -> Result<Worker> {
    let address = (Ipv6Addr::UNSPECIFIED, port).into();
    serve_at(&pod.ns, &pod.name, address, manner)
}

/// Starts a server at a single address of a namespace. Its answers come from this address.
pub fn serve_at(ns: &Namespace, name: &str, address: SocketAddr, manner: Manner) -> Result<Worker> {
    let bind = || std::net::UdpSocket::bind(address);
    let socket = ns.run(bind).with_context(|| address.to_string())?;
    socket.set_nonblocking(true)?;
    let worker = super::run(ns, &format!("dns-{name}"), async move {
        let socket = UdpSocket::from_std(socket).expect("in a runtime");
        let mut bytes = [0; 512];
        loop {
            if let Ok((length, client)) = socket.recv_from(&mut bytes).await
                && manner == Manner::Answers
            {
                let _ = socket.send_to(&answer(&bytes[..length]), client).await;
            }
        }
    })?;
    Ok(worker)
}

/// A client that uses another port for each query; ends when dropped.
#[derive(Debug)]
pub struct DnsClient {
    answered: Arc<AtomicU64>,
    _worker: Worker,
}

impl DnsClient {
    /// Sends `rate` queries a second to `target` from a pod's address, with ports from `first` on. Ports are
    /// not left to the kernel: it may choose one that still has a conntrack entry of an earlier fault.
    pub fn start(pod: &Pod, target: SocketAddr, first: u16, rate: f64) -> Result<Self> {
        let source = pod.address(Family::of(&mapped(target.ip())));
        let answered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&answered);
        let worker = super::run(&pod.ns, &format!("ask-{}", pod.name), async move {
            for id in (0..=u16::MAX).cycle() {
                let from = SocketAddr::new(source, first + id % 2_000);
                if let Ok(Ok(true)) = timeout(PATIENCE, ask(from, target, id)).await {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                sleep(Duration::from_secs_f64(1.0 / rate)).await;
            }
        })?;
        Ok(Self {
            answered,
            _worker: worker,
        })
    }

    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

async fn ask(from: SocketAddr, to: SocketAddr, id: u16) -> io::Result<bool> {
    let socket = UdpSocket::bind(from).await?;
    let asked = question(id);
    socket.send_to(&asked, to).await?;
    let mut bytes = [0; 512];
    let (length, server) = socket.recv_from(&mut bytes).await?;
    Ok(server == to && bytes[..length] == answer(&asked))
}
