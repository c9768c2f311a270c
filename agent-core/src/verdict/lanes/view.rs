//! Lanes as they look.

use crate::probes::{LaneLedger, ProbeOutcome, Run, lanes_of};
use crate::time::{Mono, nanos};
use crate::trace::Lane;
use crate::verdict::judge::Case;
use crate::verdict::report::{LaneState, LaneView, StageDelays};

impl<'a> Case<'a> {
    /// The lanes that were ever probed.
    pub(in crate::verdict) fn lanes(&self) -> Vec<LaneView> {
        let known = |lane: Lane| {
            let ledger = self.sentinel().lane(lane);
            ledger.is_known().then(|| self.lane_view(lane, ledger))
        };
        lanes_of(self.family).filter_map(known).collect()
    }

    fn lane_view(&self, lane: Lane, ledger: &'a LaneLedger) -> LaneView {
        let beside_cilium = !self.sentinel().stands(lane.path);
        let state = match self.lane_state(ledger) {
            // Where it passes, by rules that somebody left behind, that is worth a word.
            state if state == LaneState::Passing || !beside_cilium => state,
            _ => LaneState::Off,
        };
        let cause = match state {
            LaneState::Failing => self.run(ledger).map(Run::cause),
            LaneState::NeverWorked => ledger.never_worked(),
            LaneState::Passing | LaneState::Void | LaneState::Off => None,
        };
        let [passed, failed, void] = ledger.totals;
        LaneView {
            path: lane.path,
            transport: lane.transport,
            armed: ledger.armed,
            state,
            cause,
            failures: ledger.run.as_ref().map_or(0, |run| run.failures),
            failing_since: ledger.run.as_ref().map(|run| run.since),
            last_pass: ledger.last_pass,
            last_failure: ledger.last_failure,
            delays: StageDelays::of(ledger.delays, ledger.round_trip),
            generation: ledger.generation,
            wanted: ledger.freshness.wanted(),
            lag: ledger.freshness.lag().map(nanos),
            late: self.lateness(lane, ledger).map(nanos),
            passed,
            failed,
            void,
            client: ledger.client,
            local: ledger.run.as_ref().is_some_and(|run| run.local),
            void_cause: (state == LaneState::Void).then(|| self.void_cause(ledger)),
            beside_cilium,
        }
    }

    fn lane_state(&self, ledger: &'a LaneLedger) -> LaneState {
        let view = self.sentinel().view();
        let fresh = |(at, _): &(Mono, ProbeOutcome)| self.is_within_proof_age(*at);
        if self.run(ledger).is_some() {
            return LaneState::Failing;
        }
        let last = ledger.last.filter(fresh);
        match last {
            _ if !view.counts() => LaneState::Off,
            None => LaneState::Off,
            Some(_) if ledger.never_worked().is_some() => LaneState::NeverWorked,
            Some((_, ProbeOutcome::Void(_))) => LaneState::Void,
            Some(_) if !ledger.armed => LaneState::NeverWorked,
            Some((_, ProbeOutcome::Failed(_))) => LaneState::Void,
            Some((_, ProbeOutcome::Passed { .. })) => LaneState::Passing,
        }
    }
}
