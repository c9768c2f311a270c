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

/// Time before an obstacle was read at which it may have begun.
const READ_EVERY: Duration = Duration::from_secs(30);

/// Obstacle of one family, and what clients outside met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Obstructed {
    /// The obstacle, and when it was first read.
    obstacle: Option<(Cause, Mono)>,
    /// Failures since the last proof.
    run: Option<Run>,
}

/// Failures of connections from outside to Services that worked for clients outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) first: Mono,
    pub(crate) last: Mono,
    pub(crate) failures: u32,
}

impl Obstructed {
    /// The obstacle as it was read now, or none.
    pub(crate) fn meet(&mut self, cause: Option<Cause>, now: Mono) {
        let since = |cause| match self.obstacle {
            Some((known, since)) if known == cause => (cause, since),
            _ => (cause, now),
        };
        self.obstacle = cause.map(since);
    }

    /// A connection from outside was proven.
    pub(crate) fn prove(&mut self, at: Mono) {
        self.run.take_if(|run| run.first <= at);
    }

    /// Connections from outside failed. Without an obstacle a run ends with a pause; with one it stays:
    /// load balancers that were told send nobody.
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

    /// The obstacle and the failures, where both together accuse the node. `proof` is the last of a client
    /// outside: after the obstacle began, it shows that the way does without what is missing.
    pub(crate) fn accuses(&self, proof: Option<Mono>, limits: &Limits) -> Option<(Cause, Run)> {
        let (cause, since) = self.obstacle?;
        let run = self.run?;
        let is_felt = run.failures >= limits.service_failures
            && run.last.since(run.first) >= limits.service_spread
            && run.last.plus(READ_EVERY) >= since;
        let is_refuted = proof.is_some_and(|proof| proof > since.plus(limits.proof_overlap));
        (is_felt && !is_refuted).then_some((cause, run))
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
                outside.meet(Some(Cause::ForwardingOff), at(60_000));
                met = true;
            }
            outside.fail(1, at(second * 1_000));
        }
        outside.meet(Some(Cause::ForwardingOff), at(60_000));
        let proof = proof.map(|second| at(second * 1_000));
        assert_eq!(outside.accuses(proof, &limits).is_some(), expected);
    }

    #[test]
    fn without_an_obstacle_nobody_outside_accuses() {
        let mut outside = Obstructed::default();
        for second in 0..100 {
            outside.fail(10, at(second * 1_000));
        }
        assert_eq!(outside.accuses(None, &Limits::default()), None);
    }

    #[test]
    fn it_holds_without_clients_until_the_obstacle_or_the_run_ends() {
        let limits = Limits::default();
        let obstacle = Some(Cause::ProgramMissing);
        let mut outside = Obstructed::default();
        outside.meet(obstacle, at(0));
        for second in 0..5 {
            outside.fail(1, at(second * 1_000));
        }
        outside.meet(obstacle, at(600_000));
        assert!(
            outside.accuses(None, &limits).is_some(),
            "load balancers keep away"
        );
        let mut proven = outside;
        proven.prove(at(601_000));
        assert_eq!(proven.accuses(Some(at(601_000)), &limits), None);
        outside.meet(None, at(602_000));
        assert_eq!(outside.accuses(None, &limits), None);
        outside.meet(obstacle, at(700_000));
        assert_eq!(outside.accuses(None, &limits), None, "nobody failed since");
    }
}
