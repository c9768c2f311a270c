//! Asks the agent's /verdict inside the node, over and over, and keeps what changes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;

use crate::http;
use crate::world::{ADMIN_PORT, World};

/// How often it asks.
const EVERY: Duration = Duration::from_millis(40);

/// What the demo shows of a verdict.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Seen {
    /// State in words, such as "broken".
    pub(super) state: String,
    /// Cause in words, where there is one.
    pub(super) cause: Option<String>,
    /// A sentence.
    pub(super) reason: String,
    /// Services in trouble.
    pub(super) services: Vec<Trouble>,
}

/// A Service in trouble.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Trouble {
    /// Name.
    pub(super) service: String,
    /// Whether it is confirmed.
    pub(super) confirmed: bool,
}

#[derive(Deserialize)]
struct Document {
    verdict: Seen,
}

impl Seen {
    /// Whether a confirmed trouble names this Service ("namespace/name").
    pub(super) fn blames(&self, service: &str) -> bool {
        let named = |trouble: &Trouble| {
            trouble.service.split(':').next() == Some(service) && trouble.confirmed
        };
        self.services.iter().any(named)
    }

    /// Counts in the reason change all the time; these do not.
    fn gist(&self) -> (&str, Option<&str>) {
        (&self.state, self.cause.as_deref())
    }
}

/// A running poller; ends when dropped.
#[derive(Debug)]
pub(super) struct VerdictWatch {
    stop: Arc<AtomicBool>,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    now: Seen,
    changes: Vec<(Instant, Seen)>,
}

impl VerdictWatch {
    pub(super) fn start(world: &World) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (ended, seen) = (Arc::clone(&stop), Arc::clone(&shared));
        let thread = world.node.spawn("verdict", move || {
            while !ended.load(Ordering::Relaxed) {
                if let Some(verdict) = ask() {
                    note(&mut seen.lock().expect("nobody panics with it"), verdict);
                }
                std::thread::sleep(EVERY);
            }
        })?;
        Ok(Self {
            stop,
            shared,
            thread: Some(thread),
        })
    }

    /// The verdict now.
    pub(super) fn now(&self) -> Seen {
        self.shared
            .lock()
            .expect("nobody panics with it")
            .now
            .clone()
    }

    /// Changes of state or cause, from the `first` on.
    pub(super) fn changes(&self, first: usize) -> Vec<(Instant, Seen)> {
        let shared = self.shared.lock().expect("nobody panics with it");
        shared.changes.get(first..).unwrap_or_default().to_vec()
    }
}

impl Drop for VerdictWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ask() -> Option<Seen> {
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ADMIN_PORT);
    let response = http::get(address, "/verdict", Duration::from_secs(1)).ok()?;
    serde_json::from_str::<Document>(&response.body)
        .ok()
        .map(|document| document.verdict)
}

fn note(shared: &mut Shared, verdict: Seen) {
    if shared
        .changes
        .last()
        .is_none_or(|(_, last)| last.gist() != verdict.gist())
    {
        shared.changes.push((Instant::now(), verdict.clone()));
    }
    shared.now = verdict;
}
