//! The main loop's heartbeat: it beats with every turn, and who asks learns how long ago that was.
//! Times are nanoseconds of `CLOCK_MONOTONIC`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest pause after which the main loop counts as alive. A turn takes a quarter of a second.
pub const STALLED_AFTER: Duration = Duration::from_secs(10);

/// When the main loop last turned. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Begins with a beat, so that a start that takes long is not an end.
    pub fn new(now: u64) -> Self {
        Self(Arc::new(AtomicU64::new(now)))
    }

    /// The main loop turned.
    pub fn beat(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }

    /// How long ago it last turned.
    pub fn age(&self, now: u64) -> Duration {
        Duration::from_nanos(now.saturating_sub(self.0.load(Ordering::Relaxed)))
    }

    /// Whether it is alive.
    pub fn is_alive(&self, now: u64) -> bool {
        self.age(now) <= STALLED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alive_until_stalled() {
        let second = |n: u64| n * 1_000_000_000;
        let heartbeat = Heartbeat::new(second(1));
        assert!(heartbeat.is_alive(second(11)));
        assert!(!heartbeat.is_alive(second(12)));
        heartbeat.clone().beat(second(12));
        assert!(heartbeat.is_alive(second(13)));
        assert_eq!(heartbeat.age(second(15)), Duration::from_secs(3));
    }
}
