use std::collections::{BTreeMap, BTreeSet};

use pathproof_facts::cause::{Cause, Why};
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::directory::ServiceInfo;
use pathproof_facts::trace::{Lane, ProbePath, Transport};
use pathproof_judge::verdict::Rule;
use pathproof_samples as sample;
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::{Family, SourceClass};

use super::*;

mod ceiling;
mod counted;
mod reference;
mod services;

use reference::reference;

/// The bounds on the page for the labels `cause` and `rule`.
#[test]
fn the_page_has_the_number_of_causes_and_rules() {
    let page = reference();
    let causes = Cause::ALL.len() + Why::ALL.len();
    for (label, names) in [("cause", causes), ("rule", Rule::ALL.len())] {
        let row = format!("| `{label}` | {names} |");
        assert!(page.contains(&row), "the page lacks {row}");
    }
}

struct Names {
    by_id: BTreeMap<u32, (ObjectName, &'static str, Family)>,
    udp: bool,
}

impl Names {
    fn of(count: u32) -> Self {
        let named = |id| {
            (
                id,
                (
                    ObjectName::new("shop", &format!("s{id}")),
                    "http",
                    Family::V4,
                ),
            )
        };
        Self {
            by_id: (0..count).map(named).collect(),
            udp: false,
        }
    }
}

impl Directory for Names {
    fn service(&self, id: u32) -> Option<ServiceInfo> {
        let (name, port, family) = self.by_id.get(&id)?;
        Some(ServiceInfo {
            name: name.clone(),
            port: (*port).into(),
            family: *family,
            endpoints: 2,
            udp: self.udp,
            dns: false,
            sentinel: false,
            echo: false,
            on_host: false,
            conflict_changed: None,
            since: None,
        })
    }
}

fn delta(service: u32, outcome: Outcome, count: u32, lost: u32) -> CountDelta {
    let mut counts = [0; OUTCOMES];
    counts[outcome as usize] = count;
    CountDelta {
        service,
        class: SourceClass::Pod,
        counts,
        lost,
    }
}

fn report() -> Arc<Report> {
    let mut report = sample::broken();
    report.verdict.coverage.losses = sample::blind().verdict.coverage.losses;
    report.verdict.conntrack = sample::probed::full_table();
    report.reattached = 3;
    Arc::new(report)
}

fn lane() -> Lane {
    Lane {
        family: Family::V4,
        path: ProbePath::Pod,
        transport: Transport::Tcp,
    }
}

fn value(page: &str, series: &str) -> Option<f64> {
    page.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn every_definition_is_exposed_and_nothing_else() {
    let metrics = Metrics::new();
    metrics.update(report());
    assert!(!metrics.encode().contains("kubeproxy_"));
    metrics.as_kube_proxy();
    metrics.expect_writes(Published::Condition);
    metrics.rotating(|_| ());
    for outcome in ["passed", "void"] {
        metrics.counted.probe(lane(), outcome);
    }
    let page = metrics.encode();
    let exposed: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let defined: BTreeSet<String> = definitions::ALL
        .iter()
        .map(|(_, definition)| definition.full_name().trim_end_matches("_total").to_owned())
        .collect();
    assert_eq!(exposed, defined.iter().map(String::as_str).collect());
    assert!(page.ends_with("# EOF\n"));
}

#[test]
fn names_and_helps_are_in_order() {
    let mut seen = BTreeSet::new();
    for (_, definition) in definitions::ALL {
        let name = definition.full_name();
        assert!(
            ["pathproof_", "process_", "kubeproxy_proxy_"]
                .iter()
                .any(|prefix| name.starts_with(prefix)),
            "{name}"
        );
        assert!(seen.insert(name.clone()), "{name} twice");
        assert!(!definition.help.ends_with('.'), "{name}");
        assert!(!definition.help.contains("docs/"), "{name}");
    }
}

/// No metric uses a label that a scrape target has too: Prometheus would rename it unless the scrape sets
/// honor_labels.
#[test]
fn no_label_is_one_of_a_target() {
    const OF_TARGETS: [&str; 9] = [
        "cluster",
        "container",
        "endpoint",
        "instance",
        "job",
        "namespace",
        "node",
        "pod",
        "service",
    ];
    for (_, definition) in definitions::ALL {
        let collides = |label: &&&str| OF_TARGETS.contains(*label);
        let found = definition.labels.iter().find(collides);
        assert_eq!(found, None, "{}", definition.name);
    }
}

/// Names use base units only, without a disguised unit (docs/metrics.md, Conventions).
#[test]
fn names_end_in_base_units() {
    const DISGUISED: [&str; 12] = [
        "ms",
        "us",
        "ns",
        "millis",
        "milliseconds",
        "microseconds",
        "nanoseconds",
        "minutes",
        "hours",
        "kb",
        "percent",
        "mib",
    ];
    for (_, definition) in definitions::ALL {
        let name = definition.full_name();
        let words: Vec<&str> = name.split('_').collect();
        assert!(!words.iter().any(|word| DISGUISED.contains(word)), "{name}");
        let counter = definition.kind.as_str() == "counter";
        assert_eq!(counter, words.last() == Some(&"total"), "{name}");
        let bare = name.trim_end_matches("_total");
        let unit = definition.unit.map(|unit| unit.as_str());
        for word in ["seconds", "bytes"] {
            assert_eq!(bare.ends_with(word), unit == Some(word), "{name}");
            assert_eq!(bare.contains(word), unit == Some(word), "{name}");
        }
        let timed = definition.kind.as_str() == "histogram" || bare.contains("timestamp");
        assert!(!timed || unit == Some("seconds"), "{name}");
    }
}

/// Maximum number of values of each label, from the reference.
fn bounds() -> BTreeMap<String, usize> {
    let page = reference();
    let (_, table) = page.split_once("| label | at most | values |").unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let label = cells.next()?.trim_end_matches('`').to_owned();
        Some((label, cells.next()?.parse().unwrap()))
    };
    let rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    rows.filter_map(row).collect()
}

#[test]
fn every_label_has_a_bound() {
    let used: BTreeSet<&str> = definitions::ALL
        .iter()
        .flat_map(|(_, definition)| definition.labels.iter().copied())
        .collect();
    let bounds = bounds();
    let bounded: BTreeSet<&str> = bounds.keys().map(String::as_str).collect();
    assert_eq!(
        used, bounded,
        "add it to metrics/reference.md.in, with a bound"
    );
}

/// Values of each label of each metric on a page.
fn label_values(page: &str) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else {
            continue;
        };
        let list = rest.rsplit_once('}').unwrap().0.trim_end_matches('"');
        for pair in list.split("\",") {
            let (label, value) = pair.split_once("=\"").unwrap();
            if label != "le" {
                let key = (name.to_owned(), label.to_owned());
                found.entry(key).or_default().insert(value.to_owned());
            }
        }
    }
    found
}

