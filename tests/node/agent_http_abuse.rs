//! Unauthenticated clients abuse the agent's health port, which must still answer probes. These tests count
//! probes without an answer within a load balancer's timeout; `cargo xtask bench http` measures latency.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use node_tests::abuse::{Crowd, burn};
use node_tests::little_memory::MemoryGroup;
use node_tests::prelude::*;
use node_tests::world::{ADMIN_PORT, HEALTHZ_PORT};
use node_tests::{http, usage};

fn health_port(scene: &Scene, family: Family) -> SocketAddr {
    SocketAddr::new(scene.world.node_address(family), HEALTHZ_PORT)
}

/// Sends bytes to the health port, and returns everything that comes back until the connection is closed.
fn say(scene: &Scene, bytes: &[u8]) -> String {
    let address = health_port(scene, Family::V4);
    let bytes = bytes.to_vec();
    scene.world.outside.run(move || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // The server may close the connection while this end still writes.
        let _ = stream.write_all(&bytes);
        rest(&mut stream)
    })
}

/// Reads until the connection is closed or reset. A server that closes it with unread input resets it.
fn rest(stream: &mut TcpStream) -> String {
    let (mut seen, mut some) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut some) {
            Ok(0) => break,
            Ok(read) => seen.extend_from_slice(&some[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("never closed"),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&seen).into_owned()
}

/// Probes like those of load balancers: a new connection each, a timeout of 1 s, and no retry.
#[derive(Default)]
pub(crate) struct Probes {
    sent: usize,
    refused: Vec<String>,
}

impl Probes {
    /// Requests both paths in both families. An answer other than 200 fails the test at once.
    pub(crate) fn send(&mut self, scene: &Scene) {
        for family in Family::ALL {
            for path in ["/healthz", "/livez"] {
                self.sent += 1;
                let address = health_port(scene, family);
                let ask = || http::get(address, path, scaled(Duration::from_secs(1)));
                match scene.world.outside.run(ask) {
                    Ok(answer) => {
                        assert_ne!(answer.status, 503, "false 503: {path} {family:?}");
                        assert_eq!(answer.status, 200, "{path} {family:?}");
                    }
                    Err(error) => self.refused.push(format!("{path} {family:?}: {error:#}")),
                }
            }
        }
    }

    /// One answer in twenty may be late on a busy machine. Load balancers need several failures in a row.
    pub(crate) fn assert_answered(&self) {
        let (sent, refused) = (self.sent, self.refused.len());
        println!("{sent} probes, {refused} of them without an answer");
        assert!(
            refused <= sent.div_ceil(20),
            "of {sent}: {:#?}",
            self.refused
        );
    }
}

/// Sends twenty probes, of which at most one may stay without an answer.
fn assert_answers(scene: &Scene) {
    let mut probes = Probes::default();
    for _ in 0..5 {
        probes.send(scene);
    }
    probes.assert_answered();
}

#[test]
fn requests_that_are_too_large_or_none_are_cut_off() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let before = usage::memory(scene.agent().pid()).expect("memory");
    let long = "x".repeat(1 << 20);
    for (what, request) in [
        ("a line", format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n")),
        (
            "a header",
            format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {long}\r\n\r\n"),
        ),
        (
            "many headers",
            format!(
                "GET /healthz HTTP/1.1\r\nHost: x\r\n{}\r\n",
                "A: b\r\n".repeat(100_000)
            ),
        ),
        ("no request", long.clone()),
        ("TLS", "\x16\x03\x01\x02\x00\x01\x00\r\n\r\n".to_owned()),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        (
            "two lengths",
            "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
                .to_owned(),
        ),
    ] {
        let said = say(&scene, request.as_bytes());
        assert!(!said.contains(" 200 "), "{what}: {said}");
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 4"),
            "{what}: {said}"
        );
        assert_answers(&scene);
    }
    // The negative control: a request of the maximum size.
    let fits = format!(
        "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: {}\r\n\r\n",
        &long[..60 * 1024]
    );
    assert!(
        say(&scene, fits.as_bytes()).starts_with("HTTP/1.1 200"),
        "60 KiB are no abuse"
    );
    // The agent keeps none of the megabytes that it received.
    let after = usage::memory(scene.agent().pid()).expect("memory");
    assert!(
        after.rss_kib < before.rss_kib + 8 * 1024,
        "{before:?} {after:?}"
    );
}

