//! Forms of requests, and what kube-proxy answers to each. tests/cluster/forms.rs compares these answers
//! with those of a real kube-proxy.

use pathproof_node::effect::Answers;
use rstest::rstest;

use super::*;
use crate::http::health::{self, CurrentAnswers, HealthState};

impl Server {
    /// Serves the health port's router, which gives the answers from before the first verdict.
    async fn of_health() -> Self {
        let router = health::router(HealthState {
            answers: CurrentAnswers::alive(Answers::before_the_first()),
            now: clock::wall,
            metrics: Metrics::new(),
            loopback: false,
        });
        Self::serving(router, Limits::default(), &[]).await
    }
}

/// A request with this request line and these headers.
fn form(line: &str, headers: &str) -> String {
    format!("{line}\r\n{headers}\r\n")
}

const HOST: &str = "Host: x\r\nConnection: close\r\n";

#[rstest]
#[case::page("GET /healthz HTTP/1.1", HOST, 200)]
#[case::escaped("GET /%68ealthz HTTP/1.1", HOST, 200)]
#[case::old("GET /healthz HTTP/1.0", "", 200)]
#[case::not_clean("GET //healthz HTTP/1.1", HOST, 404)]
#[case::not_clean_post("POST /x/../healthz HTTP/1.1", HOST, 404)]
#[case::not_clean_head("HEAD /./healthz HTTP/1.1", HOST, 404)]
#[case::not_clean_connect("CONNECT //healthz HTTP/1.1", HOST, 404)]
#[case::bad_escape("GET /healthz%zz HTTP/1.1", HOST, 400)]
#[case::no_path("GET healthz HTTP/1.1", HOST, 400)]
#[case::star("GET * HTTP/1.1", HOST, 400)]
#[case::options_star("OPTIONS * HTTP/1.1", HOST, 200)]
#[case::no_host("GET /healthz HTTP/1.1", "Connection: close\r\n", 400)]
#[case::no_host_for_a_proxy("CONNECT /healthz HTTP/1.1", "Connection: close\r\n", 200)]
#[case::empty_host("GET /healthz HTTP/1.1", "Host:\r\nConnection: close\r\n", 200)]
#[case::host_of_v6(
    "GET /healthz HTTP/1.1",
    "Host: [::1]:10256\r\nConnection: close\r\n",
    200
)]
#[case::two_hosts("GET /healthz HTTP/1.1", "Host: x\r\nHost: x\r\n", 400)]
#[case::malformed_host("GET /healthz HTTP/1.1", "Host: a/b\r\n", 400)]
#[case::malformed_host_of_old("GET /healthz HTTP/1.0", "Host: a b\r\n", 400)]
#[case::expectation("GET /healthz HTTP/1.1", "Host: x\r\nExpect: more\r\n", 417)]
#[case::continuation(
    "GET /healthz HTTP/1.1",
    "Host: x\r\nConnection: close\r\nExpect: 100-Continue\r\n",
    200
)]
#[tokio::test]
async fn forms_get_go_s_status(#[case] line: &str, #[case] headers: &str, #[case] status: u16) {
    let server = Server::of_health().await;
    let said = server.say(form(line, headers).as_bytes()).await;
    let (head, _) = said.split_once("\r\n\r\n").expect("a head");
    let seen = head.split(' ').nth(1);
    assert_eq!(seen, Some(&*status.to_string()), "{said}");
    server.finish().await;
}

/// `OPTIONS *`, and requests that Go refuses, do not reach a handler on any port.
#[rstest]
#[case("OPTIONS * HTTP/1.1", HOST, "200 OK")]
#[case("GET /any HTTP/1.1", "Connection: close\r\n", "400 Bad Request")]
#[tokio::test]
async fn some_answers_need_no_handler(
    #[case] line: &str,
    #[case] headers: &str,
    #[case] status: &str,
) {
    let router = Router::new().fallback(|| async { "a handler" });
    let server = Server::serving(router, Limits::default(), &[]).await;
    let said = server.say(form(line, headers).as_bytes()).await;
    assert!(
        said.starts_with(&format!("HTTP/1.1 {status}\r\n")),
        "{said}"
    );
    assert!(!said.contains("a handler"), "{said}");
    server.finish().await;
}

/// Some checkers read headers by position.
#[rstest]
#[case("/healthz", ["Content-Type", "X-Content-Type-Options", "Date", "Content-Length", "Connection"])]
#[case("/x", ["Content-Type", "X-Content-Type-Options", "Date", "Content-Length", "Connection"])]
#[tokio::test]
async fn headers_have_go_s_order(#[case] path: &str, #[case] names: [&str; 5]) {
    let server = Server::of_health().await;
    let said = server
        .say(form(&format!("GET {path} HTTP/1.1"), HOST).as_bytes())
        .await;
    let head = said.split("\r\n\r\n").next().unwrap_or_default();
    let seen = head.lines().skip(1).map(|line| line.split(':').next());
    assert_eq!(
        seen.map(Option::unwrap_or_default).collect::<Vec<_>>(),
        names
    );
    let date = head
        .lines()
        .find_map(|line| line.strip_prefix("Date: "))
        .expect("a date");
    let (day, rest) = date.split_once(", ").expect("a day");
    assert_eq!((day.len(), rest.len()), (3, 24), "{date}");
    assert!(rest.ends_with(" GMT"), "{date}");
    server.finish().await;
}

#[rstest]
#[case::fields(String::new(), "A: b\r\n".repeat(90), "200")]
#[case::too_many_fields(String::new(), "A: b\r\n".repeat(101), "431")]
#[case::a_long_field(String::new(), format!("X: {}\r\n", "x".repeat(12_000)), "200")]
#[case::too_long_a_field(String::new(), format!("X: {}\r\n", "x".repeat(140_000)), "431")]
#[case::a_long_target("x".repeat(12_000), String::new(), "200")]
#[case::too_long_a_target("x".repeat(66_000), String::new(), "431")]
#[tokio::test]
async fn a_header_may_be_long(#[case] query: String, #[case] fields: String, #[case] status: &str) {
    let server = Server::of_health().await;
    let line = format!("GET /healthz?{query} HTTP/1.1");
    let request = form(&line, &format!("{HOST}{fields}"));
    let said = server.say(request.as_bytes()).await;
    // The server refuses without reading all bytes, so a reset may arrive before the client reads the
    // refusal.
    let refused = status != "200" && said.is_empty();
    assert!(
        refused || said.starts_with(&format!("HTTP/1.1 {status}")),
        "{said:.200}"
    );
    server.finish().await;
}