#[test]
fn values_are_those_of_the_report() {
    let metrics = Metrics::new();
    metrics.update(report());
    let page = metrics.encode();
    for (series, expected) in [
        (r#"pathproof_state{family="IPv4",state="broken"}"#, 1.0),
        (r#"pathproof_state{family="IPv4",state="proven"}"#, 0.0),
        (r#"pathproof_state{family="IPv6",state="proven"}"#, 1.0),
        (
            r#"pathproof_cause{family="IPv4",state="broken",cause="leaked"}"#,
            1.0,
        ),
        (
            r#"pathproof_finding{family="IPv4",rule="broken_by_probes"}"#,
            1.0,
        ),
        (
            r#"pathproof_finding{family="IPv4",rule="broken_by_rules"}"#,
            1.0,
        ),
        (
            r#"pathproof_finding{family="IPv6",rule="proven_by_connection"}"#,
            1.0,
        ),
        (r#"pathproof_answer_ok{check="livez"}"#, 0.0),
        ("pathproof_node_eligible", 1.0),
        ("pathproof_state_since_timestamp_seconds", 1_795_265_991.55),
        ("pathproof_verdict_timestamp_seconds", 1_795_266_000.25),
        (r#"pathproof_troubled_services{confirmed="true"}"#, 1.0),
        (
            r#"pathproof_last_proof_timestamp_seconds{family="IPv4",path="pod"}"#,
            1_795_265_987.95,
        ),
        (
            r#"pathproof_external_connections_total{family="IPv4"}"#,
            91_204.0,
        ),
        (r#"pathproof_coverage_loss{loss="not_loaded"}"#, 1.0),
        (
            r#"pathproof_observer_faults_total{fault="later_fragment"}"#,
            12.0,
        ),
        ("pathproof_observer_reattached_total", 3.0),
        ("pathproof_expected_services", 121.0),
        (
            concat!(
                r#"pathproof_build_info{version="0.1.0",revision=""#,
                env!("PATHPROOF_REVISION"),
                r#"",abi="1"}"#
            ),
            1.0,
        ),
    ] {
        let shown = value(&page, series).unwrap_or(f64::NAN);
        assert!((shown - expected).abs() < 1e-6, "{series}: {shown}\n{page}");
    }
}

#[test]
fn before_the_first_turn_there_is_the_process() {
    let page = Metrics::new().encode();
    assert!(
        value(&page, "process_resident_memory_bytes").unwrap() > 0.0,
        "{page}"
    );
    assert!(!page.contains("pathproof_state"), "{page}");
}

#[test]
fn the_trouble_comes_first_then_the_busiest() {
    let metrics = Metrics::new();
    let names = Names::of(10);
    let counts: Vec<CountDelta> = (0..10)
        .map(|id| delta(id, Outcome::Arrived, id + 1, 0))
        .collect();
    metrics.record_sample(&counts, &names);
    let mut trouble = sample::broken().verdict.services;
    trouble.truncate(1);
    trouble[0].service = "shop/s0:http".to_owned();
    let (shown, omitted) = metrics.services(&names, &trouble, 2);
    assert_eq!(
        shown
            .iter()
            .map(|report| report.trouble)
            .collect::<Vec<_>>(),
        [true, false, false]
    );
    let shown: Vec<&str> = shown.iter().map(|report| report.service.as_str()).collect();
    assert_eq!(shown, ["shop/s0:http", "shop/s9:http", "shop/s8:http"]);
    assert_eq!(omitted, 7);
}

#[test]
fn equally_busy_udp_services_are_reported_by_name() {
    let metrics = Metrics::new();
    let mut names = Names::of(10);
    names.udp = true;
    let counts: Vec<CountDelta> = (0..10)
        .map(|id| delta(id, Outcome::Arrived, 5, 0))
        .collect();
    metrics.record_sample(&counts, &names);
    let report = metrics.udp(&names, 3);
    let shown: Vec<&str> = report
        .services
        .iter()
        .map(|service| service.counted.service.as_str())
        .collect();
    assert_eq!(shown, ["shop/s0:http", "shop/s1:http", "shop/s2:http"]);
    assert_eq!(report.omitted, 7);
}
