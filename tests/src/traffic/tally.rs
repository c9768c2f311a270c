//! Counts of the outcomes of a client's connections.

use std::iter::Sum;
use std::ops::{Add, Sub};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub started: u64,
    /// Answered connections.
    pub ok: u64,
    /// Refused by a RST or an ICMP port unreachable.
    pub refused: u64,
    /// No answer before the timeout.
    pub timeouts: u64,
    /// Any other failure: unreachable, reset after the handshake, no free port.
    pub other: u64,
    /// Not started because too many were open.
    pub skipped: u64,
}

impl Tally {
    /// Connections that ended without an answer.
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
