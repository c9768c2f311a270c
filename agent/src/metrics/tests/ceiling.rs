//! Maximum number of series of an agent, as docs/metrics.md promises it.
//!
//! The node is healthy and has everything that a node can have: both families, TCP and UDP traffic on every
//! path, probes of every lane, health check node ports, a connection table, and all publishing.

use pathproof_facts::trace::{Lane, ProbePath, Transport};
use pathproof_judge::answer::Endpoint;
use pathproof_samples as sample;
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::{Family, SourceClass};

use super::super::*;
use super::{Names, value};

const WELL: [Outcome; 5] = [
    Outcome::Arrived,
    Outcome::Forwarded,
    Outcome::Proven,
    Outcome::Answered,
    Outcome::Retransmitted,
];

/// Connections or datagrams of one Service on one path.
fn well(service: u32, class: SourceClass) -> CountDelta {
    let mut counts = [0; OUTCOMES];
    for outcome in WELL {
        counts[outcome as usize] = 3;
    }
    if class == SourceClass::External {
        for outcome in [Outcome::AnswerNotDelivered, Outcome::Rejected] {
            counts[outcome as usize] = 1;
        }
    }
    CountDelta {
        service,
        class,
        counts,
        lost: 0,
    }
}

/// Names of this many Service ports in each family, all of TCP or all of UDP.
fn names(ports: u32, udp: bool) -> Names {
    let mut names = Names::of(2 * ports);
    for (id, (.., family)) in &mut names.by_id {
        *family = Family::ALL[(*id % 2) as usize];
    }
    names.udp = udp;
    names
}

/// A healthy node with this many Service ports.
fn healthy(ports: u32, shown: ServiceMetrics) -> Arc<Metrics> {
    let metrics = Metrics::with(shown);
    let mut report = sample::proven();
    let lanes = |family| {
        let mut lanes = sample::probed::passing(family);
        let template = lanes[0].clone();
        for transport in [Transport::Tcp, Transport::Udp] {
            for path in ProbePath::ALL {
                if !lanes
                    .iter()
                    .any(|lane| (lane.path, lane.transport) == (path, transport))
                {
                    let mut lane = template.clone();
                    (lane.path, lane.transport) = (path, transport);
                    lanes.push(lane);
                }
            }
        }
        lanes
    };
    for family in &mut report.verdict.families {
        for path in &mut family.paths {
            path.last_proof = Some(report.verdict.at);
        }
        family.lanes = lanes(family.family);
    }
    report.verdict.conntrack = sample::probed::full_table();
    report.datapath = sample::beside_cilium().datapath;
    report.expectations.services = u64::from(ports);
    report.faults = [
        "later_fragment",
        "ambiguous",
        "answered_locally",
        "udp_over_rate",
    ]
    .map(|name| (name.to_owned(), 12))
    .into();
    metrics.update(Arc::new(report));
    for udp in [false, true] {
        let names = names(ports, udp);
        for class in SourceClass::ALL {
            let counts: Vec<CountDelta> = (0..2 * ports).map(|id| well(id, class)).collect();
            metrics.record_sample(&counts, &names);
        }
    }
    for family in Family::ALL {
        for path in ProbePath::ALL {
            for transport in [Transport::Tcp, Transport::Udp] {
                let lane = Lane {
                    family,
                    path,
                    transport,
                };
                for outcome in ["passed", "void"] {
                    metrics.counted.probe(lane, outcome);
                }
            }
        }
    }
    metrics.counted.rotations.observe(1.0);
    metrics.answered(Some(Endpoint::Livez), 200);
    for status in [200, 503] {
        metrics.answered_of_service(status);
    }
    for listener in [Listener::Healthz, Listener::Admin, Listener::Service] {
        for event in [Turned::Accepted, Turned::Denied, Turned::TimedOut] {
            metrics.turned(listener, event);
        }
    }
    drop(metrics.opened(Listener::Service));
    for kind in [Published::Condition, Published::Event] {
        metrics.expect_writes(kind);
        metrics.wrote(kind, WriteResult::Conflict);
    }
    metrics
}

fn series(metrics: &Arc<Metrics>) -> usize {
    let page = metrics.encode();
    page.lines().filter(|line| !line.starts_with('#')).count()
}

/// Series by metric, for the message of a failure.
fn shares(metrics: &Arc<Metrics>) -> String {
    let page = metrics.encode();
    let mut shares = std::collections::BTreeMap::<&str, usize>::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        *shares.entry(name).or_default() += 1;
    }
    format!("{shares:#?}")
}

#[test]
fn a_healthy_node_has_at_most_300_series() {
    for ports in [500, 10_000] {
        let metrics = healthy(ports, ServiceMetrics::Trouble);
        assert!(
            series(&metrics) <= 300,
            "{} series: {}",
            series(&metrics),
            shares(&metrics)
        );
    }
}

/// Every tenth of 10,000 Service ports failed within 15 minutes, on every path, in TCP and UDP.
#[test]
fn failures_of_single_services_cost_at_most_200_more() {
    let metrics = healthy(10_000, ServiceMetrics::Trouble);
    for udp in [false, true] {
        let names = names(10_000, udp);
        for class in SourceClass::ALL {
            let failed = |id| CountDelta {
                lost: 1,
                ..well(id, class)
            };
            let counts: Vec<CountDelta> = (0..20_000).step_by(10).map(failed).collect();
            metrics.record_sample(&counts, &names);
        }
    }
    assert!(
        series(&metrics) <= 500,
        "{} series: {}",
        series(&metrics),
        shares(&metrics)
    );
    let omitted = value(&metrics.encode(), "pathproof_service_metrics_omitted");
    assert!(
        omitted.is_some_and(|omitted| omitted > 100.0),
        "{omitted:?}"
    );
}

/// The sizes of a scrape in docs/sizing.md.
#[test]
fn a_scrape_is_as_large_as_the_page_says() {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sizing.md"));
    let mut missing = Vec::new();
    for ports in [500, 10_000] {
        for (name, shown) in [
            ("all", ServiceMetrics::All),
            ("trouble", ServiceMetrics::Trouble),
        ] {
            let metrics = healthy(ports, shown);
            let (series, size) = (series(&metrics), metrics.encode().len() as f64 / 1e3);
            let row = format!("| {ports} | `{name}` | {series} | {size:.0} kB |");
            if !page.contains(&row) {
                missing.push(row);
            }
        }
    }
    assert_eq!(missing, [""; 0], "docs/sizing.md lacks these");
}
