//! Forms of requests that a health checker may send, byte for byte, to a real kube-proxy and to the agent.
//! [`different`] has the differences that docs/health-endpoints.md lists.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use node_tests::prelude::*;
use node_tests::world::HEALTHZ_PORT;

use crate::parity::without_times;
use crate::scene::{PATIENCE, Scene};

const HOST: &str = "Host: x\r\nConnection: close\r\n";

fn form(line: &str, headers: &str) -> String {
    format!("{line}\r\n{headers}\r\n")
}

/// Forms that get the same answer from both, to the byte: (method, targets).
const SAME: [(&str, &[&str]); 5] = [
    (
        "GET",
        &[
            "/healthz",
            "/livez?x=1",
            "/",
            "/HEALTHZ",
            "/healthz/",
            "/%68ealthz",
            "/%2fhealthz",
            "/x/%2e%2e/healthz",
            "http://y:80/healthz",
            "*",
        ],
    ),
    ("HEAD", &["/livez", "/x"]),
    ("POST", &["/healthz", "/x", "*"]),
    ("BREW", &["/healthz"]),
    ("CONNECT", &["//healthz", "/x", "x:80"]),
];

/// Other forms with the same answer to the byte.
fn others() -> Vec<String> {
    let get = "GET /healthz HTTP/1.1";
    let many = "A: b\r\n".repeat(90);
    let long = format!("X: {}\r\n", "x".repeat(12_000));
    let headers = [
        many,
        long,
        "X:\r\n".to_owned(),
        "Upgrade: h2c\r\n".to_owned(),
    ];
    let mut forms: Vec<String> = headers
        .iter()
        .map(|more| form(get, &format!("{HOST}{more}")))
        .collect();
    forms.extend([
        form("GET /healthz HTTP/1.0", ""),
        form(&format!("GET /{} HTTP/1.1", "x".repeat(12_000)), HOST),
        form(get, "Host:\r\nConnection: close\r\n"),
        form(get, "Host: [::1]:10256\r\nConnection: close\r\n"),
        form(get, HOST).replace("\r\n", "\n"),
        form(get, &format!("{HOST}Expect: 100-continue\r\n")),
        form(
            "POST /healthz HTTP/1.1",
            &format!("{HOST}Content-Length: 3\r\n"),
        ) + "abc",
    ]);
    forms
}

/// Forms with the same status but other headers: in the agent, hyper writes the headers of refusals and of
/// answers without a body.
fn alike() -> Vec<(&'static str, String)> {
    let get = "GET /healthz HTTP/1.1";
    let with = |more: &str| form(get, &format!("{HOST}{more}\r\n"));
    vec![
        ("400", form(get, "Connection: close\r\n")),
        ("400", form(get, "Host: x\r\nHost: x\r\n")),
        ("400", form(get, "Host: a/b\r\n")),
        ("400", form("GET /healthz%zz HTTP/1.1", HOST)),
        ("400", form("GET healthz HTTP/1.1", HOST)),
        ("400", with("X Y: a")),
        ("400", with("Content-Length: -1")),
        ("400", "\x16\x03\x01\0\x02\n\0".to_owned()),
        ("400", format!("PROXY UNKNOWN\r\n{}", form(get, HOST))),
        ("417", with("Expect: more")),
        ("200", form("OPTIONS * HTTP/1.1", HOST)),
        ("200", form("CONNECT /healthz HTTP/1.1", HOST)),
        ("431", with(&format!("X: {}", "x".repeat(1_100_000)))),
    ]
}

