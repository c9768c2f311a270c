//! For `cargo xtask bench` and `cargo xtask storm`: a node with Services and a sentinel, faults of its
//! datapath, and the times until the agent reports them.

mod fault;
mod figures;
mod stage;

use anyhow::Result;
pub use fault::{Fault, drop_range, kill_backend};
pub use figures::{Figure, ms};
pub use stage::{Load, Stage, Undo};

use crate::http;
use crate::prelude::*;
use crate::watch::Poll;

/// Timeout of one request.
const PATIENCE: Duration = Duration::from_millis(500);

/// Polls a health server of the node from outside. Requests without an answer are left out.
pub fn health(world: &World, port: u16, every: Duration) -> Result<Poll<u16>> {
    let address = SocketAddr::new(world.node_address(Family::V4), port);
    Poll::start(&world.outside, "health", every, move || {
        let answer = http::get(address, "/healthz", PATIENCE).ok()?;
        Some((Instant::now(), answer.status))
    })
}

/// Number of failed probes in /metrics: neither passed nor void.
pub fn failed_probes(metrics: &str) -> u64 {
    let count = |labels: &[&str]| metric(metrics, "pathproof_probes_total", labels);
    count(&[]) - count(&["outcome=\"passed\""]) - count(&["outcome=\"void\""])
}

#[cfg(test)]
mod tests {
    use super::failed_probes;

    #[test]
    fn only_failures_are_counted() {
        let text = "# TYPE pathproof_probes counter\n\
            pathproof_probes_total{path=\"host\",outcome=\"passed\"} 7\n\
            pathproof_probes_total{path=\"host\",outcome=\"void\"} 5\n\
            pathproof_probes_total{path=\"host\",outcome=\"leaked\"} 3\n\
            pathproof_probes_total{path=\"pod\",outcome=\"no_data\"} 2\n\
            pathproof_other_total{outcome=\"leaked\"} 9\n";
        assert_eq!(failed_probes(text), 5);
    }
}
