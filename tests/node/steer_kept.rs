//! Clients that keep a connection to the process that answered before the agent. The agent ends the connections
//! of clients outside and of checks on the node, so that they connect to it. Other connections of the node, and
//! those to other ports, remain.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;

use node_tests::prelude::*;
use node_tests::worker::Worker;
use node_tests::world::HEALTHZ_PORT;
use socket2::{Domain, Socket, Type};

use crate::steer::{Who, node_address, who};

/// Health check node port of web.
const HEALTH_PORT: u16 = 31_000;
/// A port in the same range, which no Service has.
const OTHER_PORT: u16 = 31_001;
/// Another address of the node.
const SECOND: &str = "192.0.2.77";
/// Time after which no connection is ended that began before: the agent promises 30 s.
const LASTS: Duration = Duration::from_secs(34);
const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nowner";

/// A process that answers any number of requests on each connection to the port, as kube-proxy does. It ends
/// when dropped.
fn owner(node: &Namespace, port: u16) -> Worker {
    let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let listener = node.run(|| TcpListener::bind(everywhere));
    let listener = listener.expect("its port");
    listener.set_nonblocking(true).expect("nonblocking");
    Worker::here(move |stop| {
        let mut open: Vec<TcpStream> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).expect("nonblocking");
                open.push(stream);
            }
            open.retain_mut(serve);
            thread::sleep(Duration::from_millis(2));
        }
    })
}

/// Answers a request if there is one. Returns whether the connection is still open.
fn serve(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1024]) {
        Ok(0) => false,
        Ok(_) => stream.write_all(ANSWER.as_bytes()).is_ok(),
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

fn connect(from: &Namespace, to: SocketAddr) -> io::Result<TcpStream> {
    let stream = from.run(|| TcpStream::connect(to))?;
    stream.set_read_timeout(Some(scaled(Duration::from_secs(2))))?;
    Ok(stream)
}

/// A connection of the node whose source is its second address.
fn connect_from_second(node: &Namespace, to: SocketAddr) -> io::Result<TcpStream> {
    let from = SocketAddr::new(SECOND.parse().expect("an address"), 0);
    node.run(|| -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&from.into())?;
        socket.connect(&to.into())?;
        Ok(socket.into())
    })
}

/// The answer to a request on a kept connection.
fn ask(mut stream: &TcpStream) -> io::Result<String> {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")?;
    let mut answer = [0; 2048];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// Whether the connection was reset.
fn is_ended(stream: &TcpStream) -> bool {
    let failed = ask(stream).err().map(|error| error.kind());
    matches!(
        failed,
        Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
    )
}

fn assert_owned(kept: &[TcpStream]) {
    for stream in kept {
        assert_eq!(ask(stream).expect("an answer"), ANSWER, "{stream:?}");
    }
}

#[test]
fn kept_connections_of_clients_outside_and_of_checks_are_ended() {
    let mut scene = Scene::bare(Backend::Nftables);
    let balance = |web: &mut Service| *web = web.clone().health_port(HEALTH_PORT);
    scene.manifests.change("web", balance).expect("web");
    scene.rules.install().expect("its rules");
    let (outside, node) = (scene.world.outside.clone(), scene.world.node.clone());
    let second = format!("addr add {SECOND}/32 dev lo");
    node.ip(&second).expect("a second address");
    let _owners = [HEALTHZ_PORT, HEALTH_PORT, OTHER_PORT].map(|port| owner(&node, port));
    let [v4, v6] = Family::ALL.map(|family| node_address(&scene, family));
    let at = |port| SocketAddr::new(v4.ip(), port);
    let loopback = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), HEALTHZ_PORT);
    let ended = [v4, v6, at(HEALTH_PORT)];
    let mut ended = Vec::from(ended.map(|to| connect(&outside, to).expect("a connection")));
    let checks = SocketAddr::from(([127, 10, 2, 56], HEALTHZ_PORT));
    ended.push(connect(&node, checks).expect("a connection"));
    let of_node = [v4, v6, loopback, at(HEALTH_PORT)];
    let of_node = of_node.map(|to| connect(&node, to).expect("a connection"));
    let mut remaining = Vec::from(of_node);
    remaining.push(connect_from_second(&node, v4).expect("a connection"));
    remaining.push(connect(&outside, at(OTHER_PORT)).expect("a connection"));
    assert_owned(&ended);
    assert_owned(&remaining);

    scene.start(&[]);
    let started = Instant::now();
    // Connections to the agent have the same port on the node, and remain too. Idle ones it closes itself.
    let own = connect(&outside, v4).expect("a connection");
    while started.elapsed() < scaled(LASTS) {
        assert_owned(&remaining);
        let answer = ask(&own).expect("an answer");
        assert!(answer.contains("\"lastUpdated\""), "{answer}");
        thread::sleep(Duration::from_secs(1));
    }
    for (stream, to) in ended.iter().zip([v4, v6, at(HEALTH_PORT)]) {
        assert!(is_ended(stream), "{stream:?}: {}", scene.agent().log());
        assert_eq!(who(&outside, to), Who::Pathproof, "{to}");
    }
    assert!(is_ended(&ended[3]), "{}", scene.agent().log());
    assert_eq!(who(&node, checks), Who::Pathproof);
    let kept = scene.report()["port"]["kept"].clone();
    let expected = json!({ "open": 0, "ended": ended.len(), "left": null });
    assert_eq!(kept, expected, "{}", scene.agent().log());
}

/// The agent was frozen, so the owner got new connections.
#[test]
fn connections_from_while_the_agent_was_away_are_ended() {
    let mut scene = Scene::bare(Backend::Nftables);
    let _owner = owner(&scene.world.node, HEALTHZ_PORT);
    scene.start(&[]);
    let outside = scene.world.outside.clone();
    let address = node_address(&scene, Family::V4);
    assert_eq!(who(&outside, address), Who::Pathproof);
    assert!(scene.agent().signal(libc::SIGSTOP));
    let owned = || {
        let kept = connect(&outside, address).ok()?;
        (ask(&kept).ok()? == ANSWER).then_some(kept)
    };
    let kept = until(PATIENCE, owned).expect("an answer of the owner");
    assert!(scene.agent().signal(libc::SIGCONT));
    eventually("the kept connection is ended", || is_ended(&kept));
    assert_eq!(who(&outside, address), Who::Pathproof);
}

#[test]
fn kept_connections_are_only_counted_if_that_is_configured() {
    let mut scene = Scene::bare(Backend::Nftables);
    let _owner = owner(&scene.world.node, HEALTHZ_PORT);
    let address = node_address(&scene, Family::V4);
    let kept = connect(&scene.world.outside, address).expect("a connection");
    assert_owned(std::slice::from_ref(&kept));
    scene.start(&["--end-kept-connections", "off"]);
    let started = Instant::now();
    let counted = || metric(&scene.metrics(), "pathproof_bypassing_connections", &[""]);
    eventually("it is counted", || counted() == 1);
    thread::sleep(scaled(LASTS).saturating_sub(started.elapsed()));
    assert_owned(std::slice::from_ref(&kept));
    let status = scene.agent().command(&["status"]).output().expect("status");
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("--end-kept-connections=off"), "{status}");
    drop(kept);
    eventually("it is not counted any more", || counted() == 0);
}
