//! State of a rotator: its lease, its last count and its writes.

use pathproof_facts::fleet_report::FleetReport;
use pathproof_facts::named;
use pathproof_facts::time::Wall;

use super::WriteResult;
use super::samples::Samples;

named! {
    /// Kinds of writes.
    pub enum Written {
        Lease = "lease",
        /// The sentinel's slices, with or without the count.
        Slice = "slice",
        /// The count alone.
        Count = "count",
        /// A Node's label that withdraws it from load balancers.
        Label = "label",
    }
}

/// Results that a rotator's write can have; an agent's writes have more.
const RESULTS: [WriteResult; 4] = [
    WriteResult::Ok,
    WriteResult::Conflict,
    WriteResult::Rejected,
    WriteResult::Unreachable,
];

#[derive(Debug, Default)]
pub struct Rotating {
    /// Whether this rotator leads.
    pub leads: bool,
    /// The count that the slices should have, and when the nodes were last counted.
    pub counted: Option<(Wall, FleetReport)>,
    writes: [[u64; RESULTS.len()]; Written::ALL.len()],
}

impl Rotating {
    pub fn wrote(&mut self, what: Written, result: WriteResult) {
        if let Some(place) = RESULTS.iter().position(|one| *one == result) {
            self.writes[what as usize][place] += 1;
        }
    }

    /// A number of the last count.
    pub(super) fn of_count(&self, read: fn(&FleetReport) -> u32) -> Option<f64> {
        let (_, report) = self.counted.as_ref()?;
        Some(f64::from(read(report)))
    }
}

/// The domains that the annotation lists, so their number is bounded by its length.
pub(super) fn failing_by_domain(rotating: &Rotating, to: &mut Samples<'_>) {
    let counted = rotating.counted.iter();
    for (label, domains) in counted.flat_map(|(_, report)| &report.domains) {
        for (value, (unsound, _)) in domains {
            to.add(&[label, value], f64::from(*unsound));
        }
    }
}

/// Every kind and result from zero, because a rate needs a first value.
pub(super) fn writes(rotating: &Rotating, to: &mut Samples<'_>) {
    for (what, counts) in Written::ALL.into_iter().zip(&rotating.writes) {
        for (result, count) in RESULTS.into_iter().zip(counts) {
            to.add(&[what.name(), result.name()], *count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn page(change: impl FnOnce(&mut Rotating)) -> String {
        let metrics = Metrics::new();
        metrics.rotating(change);
        metrics.encode()
    }

    fn series<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
        page.lines().filter(|line| line.starts_with(name)).collect()
    }

    #[test]
    fn a_leader_shows_its_count() {
        let text = r#"{"nodes":29,"unsound":{"DatapathStale":2,"DatapathBrokenLost":1},
            "domains":{"pool":{"ingress":[2,6]},"zone":{}}}"#;
        let report = FleetReport::parse(text).unwrap();
        let page = page(|rotating| {
            rotating.leads = true;
            rotating.counted = Some((Wall(1_700_000_000_500_000_000), report));
        });
        for line in [
            "pathproof_rotator_leader 1.0",
            "pathproof_rotator_count_timestamp_seconds 1700000000.5",
            "pathproof_rotator_nodes 29.0",
            "pathproof_rotator_failing_nodes 3.0",
            r#"pathproof_rotator_domain_failing_nodes{label="pool",value="ingress"} 2.0"#,
        ] {
            assert_eq!(series(&page, line), [line], "{page}");
        }
    }

    #[test]
    fn a_waiting_rotator_shows_no_count() {
        let page = page(|rotating| rotating.wrote(Written::Lease, WriteResult::Conflict));
        assert_eq!(
            series(&page, "pathproof_rotator_leader"),
            ["pathproof_rotator_leader 0.0"]
        );
        for absent in ["nodes", "failing", "domain", "count"] {
            let name = format!("pathproof_rotator_{absent}");
            assert_eq!(series(&page, &name), [""; 0], "{page}");
        }
        let writes = series(&page, "pathproof_rotator_writes_total");
        assert_eq!(writes.len(), 16);
        let conflict = r#"pathproof_rotator_writes_total{kind="lease",result="conflict"} 1"#;
        assert!(
            writes.iter().any(|line| line.starts_with(conflict)),
            "{page}"
        );
    }

    #[test]
    fn an_agent_has_no_metric_of_a_rotator() {
        assert!(!Metrics::new().encode().contains("rotator"));
    }
}
