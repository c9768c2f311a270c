//! Asks the agent over and over, and notes when an answer changed. Each question is asked by a
//! thread of its own, so that none waits for another.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::http;
use crate::scene::metric;
use crate::watch::Poll;
use crate::world::{ADMIN_PORT, Family, HEALTHZ_PORT, World};

/// How often /healthz is asked.
const HEALTHZ_EVERY: Duration = Duration::from_millis(10);
/// How often /metrics is read.
const METRICS_EVERY: Duration = Duration::from_millis(20);
/// How long one question may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// The load balancer's view and the monitoring's. Both ask until this is dropped.
#[derive(Debug)]
pub struct Eyes {
    /// Status of /healthz, asked from outside; an answer that did not come is left out.
    pub healthz: Poll<u64>,
    /// Probes that failed since the agent started, as /metrics says.
    pub failures: Poll<u64>,
}

impl Eyes {
    /// Opens them.
    pub fn open(world: &World) -> Result<Self> {
        let health = SocketAddr::new(world.node_address(Family::V4), HEALTHZ_PORT);
        let healthz = Poll::start(&world.outside, "healthz", HEALTHZ_EVERY, move || {
            let response = http::get(health, "/healthz", PATIENCE).ok()?;
            Some((Instant::now(), u64::from(response.status)))
        })?;
        let admin = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ADMIN_PORT);
        let failures = Poll::start(&world.node, "metrics", METRICS_EVERY, move || {
            let response = http::get(admin, "/metrics", PATIENCE).ok()?;
            Some((Instant::now(), failed_probes(&response.body)))
        })?;
        Ok(Self { healthz, failures })
    }
}

/// Probes whose outcome accuses something.
fn failed_probes(metrics: &str) -> u64 {
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
