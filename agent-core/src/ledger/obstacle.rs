//! An obstacle in the node itself that keeps clients outside from being served, as it is read from the
//! kernel. Nobody outside the node can make one, so failed connections from outside accuse the node beside it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cause::Cause;
use crate::time::Mono;

/// Time between the start of an obstacle and its first reading, at most.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(30);
/// Time from the first reading on after which a success shows that the node serves clients without what is
/// missing: the connection may have begun before.
const SURE_AFTER: Duration = Duration::from_secs(1);

/// Result of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The obstacle is there.
    Present(Cause),
    /// None is there.
    Absent,
    /// Some of it could not be read, or was not read yet: what is known stays.
    Unread,
}

/// Obstacle of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObstacleLedger {
    obstacle: Option<Obstacle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Obstacle {
    pub(crate) cause: Cause,
    /// When it was first read.
    pub(crate) since: Mono,
    /// A client outside was served while it was there.
    refuted: bool,
}

impl ObstacleLedger {
    /// Takes a reading.
    pub(crate) fn read(&mut self, reading: Reading, now: Mono) {
        let cause = match reading {
            Reading::Unread => return,
            Reading::Absent => return self.obstacle = None,
            Reading::Present(cause) => cause,
        };
        let known = self.obstacle.filter(|known| known.cause == cause);
        self.obstacle = known.or(Some(Obstacle {
            cause,
            since: now,
            refuted: false,
        }));
    }

    /// A connection from outside succeeded.
    pub(crate) fn succeed(&mut self, at: Mono) {
        if let Some(obstacle) = &mut self.obstacle {
            obstacle.refuted |= at > obstacle.since.plus(SURE_AFTER);
        }
    }

    /// The obstacle, unless a client outside was served beside it.
    pub(crate) fn standing(&self) -> Option<Obstacle> {
        self.obstacle.filter(|obstacle| !obstacle.refuted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    const OBSTACLE: Reading = Reading::Present(Cause::ProgramMissing);

    #[test]
    fn a_client_that_is_served_beside_an_obstacle_refutes_it_until_it_was_away() {
        let mut ledger = ObstacleLedger::default();
        ledger.read(OBSTACLE, at(0));
        ledger.succeed(at(900));
        assert!(ledger.standing().is_some(), "the connection began before");
        ledger.succeed(at(10_000));
        ledger.read(Reading::Unread, at(31_000));
        ledger.read(OBSTACLE, at(32_000));
        assert_eq!(ledger.standing(), None);
        ledger.read(Reading::Absent, at(33_000));
        ledger.read(OBSTACLE, at(34_000));
        assert!(ledger.standing().is_some(), "another one");
    }
}
