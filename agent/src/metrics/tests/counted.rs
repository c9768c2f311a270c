//! Counters and histograms that are filled one event at a time.

use pathproof_judge::answer::Endpoint;

use super::super::{Listener, Metrics, Published, WriteResult};
use super::{lane, value};

#[test]
fn events_that_are_counted_one_by_one_are_exposed() {
    let metrics = Metrics::new();
    metrics.counted.probe(lane(), "passed");
    metrics.counted.probe(lane(), "void");
    metrics.counted.rotations.observe(3.0);
    metrics.answered(Some(Endpoint::Livez), 503);
    metrics.as_kube_proxy();
    metrics.answered(Some(Endpoint::Livez), 503);
    metrics.answered(None, 404);
    let open = metrics.opened(Listener::Admin);
    metrics.expect_writes(Published::Event);
    metrics.wrote(Published::Event, WriteResult::ServerError);
    let page = metrics.encode();
    drop(open);
    for (series, expected) in [
        (
            r#"pathproof_probes_total{family="IPv4",path="pod",transport="tcp",outcome="passed"}"#,
            1.0,
        ),
        (r#"pathproof_void_probes_total{family="IPv4"}"#, 1.0),
        (r#"pathproof_rotation_lag_seconds_bucket{le="10.0"}"#, 1.0),
        ("pathproof_rotation_lag_seconds_count", 1.0),
        (
            r#"pathproof_healthz_requests_total{check="livez",code="503"}"#,
            2.0,
        ),
        (
            r#"pathproof_healthz_requests_total{check="healthz",code="503"}"#,
            0.0,
        ),
        (
            r#"pathproof_healthz_requests_total{check="other",code="404"}"#,
            1.0,
        ),
        (r#"kubeproxy_proxy_livez_total{code="503"}"#, 1.0),
        (r#"kubeproxy_proxy_healthz_total{code="200"}"#, 0.0),
        (r#"pathproof_http_open_connections{listener="admin"}"#, 1.0),
        (
            r#"pathproof_http_connections_total{listener="admin",event="accepted"}"#,
            0.0,
        ),
        (
            r#"pathproof_publish_writes_total{kind="event",result="server_error"}"#,
            1.0,
        ),
        (
            r#"pathproof_publish_writes_total{kind="event",result="ok"}"#,
            0.0,
        ),
    ] {
        let shown = value(&page, series).unwrap_or(f64::NAN);
        assert!((shown - expected).abs() < 1e-9, "{series}: {shown}\n{page}");
    }
    let closed = value(
        &metrics.encode(),
        r#"pathproof_http_open_connections{listener="admin"}"#,
    );
    assert_eq!(closed, Some(0.0));
}
