//! Every metric, defined and encoded in one place.
//!
//! Values come from what is published anyway: the main loop hands over a [`Snapshot`] with each
//! turn and counts connections with [`Metrics::record_sample`]; the listeners count through
//! [`Metrics::http`]. What the main loop knows is written at the moment of a scrape, from
//! one lock, so a scrape never mixes two turns. docs/metrics.md is [`reference()`], written from the same definitions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_common::evidence::Delays;
use agent_common::service::FAMILIES;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use agent_core::effect::Measurement;
use agent_core::evidence::{CountDelta, Directory};
use agent_core::report::{Report, ServiceReport, UdpReport};
use agent_core::time::Mono;
use agent_core::verdict::{ServiceTrouble, Verdict};

mod connections;
mod counters;
mod definitions;
mod exposition;
mod reference;
mod series;

pub use counters::{HttpStats, Listener, Open, PublishStats, Published, Turned, WriteResult};
pub use reference::reference;
pub use series::ServiceMetrics;

use connections::{Connections, Datagrams};
use counters::Measured;

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    shared: Arc<Shared>,
    measured: Measured,
    http: HttpStats,
    publish: PublishStats,
}

/// Data that a scrape reads beside the library's own counters.
#[derive(Debug, Default)]
struct Shared(Mutex<Current>);

#[derive(Debug, Default)]
struct Current {
    /// Services with series of their own.
    which: ServiceMetrics,
    snapshot: Option<Snapshot>,
    connections: Connections,
    datagrams: Datagrams,
}

/// State at the end of one turn of the main loop, beside the counters.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The published report.
    pub report: Arc<Report>,
    /// Times from arrival to departure, by family, as the kernel holds them.
    pub delays: [Delays; FAMILIES],
    /// Links that were found detached and put back, since the agent started.
    pub reattached: u64,
}

impl Metrics {
    /// Metrics of the process alone until the first turn ends, with series of Services in trouble.
    pub fn new() -> Arc<Self> {
        Self::with(ServiceMetrics::default())
    }

    /// The same with series of other Services.
    pub fn with(which: ServiceMetrics) -> Arc<Self> {
        let shared = Arc::new(Shared(Mutex::new(Current {
            which,
            ..Current::default()
        })));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(exposition::Exposition(Arc::clone(&shared))));
        Arc::new(Self {
            measured: Measured::new(&mut registry),
            http: HttpStats::new(&mut registry),
            publish: PublishStats::new(&mut registry),
            registry,
            shared,
        })
    }

    /// Counts what a sample brought: connections, and apart from them datagrams of UDP Services.
    /// `answers` are Services with how many microseconds after a connection or datagram its first
    /// answer came.
    pub fn record_sample(
        &self,
        counts: &[CountDelta],
        answers: impl Iterator<Item = (u32, u32)>,
        directory: &dyn Directory,
    ) {
        let mut current = self.shared.current();
        // The last turn's time is near enough for failures that stay recent for minutes.
        let now = current.verdict().map_or(Mono(0), |verdict| verdict.at);
        let Current {
            connections,
            datagrams,
            ..
        } = &mut *current;
        for delta in counts {
            // A Service that went away between the count and now is of no family that is known.
            if let Some(info) = directory.service(delta.service) {
                let counted = match info.udp {
                    true => &mut datagrams.counted,
                    false => &mut *connections,
                };
                counted.record(delta, &info, now);
            }
        }
        for (service, us) in answers {
            let ns = u64::from(us) * 1_000;
            match directory.service(service) {
                Some(info) if info.udp => {
                    datagrams.answered(service, ns);
                    if info.dns {
                        self.measured.dns.observe(f64::from(us) / 1e6);
                    }
                }
                Some(info) => connections.accepted(service, &info, ns),
                None => {}
            }
        }
    }

    /// Counts an observation.
    #[deny(clippy::wildcard_enum_match_arm)]
    pub fn record(&self, measured: &Measurement) {
        match measured {
            Measurement::Probe {
                trace,
                outcome,
                lag,
            } => {
                self.measured.probe(trace, outcome.name());
                if let Some(lag) = lag {
                    self.measured.rotations.observe(lag.as_secs_f64());
                }
            }
            Measurement::StaleConnection(_, age) => self.measured.left.observe(age.as_secs_f64()),
            Measurement::Programmed(programmed) => self.measured.programmed(programmed),
        }
    }

    /// Forgets Services that are no longer expected. Call after the view changed: their ids may be
    /// given to others.
    pub fn retain(&self, directory: &dyn Directory) {
        let mut current = self.shared.current();
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
        self.shared
            .current()
            .connections
            .report(directory, trouble, busiest)
    }

    /// UDP Services with traffic for a report: those of DNS first, then the busiest.
    pub fn udp(&self, directory: &dyn Directory, shown: usize) -> UdpReport {
        self.shared.current().datagrams.report(directory, shown)
    }

    /// Replaces the snapshot by that of the turn that just ended.
    pub fn update(&self, snapshot: Snapshot) {
        self.shared.current().snapshot = Some(snapshot);
    }

    /// Counters of the listeners.
    pub fn http(&self) -> &HttpStats {
        &self.http
    }

    /// Counters of writes to the API server.
    pub fn publish(&self) -> &PublishStats {
        &self.publish
    }

    /// The exposition, in OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut page = String::with_capacity(32 * 1024);
        // Writing to a String cannot fail, and the collector's labels are plain text.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}

impl Current {
    /// Value of the last turn.
    fn verdict(&self) -> Option<&Verdict> {
        Some(&self.snapshot.as_ref()?.report.verdict)
    }
}

impl Shared {
    /// A holder that panicked left sums that may lack one turn; better than no metrics.
    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
