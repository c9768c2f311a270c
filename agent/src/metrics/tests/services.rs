//! Selection of the Services with series, and the content of these series.

use pathproof_facts::cluster::ObjectName;
use pathproof_samples as sample;
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::{Family, SourceClass};
use proptest::prelude::*;

use super::super::connections::{MAX_MORE_FAILED, MAX_SERVICES, RECENT};
use super::super::*;
use super::{Names, bounds, delta, label_values, report, value};

const CONNECTIONS: &str = "pathproof_service_connections_total";

/// A healthy node at a given time.
fn sound(at: Mono) -> Arc<Report> {
    let mut report = sample::proven();
    report.verdict.at = at;
    Arc::new(report)
}

fn record(metrics: &Arc<Metrics>, names: &Names, delta: CountDelta) {
    metrics.record_sample(&[delta], names);
}

fn of(service: &str, outcome: &str) -> String {
    format!(
        r#"{CONNECTIONS}{{service_namespace="shop",service_name="{service}",service_port="http",family="IPv4",path="pod",outcome="{outcome}"}}"#
    )
}

fn shown(metrics: &Arc<Metrics>) -> Vec<String> {
    let values = label_values(&metrics.encode());
    let names = values.get(&(CONNECTIONS.to_owned(), "service_name".to_owned()));
    names.into_iter().flatten().cloned().collect()
}

/// Three times as many Services as are counted individually, with every outcome on every path.
#[test]
fn the_exposition_keeps_the_bounds() {
    const MOST: u32 = 3 * MAX_SERVICES as u32;
    let metrics = Metrics::with(ServiceMetrics::All);
    metrics.update(report());
    for kind in [Published::Condition, Published::Event] {
        metrics.expect_writes(kind);
    }
    let names = Names::of(MOST);
    for class in SourceClass::ALL {
        let one = |service| CountDelta {
            service,
            class,
            counts: [1; OUTCOMES],
            lost: 1,
        };
        let counts: Vec<CountDelta> = (0..MOST).map(one).collect();
        metrics.record_sample(&counts, &names);
    }
    let values = label_values(&metrics.encode());
    let bounds = bounds();
    for ((metric, label), values) in &values {
        let most = bounds.get(label);
        let most = most.unwrap_or_else(|| panic!("{label} of {metric} has no bound"));
        assert!(
            values.len() <= *most,
            "{metric}: {} values of {label}",
            values.len()
        );
    }
    let shown = shown(&metrics);
    assert_eq!(shown.len(), MAX_SERVICES + MAX_MORE_FAILED + 1);
    assert!(shown.contains(&"other".to_owned()));
    assert_eq!(
        values[&(CONNECTIONS.to_owned(), "outcome".to_owned())].len(),
        OUTCOMES + 1
    );
}

#[test]
fn series_of_a_service_begin_at_zero_and_end_with_its_name() {
    let metrics = Metrics::with(ServiceMetrics::All);
    let mut names = Names::of(2);
    record(&metrics, &names, delta(1, Outcome::Proven, 5, 2));
    let page = metrics.encode();
    assert_eq!(value(&page, &of("s1", "proven")), Some(5.0), "{page}");
    assert_eq!(value(&page, &of("s1", "lost")), Some(2.0));
    assert_eq!(value(&page, &of("s1", "leaked")), Some(0.0));
    assert_eq!(value(&page, &of("s1", "unheard")), None);
    let node = r#"pathproof_connections_total{family="IPv4",path="pod",outcome="proven"}"#;
    assert_eq!(value(&page, node), Some(5.0));
    // The id now belongs to another Service, which must not inherit the sums.
    let new = (ObjectName::new("shop", "new"), "http", Family::V4);
    names.by_id.insert(1, new);
    record(&metrics, &names, delta(1, Outcome::Proven, 1, 0));
    let page = metrics.encode();
    assert_eq!(value(&page, &of("s1", "proven")), None);
    assert_eq!(value(&page, &of("new", "proven")), Some(1.0));
    names.by_id.remove(&1);
    metrics.retain(&names);
    assert_eq!(shown(&metrics), ["other"; 0]);
    assert_eq!(value(&metrics.encode(), node), Some(6.0));
}

#[test]
fn sound_services_have_no_series() {
    let metrics = Metrics::new();
    let names = Names::of(10);
    metrics.update(sound(Mono(RECENT.as_nanos() as u64)));
    for id in 0..10 {
        record(&metrics, &names, delta(id, Outcome::Proven, 5, 0));
        record(
            &metrics,
            &names,
            delta(id, Outcome::AnswerNotDelivered, 5, 0),
        );
    }
    assert!(shown(&metrics).is_empty());
    assert_eq!(
        value(&metrics.encode(), "pathproof_service_metrics_omitted"),
        Some(0.0)
    );
    record(&metrics, &names, delta(3, Outcome::Leaked, 1, 0));
    assert_eq!(shown(&metrics), ["s3"]);
}

