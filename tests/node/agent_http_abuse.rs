//! Unauthenticated clients abuse the agent's health port, which must still answer probes. These tests count
//! the probes that get no answer within a load balancer's timeout. `cargo xtask bench http` measures latency.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use node_tests::abuse::{Crowd, burn, malformed};
use node_tests::little_memory::MemoryGroup;
use node_tests::prelude::*;
use node_tests::world::{ADMIN_PORT, HEALTHZ_PORT};
use node_tests::{http, usage};
use pathproof::http::limits::WAITING_BYTES;

pub(crate) fn health_port(scene: &Scene, family: Family) -> SocketAddr {
    SocketAddr::new(scene.world.node_address(family), HEALTHZ_PORT)
}

/// Sends bytes to the health port, and returns everything that comes back until the connection is closed.
fn say(scene: &Scene, bytes: &[u8]) -> String {
    let address = health_port(scene, Family::V4);
    let bytes = bytes.to_vec();
    scene.world.outside.run(move || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // Ignore the error: the server may close the connection before everything is written.
        let _ = stream.write_all(&bytes);
        rest(&mut stream)
    })
}

/// Reads until the connection is closed or reset. It is reset if the server closes it with unread input.
pub(crate) fn rest(stream: &mut TcpStream) -> String {
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

    /// Asserts that at least 19 of 20 probes were answered. On a busy machine one may be late, and load
    /// balancers act only after several failures in a row.
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
pub(crate) fn assert_answers(scene: &Scene) {
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
    for (what, request) in malformed() {
        let said = say(&scene, request.as_bytes());
        assert!(!said.contains(" 200 "), "{what}: {said}");
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 4"),
            "{what}: {said}"
        );
        assert_answers(&scene);
    }
    // The negative control: a request of almost the maximum size.
    let fits = format!(
        "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: {}\r\n\r\n",
        "x".repeat(12 * 1024)
    );
    assert!(
        say(&scene, fits.as_bytes()).starts_with("HTTP/1.1 200"),
        "12 KiB are no abuse"
    );
    // The agent must not keep the megabytes that it received.
    let after = usage::memory(scene.agent().pid()).expect("memory");
    assert!(
        after.rss_kib < before.rss_kib + 8 * 1024,
        "{before:?} {after:?}"
    );
}

/// kube-proxy accepts any method, so the health port does too.
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

/// Limit of the agent's container (deploy/base).
pub(crate) const LIMIT: u64 = 128 << 20;

/// A scene whose agent has the memory of its container, and that memory.
pub(crate) fn contained() -> Needed<(Scene, MemoryGroup)> {
    let group = skip::needed(MemoryGroup::new())?;
    group.limit_container(LIMIT).expect("a limit");
    let mut scene = Scene::bare(Backend::Nftables);
    // The agent reads its limit when it starts, so it must start inside.
    let enter = format!(
        "sh -c 'echo $$ > {} && exec \"$@\"' sh",
        group.processes().display()
    );
    let binary = scene.wrapped(&enter, &agent_binary().expect("the agent's binary"));
    scene.spawn_binary(binary, &[]);
    scene.wait_ready();
    Ok((scene, group))
}

/// The agent's container is limited to 128 MiB (deploy/base), of which the agent needs at most 72
/// (docs/internal/specification.md). The rest must hold all connections that the agent accepts, with the
/// memory of their sockets in the kernel, so a limit reduces their number.
#[test]
fn strangers_fit_into_the_memory_that_is_left() {
    const EACH: u64 = WAITING_BYTES as u64;
    let (scene, group) = needs!(contained());
    let before = group.held().expect("bytes");
    // Almost as many connections as the agent keeps open, so that none is replaced and the slow ones send many
    // bytes, each in its own packet.
    let target = health_port(&scene, Family::V4);
    let crowd = Crowd::gather(&scene.world.outside, target, 3_100).expect("strangers");
    let gathered = until(PATIENCE, || (open(&scene) >= 3_000).then_some(()));
    assert!(gathered.is_some(), "{} are open", open(&scene));
    assert_answers(&scene);
    thread::sleep(Duration::from_secs(15));
    let open_now = open(&scene);
    let more = group.held().expect("bytes").saturating_sub(before);
    println!("{open_now} connections take {} KiB", more >> 10);
    assert!(
        more < open_now * EACH,
        "{more} bytes of {open_now} connections"
    );
    assert_answers(&scene);
    drop(crowd);
    eventually("none left open", || open(&scene) < 10);

    // More than it keeps open: those that it closes come again at once.
    let _crowd = Crowd::gather(&scene.world.outside, target, 4_500).expect("strangers");
    eventually("replaced", || event(&scene, "evicted") > 1_000);
    assert!(open(&scene) < 4_000, "{} are open", open(&scene));
    assert_answers(&scene);
}

