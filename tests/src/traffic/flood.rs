//! A SYN flood: each SYN from another address outside, or all from one pod, at a bounded rate.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use fastrand::Rng;

use super::RawSender;
use crate::worker::Worker;
use crate::world::{Pod, World};

/// SYNs that are made up together.
const BATCH: Duration = Duration::from_millis(2);

/// A running flood; ends when dropped.
#[derive(Debug)]
pub struct Flood {
    sent: Arc<AtomicU64>,
    _worker: Worker,
}

impl Flood {
    /// From outside to a port of the node, so many SYNs a second, or as many as go out. Sources are
    /// drawn from 11.0.0.0/8, which nobody here has.
    pub fn start(world: &World, target: SocketAddr, rate: u32) -> Result<Self> {
        let sender = RawSender::from_outside(world)?;
        Ok(Self::run(sender, None, target, rate))
    }

    /// The same from a pod, under its own address.
    pub fn of_pod(pod: &Pod, target: SocketAddr, rate: u32) -> Result<Self> {
        let sender = RawSender::from_pod(pod)?;
        Ok(Self::run(sender, Some(pod.v4), target, rate))
    }

    fn run(sender: RawSender, own: Option<Ipv4Addr>, target: SocketAddr, rate: u32) -> Self {
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let worker = Worker::here(move |stop| {
            let (mut rng, start) = (Rng::new(), Instant::now());
            while !stop.load(Ordering::Relaxed) {
                let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u64;
                while count.load(Ordering::Relaxed) < due && !stop.load(Ordering::Relaxed) {
                    let any = Ipv4Addr::new(11, rng.u8(..), rng.u8(..), rng.u8(1..));
                    let from = (own.unwrap_or(any), rng.u16(1024..)).into();
                    // What the device cannot take is lost, as on any wire.
                    let _ = sender.send_syn(from, target, rng.u32(..));
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

    /// SYNs so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}
