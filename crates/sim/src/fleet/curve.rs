//! A number of nodes over time.

use std::time::Duration;

use pathproof_facts::time::Mono;

/// Number of nodes with some property over time.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    steps: Vec<(Mono, u32)>,
}

impl Curve {
    /// From the start (true) and end (false) of the property on each node.
    pub(super) fn of(nodes: &[Vec<(Mono, bool)>]) -> Self {
        let mut changes: Vec<(Mono, bool)> = nodes.iter().flatten().copied().collect();
        changes.sort_unstable();
        let mut number = 0u32;
        let steps = changes.into_iter().map(|(at, begins)| {
            number = match begins {
                true => number + 1,
                false => number.saturating_sub(1),
            };
            (at, number)
        });
        Self {
            steps: steps.collect(),
        }
    }

    pub fn at(&self, at: Mono) -> u32 {
        let before = self.steps.partition_point(|step| step.0 <= at);
        before.checked_sub(1).map_or(0, |last| self.steps[last].1)
    }

    /// Maximum between two times.
    pub fn peak(&self, from: Mono, to: Mono) -> u32 {
        let within = |step: &&(Mono, u32)| from <= step.0 && step.0 <= to;
        let steps = self.steps.iter().filter(within).map(|step| step.1);
        steps.fold(self.at(from), u32::max)
    }

    /// Total time above a limit.
    pub(super) fn above(&self, limit: u32, end: Mono) -> Duration {
        let ends = self.steps.iter().skip(1).map(|step| step.0).chain([end]);
        let spans = self.steps.iter().zip(ends);
        let above = spans.filter(|(step, _)| step.1 > limit);
        above.map(|(step, end)| end.since(step.0)).sum()
    }
}
