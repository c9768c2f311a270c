//! Every metric, defined in one table (`definitions`).
//!
//! The main loop passes its [`Report`] in each turn, and counts connections with [`Metrics::record_sample`];
//! the listeners and the publisher count in `counters`. A scrape reads the main loop's values under one lock,
//! so it never mixes two turns. `cargo xtask gen-docs` writes docs/metrics.md from the same definitions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pathproof_facts::directory::Directory;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::Transport;
use pathproof_judge::verdict::{ServiceTrouble, Verdict};
use pathproof_node::effect::Measurement;
use pathproof_report::{Report, ServiceReport, UdpReport};
use pathproof_witness::evidence::CountDelta;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

mod connections;
mod counters;
mod definitions;
mod readings;
mod rotator;
mod samples;
mod series;

use connections::Connections;
use counters::Counted;
pub use counters::{Listener, Open, Published, Turned, WriteResult};
pub use rotator::{Rotating, Written};
pub use series::ServiceMetrics;
use series::Shown;

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug)]
pub struct Metrics {
    counted: Counted,
    /// Data that a scrape reads in addition to the library's counters.
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    /// Which Services get series.
    which: ServiceMetrics,
    /// The report of the last turn of the main loop.
    report: Option<Arc<Report>>,
    connections: Connections,
    datagrams: Connections,
    /// `None` in an agent.
    rotating: Option<Rotating>,
}

impl Metrics {
    /// Gives series to Services in trouble. Until the main loop's first turn ends, a scrape has only metrics
    /// of the process.
    pub fn new() -> Arc<Self> {
        Self::with(ServiceMetrics::default())
    }

    /// Like `new`, with another selection of Services that get series.
    pub fn with(which: ServiceMetrics) -> Arc<Self> {
        let current = Current {
            which,
            ..Current::default()
        };
        Arc::new(Self {
            counted: Counted::default(),
            current: Mutex::new(current),
        })
    }

    /// Counts a sample: connections and, separately, datagrams of UDP Services.
    pub fn record_sample(&self, counts: &[CountDelta], directory: &dyn Directory) {
        let mut current = self.current();
        // The last turn's time is close enough: failures stay recent for minutes.
        let now = current.now();
        for delta in counts {
            // A Service that disappeared since the count is skipped, because its family is unknown.
            if let Some(info) = directory.service(delta.service) {
                let counted = match info.udp {
                    true => &mut current.datagrams,
                    false => &mut current.connections,
                };
                counted.record(delta, &info, now);
            }
        }
    }

    pub fn record(&self, probe: &Measurement) {
        self.counted.probe(probe.trace.lane, probe.outcome.name());
        if let Some(lag) = probe.lag {
            self.counted.rotations.observe(lag.as_secs_f64());
        }
    }

    /// Removes Services that are no longer expected. Call it after the view changed, since ids are reused.
    pub fn retain(&self, directory: &dyn Directory) {
        let mut current = self.current();
        current.connections.retain(directory);
        current.datagrams.retain(directory);
    }

    /// Services with traffic for a report: those in `trouble`, then the `busiest`, and the number
    /// of omitted ones.
    pub fn services(
        &self,
        directory: &dyn Directory,
        trouble: &[ServiceTrouble],
        busiest: usize,
    ) -> (Vec<ServiceReport>, u32) {
        let current = self.current();
        current.connections.report(directory, trouble, busiest)
    }

    /// UDP Services with traffic for a report: DNS first, then the busiest.
    pub fn udp(&self, directory: &dyn Directory, shown: usize) -> UdpReport {
        self.current().datagrams.udp_report(directory, shown)
    }

    /// Replaces the report after a turn.
    pub fn update(&self, report: Arc<Report>) {
        self.current().report = Some(report);
    }

    /// Changes what a rotator shows.
    pub fn rotating(&self, change: impl FnOnce(&mut Rotating)) {
        change(self.current().rotating.get_or_insert_default());
    }

    /// The exposition, as OpenMetrics text.
    pub fn encode(self: &Arc<Self>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(samples::Exposition(Arc::clone(self))));
        let mut page = String::with_capacity(32 * 1024);
        // Writing to a String cannot fail, and the labels are plain text.
        let _ = text::encode(&mut page, &registry);
        page
    }

    /// Ignores poisoning: sums that may lack one turn are better than no metrics.
    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    /// Verdict of the last turn.
    fn verdict(&self) -> Option<&Verdict> {
        Some(&self.report.as_ref()?.verdict)
    }

    /// Time of the last turn.
    fn now(&self) -> Mono {
        self.verdict().map_or(Mono(0), |verdict| verdict.at)
    }

    /// TCP Services with series.
    fn services(&self) -> Shown<'_> {
        let named = self.verdict().map_or(&[][..], |verdict| &verdict.services);
        (self.connections).shown(self.which, Transport::Tcp, named, self.now())
    }

    /// UDP Services with series. The verdict names none of them, because it covers only connections.
    fn udp_services(&self) -> Shown<'_> {
        (self.datagrams).shown(self.which, Transport::Udp, &[], self.now())
    }
}

#[cfg(test)]
mod tests;
