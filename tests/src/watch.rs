//! Polling on a thread that records every change of the answer with its time. [`Watch`] polls /healthz and
//! /livez from outside, like a load balancer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use crate::http;
use crate::prelude::*;
use crate::worker::Worker;
use crate::world::HEALTHZ_PORT;

/// Timeout of one request: the shortest one among common load balancers.
const PATIENCE: Duration = Duration::from_secs(1);

/// Status codes at a moment; 0 means no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codes {
    pub healthz: u16,
    pub livez: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub at: Instant,
    pub codes: Codes,
}

/// A poller that runs until it is dropped.
#[derive(Debug)]
pub struct Poll<T> {
    seen: Arc<Mutex<Polled<T>>>,
    worker: Worker,
}

#[derive(Debug)]
struct Polled<T> {
    asked: u64,
    changes: Vec<(Instant, T)>,
}

impl<T: Clone + PartialEq + Send + 'static> Poll<T> {
    /// Polls from a namespace at this interval. The closure returns an answer with its time. `None` is not
    /// recorded.
    pub fn start(
        ns: &Namespace,
        name: &str,
        every: Duration,
        ask: impl Fn() -> Option<(Instant, T)> + Send + 'static,
    ) -> Result<Self> {
        let (asked, changes) = (0, Vec::new());
        let seen = Arc::new(Mutex::new(Polled { asked, changes }));
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

    /// Number of completed requests.
    pub fn asked(&self) -> u64 {
        lock(&self.seen).asked
    }

    /// All changes so far, beginning with the first answer.
    pub fn changes(&self) -> Vec<(Instant, T)> {
        lock(&self.seen).changes.clone()
    }

    pub fn now(&self) -> Option<T> {
        let seen = lock(&self.seen);
        seen.changes.last().map(|(_, answer)| answer.clone())
    }

    /// Ends the poller. Returns the number of requests, and all changes.
    pub fn end(self) -> (u64, Vec<(Instant, T)>) {
        drop(self.worker);
        let seen = lock(&self.seen);
        (seen.asked, seen.changes.clone())
    }

    /// Waits until `find` returns a value for the changes so far.
    pub fn wait<R>(
        &self,
        timeout: Duration,
        find: impl Fn(&[(Instant, T)]) -> Option<R>,
    ) -> Option<R> {
        until(timeout, || find(&lock(&self.seen).changes))
    }

    /// Time of the first `wanted` answer after `since`, or `None` if there is none within the patience.
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

impl<T: PartialEq> Polled<T> {
    /// Records an answer. If it equals the one before, the earlier time stays.
    fn note(&mut self, answer: Option<(Instant, T)>) {
        self.asked += 1;
        let Some((at, answer)) = answer else { return };
        match self.changes.last_mut() {
            Some((_, last)) if *last == answer => *last = answer,
            _ => self.changes.push((at, answer)),
        }
    }
}

/// One request of a [`Watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub sent: Instant,
    /// Time until the whole answer was there; `None` if none came.
    pub took: Option<Duration>,
}

/// A running poller of /healthz and /livez; ends when dropped.
#[derive(Debug)]
pub struct Watch {
    poll: Poll<Codes>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Watch {
    /// Polls the node's IPv4 address from the outside namespace.
    pub fn start(world: &World, every: Duration) -> Result<Self> {
        let address = SocketAddr::new(world.node_address(Family::V4), HEALTHZ_PORT);
        Self::start_at(&world.outside, address, every)
    }

    pub fn start_at(ns: &Namespace, address: SocketAddr, every: Duration) -> Result<Self> {
        let requests = Arc::new(Mutex::default());
        let noted = Arc::clone(&requests);
        let poll = Poll::start(ns, "watch", every, move || {
            let start = Instant::now();
            let healthz = status(address, "/healthz", &noted);
            let livez = status(address, "/livez", &noted);
            // Both codes get one time: that of the second answer, or that of the request if an answer is
            // missing.
            let silent = [healthz, livez].contains(&0);
            let at = if silent { start } else { Instant::now() };
            Some((at, Codes { healthz, livez }))
        })?;
        Ok(Self { poll, requests })
    }

    /// All changes so far, beginning with the first codes.
    pub fn changes(&self) -> Vec<Change> {
        let changes = self.poll.changes().into_iter();
        changes.map(|(at, codes)| Change { at, codes }).collect()
    }

    /// All requests so far, in the order in which they were sent.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.requests).clone()
    }

    /// The current codes; zeros before the first answer.
    pub fn now(&self) -> Codes {
        self.poll.now().unwrap_or_default()
    }

    /// Waits until the codes are as wanted, at or after the time of this call. Returns the time at which they
    /// changed to that.
    pub fn wait(&self, timeout: Duration, wanted: impl Fn(Codes) -> bool) -> Result<Instant> {
        // Begin with the last change, which contains the current codes.
        let before = self.changes().len().saturating_sub(1);
        let found = self.poll.wait(timeout, |changes| {
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

fn status(address: SocketAddr, path: &str, requests: &Mutex<Vec<Request>>) -> u16 {
    let sent = Instant::now();
    let answer = http::get(address, path, scaled(PATIENCE)).ok();
    let took = answer.as_ref().map(|_| sent.elapsed());
    lock(requests).push(Request { sent, took });
    answer.map_or(0, |response| response.status)
}
