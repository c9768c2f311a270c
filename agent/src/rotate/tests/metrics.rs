//! The rotator's metrics: the lease, the count and the writes.

use axum::body::{Body, to_bytes};
use axum::http::Request;
use tower::ServiceExt as _;

use super::*;

const FAILING: &str = r#"{"nodes":3,"unsound":{"DatapathBrokenLeaked":1}}"#;

fn shown(rotator: &Rotator, series: &str) -> Option<f64> {
    let page = rotator.metrics.encode();
    page.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn writes(rotator: &Rotator, kind: &str, result: &str) -> Option<f64> {
    let labels = format!("kind=\"{kind}\",result=\"{result}\"");
    shown(
        rotator,
        &format!("pathproof_rotator_writes_total{{{labels}}}"),
    )
}

#[tokio::test]
async fn only_the_leader_shows_a_count() {
    const COUNTED: &str = "pathproof_rotator_count_timestamp_seconds";
    let server = Server::start().await;
    server.store().nodes = 3;
    server.store().failing = 1;
    let mut first = server.rotator("a", HOUR).await;
    let mut second = server.rotator("b", HOUR).await;
    server.until_counted(&mut first, FAILING).await;
    second.look().await;
    for (series, expected) in [
        ("pathproof_rotator_leader", [Some(1.0), Some(0.0)]),
        ("pathproof_rotator_nodes", [Some(3.0), None]),
        ("pathproof_rotator_failing_nodes", [Some(1.0), None]),
    ] {
        let found = [&first, &second].map(|rotator| shown(rotator, series));
        assert_eq!(found, expected, "{series}");
    }
    let before = shown(&first, COUNTED).unwrap();
    sleep(Duration::from_millis(5)).await;
    first.look().await;
    assert!(shown(&first, COUNTED).unwrap() > before, "it counts again");
    first.give_up().await;
    server.until_counted(&mut second, FAILING).await;
    first.look().await;
    assert_eq!(shown(&second, "pathproof_rotator_leader"), Some(1.0));
    assert_eq!(shown(&first, COUNTED), None);
}

#[tokio::test]
async fn writes_are_counted_by_kind_and_result() {
    let server = Server::start().await;
    server.store().refused = SLICES;
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    assert_eq!(writes(&rotator, "lease", "ok"), Some(1.0));
    assert_eq!(writes(&rotator, "slice", "rejected"), Some(1.0));
    assert_eq!(writes(&rotator, "slice", "ok"), Some(0.0));
    server.store().refused = "";
    rotator.look().await;
    assert_eq!(writes(&rotator, "slice", "ok"), Some(2.0));
    server.store().races = true;
    rotator.look().await;
    assert_eq!(writes(&rotator, "slice", "conflict"), Some(1.0));
}

#[tokio::test]
async fn labels_without_room_are_named() {
    let server = Server::start().await;
    let label = "x".repeat(1_000);
    server.store().nodes = 3;
    server.store().first = json!({ "metadata": { "labels": { label.as_str(): "a" } } });
    let mut rotator = server.rotator("a", HOUR).await;
    rotator.config.brake_by = vec![Some(label.as_str().into())];
    let sound = r#"{"nodes":3,"unsound":{}}"#;
    server.until_counted(&mut rotator, sound).await;
    let said = rotator.said.unwrap();
    assert!(
        said.contains(&label) && said.contains("--brake-by"),
        "{said}"
    );
}

#[tokio::test]
async fn the_port_serves_metrics_and_livez_only() {
    let metrics = Metrics::new();
    metrics.rotating(|rotating| rotating.leads = true);
    let router = admin::of_rotator(metrics);
    for (path, code, part) in [
        ("/metrics", 200_u16, "pathproof_rotator_leader 1"),
        ("/livez", 200, "alive"),
        ("/verdict", 404, ""),
    ] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), code, "{path}");
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let body = String::from_utf8_lossy(&body);
        assert!(body.contains(part), "{path}: {body}");
    }
}
