//! Every metric, defined and encoded in one place.
//!
//! Values come from what is published anyway: the main loop hands over a [`Snapshot`] with each
//! turn and counts connections with [`Metrics::record_sample`]; the listeners count through
//! [`Metrics::http`]. Everything is written at the moment of a scrape, from one lock, so a scrape
//! never mixes two turns. docs/metrics.md is [`reference()`], written from the same definitions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_common::evidence::Delays;
use agent_common::service::{FAMILIES, Family};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use agent_core::evidence::{CountDelta, Directory};
use agent_core::report::{Report, ServiceReport, UdpReport};
use agent_core::trace::ProbeTrace;
use agent_core::verdict::ServiceTrouble;

mod connections;
mod datagrams;
mod definitions;
mod exposition;
mod http;
mod labels;
mod lags;
mod probes;
mod process;
mod publish;
mod reference;

pub use connections::MAX_SERVICES_SHOWN;
pub use http::{HttpStats, Listener, Open, Turned};
pub use publish::{PublishStats, Published, WriteResult};
pub use reference::reference;

use connections::Connections;
use datagrams::Datagrams;
use lags::Freshness;
use probes::Probes;

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    shared: Arc<Shared>,
}

/// What a scrape reads.
#[derive(Debug, Default)]
struct Shared {
    current: Mutex<Current>,
    http: HttpStats,
    publish: PublishStats,
}

#[derive(Debug, Default)]
struct Current {
    snapshot: Option<Snapshot>,
    connections: Connections,
    datagrams: Datagrams,
    probes: Probes,
    freshness: Freshness,
}

/// What one turn of the main loop knows, beside the connections it counted.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The published report.
    pub report: Arc<Report>,
    /// Times from arrival to departure, by family, as the kernel holds them.
    pub delays: [Delays; FAMILIES],
    /// Links that were found detached and put back, since the agent started.
    pub reattached: u64,
    /// Anomalies read from the ring buffer, since the agent started.
    pub anomalies: u64,
    /// Changes of the cluster view that were applied, since the agent started.
    pub view_changes: u64,
}

impl Metrics {
    /// Nothing is known yet but the process itself.
    pub fn new() -> Arc<Self> {
        let shared = Arc::new(Shared::default());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(exposition::Exposition(Arc::clone(&shared))));
        Arc::new(Self { registry, shared })
    }

    /// Counts what a sample brought: connections, and apart from them datagrams of UDP Services, with
    /// how many microseconds after one its answer came.
    pub fn record_sample(
        &self,
        counts: &[CountDelta],
        answers: impl Iterator<Item = (u32, u32)>,
        directory: &dyn Directory,
    ) {
        let is_udp = |delta: &CountDelta| {
            let info = directory.service(delta.service);
            info.is_some_and(|info| info.udp)
        };
        let (datagrams, connections) = counts
            .iter()
            .partition::<Vec<CountDelta>, _>(|delta| is_udp(delta));
        let mut current = self.current();
        current.connections.record(&connections, directory);
        current.datagrams.record(&datagrams, answers, directory);
    }

    /// Counts a probe of the sentinel under its outcome.
    pub fn record_probe(&self, trace: &ProbeTrace, outcome: &'static str) {
        self.current().probes.record(trace, outcome);
    }

    /// Counts how long the rules took to follow a move of the sentinel's endpoint.
    pub fn record_rotation(&self, family: Family, lag: Duration) {
        self.current().freshness.record_rotation(family, lag);
    }

    /// Counts a new connection to an endpoint that had left its slice so long ago.
    pub fn record_left(&self, family: Family, age: Duration) {
        self.current().freshness.record_left(family, age);
    }

    /// Forgets Services that are no longer expected. Call after the view changed: their ids may be
    /// given to others.
    pub fn retain(&self, directory: &dyn Directory) {
        let mut current = self.current();
        current.connections.retain(directory);
        current.datagrams.retain(directory);
    }

    /// Services with traffic for a report: those in `trouble`, then the `busiest`, and how many are
    /// left out.
    pub fn services(
        &self,
        directory: &dyn Directory,
        trouble: &[ServiceTrouble],
        busiest: usize,
    ) -> (Vec<ServiceReport>, u32) {
        self.current()
            .connections
            .report(directory, trouble, busiest)
    }

    /// UDP Services with traffic for a report: those of DNS first, then the busiest.
    pub fn udp(&self, directory: &dyn Directory, shown: usize) -> UdpReport {
        self.current().datagrams.report(directory, shown)
    }

    /// What the turn that just ended knows.
    pub fn update(&self, snapshot: Snapshot) {
        self.current().snapshot = Some(snapshot);
    }

    /// Where the listeners count.
    pub fn http(&self) -> &HttpStats {
        &self.shared.http
    }

    /// Where writes to the API server are counted.
    pub fn publish(&self) -> &PublishStats {
        &self.shared.publish
    }

    /// The exposition, in OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut page = String::with_capacity(32 * 1024);
        // Writing to a String cannot fail, and the collector's labels are plain text.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.shared.current()
    }
}

impl Shared {
    /// A holder that panicked left sums that may lack one turn; better than no metrics.
    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
