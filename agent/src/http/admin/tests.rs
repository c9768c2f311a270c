use axum::body::Body;
use axum::http::{Method, Request};
use http_body_util::BodyExt as _;
use pathproof_facts::node_context::address;
use pathproof_samples as sample;
use rstest::rstest;
use tower::ServiceExt as _;

use super::*;

const NOW: Mono = Mono(60_000_000_000);

struct Fixture {
    router: Router,
    state: AdminState,
    publish: watch::Sender<Option<Arc<Report>>>,
    episodes: watch::Sender<Arc<str>>,
    metrics: Arc<Metrics>,
    heartbeat: Heartbeat,
}

fn fixture() -> Fixture {
    let (publish, report) = watch::channel(None);
    let (episodes, shown) = watch::channel("".into());
    let readiness = Readiness::default();
    readiness.set("cluster view", false);
    let heartbeat = Heartbeat::new(NOW.0);
    let metrics = Metrics::new();
    let state = AdminState {
        report,
        episodes: shown,
        metrics: Arc::clone(&metrics),
        readiness,
        heartbeat: heartbeat.clone(),
        recordings: tokio::sync::mpsc::channel(1).0,
        state_dir: None,
        now: || NOW,
    };
    Fixture {
        router: router(state.clone()),
        state,
        publish,
        episodes,
        metrics,
        heartbeat,
    }
}

async fn ask(router: &Router, method: Method, path: &str) -> (StatusCode, String, String) {
    ask_from("127.0.0.1", router, method, path).await
}

