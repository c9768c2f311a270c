//! An obstacle in the node itself that keeps clients outside from being served, and the failures of such
//! clients since their last proof.
//!
//! Clients outside alone never accuse a node, since anybody may send SYNs. Nobody outside can make an
//! obstacle: it is read from the kernel. The two together accuse.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::service::WINDOW;
use crate::cause::Cause;
use crate::limits::Limits;
use crate::time::Mono;

/// Time between the start of an obstacle and its first reading, at most.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// Time from the first reading on after which a proof shows that the node serves clients without what is
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

/// Obstacle of one family, and the failures of clients outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Obstructed {
    obstacle: Option<Obstacle>,
    /// Failures since the last proof.
    run: Option<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Obstacle {
    cause: Cause,
    /// When it was first read.
    since: Mono,
    /// A client outside was served while it was there.
    refuted: bool,
}

/// Failures of connections from outside to Services that worked for clients outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) first: Mono,
    pub(crate) last: Mono,
    pub(crate) failures: u32,
}

impl Run {
    fn is_long(&self, limits: &Limits) -> bool {
        let spread = self.last.since(self.first) >= limits.service_spread;
        self.failures >= limits.service_failures && spread
    }
}

impl Obstructed {
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

    /// A connection from outside was proven.
    pub(crate) fn prove(&mut self, at: Mono) {
        self.run.take_if(|run| run.first <= at);
        if let Some(obstacle) = &mut self.obstacle {
            obstacle.refuted |= at > obstacle.since.plus(SURE_AFTER);
        }
    }

    /// Connections from outside failed. Without an obstacle a run ends with a pause. With one it stays, since
    /// load balancers that received 503 send no clients.
    pub(crate) fn fail(&mut self, n: u32, at: Mono) {
        let stays = self.obstacle.is_some();
        let run = self.run.filter(|run| stays || at.since(run.last) <= WINDOW);
        let run = self.run.insert(run.unwrap_or(Run {
            first: at,
            last: at,
            failures: 0,
        }));
        run.last = run.last.max(at);
        run.failures = run.failures.saturating_add(n);
    }

    /// Connections may have been proven unseen: a run that accuses nobody yet does not continue.
    pub(crate) fn lose_sight(&mut self, limits: &Limits) {
        if self.accuses(limits).is_none() {
            self.run = None;
        }
    }

    /// The obstacle's cause and the failures, where both together accuse the node.
    pub(crate) fn accuses(&self, limits: &Limits) -> Option<(Cause, Run)> {
        let obstacle = self.obstacle.filter(|obstacle| !obstacle.refuted)?;
        let is_felt =
            |run: &Run| run.is_long(limits) && run.last.plus(READ_WITHIN) >= obstacle.since;
        Some((obstacle.cause, self.run.filter(is_felt)?))
    }

    /// The failures alone.
    pub(crate) fn without_obstacle(self) -> Self {
        Self {
            obstacle: None,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const fn at(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    /// An obstacle read at 60 s, and failures at these seconds; is it accused at the end?
    #[rstest]
    #[case::felt(&[58, 59, 60, 61, 62], None, true)]
    #[case::proven_before(&[58, 59, 60, 61, 62], Some(57), true)]
    #[case::proven_behind_it(&[61, 62, 63, 64, 65], Some(63), false)]
    #[case::nobody_failed(&[], None, false)]
    #[case::too_few(&[61, 62], None, false)]
    #[case::at_once(&[61, 61, 61, 61, 61], None, false)]
    #[case::long_before_it(&[10, 11, 12, 13, 14], None, false)]
    fn clients_accuse_with_an_obstacle(
        #[case] failures: &[u64],
        #[case] proof: Option<u64>,
        #[case] expected: bool,
    ) {
        let limits = Limits::default();
        let mut outside = Obstructed::default();
        let mut met = false;
        for second in failures {
            if *second >= 60 && !met {
                outside.read(Reading::Present(Cause::ForwardingOff), at(60_000));
                met = true;
            }
            outside.fail(1, at(second * 1_000));
            if proof == Some(*second) {
                outside.prove(at(second * 1_000));
            }
        }
        outside.read(Reading::Present(Cause::ForwardingOff), at(60_000));
        assert_eq!(outside.accuses(&limits).is_some(), expected);
    }

    #[test]
    fn without_an_obstacle_nobody_outside_accuses() {
        let mut outside = Obstructed::default();
        for second in 0..100 {
            outside.fail(10, at(second * 1_000));
        }
        assert_eq!(outside.accuses(&Limits::default()), None);
    }

    /// Five failures behind an obstacle.
    fn broken() -> Obstructed {
        let mut outside = Obstructed::default();
        outside.read(OBSTACLE, at(0));
        for second in 0..5 {
            outside.fail(1, at(second * 1_000));
        }
        outside
    }

    const OBSTACLE: Reading = Reading::Present(Cause::ProgramMissing);

    #[test]
    fn it_holds_without_clients_until_the_obstacle_or_the_run_ends() {
        let limits = Limits::default();
        let mut outside = broken();
        outside.read(OBSTACLE, at(600_000));
        outside.lose_sight(&limits);
        // An agent that starts has read nothing yet.
        outside.read(Reading::Unread, at(600_001));
        assert!(
            outside.accuses(&limits).is_some(),
            "load balancers keep away"
        );
        let mut proven = outside;
        proven.prove(at(601_000));
        assert_eq!(proven.accuses(&limits), None);
        outside.read(Reading::Absent, at(602_000));
        assert_eq!(outside.accuses(&limits), None);
        outside.read(OBSTACLE, at(700_000));
        assert_eq!(outside.accuses(&limits), None, "nobody failed since");
    }

    #[test]
    fn an_obstacle_that_was_refuted_accuses_nobody_until_it_was_away() {
        let limits = Limits::default();
        let mut outside = broken();
        outside.prove(at(10_000));
        let fail = |outside: &mut Obstructed| {
            (20..30).for_each(|second| outside.fail(1, at(second * 1_000)));
        };
        fail(&mut outside);
        outside.read(Reading::Unread, at(31_000));
        outside.read(OBSTACLE, at(32_000));
        assert_eq!(outside.accuses(&limits), None);
        outside.read(Reading::Absent, at(33_000));
        outside.read(OBSTACLE, at(34_000));
        assert!(outside.accuses(&limits).is_some(), "another one");
    }

    #[test]
    fn a_run_that_does_not_accuse_yet_ends_where_proofs_may_be_missed() {
        let mut outside = Obstructed::default();
        outside.read(OBSTACLE, at(0));
        outside.fail(2, at(1_000));
        outside.lose_sight(&Limits::default());
        outside.fail(1, at(9_000));
        assert_eq!(outside.accuses(&Limits::default()), None);
    }
}
