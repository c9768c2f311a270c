//! The sentinel's lanes as /verdict and `status` show them. Nothing here judges.

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::time::nanos;
use pathproof_witness::probes::{LaneLedger, ProbeOutcome, Run, lanes_of};

use super::case::Case;
use super::lanes::Probed;
use super::report::{LaneState, LaneView, StageDelays};

impl<'a> Case<'a> {
    /// All lanes that were ever probed.
    pub(super) fn lanes(&self) -> Vec<LaneView> {
        let probed = |lane| (lane, self.ledger.sentinel.lane(lane));
        let known = lanes_of(self.family).map(probed);
        let known = known.filter(|(_, ledger)| ledger.is_known());
        known.map(|lane| self.view(lane)).collect()
    }

    fn view(&self, (lane, ledger): Probed<'a>) -> LaneView {
        let sentinel = &self.ledger.sentinel;
        let beside_cilium = !sentinel.represents_real_traffic(lane.path);
        let conflicting_service = sentinel.conflicting_service(lane);
        let state = match self.lane_state(ledger) {
            _ if conflicting_service.is_some() && ledger.run.is_none() => LaneState::Off,
            // Leftover rules can make a lane beside Cilium pass, which is worth reporting.
            state if state == LaneState::Passing || !beside_cilium => state,
            _ => LaneState::Off,
        };
        let cause = match state {
            LaneState::Failing => self.run(ledger).map(Run::cause),
            LaneState::NeverWorked => ledger.never_worked(),
            LaneState::Passing | LaneState::Void | LaneState::Off => None,
        };
        let run = ledger.run.as_ref();
        let [passed, failed, void] = ledger.totals;
        LaneView {
            path: lane.path,
            transport: lane.transport,
            armed: ledger.armed,
            state,
            cause,
            failures: run.map_or(0, |run| run.failures),
            failing_since: run.map(|run| run.since),
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
            refusal_clear: run.is_some_and(|run| run.refusal_clear),
            void_cause: (state == LaneState::Void).then(|| self.void_cause(ledger)),
            beside_cilium,
            conflicting_service: conflicting_service.map(ObjectName::to_string),
        }
    }

    fn lane_state(&self, ledger: &'a LaneLedger) -> LaneState {
        if self.run(ledger).is_some() {
            return LaneState::Failing;
        }
        match ledger.last.filter(|(at, _)| self.is_within_proof_age(*at)) {
            _ if !self.ledger.sentinel.view.counts() => LaneState::Off,
            None => LaneState::Off,
            Some(_) if ledger.never_worked().is_some() => LaneState::NeverWorked,
            Some((_, ProbeOutcome::Void(_))) => LaneState::Void,
            Some(_) if !ledger.armed => LaneState::NeverWorked,
            Some((_, ProbeOutcome::Failed(_))) => LaneState::Void,
            Some((_, ProbeOutcome::Passed { .. })) => LaneState::Passing,
        }
    }
}