/// Forms with different answers: the status from kube-proxy, the status from the agent, the request. An empty
/// status means that there is no answer.
fn different() -> Vec<(&'static str, &'static str, String)> {
    let get = "GET /healthz HTTP/1.1";
    let with = |more: &str| form(get, &format!("{HOST}{more}\r\n"));
    let at = |target: &str| form(&format!("GET {target} HTTP/1.1"), HOST);
    let by = |version: &str| form(&format!("GET /healthz {version}"), HOST);
    let body = "Host: x\r\nContent-Length: 3\r\n";
    vec![
        ("200", "431", with("A: b\r\n".repeat(101).trim_end())),
        ("200", "431", with(&format!("X: {}", "x".repeat(140_000)))),
        (
            "200",
            "431",
            at(&format!("/healthz?{}", "x".repeat(70_000))),
        ),
        ("200", "400", with("X: a\r\n b")),
        ("200", "400", at("http:/healthz")),
        ("404", "400", at("/<x>")),
        (
            "200",
            "400",
            form("GET /healthz HTTP/1.0", "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n",
        ),
        ("200", "400", by("HTTP/1.2")),
        ("505", "400", by("HTTP/2.0")),
        ("501", "400", with("Transfer-Encoding: gzip")),
        ("400", "", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        ("307", "404", at("http://x")),
        ("307", "404", at("//healthz")),
        ("307", "404", at("/x/../healthz?x=1")),
        ("307", "404", form("POST //healthz HTTP/1.1", HOST)),
        ("307", "404", form("HEAD /healthz/. HTTP/1.1", HOST)),
        ("404", "200", at("/healthz#x")),
        ("400", "200", format!("\r\n{}", by("HTTP/1.1"))),
        (
            "400",
            "200",
            with("Transfer-Encoding: chunked\r\nTrailer: Content-Length"),
        ),
        ("", "200", form("POST /healthz HTTP/1.1", body)),
        ("", "400", "\x16\x03\x01\0\x02".to_owned()),
    ]
}

/// Requests of health checkers with the path that docs/load-balancers.md names, and whether the checker keeps
/// its connection. The requests of HAProxy, nginx and curl are recorded from Debian's programs; the others follow
/// the checkers' sources, documents and logs.
const CHECKERS: [(&str, &str, bool); 15] = [
    ("HAProxy", "GET /healthz HTTP/1.0\r\n", false),
    (
        "keepalived",
        "GET /healthz HTTP/1.0\r\nUser-Agent: KeepAliveClient\r\nHost: 192.0.2.10:10256\r\n",
        false,
    ),
    (
        "keepalived, HTTP/1.1",
        "GET /healthz HTTP/1.1\r\nUser-Agent: KeepAliveClient\r\nConnection: close\r\n\
         Host: 192.0.2.10\r\n",
        false,
    ),
    (
        "nginx",
        "GET /healthz HTTP/1.0\r\nHost: node\r\nConnection: close\r\n",
        false,
    ),
    (
        "nginx, kept",
        "GET /healthz HTTP/1.1\r\nHost: node\r\n",
        true,
    ),
    (
        "Envoy",
        "GET /healthz HTTP/1.1\r\nhost: nodes\r\nuser-agent: Envoy/HC\r\n",
        true,
    ),
    (
        "Envoy, HEAD",
        "HEAD /healthz HTTP/1.1\r\nhost: nodes\r\nuser-agent: Envoy/HC\r\n",
        true,
    ),
    (
        "GCP",
        "GET /healthz HTTP/1.1\r\nHost: 192.0.2.10\r\nUser-Agent: GoogleHC/1.0\r\n\
         Connection: Keep-alive\r\n",
        true,
    ),
    (
        "AWS NLB, ALB",
        "GET /healthz HTTP/1.1\r\nHost: 192.0.2.10:10256\r\nConnection: close\r\n\
         User-Agent: ELB-HealthChecker/2.0\r\nAccept-Encoding: gzip, compressed\r\n",
        false,
    ),
    (
        "AWS CLB",
        "GET /healthz HTTP/1.1\r\nhost: 192.0.2.10:10256\r\nUser-Agent: ELB-HealthChecker/1.0\r\n\
         Accept: */*\r\nConnection: keep-alive\r\n",
        true,
    ),
    (
        "Azure",
        "GET /healthz HTTP/1.1\r\nConnection: Keep-Alive\r\nHost: 192.0.2.10:10256\r\n\
         User-Agent: Load Balancer Agent\r\n",
        true,
    ),
    (
        "F5",
        "GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: Close\r\n",
        false,
    ),
    ("F5, HTTP/1.0", "GET /healthz HTTP/1.0\r\n", false),
    (
        "Go",
        "GET /healthz HTTP/1.1\r\nHost: 192.0.2.10:10256\r\nUser-Agent: Go-http-client/1.1\r\n\
         Accept-Encoding: gzip\r\n",
        true,
    ),
    (
        "curl",
        "GET /healthz HTTP/1.1\r\nHost: 127.10.2.56:10256\r\nUser-Agent: curl/7.88.1\r\n\
         Accept: */*\r\n",
        true,
    ),
];

/// Sends a checker's request, and another one on the same connection. Returns the answers to the first, and
/// how many came.
fn check(from: &Namespace, to: SocketAddr, request: &str) -> (String, usize) {
    let last = form("GET /livez HTTP/1.1", HOST);
    let all = exchange(from, to, format!("{request}\r\n{last}").as_bytes());
    let count = all.matches("HTTP/1.").count();
    let first = all.rsplit_once("HTTP/1.").filter(|_| count > 1);
    (plain(first.map_or(&*all, |(first, _)| first)), count)
}

#[test]
fn health_checkers_get_kube_proxys_answers_and_keep_their_connections() {
    let scene = needs!(Scene::proven(Mode::Nftables, &[]));
    let node = SocketAddr::new(scene.world.node_address(Family::V4), HEALTHZ_PORT);
    for (name, request, is_kept) in CHECKERS {
        let from = &scene.world.outside;
        let theirs = check(from, scene.proxy().address, request);
        let ours = check(from, node, request);
        assert_eq!(status(&ours.0), "200", "{name}: {ours:?}");
        assert_eq!(ours, theirs, "{name}");
        assert_eq!(ours.1, 1 + usize::from(is_kept), "{name}: {ours:?}");
    }
}

/// Sends the bytes. Returns what comes back until the connection is closed, or nothing arrives for two
/// seconds.
fn exchange(from: &Namespace, to: SocketAddr, bytes: &[u8]) -> String {
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).expect("connect");
        let patience = Some(scaled(Duration::from_secs(2)));
        stream.set_read_timeout(patience).expect("a timeout");
        // Ignore the error: a server may refuse a request, and close, before it has read everything.
        let _ = stream.write_all(bytes);
        let (mut seen, mut some) = (Vec::new(), [0; 4_096]);
        while let Ok(read @ 1..) = stream.read(&mut some) {
            seen.extend_from_slice(&some[..read]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    })
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

/// The answer without what changes between requests: times, and the length of a body with times.
fn plain(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let is_changing = head.contains("application/json");
    let lines = head.lines().map(|line| match line.split_once(": ") {
        Some((name @ "Date", value)) => format!("{name}: {}", value.len()),
        Some((name @ "Content-Length", _)) if is_changing => name.to_owned(),
        _ => line.to_owned(),
    });
    let lines: Vec<String> = lines.collect();
    format!("{}\n\n{}", lines.join("\n"), without_times(body))
}

#[test]
fn forms_of_requests_get_kube_proxys_answer_or_the_documented_one() {
    let scene = needs!(Scene::proven(Mode::Nftables, &[]));
    let node = SocketAddr::new(scene.world.node_address(Family::V4), HEALTHZ_PORT);
    let ask = |request: &str| {
        let from = &scene.world.outside;
        let theirs = exchange(from, scene.proxy().address, request.as_bytes());
        (theirs, exchange(from, node, request.as_bytes()))
    };
    let targets = SAME.iter().flat_map(|(method, targets)| {
        targets
            .iter()
            .map(move |target| form(&format!("{method} {target} HTTP/1.1"), HOST))
    });
    let mut wrong = Vec::new();
    for request in targets.chain(others()) {
        let (theirs, ours) = ask(&request);
        if theirs.is_empty() || plain(&theirs) != plain(&ours) {
            wrong.push(format!("{request:.80?}: {theirs:?}, {ours:?}"));
        }
    }
    let alike = alike()
        .into_iter()
        .map(|(status, form)| (status, status, form));
    for (theirs, ours, request) in alike.chain(different()) {
        let (first, second) = ask(&request);
        // A server that closes a connection with unread bytes resets it, so its refusal may be lost.
        let may_be_lost = request.len() > 60_000 && second.is_empty();
        if status(&first) != theirs || !may_be_lost && status(&second) != ours {
            wrong.push(format!(
                "{request:.80?}, {theirs}, {ours}: {first:?}, {second:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // hyper sends no body with a success of CONNECT.
    let (theirs, ours) = ask(&form("CONNECT /healthz HTTP/1.1", HOST));
    let has_body = |answer: &str| answer.contains("lastUpdated");
    assert!(has_body(&theirs) && !has_body(&ours), "{theirs}, {ours}");
}
