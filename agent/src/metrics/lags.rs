//! Lags of the rules behind the API, summed up since the agent started.

use std::time::Duration;

use agent_common::service::{FAMILIES, Family};

/// Upper bounds in seconds; what lies above the last has a bucket of its own. Proxies follow within
/// tenths of a second, or wait for their next sync; the last bounds are those of the verdict.
pub(super) const BOUNDS: [f64; 11] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0];

/// Lags of one family.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lags {
    pub(super) buckets: [u64; BOUNDS.len() + 1],
    pub(super) sum: f64,
}

impl Lags {
    fn add(&mut self, lag: Duration) {
        let seconds = lag.as_secs_f64();
        let place = BOUNDS.iter().position(|bound| seconds <= *bound);
        self.buckets[place.unwrap_or(BOUNDS.len())] += 1;
        self.sum += seconds;
    }
}

/// By family.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freshness {
    /// Of the sentinel's endpoint.
    pub(super) rotations: [Lags; FAMILIES],
    /// Of endpoints that had left.
    pub(super) left: [Lags; FAMILIES],
}

impl Freshness {
    pub(super) fn record_rotation(&mut self, family: Family, lag: Duration) {
        self.rotations[family as usize].add(lag);
    }

    pub(super) fn record_left(&mut self, family: Family, age: Duration) {
        self.left[family as usize].add(age);
    }
}
