//! Questions that a thread asks over and over, keeping every change of the answer with its time; and
//! one of them, [`Watch`]: /healthz and /livez from outside, the load balancer's view of the node.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::http;
use crate::wait::{scaled, until};
use crate::worker::Worker;
use crate::world::{Family, HEALTHZ_PORT, Namespace, World};

/// How long one request may take: the least that load balancers wait.
const PATIENCE: Duration = Duration::from_secs(1);

/// Status codes at a moment; 0 where nobody answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// A question that is asked until this is dropped.
#[derive(Debug)]
pub struct Poll<T> {
    seen: Arc<Mutex<Answers<T>>>,
    worker: Worker,
}

#[derive(Debug)]
struct Answers<T> {
    asked: u64,
    changes: Vec<(Instant, T)>,
}

impl<T: Clone + PartialEq + Send + 'static> Poll<T> {
    /// Asks from a namespace, this often. An answer comes with its moment; `None` is left out.
    pub fn start(
        ns: &Namespace,
        name: &str,
        every: Duration,
        ask: impl Fn() -> Option<(Instant, T)> + Send + 'static,
    ) -> Result<Self> {
        let (asked, changes) = (0, Vec::new());
        let seen = Arc::new(Mutex::new(Answers { asked, changes }));
        let answers = Arc::clone(&seen);
        let worker = Worker::within(ns, name, move |stop| {
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                let answer = ask();
                lock(&answers).note(answer);
                std::thread::sleep(every.saturating_sub(start.elapsed()));
            }
        })?;
        Ok(Self { seen, worker })
    }

    /// Questions that are over.
    pub fn asked(&self) -> u64 {
        lock(&self.seen).asked
    }

    /// All changes so far; the first is the first answer.
    pub fn changes(&self) -> Vec<(Instant, T)> {
        lock(&self.seen).changes.clone()
    }

    /// The last answer.
    pub fn now(&self) -> Option<T> {
        let seen = lock(&self.seen);
        seen.changes.last().map(|(_, answer)| answer.clone())
    }

    /// Ends it. Gives the number of questions, and all changes.
    pub fn end(self) -> (u64, Vec<(Instant, T)>) {
        drop(self.worker);
        let seen = lock(&self.seen);
        (seen.asked, seen.changes.clone())
    }

    /// Waits until something is found among the changes.
    pub fn wait<R>(
        &self,
        timeout: Duration,
        find: impl Fn(&[(Instant, T)]) -> Option<R>,
    ) -> Option<R> {
        until(timeout, || find(&lock(&self.seen).changes))
    }

    /// The moment after `since` at which an answer was first `wanted`; nothing where that did not
    /// happen within the patience.
    pub fn first(
        &self,
        since: Instant,
        patience: Duration,
        wanted: impl Fn(&T) -> bool,
    ) -> Option<Instant> {
        let left = (since + patience).saturating_duration_since(Instant::now());
        self.wait(left, |changes| {
            let mut later = changes.iter().filter(|(at, _)| *at > since);
            later.find(|(_, answer)| wanted(answer)).map(|(at, _)| *at)
        })
    }
}

fn lock<T>(seen: &Mutex<T>) -> MutexGuard<'_, T> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: PartialEq> Answers<T> {
    /// An equal answer keeps the moment of the one before.
    fn note(&mut self, answer: Option<(Instant, T)>) {
        self.asked += 1;
        let Some((at, answer)) = answer else { return };
        match self.changes.last_mut() {
            Some((_, last)) if *last == answer => *last = answer,
            _ => self.changes.push((at, answer)),
        }
    }
}

/// A running poller of /healthz and /livez; ends when dropped.
#[derive(Debug)]
pub struct Watch(Poll<Codes>);

impl Watch {
    /// Asks the node's IPv4 address from the outside namespace, `every` so often.
    pub fn start(world: &World, every: Duration) -> Result<Self> {
        let address = SocketAddr::new(world.node_address(Family::V4), HEALTHZ_PORT);
        Self::start_at(&world.outside, address, every)
    }

    /// Asks any address from any namespace.
    pub fn start_at(ns: &Namespace, address: SocketAddr, every: Duration) -> Result<Self> {
        let poll = Poll::start(ns, "watch", every, move || {
            let start = Instant::now();
            let healthz = status(address, "/healthz");
            let livez = status(address, "/livez");
            // One moment for both: the second answer's, and of silence the question's.
            let silent = [healthz, livez].contains(&0);
            let at = if silent { start } else { Instant::now() };
            Some((at, Codes { healthz, livez }))
        })?;
        Ok(Self(poll))
    }

    /// All changes so far; the first is the first sight.
    pub fn changes(&self) -> Vec<Change> {
        let changes = self.0.changes().into_iter();
        changes.map(|(at, codes)| Change { at, codes }).collect()
    }

    /// The codes now; zeros before the first sight.
    pub fn now(&self) -> Codes {
        self.0.now().unwrap_or_default()
    }

    /// Waits until the codes are or have been so since this was called; gives the moment from which.
    pub fn wait(&self, timeout: Duration, wanted: impl Fn(Codes) -> bool) -> Result<Instant> {
        // With the codes of now, the last change.
        let before = self.changes().len().saturating_sub(1);
        let found = self.0.wait(timeout, |changes| {
            let mut later = changes[before..].iter();
            later.find(|(_, codes)| wanted(*codes)).map(|(at, _)| *at)
        });
        found.with_context(|| {
            let last = self.changes().pop();
            let timeout = scaled(timeout);
            format!("not seen within {timeout:?}; the last change was {last:?}")
        })
    }
}

fn status(address: SocketAddr, path: &str) -> u16 {
    http::get(address, path, scaled(PATIENCE)).map_or(0, |response| response.status)
}
