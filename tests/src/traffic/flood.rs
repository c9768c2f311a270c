//! A flood of crafted packets at a bounded rate: SYNs from random outside addresses or from one pod, or any
//! other packets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use fastrand::Rng;

use super::RawSender;
use crate::packet::{self, Packet};
use crate::worker::Worker;
use crate::world::{Pod, World};

/// Interval between batches of SYNs.
const BATCH: Duration = Duration::from_millis(2);

/// A running flood; ends when dropped.
#[derive(Debug)]
pub struct Flood {
    sent: Arc<AtomicU64>,
    _worker: Worker,
}

impl Flood {
    /// Floods a port of the node from outside with at most `rate` SYNs a second. Sources are random
    /// addresses of 11.0.0.0/8, which nothing here uses.
    pub fn start(world: &World, target: SocketAddr, rate: u32) -> Result<Self> {
        Self::from_outside(world, rate, move |rng| {
            let any = Ipv4Addr::new(11, rng.u8(..), rng.u8(..), rng.u8(1..));
            syn(rng, any, target)
        })
    }

    /// Sends at most `rate` crafted packets a second from the outside router to the node.
    pub fn from_outside(
        world: &World,
        rate: u32,
        craft: impl Fn(&mut Rng) -> Packet + Send + 'static,
    ) -> Result<Self> {
        let sender = RawSender::from_outside(world)?;
        Ok(Self::run(sender, rate, craft))
    }

    /// Floods from a pod with the pod's address.
    pub fn of_pod(pod: &Pod, target: SocketAddr, rate: u32) -> Result<Self> {
        let (sender, own) = (RawSender::from_pod(pod)?, pod.v4);
        Ok(Self::run(sender, rate, move |rng| syn(rng, own, target)))
    }

    fn run(
        sender: RawSender,
        rate: u32,
        craft: impl Fn(&mut Rng) -> Packet + Send + 'static,
    ) -> Self {
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let worker = Worker::here(move |stop| {
            let (mut rng, start) = (Rng::new(), Instant::now());
            while !stop.load(Ordering::Relaxed) {
                let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u64;
                while count.load(Ordering::Relaxed) < due && !stop.load(Ordering::Relaxed) {
                    let packet = craft(&mut rng).between(sender.link);
                    // Ignore the error: a packet that the device cannot take is lost, as on a wire.
                    let _ = sender.send(&packet.bytes());
                    count.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(BATCH);
            }
        });
        Self {
            sent,
            _worker: worker,
        }
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// A SYN from a random port.
fn syn(rng: &mut Rng, from: Ipv4Addr, to: SocketAddr) -> Packet {
    let from = SocketAddr::from((from, rng.u16(1024..)));
    packet::syn(from, to, rng.u32(..))
}