/// Bytes that the kernel holds for each connection to the health port, until the agent reads them.
fn receive_buffers(scene: &Scene) -> Vec<u64> {
    let mut ss = scene.world.node.command("ss");
    let output = ss
        .args(["-tmnH", "state", "established", "sport", "=", ":10256"])
        .output();
    let output = output.expect("run ss");
    let text = String::from_utf8(output.stdout).expect("text");
    let held = text.split("skmem:(r").skip(1).map(|rest| {
        let digits = rest.split(',').next().unwrap_or_default();
        digits.parse::<u64>().expect("bytes")
    });
    held.collect()
}

/// If a byte is lost, the kernel buffers all data behind it, and charges that memory to the agent's
/// container. The buffers must stay small.
#[test]
fn strangers_cannot_fill_the_kernels_memory() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let lost = "table inet lossy { chain first { type filter hook prerouting priority -400; \
                tcp dport 10256 meta length 53 drop; }; }";
    scene
        .world
        .node
        .nft(lost)
        .expect("a rule that drops single bytes");
    let target = health_port(&scene, Family::V4);
    let send = |_| {
        let mut stream = TcpStream::connect(target).expect("connect");
        stream.set_nodelay(true).expect("no delay");
        stream.set_nonblocking(true).expect("no waiting");
        stream.write_all(b"G").expect("a byte that is lost");
        // A partial write is enough: the kernel takes what fits.
        let _ = stream.write(&[b'x'; 64 * 1024]);
        stream
    };
    let strangers: Vec<TcpStream> = scene.world.outside.run(|| (0..100).map(send).collect());
    thread::sleep(Duration::from_secs(2));
    let held = receive_buffers(&scene);
    let total = held.iter().sum::<u64>();
    assert!(held.len() >= 100 && total > 0, "{held:?}");
    let most = held.iter().max().copied().unwrap_or_default();
    assert!(most <= 4096, "a connection holds {most} bytes");
    scene
        .world
        .node
        .nft("delete table inet lossy")
        .expect("no rule");
    assert_answers(&scene);
    drop(strangers);
}

fn event(scene: &Scene, event: &str) -> u64 {
    let event = format!("event=\"{event}\"");
    let labels = ["listener=\"healthz\"", &event];
    metric(
        &scene.metrics(),
        "pathproof_http_connections_total",
        &labels,
    )
}

/// Number of connections that are open at the health port.
pub(crate) fn open(scene: &Scene) -> u64 {
    let labels = ["listener=\"healthz\""];
    metric(&scene.metrics(), "pathproof_http_open_connections", &labels)
}

/// An answer of the admin port may have 1 MiB, which the agent holds until the client has read it. So the
/// agent limits the number of such clients.
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
    eventually("places taken away", || evicted() >= 92);
    drop(strangers);
}

/// The crowd has 3,000 connections, half of them in the middle of a header. Each reconnects if it is closed.
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
    // The agent must not close these connections, because they would reconnect and delay probes.
    assert!(crowd.opened() < 3_300, "{} for 3000", crowd.opened());
    drop(crowd);
    eventually("none left open", || open(&scene) < 10);
}

/// 100 clients send 200 requests at once, again and again. The agent closes a connection that had more than a
/// few answers within a second. A probe must not wait until the agent has answered all requests.
#[test]
fn probes_are_answered_beside_clients_that_pipeline() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let files = || usage::open_files(scene.agent().pid()).expect("files");
    let before = files();
    let target = health_port(&scene, Family::V4);
    let second = Duration::from_secs(1);
    let crowd = Crowd::pipelining(&scene.world.outside, target, 100, second).expect("a crowd");
    eventually("a crowd", || crowd.open() == 100);
    let mut probes = Probes::default();
    for _ in 0..20 {
        probes.send(&scene);
    }
    probes.assert_answered();
    drop(crowd);
    eventually("none left open", || open(&scene) < 10);
    eventually("descriptors closed", || files() <= before + 10);
    assert_answers(&scene);
}
