//! What a one-shot check brought, as plain values: the last report, and what became of each lane's
//! probes meanwhile. `pathproof check` judges it; nothing here decides anything.

use std::time::Duration;

use agent_common::service::Family;

use super::Report;
use crate::cause::{PROBE_CAUSES, ProbeCause};
use crate::probes::ProbeOutcome;
use crate::trace::{Lane, ProbePath, Transport};

/// What was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// As it stood in the end.
    pub report: Report,
    /// How long paths were probed.
    pub time: Duration,
    /// By lane, those that were probed.
    pub tallies: Vec<Tally>,
}

/// The probes of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Its family.
    pub family: Family,
    /// Its path.
    pub path: ProbePath,
    /// Its transport.
    pub transport: Transport,
    /// Probes that passed.
    pub passed: u64,
    /// That failed.
    pub failed: u64,
    /// That say nothing.
    pub void: u64,
    /// Failures in a row up to the end.
    pub in_row: u64,
    /// The commonest cause of these.
    pub cause: Option<ProbeCause>,
    /// These by cause.
    row: [u64; PROBE_CAUSES],
}

impl Tally {
    /// Of a lane whose probes are yet to come.
    pub fn new(lane: Lane) -> Self {
        Self {
            family: lane.family,
            path: lane.path,
            transport: lane.transport,
            passed: 0,
            failed: 0,
            void: 0,
            in_row: 0,
            cause: None,
            row: [0; PROBE_CAUSES],
        }
    }

    /// One more probe.
    pub fn count(&mut self, outcome: ProbeOutcome) {
        match outcome {
            ProbeOutcome::Passed { .. } => {
                self.passed += 1;
                self.in_row = 0;
                self.cause = None;
                self.row = [0; PROBE_CAUSES];
            }
            ProbeOutcome::Failed(cause) => {
                self.failed += 1;
                self.in_row += 1;
                self.row[cause.index()] += 1;
                // Among equals the later one.
                if self
                    .cause
                    .is_none_or(|known| self.row[cause.index()] >= self.row[known.index()])
                {
                    self.cause = Some(cause);
                }
            }
            ProbeOutcome::Void(_) => self.void += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::VoidReason;

    #[test]
    fn a_pass_ends_the_row() {
        let mut tally = Tally::new(Lane {
            path: ProbePath::OffCluster,
            family: Family::V4,
            transport: Transport::Tcp,
        });
        let failed = ProbeOutcome::Failed;
        for outcome in [
            failed(ProbeCause::LostBeforeLeaving),
            ProbeOutcome::Passed { masqueraded: true },
            failed(ProbeCause::Refused),
            failed(ProbeCause::Leaked),
            ProbeOutcome::Void(VoidReason::SentLate),
            failed(ProbeCause::Leaked),
        ] {
            tally.count(outcome);
        }
        assert_eq!((tally.passed, tally.failed, tally.void), (1, 4, 1));
        assert_eq!((tally.in_row, tally.cause), (3, Some(ProbeCause::Leaked)));
    }
}
