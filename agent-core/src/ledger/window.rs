//! A count over the last ten seconds, in fixed memory.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Mono;

/// How far back a [`Window`] counts; the last second is counted as far as it has come.
pub(crate) const WINDOW: Duration = Duration::from_secs(SECONDS as u64);

const SECONDS: usize = 10;

/// Counts by second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Window {
    /// The second and its count, at the second's place modulo [`SECONDS`].
    buckets: [(u64, u32); SECONDS],
}

impl Window {
    /// Counts `n` more at `at`.
    pub(crate) fn add(&mut self, at: Mono, n: u32) {
        let second = second_of(at);
        let Some(bucket) = self.buckets.get_mut(place_of(second)) else {
            return;
        };
        if bucket.0 != second {
            *bucket = (second, 0);
        }
        bucket.1 = bucket.1.saturating_add(n);
    }

    /// How many there were within [`WINDOW`] before `now`.
    pub(crate) fn at(&self, now: Mono) -> u32 {
        let second = second_of(now);
        let recent = |age: u64| age < SECONDS as u64;
        self.buckets
            .iter()
            .filter(|(counted, _)| second.checked_sub(*counted).is_some_and(recent))
            .fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}

fn second_of(at: Mono) -> u64 {
    at.0 / 1_000_000_000
}

fn place_of(second: u64) -> usize {
    (second % SECONDS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut window = Window::default();
        window.add(s(5), 2);
        window.add(s(5), 1);
        window.add(s(9), 1);
        assert_eq!(window.at(s(9)), 4);
        assert_eq!(window.at(s(14)), 4);
        assert_eq!(window.at(s(15)), 1);
        assert_eq!(window.at(s(19)), 0);
        window.add(s(15), 1);
        assert_eq!(window.at(s(15)), 2, "second 5 and second 15 share a place");
        assert_eq!(window.at(s(3)), 0, "the future is not counted");
    }
}
