use axum::body::Body;
use axum::http::{Method, Request};
use http_body_util::BodyExt as _;
use pathproof_facts::node_context::address;
use pathproof_facts::switches::AuditBy;
use pathproof_judge::answer::FamilyAnswer;
use pathproof_wire::service::Family;
use rstest::rstest;
use tower::ServiceExt as _;

use super::*;
use crate::lifecycle::Heartbeat;

impl CurrentAnswers {
    /// These answers, of an agent whose main loop runs, with the policy `closed`.
    pub(in crate::http) fn alive(answers: Answers) -> Self {
        Self {
            published: watch::Sender::new(Arc::new(answers)).subscribe(),
            policy: UnknownPolicy::Closed,
            stall: Stall::new(Heartbeat::new(0), Mono(0)),
            mono: || Mono(0),
        }
    }
}

/// 2026-11-21T13:00:00.25Z.
const NOW: Wall = Wall(1_795_266_000_250_000_000);
/// 300 ms before [`NOW`].
const PROVEN: Wall = Wall(1_795_265_999_950_000_000);

fn answers(healthz: u16, livez: u16) -> Arc<Answers> {
    let answer = |status, node_eligible| Answer {
        status,
        healthy: livez == 200,
        node_eligible,
        families: vec![FamilyAnswer {
            family: Family::V4,
            healthy: livez == 200,
            last_updated: Some(PROVEN),
        }],
        would_fail: false,
    };
    Arc::new(Answers {
        healthz: answer(healthz, Some(healthz == livez)),
        livez: answer(livez, None),
        audit: None,
        held: None,
        leaving_held: None,
        services_held: None,
        broken_services: Arc::default(),
    })
}

struct Fixture {
    router: Router,
    publish: watch::Sender<Arc<Answers>>,
    metrics: Arc<Metrics>,
}

fn fixture(healthz: u16, livez: u16) -> Fixture {
    fixture_with(answers(healthz, livez), UnknownPolicy::Open, 0, false)
}

/// A fixture in kube-proxy's place whose main loop last turned this many seconds ago.
fn stand_in(healthz: u16, livez: u16, seconds: u64) -> Fixture {
    let answers = answers(healthz, livez);
    fixture_with(answers, UnknownPolicy::Open, seconds, true)
}

fn fixture_with(
    answers: Arc<Answers>,
    policy: UnknownPolicy,
    seconds: u64,
    loopback: bool,
) -> Fixture {
    let (publish, published) = watch::channel(answers);
    let metrics = Metrics::new();
    let second = |n: u64| Mono(n * 1_000_000_000);
    let stall = Stall::new(
        Heartbeat::new(second(100 - seconds).0),
        second(100 - seconds),
    );
    for now in 100 - seconds..=100 {
        stall.run(second(now));
    }
    let answers = CurrentAnswers {
        published,
        policy,
        stall,
        mono: || Mono(100_000_000_000),
    };
    let state = HealthState {
        answers,
        now: || NOW,
        metrics: Arc::clone(&metrics),
        loopback,
    };
    Fixture {
        router: router(state),
        publish,
        metrics,
    }
}

async fn ask(fixture: &Fixture, method: Method, path: &str) -> (StatusCode, Vec<String>, String) {
    ask_from(fixture, None, method, path).await
}

