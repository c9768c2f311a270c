//! Asks /healthz and /livez from outside, over and over, and keeps every change with its time: the
//! load balancer's view of the node.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::http;
use crate::wait::scaled;
use crate::world::{Family, HEALTHZ_PORT, Namespace, World};

/// How long one request may take: the least that load balancers wait.
const PATIENCE: Duration = Duration::from_secs(1);

/// Status codes at a moment; 0 where nobody answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codes {
    pub healthz: u16,
    pub livez: u16,
}

/// A change of the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When it was seen.
    pub at: Instant,
    /// The codes from then on.
    pub codes: Codes,
}

/// A running poller; ends when dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    changes: Mutex<Vec<Change>>,
    changed: Condvar,
}

impl Watch {
    /// Asks the node's IPv4 address from the outside namespace, `every` so often.
    pub fn start(world: &World, every: Duration) -> Result<Self> {
        let address = SocketAddr::new(world.node_address(Family::V4), HEALTHZ_PORT);
        Self::start_at(&world.outside, address, every)
    }

    /// Asks any address from any namespace.
    pub fn start_at(ns: &Namespace, address: SocketAddr, every: Duration) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let thread = ns.spawn("watch", move || {
            while !seen.stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                let healthz = status(address, "/healthz");
                let codes = Codes {
                    healthz,
                    livez: status(address, "/livez"),
                };
                // One moment for both: the second answer's, and of silence the question's.
                let silent = [codes.healthz, codes.livez].contains(&0);
                let at = if silent { start } else { Instant::now() };
                seen.note(codes, at);
                std::thread::sleep(every.saturating_sub(start.elapsed()));
            }
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// All changes so far; the first is the first sight.
    pub fn changes(&self) -> Vec<Change> {
        self.shared
            .changes
            .lock()
            .expect("the poller does not panic")
            .clone()
    }

    /// The codes now; zeros before the first sight.
    pub fn now(&self) -> Codes {
        self.changes().last().map_or(
            Codes {
                healthz: 0,
                livez: 0,
            },
            |change| change.codes,
        )
    }

    /// Waits until the codes are so; gives the moment from which they are.
    pub fn wait(&self, timeout: Duration, wanted: impl Fn(Codes) -> bool) -> Result<Instant> {
        let timeout = scaled(timeout);
        let end = Instant::now() + timeout;
        let mut changes = self
            .shared
            .changes
            .lock()
            .expect("the poller does not panic");
        loop {
            if let Some(last) = changes.last()
                && wanted(last.codes)
            {
                return Ok(last.at);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "not seen within {timeout:?}; the last change was {:?}",
                    changes.last()
                );
            }
            changes = self
                .shared
                .changed
                .wait_timeout(changes, left)
                .expect("the poller does not panic")
                .0;
        }
    }
}

impl Shared {
    fn note(&self, codes: Codes, at: Instant) {
        let mut changes = self.changes.lock().expect("readers do not panic");
        if changes.last().is_none_or(|last| last.codes != codes) {
            changes.push(Change { at, codes });
            self.changed.notify_all();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn status(address: SocketAddr, path: &str) -> u16 {
    http::get(address, path, scaled(PATIENCE)).map_or(0, |response| response.status)
}
