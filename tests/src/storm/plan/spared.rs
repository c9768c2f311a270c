//! Selection of the drawn actions that a storm plays, so that nearly every fault can be judged.

use std::time::Duration;

use super::{Action, Fault, Harmless, Step, Tenant};

/// Every so many faults one keeps all that falls on it, and then it may not be judged.
const UNSPARED: usize = 10;
/// After trouble for the agent: an agent that starts, and what it sees after it.
const BACK: Duration = Duration::from_secs(4);
/// After what disturbs the sentinel.
const UNARMED: Duration = Duration::from_secs(13);
/// From the end of a fault to trouble for the agent that would have fallen on it.
const AFTER: Duration = Duration::from_secs(1);

impl Step {
    /// Whether the judge could not judge this fault beside it.
    fn hides(&self, fault: &Self) -> bool {
        let Action::Fault(kind) = fault.action else {
            return false;
        };
        let after = match self.action {
            Action::Agent(_) => BACK,
            Action::Tenant(Tenant::ClaimsProbed)
                if matches!(kind, Fault::DataDropped | Fault::ForwardDropped) =>
            {
                UNARMED
            }
            Action::Harmless(
                Harmless::RangeDropped | Harmless::SentinelDeleted | Harmless::DeviceDeleted,
            ) if kind == Fault::DataDropped => UNARMED,
            _ => return false,
        };
        self.at < fault.end() && self.end() + after > fault.at
    }
}

/// Trouble for the agent that would fall on a fault comes after it, and what would keep the fault from
/// being judged otherwise is left out. A storm in which few faults are judged shows little.
pub(super) fn spared(steps: Vec<Step>) -> Vec<Step> {
    let faults = steps
        .iter()
        .filter(|step| matches!(step.action, Action::Fault(_)));
    let spared = faults
        .enumerate()
        .filter(|(n, _)| n % UNSPARED != UNSPARED - 1);
    let faults: Vec<Step> = spared.map(|(_, fault)| *fault).collect();
    let mut kept: Vec<Step> = Vec::new();
    for mut step in steps {
        let hidden = |step: &Step| faults.iter().rfind(|fault| step.hides(fault)).copied();
        if let (Some(fault), Action::Agent(_)) = (hidden(&step), step.action) {
            step.at = fault.end() + AFTER;
        }
        let is_agents = |one: &Step| matches!(one.action, Action::Agent(_));
        let overlaps = |one: &Step| one.at < step.end() + BACK && step.at < one.end() + BACK;
        let crowded = is_agents(&step) && kept.iter().any(|one| is_agents(one) && overlaps(one));
        if hidden(&step).is_none() && !crowded {
            kept.push(step);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::super::{Plan, Source};
    use super::*;

    const TEN_MINUTES: Duration = Duration::from_secs(600);

    fn plan(seed: u64) -> Plan {
        Plan::of(seed, TEN_MINUTES, Source::ApiServer)
    }

    /// Of ten faults nine at least, in storms of any length.
    #[test]
    fn nearly_every_fault_can_be_judged() {
        for seed in 0..200 {
            let steps = plan(seed).steps;
            let is_fault = |step: &&Step| matches!(step.action, Action::Fault(_));
            let faults: Vec<&Step> = steps.iter().filter(is_fault).collect();
            let hidden = faults
                .iter()
                .filter(|fault| steps.iter().any(|step| step.hides(fault)));
            assert!(faults.len() >= 15, "{seed}");
            assert!(hidden.count() * 10 <= faults.len(), "{seed}");
        }
    }

    /// An agent is never stopped while it is being replaced.
    #[test]
    fn of_the_agents_troubles_one_lasts_at_a_time() {
        for seed in 0..200 {
            let mut steps = plan(seed).steps;
            steps.retain(|step| matches!(step.action, Action::Agent(_)));
            assert!(steps.windows(2).all(|two| two[0].end() < two[1].at));
        }
    }
}