async fn ask_from(
    fixture: &Fixture,
    peer: Option<&str>,
    method: Method,
    path: &str,
) -> (StatusCode, Vec<String>, String) {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .body(Body::empty())
        .unwrap();
    if let Some(peer) = peer {
        request.extensions_mut().insert(Dialled {
            source: address(&peer.parse().unwrap()),
            destination: [0; 16],
            port: 10256,
        });
    }
    let response = fixture.router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let header = |name| {
        response
            .headers()
            .get(name)
            .map_or("", |v| v.to_str().unwrap())
            .to_owned()
    };
    let headers = vec![header(CONTENT_TYPE), header(X_CONTENT_TYPE_OPTIONS)];
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, headers, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn healthy_says_now() {
    let (status, headers, body) = ask(&fixture(200, 200), Method::GET, "/healthz").await;
    assert_eq!(status, 200);
    assert_eq!(headers, ["application/json", "nosniff"]);
    assert_eq!(
        body,
        r#"{"lastUpdated":"2026-11-21T13:00:00.25Z","currentTime":"2026-11-21T13:00:00.25Z","nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-11-21T12:59:59.95Z","healthy":true}}}"#
    );
}

#[tokio::test]
async fn the_quickstart_quotes_an_answer() {
    let page = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/quickstart.md"
    ));
    let (_, headers, body) = ask(&fixture(200, 200), Method::GET, "/healthz").await;
    let quoted = [
        format!("Content-Type: {}", headers[0]),
        format!("X-Content-Type-Options: {}", headers[1]),
        format!("Content-Length: {}", body.len()),
        body,
    ];
    for line in quoted {
        assert!(
            page.lines().any(|known| known == line),
            "docs/quickstart.md lacks: {line}"
        );
    }
}