/// Asks from this address, at the node's address 192.0.2.10.
async fn ask_from(
    peer: &str,
    router: &Router,
    method: Method,
    path: &str,
) -> (StatusCode, String, String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .extension(Dialled {
            source: address(&peer.parse().unwrap()),
            destination: address(&"192.0.2.10".parse().unwrap()),
            port: 19256,
        })
        .body(Body::empty())
        .unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .map_or("", |v| v.to_str().unwrap())
        .to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, kind, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn the_report_comes_back_whole() {
    let fixture = fixture();
    let (status, _, body) = ask(&fixture.router, Method::GET, "/verdict").await;
    assert_eq!(status, 503);
    assert!(
        body.contains("no verdict yet") && body.contains("cluster view"),
        "{body}"
    );
    let report = sample::broken();
    fixture.publish.send_replace(Some(Arc::new(report.clone())));
    let (status, kind, body) = ask(&fixture.router, Method::GET, "/verdict").await;
    assert_eq!((status.as_u16(), kind.as_str()), (200, "application/json"));
    assert_eq!(serde_json::from_str::<Report>(&body).unwrap(), report);
}

#[rstest]
#[case::loopback("127.0.0.1", 200)]
#[case::loopback_v6("::1", 200)]
#[case::the_nodes_own_address("::ffff:192.0.2.10", 200)]
#[case::a_pod("10.244.0.9", 403)]
#[tokio::test]
async fn evidence_is_for_the_node_itself(#[case] peer: &str, #[case] code: u16) {
    let fixture = fixture();
    let report = sample::broken();
    fixture.publish.send_replace(Some(Arc::new(report)));
    let (status, _, body) = ask_from(peer, &fixture.router, Method::GET, "/verdict").await;
    assert_eq!(status, code, "{body}");
    assert_eq!(body.contains("kubectl port-forward"), code == 403, "{body}");
    fixture.episodes.send_replace("{}".into());
    let (status, ..) = ask_from(peer, &fixture.router, Method::GET, "/episodes").await;
    assert_eq!(status, code);
    let (status, ..) = ask_from(peer, &fixture.router, Method::GET, "/metrics").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn the_journal_is_shown_once_it_begins() {
    let fixture = fixture();
    let (status, _, body) = ask(&fixture.router, Method::GET, "/episodes").await;
    assert_eq!(status, 503);
    assert!(body.contains("no verdict yet"), "{body}");
    fixture.episodes.send_replace("{\"schema\":1}".into());
    let (status, kind, body) = ask(&fixture.router, Method::GET, "/episodes").await;
    assert_eq!((status.as_u16(), kind.as_str()), (200, "application/json"));
    assert_eq!(body, "{\"schema\":1}\n");
}

#[tokio::test]
async fn readiness_names_what_is_missing() {
    let Fixture { router, state, .. } = fixture();
    let (status, _, body) = ask(&router, Method::GET, "/agent/readyz").await;
    assert_eq!(
        (status.as_u16(), body.as_str()),
        (503, "not ready, waiting for: cluster view\n")
    );
    state.readiness.set("cluster view", true);
    assert_eq!(ask(&router, Method::GET, "/agent/readyz").await.0, 200);
}

#[tokio::test]
async fn a_stalled_main_loop_is_not_alive() {
    let fixture = fixture();
    assert_eq!(
        ask(&fixture.router, Method::GET, "/agent/livez").await.0,
        200
    );
    fixture.heartbeat.beat(NOW.0 - 11_000_000_000);
    let (status, _, body) = ask(&fixture.router, Method::GET, "/agent/livez").await;
    assert_eq!(status, 503);
    assert!(body.contains("11 s ago"), "{body}");
}

#[tokio::test]
async fn metrics_are_openmetrics() {
    let fixture = fixture();
    fixture.metrics.update(Arc::new(sample::proven()));
    let (status, kind, body) = ask(&fixture.router, Method::GET, "/metrics").await;
    assert_eq!(
        (status.as_u16(), kind.as_str()),
        (200, metrics::CONTENT_TYPE)
    );
    assert!(body.ends_with("# EOF\n"), "{body}");
    assert!(
        body.contains("pathproof_state{family=\"IPv4\",state=\"proven\"} 1"),
        "{body}"
    );
}

/// A report of a node that began to leave 20 s ago and received its last connection 12 s ago.
fn leaving() -> Report {
    let mut report = sample::proven();
    let drain = &mut report.drain;
    drain.since = Some(sample::ago(20_000));
    drain.connections = 3;
    drain.last = Some(sample::ago(12_000));
    drain.seen = Some(sample::ago(0));
    report
}

#[rstest]
#[case("/drainz", 200, "quiet", 12.0)]
#[case("/drainz?quiet=11", 200, "quiet", 12.0)]
#[case("/drainz?quiet=30s", 503, "connections", 12.0)]
#[case("/drainz?quiet=5s&waited=2", 200, "quiet", 12.0)]
#[tokio::test]
async fn drainz_reports_a_leaving_node(
    #[case] path: &str,
    #[case] status: u16,
    #[case] reason: &str,
    #[case] quiet_for: f64,
) {
    let mut fixture = fixture();
    let report = leaving();
    let at = report.verdict.at;
    fixture.state.now = || sample::ago(0);
    assert_eq!(at, sample::ago(0));
    fixture.publish.send_replace(Some(Arc::new(report)));
    let router = router(fixture.state);
    let (code, kind, body) = ask(&router, Method::GET, path).await;
    assert_eq!((code.as_u16(), kind.as_str()), (status, "application/json"));
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["reason"], reason, "{body}");
    assert_eq!(body["quietFor"], quiet_for, "{body}");
    assert_eq!(body["draining"], true, "{body}");
    assert_eq!(body["connections"], 3, "{body}");
    assert_eq!(body["since"], "2026-11-21T12:59:40.25Z", "{body}");
    assert_eq!(body["lastConnection"], "2026-11-21T12:59:48.25Z", "{body}");
}

#[tokio::test]
async fn drainz_is_not_quiet_before_the_node_leaves() {
    let mut fixture = fixture();
    fixture.state.now = || sample::ago(0);
    let router = router(fixture.state);
    let (status, _, body) = ask(&router, Method::GET, "/drainz").await;
    assert_eq!(status, 503);
    assert!(body.contains("no verdict yet"), "{body}");

    fixture
        .publish
        .send_replace(Some(Arc::new(sample::proven())));
    let (status, _, body) = ask(&router, Method::GET, "/drainz").await;
    assert_eq!(status, 503);
    assert!(body.contains("\"reason\":\"notLeaving\""), "{body}");
    assert!(body.contains("\"draining\":false"), "{body}");
    let (status, _, body) = ask(&router, Method::GET, "/drainz?waited=1").await;
    assert_eq!(status, 503);
    assert!(body.contains("\"draining\":true"), "{body}");
    let (status, _, body) = ask(&router, Method::GET, "/drainz?quite=1").await;
    assert_eq!(status, 400);
    assert!(body.contains("is not known"), "{body}");
}

#[rstest]
#[case(Method::POST, "/verdict", 405)]
#[case(Method::DELETE, "/metrics", 405)]
#[case(Method::POST, "/drainz", 405)]
#[case(Method::HEAD, "/agent/livez", 200)]
#[case(Method::GET, "/healthz", 404)]
#[case(Method::GET, "/agent", 404)]
#[case(Method::GET, "/", 404)]
#[tokio::test]
async fn only_reads_are_allowed(#[case] method: Method, #[case] path: &str, #[case] expected: u16) {
    assert_eq!(ask(&fixture().router, method, path).await.0, expected);
}
