//! DNS as far as the observer sees it: questions with an id over UDP, and servers that answer them
//! or say nothing.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::server::Manner;
use crate::worker::Worker;
use crate::world::{Namespace, Pod};

/// How long a thread waits before it looks whether it is to end.
const TURN: Duration = Duration::from_millis(20);
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(300);

/// A question as resolvers send it: id, flags, one question, its name, type A, class IN.
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

/// Its answer: the same id, the answer bit, and an address.
pub fn answer(question: &[u8]) -> Vec<u8> {
    let mut bytes = question.to_vec();
    if let Some(flags) = bytes.get_mut(2) {
        *flags |= 0x80;
    }
    bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 10, 96, 0, 1]);
    bytes
}

/// A server on both families in a pod; ends when dropped.
#[derive(Debug)]
pub struct DnsServer {
    _thread: Worker,
}

impl DnsServer {
    /// Starts it; a mute one takes questions and says nothing.
    pub fn start(pod: &Pod, port: u16, manner: Manner) -> Result<Self> {
        let address = (Ipv6Addr::UNSPECIFIED, port).into();
        Self::start_at(&pod.ns, &pod.name, address, manner)
    }

    /// Starts one at a single address of a namespace, from which it answers.
    pub fn start_at(
        ns: &Namespace,
        name: &str,
        address: SocketAddr,
        manner: Manner,
    ) -> Result<Self> {
        let bind = || UdpSocket::bind(address);
        let socket = ns.run(bind).with_context(|| address.to_string())?;
        socket.set_read_timeout(Some(TURN))?;
        let thread = Worker::within(ns, &format!("dns-{name}"), move |stop| {
            let mut bytes = [0; 512];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, client)) = socket.recv_from(&mut bytes)
                    && manner == Manner::Answers
                {
                    let _ = socket.send_to(&answer(&bytes[..length]), client);
                }
            }
        })?;
        Ok(Self { _thread: thread })
    }
}

/// A client that asks from a port of its own each time; ends when dropped.
#[derive(Debug)]
pub struct DnsClient {
    answered: Arc<AtomicU64>,
    _thread: Worker,
}

impl DnsClient {
    /// Asks `target` so often a second from a pod's address, with ports from `first` on: a port that
    /// the kernel chooses may meet the conntrack entry of an earlier fault.
    pub fn start(pod: &Pod, target: SocketAddr, first: u16, rate: f64) -> Result<Self> {
        let source: IpAddr = match target {
            SocketAddr::V4(_) => pod.v4.into(),
            SocketAddr::V6(_) => pod.v6.into(),
        };
        let answered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&answered);
        let name = format!("ask-{}", pod.name);
        let thread = Worker::within(&pod.ns, &name, move |stop| {
            let mut id = 0_u16;
            while !stop.load(Ordering::Relaxed) {
                id = id.wrapping_add(1);
                let from = SocketAddr::new(source, first + id % 2_000);
                if ask(from, target, id, stop) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_secs_f64(1.0 / rate));
            }
        })?;
        Ok(Self {
            answered,
            _thread: thread,
        })
    }

    /// Questions that were answered so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

fn ask(from: SocketAddr, to: SocketAddr, id: u16, stop: &AtomicBool) -> bool {
    let Ok(socket) = UdpSocket::bind(from) else {
        return false;
    };
    let asked = question(id);
    if socket.set_read_timeout(Some(TURN)).is_err() || socket.send_to(&asked, to).is_err() {
        return false;
    }
    let mut bytes = [0; 512];
    let mut waited = Duration::ZERO;
    while waited < PATIENCE && !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut bytes) {
            Ok((length, server)) => return server == to && bytes[..length] == answer(&asked),
            Err(_) => waited += TURN,
        }
    }
    false
}
