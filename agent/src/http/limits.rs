//! How many connections a listener keeps, and for how long.

use std::time::Duration;

/// Open files reserved for the agent itself: maps, links, devices, manifests.
const OWN_FILES: usize = 512;

/// Memory of a connection whose client sends parts of a request, one byte in each packet. Most of it is the
/// kernel's: measured 9.3 KiB on Linux 6.18.
pub const WAITING_BYTES: usize = 10 * 1024;

/// Memory of a connection whose client has sent a request and a part of a long header (measured: 40 KiB), or
/// many requests whose answers it does not read (29 KiB).
pub const TALKING_BYTES: usize = 44 * 1024;

/// Minimum limit for each kind, however little memory there is.
const FEWEST: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum connections without a request so far; beyond it the oldest is closed.
    pub waiting: usize,
    /// Maximum connections that have sent a request, and therefore have a buffer; beyond it the least
    /// recently used one is closed.
    pub talking: usize,
    /// Maximum time from accept to the first request; the client's port reduces it by up to half. It is
    /// long: a waiting connection costs little, and a closed client would reconnect.
    pub waiting_time: Duration,
    /// Interval at which a connection is closed if it had no request since the previous check. Its client
    /// is idle, does not read its answer, or does not complete the next header.
    pub talking_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: 10_240,
            talking: 512,
            waiting_time: Duration::from_secs(60),
            // Neither 30 s, the usual scrape interval, nor a divisor of it: a close should not coincide
            // with a scrape.
            talking_time: Duration::from_secs(45),
        }
    }
}

impl Limits {
    /// Reduces the limits so that all connections, and the agent's other files, fit into this number of
    /// open files.
    pub fn within(self, open_files: u64) -> Self {
        let room = usize::try_from(open_files).unwrap_or(usize::MAX);
        let room = room.saturating_sub(OWN_FILES).max(32);
        let talking = self.talking.min(room / 2);
        Self {
            waiting: self.waiting.min(room - talking),
            talking,
            ..self
        }
    }

    /// Reduces the limits so that all connections of this listener fit into this many bytes, however their
    /// clients behave.
    pub fn within_memory(self, bytes: u64) -> Self {
        let room = usize::try_from(bytes).unwrap_or(usize::MAX);
        let talking = self.talking.min(room / 4 / TALKING_BYTES);
        let room = room - talking * TALKING_BYTES;
        Self {
            waiting: (room / WAITING_BYTES).max(FEWEST).min(self.waiting),
            talking: talking.max(FEWEST).min(self.talking),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_fit_the_open_files() {
        let limits = Limits::default();
        assert_eq!(limits.within(1_048_576), limits);
        let small = limits.within(1_024);
        assert_eq!((small.waiting, small.talking), (256, 256));
        let least = limits.within(0);
        assert!(least.waiting > 0 && least.talking > 0);
    }

    #[test]
    fn limits_fit_the_memory() {
        let limits = Limits::default();
        assert_eq!(limits.within_memory(u64::MAX), limits);
        let small = limits.within_memory(42 << 20);
        assert_eq!((small.waiting, small.talking), (3_227, 244));
        let most = small.waiting * WAITING_BYTES + small.talking * TALKING_BYTES;
        assert!(most <= 42 << 20, "{most}");
        let least = limits.within_memory(0);
        assert_eq!((least.waiting, least.talking), (FEWEST, FEWEST));
    }
}
