//! Load balancers of a simulated fleet, each with a separate phase for every node.

use std::time::Duration;

use pathproof_facts::time::Mono;

use super::Curve;
use crate::Dice;

/// How a load balancer checks `GET :10256/healthz`; docs/load-balancers.md has the sources.
#[derive(Clone, Copy, Debug)]
pub struct Balancer {
    /// Name in tables.
    pub name: &'static str,
    /// Check interval in seconds.
    pub every: u64,
    /// Number of consecutive failed checks that remove a node.
    pub down: u32,
    /// Number of consecutive passed checks that restore it.
    pub up: u32,
}

const fn balancer(name: &'static str, every: u64, down: u32, up: u32) -> Balancer {
    Balancer {
        name,
        every,
        down,
        up,
    }
}

/// Load balancers with health checks, which excludes MetalLB.
pub const BALANCERS: [Balancer; 5] = [
    balancer("DigitalOcean", 3, 3, 5),
    balancer("Azure", 5, 2, 2),
    balancer("GCP", 8, 3, 1),
    balancer("AWS NLB at its fastest", 10, 2, 2),
    balancer("AWS NLB", 30, 3, 3),
];

impl Balancer {
    /// Number of nodes out of service, given the answers of each.
    pub(super) fn out(&self, nodes: &[Vec<(Mono, bool)>], begin: Mono, end: Mono) -> Curve {
        let mut dice = Dice::new(self.every);
        let every = Duration::from_secs(self.every);
        let out: Vec<_> = nodes
            .iter()
            .map(|answers| {
                let phase = dice.between((Duration::ZERO, every));
                // Checks before the first 503 change nothing and are skipped. The phase of each node is
                // random.
                let first = answers.first().map_or(end, |answer| answer.0);
                let passed = (first.since(begin).as_secs() / self.every).saturating_sub(1);
                let from = begin.plus(every * u32::try_from(passed).unwrap_or(0) + phase);
                self.follow(answers, from, end)
            })
            .collect();
        Curve::of(&out)
    }

    /// When it removes one node and restores it.
    fn follow(&self, answers: &[(Mono, bool)], from: Mono, end: Mono) -> Vec<(Mono, bool)> {
        let (mut out, mut is_out, mut row) = (Vec::new(), false, 0);
        let mut at = from;
        while at <= end && !answers.is_empty() {
            let before = answers.partition_point(|answer| answer.0 <= at);
            let refuses = before.checked_sub(1).is_some_and(|last| answers[last].1);
            row = if refuses == is_out { 0 } else { row + 1 };
            if row >= if is_out { self.up } else { self.down } {
                (is_out, row) = (refuses, 0);
                out.push((at, is_out));
            }
            at = at.plus(Duration::from_secs(self.every));
        }
        out
    }
}
