//! How often what came of a client's connections.

use std::iter::Sum;
use std::ops::{Add, Sub};

/// Counts of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Connections started.
    pub started: u64,
    /// Answered.
    pub ok: u64,
    /// Refused: a RST or an ICMP port unreachable.
    pub refused: u64,
    /// No answer within the patience.
    pub timeouts: u64,
    /// Anything else: unreachable, reset after the handshake, no free port.
    pub other: u64,
    /// Not started for too many open ones.
    pub skipped: u64,
}

impl Tally {
    /// Everything that was started and ended without an answer.
    pub fn failed(&self) -> u64 {
        self.refused + self.timeouts + self.other
    }

    fn with(self, other: Self, join: fn(u64, u64) -> u64) -> Self {
        Self {
            started: join(self.started, other.started),
            ok: join(self.ok, other.ok),
            refused: join(self.refused, other.refused),
            timeouts: join(self.timeouts, other.timeouts),
            other: join(self.other, other.other),
            skipped: join(self.skipped, other.skipped),
        }
    }
}

impl Sub for Tally {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.with(earlier, u64::sub)
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |all, one| all.with(one, u64::add))
    }
}
