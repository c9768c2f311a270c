//! Asks the agent over and over, and notes when an answer changed. Each question is asked by a
//! thread of its own, so that none waits for another.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::http;
use crate::world::{ADMIN_PORT, Family, HEALTHZ_PORT, Namespace, World};

/// How often /healthz is asked.
const HEALTHZ_EVERY: Duration = Duration::from_millis(10);
/// How often /metrics is read.
const METRICS_EVERY: Duration = Duration::from_millis(20);
/// How long one question may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// The load balancer's view and the monitoring's. Both ask until this is dropped.
#[derive(Debug)]
pub struct Eyes {
    /// Status of /healthz, asked from outside; an answer that did not come is left out.
    pub healthz: Series,
    /// Probes that failed since the agent started, as /metrics says.
    pub failures: Series,
}

impl Eyes {
    /// Opens them.
    pub fn open(world: &World) -> Result<Self> {
        let health = SocketAddr::new(world.node_address(Family::V4), HEALTHZ_PORT);
        let healthz = Series::start(&world.outside, "healthz", HEALTHZ_EVERY, move || {
            let response = http::get(health, "/healthz", PATIENCE).ok()?;
            Some(u64::from(response.status))
        })?;
        let admin = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ADMIN_PORT);
        let failures = Series::start(&world.node, "metrics", METRICS_EVERY, move || {
            let response = http::get(admin, "/metrics", PATIENCE).ok()?;
            Some(failed_probes(&response.body))
        })?;
        Ok(Self { healthz, failures })
    }
}

/// Probes whose outcome accuses something.
fn failed_probes(metrics: &str) -> u64 {
    let says_nothing = ["outcome=\"passed\"", "outcome=\"void\""];
    let failed = metrics.lines().filter(|line| {
        line.starts_with("pathproof_probes_total{")
            && !says_nothing.iter().any(|label| line.contains(label))
    });
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    failed.filter_map(value).sum::<f64>() as u64
}

/// A number that is asked for again and again, with the moments at which it was seen to change.
#[derive(Debug)]
pub struct Series {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    changes: Mutex<Vec<(Instant, u64)>>,
    changed: Condvar,
}

impl Series {
    /// Asks from a namespace, this often, until dropped. An answer of `None` is left out.
    pub fn start(
        ns: &Namespace,
        name: &str,
        every: Duration,
        ask: impl Fn() -> Option<u64> + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let thread = ns.spawn(name, move || {
            while !seen.stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                if let Some(value) = ask() {
                    seen.note(value);
                }
                std::thread::sleep(every.saturating_sub(start.elapsed()));
            }
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The last answer.
    pub fn now(&self) -> Option<u64> {
        self.shared.lock().last().map(|(_, value)| *value)
    }

    /// How often a value was seen to begin since then.
    pub fn count(&self, since: Instant, value: u64) -> usize {
        let changes = self.shared.lock();
        let begun = changes.iter().filter(|change| **change > (since, 0));
        begun.filter(|(_, seen)| *seen == value).count()
    }

    /// The moment after `since` at which an answer was first `wanted`; nothing where that did not
    /// happen within the patience.
    pub fn first(
        &self,
        since: Instant,
        patience: Duration,
        wanted: impl Fn(u64) -> bool,
    ) -> Option<Instant> {
        let end = since + patience;
        let mut changes = self.shared.lock();
        loop {
            let seen = changes
                .iter()
                .find(|(at, value)| *at > since && wanted(*value));
            if let Some((at, _)) = seen {
                return Some(*at);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.changed.wait_timeout(changes, left);
            changes = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<(Instant, u64)>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, value: u64) {
        let mut changes = self.lock();
        if changes.last().is_none_or(|(_, last)| *last != value) {
            changes.push((Instant::now(), value));
            self.changed.notify_all();
        }
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::failed_probes;

    #[test]
    fn only_failures_are_counted() {
        let text = "# TYPE pathproof_probes counter\n\
            pathproof_probes_total{path=\"host\",outcome=\"passed\"} 7\n\
            pathproof_probes_total{path=\"host\",outcome=\"void\"} 5\n\
            pathproof_probes_total{path=\"host\",outcome=\"leaked\"} 3\n\
            pathproof_probes_total{path=\"pod\",outcome=\"no_data\"} 2\n\
            pathproof_other_total{outcome=\"leaked\"} 9\n";
        assert_eq!(failed_probes(text), 5);
    }
}
