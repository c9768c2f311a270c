//! Selects which of the drawn actions a storm performs, so that nearly every fault can be judged.

use std::time::Duration;

use super::Step;

/// One of this many faults is not spared: every action that overlaps it stays, and the fault may not be
/// judged.
const UNSPARED: usize = 10;
/// Maximum time by which an action may end later than planned.
const LATE: Duration = Duration::from_secs(1);
/// The same for an agent fault, which may include a start and an exit of an agent.
const AGENT_LATE: Duration = Duration::from_secs(2);
/// Pause between agent faults: time for a start of the agent, and for its first observations.
const BACK: Duration = Duration::from_secs(4);
/// Delay from the end of a fault to an agent fault that was moved because it overlapped the fault. The two
/// values alternate: 503 is still accepted after the first, and wrong after the second.
const AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(6)];

/// Moves an agent fault that would overlap a fault to a time after the fault. Omits other actions that would
/// prevent judgement of the fault, because a storm with few judged faults is inconclusive.
pub(super) fn spared(steps: Vec<Step>) -> Vec<Step> {
    let faults = steps.iter().filter(|step| step.is_fault()).enumerate();
    let spared = faults.filter(|(n, _)| n % UNSPARED != UNSPARED - 1);
    let faults: Vec<Step> = spared.map(|(_, fault)| *fault).collect();
    let mut kept: Vec<Step> = Vec::new();
    for mut step in steps {
        let hidden = |step: &Step| faults.iter().rposition(|fault| hides(step, fault));
        if step.is_agent_fault()
            && let Some(number) = hidden(&step)
        {
            let lasts = step.to - step.from;
            step.from = faults[number].to + AFTER[number % AFTER.len()];
            step.to = step.from + lasts;
        }
        let mut troubles = kept.iter().filter(|one| one.is_agent_fault());
        let crowded = step.is_agent_fault()
            && troubles.any(|one| one.touches(step.from, step.to + BACK, BACK));
        if hidden(&step).is_none() && !crowded {
            kept.push(step);
        }
    }
    kept
}

/// Whether this action would prevent judgement of the fault, even if the action ends late.
fn hides(step: &Step, fault: &Step) -> bool {
    let late = match step.is_agent_fault() {
        true => AGENT_LATE,
        false => LATE,
    };
    let to = step.to + late;
    Step { to, ..*step }.hides(fault).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;

    fn ten_minutes(seed: u64) -> Vec<Step> {
        plan(seed, Duration::from_secs(600), true)
    }

    /// In every storm, at most one of ten faults cannot be judged.
    #[test]
    fn nearly_every_fault_can_be_judged() {
        for seed in 0..200 {
            let steps = ten_minutes(seed);
            let faults: Vec<&Step> = steps.iter().filter(|step| step.is_fault()).collect();
            let hidden = faults
                .iter()
                .filter(|fault| steps.iter().any(|step| hides(step, fault)));
            assert!(faults.len() >= 15, "{seed}");
            assert!(hidden.count() * 10 <= faults.len(), "{seed}");
        }
    }

    /// Agent faults never overlap, so that an agent is never stopped while it is being replaced.
    #[test]
    fn agent_faults_never_overlap() {
        for seed in 0..200 {
            let mut steps = ten_minutes(seed);
            steps.retain(Step::is_agent_fault);
            assert!(steps.windows(2).all(|two| two[0].to < two[1].from));
        }
    }
}