/// A series that reappears continues at its total, because Prometheus treats a lower value as a reset.
#[test]
fn a_series_continues_when_it_reappears() {
    let metrics = Metrics::new();
    let names = Names::of(3);
    let first = Mono(1_000_000_000);
    metrics.update(sound(first));
    record(&metrics, &names, delta(1, Outcome::Proven, 40, 0));
    record(&metrics, &names, delta(1, Outcome::Proven, 0, 2));
    let page = metrics.encode();
    assert_eq!(value(&page, &of("s1", "lost")), Some(2.0), "{page}");
    assert_eq!(value(&page, &of("s1", "proven")), Some(40.0));
    assert_eq!(value(&page, &of("s1", "arrived")), Some(0.0));
    assert_eq!(value(&page, &of("s1", "leaked")), None);
    metrics.update(sound(first.plus(RECENT)));
    assert!(shown(&metrics).is_empty());
    record(&metrics, &names, delta(1, Outcome::Proven, 7, 0));
    assert!(shown(&metrics).is_empty());
    record(&metrics, &names, delta(1, Outcome::Stale, 1, 0));
    let page = metrics.encode();
    assert_eq!(value(&page, &of("s1", "lost")), Some(2.0), "{page}");
    assert_eq!(value(&page, &of("s1", "proven")), Some(47.0));
    assert_eq!(value(&page, &of("s1", "stale")), Some(1.0));
}

/// Services that the verdict confirms come first, then those with most failures; the rest is counted.
#[test]
fn the_worst_are_shown_and_the_rest_is_counted() {
    let metrics = Metrics::new();
    let names = Names::of(200);
    let mut report = Arc::unwrap_or_clone(sound(Mono(0)));
    let mut named = sample::broken().verdict.services;
    named.truncate(1);
    named[0].service = "shop/s7:http".to_owned();
    named[0].family = Family::V4;
    named[0].confirmed = true;
    report.verdict.services = named;
    metrics.update(Arc::new(report));
    for id in 0..200 {
        record(&metrics, &names, delta(id, Outcome::Leaked, 1 + id, 0));
    }
    let shown = shown(&metrics);
    assert_eq!(shown.len(), 50, "{shown:?}");
    assert!(shown.contains(&"s7".to_owned()), "{shown:?}");
    assert!((151..200).all(|id| shown.contains(&format!("s{id}"))));
    let omitted = value(&metrics.encode(), "pathproof_service_metrics_omitted");
    assert_eq!(omitted, Some(150.0));
}

/// A failing Service has its own series, no matter how many Services had traffic before.
#[test]
fn the_last_of_many_services_is_shown_when_it_fails() {
    let metrics = Metrics::new();
    let most = 5 * MAX_SERVICES as u32;
    let names = Names::of(most);
    metrics.update(sound(Mono(0)));
    let one = |id| delta(id, Outcome::Proven, 1, 0);
    let counts: Vec<CountDelta> = (0..most).map(one).collect();
    metrics.record_sample(&counts, &names);
    record(&metrics, &names, delta(most - 1, Outcome::Refused, 1, 0));
    assert_eq!(shown(&metrics), [format!("s{}", most - 1)]);
}

#[test]
fn off_shows_none() {
    let metrics = Metrics::with(ServiceMetrics::Off);
    let names = Names::of(2);
    metrics.update(sound(Mono(0)));
    record(&metrics, &names, delta(1, Outcome::Refused, 1, 0));
    assert!(shown(&metrics).is_empty());
    let page = metrics.encode();
    assert_eq!(value(&page, "pathproof_service_metrics_omitted"), None);
    let node = r#"pathproof_connections_total{family="IPv4",path="pod",outcome="refused"}"#;
    assert_eq!(value(&page, node), Some(1.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Series stay bounded for any number of Services, and the sum includes every connection.
    #[test]
    fn series_are_bounded_and_complete(ids in prop::collection::vec(0u32..3_000, 1..2_000)) {
        let metrics = Metrics::with(ServiceMetrics::All);
        let names = Names::of(3_000);
        let counts: Vec<CountDelta> =
            ids.iter().map(|id| delta(*id, Outcome::Proven, 1, 0)).collect();
        metrics.record_sample(&counts, &names);
        let page = metrics.encode();
        let proven: Vec<f64> = page
            .lines()
            .filter(|line| line.starts_with(CONNECTIONS))
            .filter(|line| line.contains("outcome=\"proven\""))
            .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        prop_assert!(proven.len() <= MAX_SERVICES + 1);
        prop_assert_eq!(proven.iter().sum::<f64>() as usize, ids.len());
    }
}
