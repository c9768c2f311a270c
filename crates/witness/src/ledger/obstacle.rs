//! An obstacle in the node itself that keeps clients from being served, as read from the kernel. No client
//! and no policy can cause one, so while it exists, failed connections of these clients accuse the node.

use std::time::Duration;

use pathproof_facts::cause::Cause;
use pathproof_facts::time::Mono;
use pathproof_wire::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

/// Maximum time between the start of an obstacle and its first reading.
pub const READ_WITHIN: Duration = Duration::from_secs(30);
/// Minimum time from the first reading to a success that refutes the obstacle. An earlier success may belong
/// to a connection from before the obstacle.
const SURE_AFTER: Duration = Duration::from_secs(1);

/// By [`SourceClass`].
pub type Classes = [bool; SOURCE_CLASSES];
pub const OUTSIDE: Classes = [false, false, true];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// There is an obstacle for clients of these classes.
    Present(Cause, Classes),
    Absent,
    /// The reading is incomplete or missing, so the last result stays.
    Unread,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObstacleLedger {
    obstacle: Option<Obstacle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    pub cause: Cause,
    /// When it was first read.
    pub since: Mono,
    /// Classes of clients that the obstacle keeps from being served.
    pub(crate) concerns: Classes,
    /// Classes of clients of which at least one client was served in spite of the obstacle.
    served: Classes,
}

impl ObstacleLedger {
    pub(crate) fn read(&mut self, reading: Reading, now: Mono) {
        let (cause, concerns) = match reading {
            Reading::Unread => return,
            Reading::Absent => return self.obstacle = None,
            Reading::Present(cause, concerns) => (cause, concerns),
        };
        let known = self.obstacle.filter(|known| known.cause == cause);
        let known = known.map(|known| (known.since, known.served));
        let (since, served) = known.unwrap_or((now, Classes::default()));
        self.obstacle = Some(Obstacle {
            cause,
            since,
            concerns,
            served,
        });
    }

    /// Records a success of this class of clients.
    pub(crate) fn succeed(&mut self, class: SourceClass, at: Mono) {
        if let Some(obstacle) = &mut self.obstacle {
            obstacle.served[class as usize] |= at > obstacle.since.plus(SURE_AFTER);
        }
    }

    /// The obstacle for this class of clients, unless one of them was served in spite of it.
    pub fn present(&self, class: SourceClass) -> Option<Obstacle> {
        let at = class as usize;
        (self.obstacle).filter(|obstacle| obstacle.concerns[at] && !obstacle.served[at])
    }

    /// Whether routes or neighbour tables show the obstacle.
    pub fn is_looked_up(&self) -> bool {
        self.obstacle
            .is_some_and(|obstacle| obstacle.cause.is_looked_up())
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
            ledger.present(CLIENTS).is_some(),
            "the connection began before the obstacle"
        );
        ledger.succeed(CLIENTS, at(10_000));
        ledger.read(Reading::Unread, at(31_000));
        ledger.read(OBSTACLE, at(32_000));
        assert_eq!(ledger.present(CLIENTS), None);
        ledger.read(Reading::Absent, at(33_000));
        ledger.read(OBSTACLE, at(34_000));
        assert!(ledger.present(CLIENTS).is_some(), "a new obstacle");
    }
}
