//! Selection of the drawn actions that a storm plays, so that nearly every fault can be judged.

use std::time::Duration;

use super::Step;

/// Every so many faults one keeps all that falls on it, and then it may not be judged.
const UNSPARED: usize = 10;
/// An action may take this much longer than planned.
const LATE: Duration = Duration::from_secs(1);
/// Trouble for the agent, which may have to start and to end.
const AGENT_LATE: Duration = Duration::from_secs(2);
/// Between troubles for the agent: an agent that starts, and what it sees after it.
const BACK: Duration = Duration::from_secs(4);
/// From the end of a fault to trouble for the agent that would have fallen on it, by turns: while 503 may stand,
/// and when 503 would be wrong.
const AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(6)];

/// Trouble for the agent that would fall on a fault comes after it, and what would keep the fault from
/// being judged otherwise is left out. A storm in which few faults are judged shows little.
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

/// Whether the judge could not judge this fault beside it.
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

    /// Of ten faults nine at least, in storms of any length.
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

    /// An agent is never stopped while it is being replaced.
    #[test]
    fn of_the_agents_troubles_one_lasts_at_a_time() {
        for seed in 0..200 {
            let mut steps = ten_minutes(seed);
            steps.retain(Step::is_agent_fault);
            assert!(steps.windows(2).all(|two| two[0].to < two[1].from));
        }
    }
}
