//! How often what came of a client's connections.

use std::ops::Sub;

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
}

impl Sub for Tally {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            started: self.started - earlier.started,
            ok: self.ok - earlier.ok,
            refused: self.refused - earlier.refused,
            timeouts: self.timeouts - earlier.timeouts,
            other: self.other - earlier.other,
            skipped: self.skipped - earlier.skipped,
        }
    }
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |a, b| Self {
            started: a.started + b.started,
            ok: a.ok + b.ok,
            refused: a.refused + b.refused,
            timeouts: a.timeouts + b.timeouts,
            other: a.other + b.other,
            skipped: a.skipped + b.skipped,
        })
    }
}