#[tokio::test]
async fn a_leaving_node_is_alive() {
    let fixture = fixture(503, 200);
    let (status, _, body) = ask(&fixture, Method::GET, "/healthz").await;
    assert_eq!(status, 503);
    assert!(
        body.contains(r#""nodeEligible":false,"healthy":true"#),
        "{body}"
    );
    assert!(
        body.starts_with(r#"{"lastUpdated":"2026-11-21T12:59:59.95Z""#),
        "{body}"
    );
    let (status, _, body) = ask(&fixture, Method::GET, "/livez?verbose").await;
    assert_eq!(status, 200);
    assert!(!body.contains("nodeEligible"), "{body}");
}

#[rstest]
#[case(Method::GET)]
#[case(Method::POST)]
#[case(Method::PUT)]
#[case(Method::DELETE)]
#[case(Method::OPTIONS)]
#[tokio::test]
async fn any_method_is_answered_alike(#[case] method: Method) {
    let (status, _, body) = ask(&fixture(503, 503), method, "/livez").await;
    assert_eq!(status, 503);
    assert!(body.contains(r#""healthy":false"#), "{body}");
}

#[rstest]
#[case("/")]
#[case("/metrics")]
#[case("/healthz/")]
#[case("/healthz/x")]
#[case("/HEALTHZ")]
#[tokio::test]
async fn nothing_else_is_served(#[case] path: &str) {
    let (status, headers, body) = ask(&fixture(200, 200), Method::GET, path).await;
    assert_eq!(status, 404);
    assert_eq!(headers, ["text/plain; charset=utf-8", "nosniff"]);
    assert_eq!(body, "404 page not found\n");
}

#[rstest]
#[case::escaped("/%68ealthz", "healthz", 200)]
#[case::not_clean("//healthz", "other", 404)]
#[case::no_path("*", "other", 400)]
#[case::unknown("/x", "other", 404)]
#[tokio::test]
async fn paths_are_read_as_in_go(#[case] path: &str, #[case] check: &str, #[case] code: u16) {
    let fixture = fixture(200, 200);
    assert_eq!(ask(&fixture, Method::GET, path).await.0, code);
    let line = format!(r#"healthz_requests_total{{check="{check}",code="{code}"}} 1"#);
    let page = fixture.metrics.encode();
    assert!(page.contains(&line), "{page}");
}

#[tokio::test]
async fn a_published_answer_is_the_next_answer() {
    let fixture = fixture(200, 200);
    assert_eq!(ask(&fixture, Method::GET, "/livez").await.0, 200);
    fixture.publish.send_replace(answers(503, 503));
    assert_eq!(ask(&fixture, Method::GET, "/livez").await.0, 503);
    drop(fixture.publish);
    let Fixture {
        router, metrics, ..
    } = fixture;
    // The last answer outlives its publisher.
    let request = Request::builder()
        .uri("/healthz")
        .body(Body::empty())
        .unwrap();
    assert_eq!(router.oneshot(request).await.unwrap().status(), 503);
    let page = metrics.encode();
    for line in [
        r#"pathproof_healthz_requests_total{check="livez",code="200"} 1"#,
        r#"pathproof_healthz_requests_total{check="livez",code="503"} 1"#,
        r#"pathproof_healthz_requests_total{check="healthz",code="503"} 1"#,
    ] {
        assert!(page.contains(line), "{line} not in\n{page}");
    }
}

#[rstest]
#[case("127.0.0.1", 200)]
#[case("127.1.2.3", 200)]
#[case("::1", 200)]
#[case("::ffff:127.0.0.1", 200)]
#[case("192.0.2.1", 503)]
#[case("2001:db8::1", 503)]
#[tokio::test]
async fn in_kube_proxys_place_loopback_gets_the_agents_health(
    #[case] peer: &str,
    #[case] code: u16,
) {
    let fixture = stand_in(503, 503, 1);
    let (status, _, body) = ask_from(&fixture, Some(peer), Method::GET, "/healthz").await;
    assert_eq!(status, code);
    assert_eq!(body.contains("status"), code == 503, "{body}");
    // /livez reports the node to every client.
    let livez = ask_from(&fixture, Some(peer), Method::GET, "/livez").await;
    assert_eq!(livez.0, 503);
    let page = fixture.metrics.encode();
    let line = format!(r#"pathproof_healthz_requests_total{{check="healthz",code="{code}"}} 1"#);
    assert!(page.contains(&line), "{page}");
}

#[tokio::test]
async fn in_kube_proxys_place_a_stalled_main_loop_is_503_at_loopback() {
    let fixture = stand_in(200, 200, 60);
    let (status, _, body) = ask_from(&fixture, Some("::1"), Method::GET, "/healthz").await;
    assert_eq!(status, 503);
    assert_eq!(
        body,
        r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-11-21T13:00:00.25Z","healthy":false}"#
    );
    let outside = ask_from(&fixture, Some("192.0.2.1"), Method::GET, "/healthz").await;
    assert_eq!(outside.0, 200);
}

/// The main loop last turned a minute ago, so nothing is known of the node since.
#[rstest]
#[case::open(UnknownPolicy::Open, None, 200, [200, 200])]
#[case::open_keeps_a_failure(UnknownPolicy::Open, None, 503, [503, 503])]
#[case::closed(UnknownPolicy::Closed, None, 200, [503, 503])]
#[case::audit(UnknownPolicy::Closed, Some(AuditBy::Flag), 200, [200, 200])]
#[tokio::test]
async fn a_stalled_main_loop_is_answered_by_the_policy(
    #[case] policy: UnknownPolicy,
    #[case] audit: Option<AuditBy>,
    #[case] last: u16,
    #[case] expected: [u16; 2],
) {
    let mut answers = Arc::unwrap_or_clone(answers(last, last));
    answers.audit = audit;
    let fixture = fixture_with(Arc::new(answers), policy, 60, false);
    for (path, code) in ["/healthz", "/livez"].into_iter().zip(expected) {
        let (status, _, body) = ask(&fixture, Method::GET, path).await;
        assert_eq!(status, code, "{path}");
        assert_eq!(body.contains(r#""healthy":true"#), code == 200, "{body}");
        let stood_still = r#"{"lastUpdated":"2026-11-21T12:59:00.25Z""#;
        assert_eq!(body.starts_with(stood_still), code == 200, "{body}");
    }
}

#[tokio::test]
async fn a_main_loop_that_is_late_by_seconds_changes_nothing() {
    let fixture = fixture_with(answers(200, 200), UnknownPolicy::Closed, 9, false);
    let (status, _, body) = ask(&fixture, Method::GET, "/healthz").await;
    assert_eq!(status, 200);
    let now = r#"{"lastUpdated":"2026-11-21T13:00:00.25Z""#;
    assert!(body.starts_with(now), "{body}");
}

#[tokio::test]
async fn otherwise_loopback_gets_the_nodes_answer() {
    let fixture = fixture(503, 200);
    let (status, ..) = ask_from(&fixture, Some("127.0.0.1"), Method::GET, "/healthz").await;
    assert_eq!(status, 503);
}
