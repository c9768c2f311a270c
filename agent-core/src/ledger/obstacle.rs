//! An obstacle in the node itself that keeps clients from being served, as it is read from the kernel. No client
//! and no policy can make one, so failed connections of these clients accuse the node beside it.

use std::time::Duration;

use agent_common::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

use crate::cause::Cause;
use crate::time::Mono;

/// Time between the start of an obstacle and its first reading, at most.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(30);
/// Time from the first reading on after which a success shows that the node serves clients without what is
/// missing: the connection may have begun before.
const SURE_AFTER: Duration = Duration::from_secs(1);

/// By [`SourceClass`].
pub(crate) type Classes = [bool; SOURCE_CLASSES];
/// Clients outside alone.
pub(crate) const OUTSIDE: Classes = [false, false, true];

/// Result of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// The obstacle is there, for clients of these classes.
    Present(Cause, Classes),
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
    /// Clients whom it keeps from being served.
    #[serde(default = "outside")]
    pub(crate) concerns: Classes,
    /// Some of these were served while it was there.
    #[serde(default)]
    served: Classes,
    /// The same of clients outside, as older agents remembered it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    refuted: bool,
}

fn outside() -> Classes {
    OUTSIDE
}

impl ObstacleLedger {
    /// Takes a reading.
    pub(crate) fn read(&mut self, reading: Reading, now: Mono) {
        let (cause, concerns) = match reading {
            Reading::Unread => return,
            Reading::Absent => return self.obstacle = None,
            Reading::Present(cause, concerns) => (cause, concerns),
        };
        let known = self.obstacle.filter(|known| known.cause == cause);
        let new = Obstacle {
            cause,
            since: now,
            concerns,
            served: Classes::default(),
            refuted: false,
        };
        self.obstacle = Some(Obstacle {
            concerns,
            ..known.unwrap_or(new)
        });
    }

    /// A connection of that class of clients succeeded.
    pub(crate) fn succeed(&mut self, class: SourceClass, at: Mono) {
        if let Some(obstacle) = &mut self.obstacle {
            obstacle.served[class as usize] |= at > obstacle.since.plus(SURE_AFTER);
        }
    }

    /// The obstacle for clients of that class, unless one of them was served beside it.
    pub(crate) fn standing(&self, class: SourceClass) -> Option<Obstacle> {
        let at = class as usize;
        let served =
            |of: &Obstacle| of.served[at] || (of.refuted && class == SourceClass::External);
        (self.obstacle).filter(|obstacle| obstacle.concerns[at] && !served(obstacle))
    }

    /// Whether routes or neighbour tables show it.
    pub(crate) fn is_looked_up(&self) -> bool {
        self.obstacle.is_some_and(|of| of.cause.is_looked_up())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    const OBSTACLE: Reading = Reading::Present(Cause::ProgramMissing, OUTSIDE);
    const CLIENTS: SourceClass = SourceClass::External;

    #[test]
    fn a_client_that_is_served_beside_an_obstacle_refutes_it_until_it_was_away() {
        let mut ledger = ObstacleLedger::default();
        ledger.read(OBSTACLE, at(0));
        ledger.succeed(CLIENTS, at(900));
        assert!(
            ledger.standing(CLIENTS).is_some(),
            "the connection began before"
        );
        ledger.succeed(CLIENTS, at(10_000));
        ledger.read(Reading::Unread, at(31_000));
        ledger.read(OBSTACLE, at(32_000));
        assert_eq!(ledger.standing(CLIENTS), None);
        ledger.read(Reading::Absent, at(33_000));
        ledger.read(OBSTACLE, at(34_000));
        assert!(ledger.standing(CLIENTS).is_some(), "another one");
    }
}