/// kube-proxy ignores the method, so the health port does too.
#[test]
fn any_method_is_answered_at_the_health_port() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let health = health_port(&scene, Family::V4);
    // The admin port accepts only GET.
    let admin = SocketAddr::from(([127, 0, 0, 1], ADMIN_PORT));
    let (outside, node) = (&scene.world.outside, &scene.world.node);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        for (from, address, path, status) in [
            (outside, health, "/healthz", 200),
            (outside, health, "/metrics", 404),
            (node, admin, "/verdict", 405),
        ] {
            let answer = from.run(|| http::request(address, method, path, PATIENCE));
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, status, "{method} {path}");
        }
        let read = node.run(|| http::get(admin, "/verdict", PATIENCE));
        assert_eq!(read.expect("an answer").status, 200);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let ask = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n");
    let request = [
        ask("/healthz", ""),
        ask("/nothing", ""),
        ask("/livez", ""),
        ask("/healthz", "Connection: close\r\n"),
        ask("/healthz", ""),
    ];
    let said = say(&scene, request.concat().as_bytes());
    let statuses: Vec<_> = said.matches("HTTP/1.1 ").collect();
    assert_eq!(statuses.len(), 4, "none after the last: {said}");
    let told = |one: &str| (one[..3].to_owned(), one.contains("nodeEligible"));
    let eligible: Vec<_> = said.split("HTTP/1.1 ").skip(1).map(told).collect();
    let of = |status: &str, eligible| (status.to_owned(), eligible);
    assert_eq!(
        eligible,
        [
            of("200", true),
            of("404", false),
            of("200", false),
            of("200", true)
        ]
    );
}

/// The agent's container is limited to 128 MiB (deploy/base), of which the agent needs at most 72
/// (docs/internal/specification.md). The rest must hold all connections that the agent accepts, with the
/// memory of their sockets in the kernel.
#[test]
fn strangers_fit_into_the_memory_that_is_left() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let group = needs!(skip::needed(MemoryGroup::new()));
    group.take(scene.agent().pid()).expect("a group");
    group.limit((128 - 72) << 20).expect("a limit");
    let before = group.held().expect("bytes");
    // A few more than the agent keeps open.
    let (target, many) = (health_port(&scene, Family::V4), 10_240 + 1_000);
    let _crowd = Crowd::gather(&scene.world.outside, target, many).expect("strangers");
    let gathered = until(4 * PATIENCE, || (open(&scene) >= 10_000).then_some(()));
    assert!(gathered.is_some(), "{} are open", open(&scene));
    assert_answers(&scene);
    let more = group.held().expect("bytes").saturating_sub(before);
    println!("{} connections take {} KiB", open(&scene), more >> 10);
    assert!(more < 56 << 20, "{more} bytes: too near to the limit");
    assert_answers(&scene);
}

/// Number of connections that are open at the health port.
pub(crate) fn open(scene: &Scene) -> u64 {
    let labels = ["listener=\"healthz\""];
    metric(&scene.metrics(), "pathproof_http_open_connections", &labels)
}

/// An answer of the admin port may have 1 MiB, which the agent holds while the client does not read.
#[test]
fn strangers_that_do_not_read_hold_few_answers() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let address = SocketAddr::from(([127, 0, 0, 1], ADMIN_PORT));
    let ask = |_| {
        let mut stream = TcpStream::connect(address).expect("connect");
        let request = b"GET /recording HTTP/1.1\r\nHost: x\r\n\r\n";
        stream.write_all(request).expect("ask");
        stream
    };
    let strangers: Vec<TcpStream> = scene.world.node.run(|| (0..100).map(ask).collect());
    let labels = ["listener=\"admin\"", "event=\"evicted\""];
    let evicted = || {
        metric(
            &scene.metrics(),
            "pathproof_http_connections_total",
            &labels,
        )
    };
    eventually("places taken away", || evicted() >= 84);
    drop(strangers);
}

/// The 3,000 connections reconnect when they are closed. Half of them are in the middle of a header.
#[test]
fn probes_are_answered_beside_a_crowd_on_busy_processors() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let target = health_port(&scene, Family::V4);
    let crowd = Crowd::gather(&scene.world.outside, target, 3_000).expect("a crowd");
    eventually("a crowd", || crowd.open() > 2_700);
    let burners = burn();
    let mut probes = Probes::default();
    for _ in 0..20 {
        probes.send(&scene);
    }
    drop(burners);
    probes.assert_answered();
    // The agent keeps these connections: closed ones would reconnect ahead of the probes.
    assert!(crowd.opened() < 3_300, "{} for 3000", crowd.opened());
    drop(crowd);
    eventually("none left open", || open(&scene) < 10);
}
