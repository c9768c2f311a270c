//! The healthz port while another process, its owner, listens on it. pathproof answers clients outside, and
//! the owner answers the node itself, whichever process started first. Without the agent, the owner answers
//! everybody. The tests imitate kube-proxy by a listener that answers HTTP.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;

use node_tests::http;
use node_tests::prelude::*;
use node_tests::worker::Worker;
use node_tests::world::{HEALTHZ_PORT, OldKernel};

/// Body of the owner's answer.
const OWNER: &str = "owner";
/// Fields of the agent's answers, at the healthz port and at Services' health check node ports.
const OURS: [&str; 2] = ["\"lastUpdated\"", "\"localEndpoints\""];

/// A thread that holds the healthz port like another process. It ends when dropped.
pub(crate) struct Owner {
    _worker: Worker,
}

impl Owner {
    /// Listens as Go does: at every address of both families, with SO_REUSEADDR.
    pub(crate) fn start(node: &Namespace) -> Self {
        Self::at(
            node,
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, HEALTHZ_PORT)),
        )
    }

    pub(crate) fn at(node: &Namespace, address: SocketAddr) -> Self {
        Self::with(node, address, |stream| answer(stream, 200))
    }

    /// Passes each connection to `answer`.
    pub(crate) fn with(
        node: &Namespace,
        address: SocketAddr,
        mut answer: impl FnMut(TcpStream) + Send + 'static,
    ) -> Self {
        let listener = node.run(|| TcpListener::bind(address)).expect("its port");
        listener.set_nonblocking(true).expect("nonblocking");
        let worker = Worker::here(move |stop| {
            while !stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => answer(stream),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Self { _worker: worker }
    }
}

pub(crate) fn answer(mut stream: TcpStream, status: u16) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    // Read the whole request: closing a socket with unread data resets the connection.
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(length @ 1..) => request.extend_from_slice(&part[..length]),
            _ => return,
        }
    }
    let length = OWNER.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{OWNER}"
    );
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Pathproof,
    Owner,
    Nobody,
}

/// Sends one request from a namespace, and returns which process answered within two seconds.
pub(crate) fn who(from: &Namespace, address: SocketAddr) -> Who {
    who_within(from, address, Duration::from_secs(2))
}

pub(crate) fn who_within(from: &Namespace, address: SocketAddr, patience: Duration) -> Who {
    let asked = from.run(|| http::get(address, "/healthz", patience));
    match asked {
        Ok(response) if response.body == OWNER => Who::Owner,
        Ok(response) if OURS.iter().any(|field| response.body.contains(field)) => Who::Pathproof,
        Ok(response) => panic!("an answer of nobody's: {response:?}"),
        Err(_) => Who::Nobody,
    }
}

pub(crate) fn node_address(scene: &Scene, family: Family) -> SocketAddr {
    SocketAddr::new(scene.world.node_address(family), HEALTHZ_PORT)
}

/// Which process answers clients outside, in IPv4 and IPv6.
pub(crate) fn outside(scene: &Scene) -> [Who; 2] {
    Family::ALL.map(|family| who(&scene.world.outside, node_address(scene, family)))
}

/// Which process answers the node itself, at loopback and at the node's address, in IPv4 and IPv6.
pub(crate) fn inside(scene: &Scene) -> [Who; 4] {
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let [v4, v6] = loopback.map(|address| SocketAddr::new(address, HEALTHZ_PORT));
    let [own_v4, own_v6] = Family::ALL.map(|family| node_address(scene, family));
    [v4, v6, own_v4, own_v6].map(|address| who(&scene.world.node, address))
}

/// From the report: how the agent serves the port, and whether the port has another owner.
fn way(scene: &Scene) -> (String, Option<bool>) {
    let report = scene.report();
    let way = report["port"]["way"].as_str().expect("a way").to_owned();
    (way, report["port"]["owner"].as_bool())
}

/// The first stage of a rollout: the owner answers all clients, and the report shows this.
#[test]
fn no_load_balancer_is_answered_without_an_address() {
    let mut scene = Scene::bare(Backend::Nftables);
    let _owner = Owner::start(&scene.world.node);
    scene.spawn(&["--healthz-bind-address", "none"]);
    eventually("a report", || scene.agent().verdict().is_ok());
    throughout(Duration::from_secs(1), || {
        assert_eq!(outside(&scene), [Who::Owner; 2]);
    });
    assert_eq!(way(&scene).0, "off");
}

#[test]
fn outsiders_get_ours_and_the_node_the_owners() {
    let mut scene = Scene::bare(Backend::Nftables);
    let owner = Owner::start(&scene.world.node);
    assert_eq!(outside(&scene), [Who::Owner; 2]);
    scene.start(&[]);
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    assert_eq!(inside(&scene), [Who::Owner; 4]);
    // Pods count as clients outside.
    let pod = scene.world.pod("client-1").ns.clone();
    for family in Family::ALL {
        assert_eq!(who(&pod, node_address(&scene, family)), Who::Pathproof);
    }
    eventually("the owner is told", || {
        way(&scene) == ("steered".to_owned(), Some(true))
    });

    drop(owner);
    eventually("the node is answered where nobody listens", || {
        inside(&scene) == [Who::Pathproof; 4]
    });
    eventually("that there is none is told", || {
        way(&scene) == ("steered".to_owned(), Some(false))
    });
    // An agent that exits after SIGTERM leaves nothing at the port.
    scene.take_agent().terminate().expect("an end in order");
    assert_eq!(outside(&scene), [Who::Nobody; 2]);
    assert_eq!(inside(&scene), [Who::Nobody; 4]);
}

/// A process can open the port at any time, also while connections to the agent are open.
#[test]
fn an_owner_may_come_and_go_at_any_time() {
    let scene = Scene::new(Backend::Nftables, &[]);
    assert_eq!(inside(&scene), [Who::Pathproof; 4]);
    let kept: Vec<TcpStream> = Family::ALL
        .into_iter()
        .map(|family| {
            let address = node_address(&scene, family);
            let mut stream = scene
                .world
                .outside
                .run(|| TcpStream::connect(address))
                .expect("a connection");
            ask_and_keep(&mut stream);
            stream
        })
        .collect();
    let watch = scene.watch();
    for _ in 0..2 {
        let owner = Owner::start(&scene.world.node);
        eventually("the node is the owner's", || {
            inside(&scene) == [Who::Owner; 4]
        });
        assert_eq!(outside(&scene), [Who::Pathproof; 2]);
        for mut stream in &kept {
            ask_and_keep(&mut stream);
        }
        drop(owner);
        eventually("the node is ours", || inside(&scene) == [Who::Pathproof; 4]);
    }
    // If the owner listens on one address only, the agent answers at the others.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTHZ_PORT));
    let _owner = Owner::at(&scene.world.node, address);
    let mixed = [Who::Owner, Who::Pathproof, Who::Pathproof, Who::Pathproof];
    eventually("one address is the owner's", || inside(&scene) == mixed);
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    let changes = watch.changes();
    assert_eq!(changes.len(), 1, "{changes:?}");
}

fn ask_and_keep(mut stream: impl std::io::Read + std::io::Write) {
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n").expect("ask");
    let mut answer = [0; 2048];
    let length = stream.read(&mut answer).expect("an answer");
    let text = String::from_utf8_lossy(&answer[..length]);
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
}

/// The steering ends with the agent: the owner gets the next connection.
#[test]
fn a_killed_agent_leaves_the_port_to_its_owner() {
    let mut scene = Scene::bare(Backend::Nftables);
    let _owner = Owner::start(&scene.world.node);
    for _ in 0..5 {
        scene.start(&[]);
        assert_eq!(outside(&scene), [Who::Pathproof; 2]);
        scene.take_agent().kill().expect("kill");
        let killed = Instant::now();
        let seen = until(PATIENCE, || {
            (outside(&scene) == [Who::Owner; 2]).then_some(())
        });
        println!(
            "MEASURED the owner answered {:?} after the kill",
            killed.elapsed()
        );
        assert!(seen.is_some());
        assert_eq!(inside(&scene), [Who::Owner; 4]);
    }
}

/// A frozen process keeps its listeners: connections to it are accepted by the kernel and never answered. So
/// the owner gets them until the agent runs again.
#[test]
fn a_frozen_agent_leaves_the_port_to_its_owner() {
    let mut scene = Scene::bare(Backend::Nftables);
    let _owner = Owner::start(&scene.world.node);
    scene.start(&[]);
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    assert!(scene.agent().signal(libc::SIGSTOP));
    let frozen = Instant::now();
    eventually("the owner answers", || outside(&scene) == [Who::Owner; 2]);
    let took = frozen.elapsed();
    println!("MEASURED the owner answered after {took:?}");
    assert!(took < scaled(Duration::from_secs(12)), "{took:?}");
    throughout(Duration::from_secs(1), || {
        assert_eq!(outside(&scene), [Who::Owner; 2]);
    });
    assert!(scene.agent().signal(libc::SIGCONT));
    eventually("the agent answers again", || {
        outside(&scene) == [Who::Pathproof; 2]
    });
    throughout(Duration::from_secs(1), || {
        assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    });
}

/// The negative controls: an agent that is late by a second keeps the port, and so does one that is frozen
/// where nobody else would answer. Its connections wait until it runs again.
#[rstest]
#[case::for_a_second(true, Duration::ZERO)]
#[case::without_an_owner(false, Duration::from_secs(5))]
fn connections_to_a_late_agent_wait(#[case] owned: bool, #[case] frozen: Duration) {
    let mut scene = Scene::bare(Backend::Nftables);
    let _owner = owned.then(|| Owner::start(&scene.world.node));
    scene.start(&[]);
    let address = node_address(&scene, Family::V4);
    let client = scene.world.outside.clone();
    assert!(scene.agent().signal(libc::SIGSTOP));
    let asked = thread::spawn(move || {
        thread::sleep(frozen);
        client.run(|| http::get(address, "/healthz", Duration::from_secs(20)))
    });
    thread::sleep(frozen + Duration::from_secs(1));
    assert!(scene.agent().signal(libc::SIGCONT));
    let answer = asked.join().expect("a client").expect("an answer");
    assert!(answer.body.contains("\"lastUpdated\""), "{answer:?}");
}

/// A successor that is frozen takes no connection from its predecessor, which may still answer.
#[test]
fn a_frozen_successor_leaves_the_port_to_its_predecessor() {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.start(&[]);
    let mut later = scene.spawn_beside(&[]);
    later.wait_ready(PATIENCE).expect("ready");
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    assert!(later.signal(libc::SIGSTOP));
    thread::sleep(Duration::from_secs(4));
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    later.kill().expect("kill");
}

#[test]
fn one_address_is_one_address() {
    let mut scene = Scene::bare(Backend::Nftables);
    let _owner = Owner::start(&scene.world.node);
    for family in Family::ALL {
        let address = node_address(&scene, family).to_string();
        scene.start(&["--healthz-bind-address", &address]);
        let wanted = Family::ALL.map(|other| match other == family {
            true => Who::Pathproof,
            false => Who::Owner,
        });
        assert_eq!(outside(&scene), wanted, "{address}");
        assert_eq!(inside(&scene), [Who::Owner; 4]);
        scene.take_agent().terminate().expect("an end in order");
    }
}

#[test]
fn the_allow_list_holds_for_what_is_steered() {
    let mut scene = Scene::bare(Backend::Nftables);
    let owner = Owner::start(&scene.world.node);
    // Allow the router's addresses, with which the outside namespace sends.
    scene.start(&["--healthz-allow-cidr", "192.0.2.1/32,2001:db8:0:1::1"]);
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    for family in Family::ALL {
        let refused = who(&scene.world.worker, node_address(&scene, family));
        assert_eq!(refused, Who::Nobody, "denied, and not passed to the owner");
    }
    let labels = ["listener=\"healthz\"", "event=\"denied\""];
    let denied = || {
        metric(
            &scene.metrics(),
            "pathproof_http_connections_total",
            &labels,
        )
    };
    assert_eq!(denied(), 2);
    // Without an owner, requests of the node itself reach the agent, which denies them too: the node is not
    // on the list.
    drop(owner);
    eventually("the node itself is denied", || {
        for family in Family::ALL {
            let refused = who(&scene.world.node, node_address(&scene, family));
            assert_eq!(refused, Who::Nobody);
        }
        denied() >= 4
    });
}

/// Linux before 5.7 cannot attach BPF links to a network namespace. There the agent binds the port and
/// reports that.
#[test]
fn where_nothing_can_be_steered_the_port_is_bound() {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.start_on(OldKernel::NoTcx, &[]);
    assert_eq!(way(&scene).0, "bound");
    let report = scene.report();
    let problem = report["port"]["problem"].as_str().expect("why");
    assert!(problem.contains("Linux 6.1"), "{problem}");
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    assert_eq!(inside(&scene), [Who::Pathproof; 4]);
    let log = scene.agent().log();
    assert!(
        log.contains(
            "connections to the healthz port cannot be steered: the agent listens on \
             the port instead"
        ),
        "{log}"
    );
    scene.take_agent().terminate().expect("an end in order");

    // If another process holds the port that is to be bound, the agent exits with an error.
    let _owner = Owner::start(&scene.world.node);
    let binary = agent_binary().expect("the agent's binary");
    let folder = scene.manifests.dir();
    let agent = scene
        .world
        .spawn_agent_on(Some(OldKernel::NoTcx), &binary, folder, &[]);
    let agent = scene.agent.insert(agent.expect("start the agent"));
    let status = until(PATIENCE, || agent.exited().ok().flatten()).expect("it ends");
    let log = agent.log();
    assert_eq!(status.code(), Some(64), "{log}");
    assert!(log.contains("another process listens there"), "{log}");
    assert_eq!(outside(&scene), [Who::Owner; 2]);
}

#[test]
fn bound_is_bound() {
    let scene = Scene::new(Backend::Nftables, &["--port-takeover", "bind"]);
    assert_eq!(way(&scene), ("bound".to_owned(), None));
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    assert_eq!(inside(&scene), [Who::Pathproof; 4]);
}

/// SIGTERM is no sign of a broken node. If no other process would answer, the agent serves the last verdict
/// until the shutdown grace ends.
#[rstest]
#[case::steered("steer")]
#[case::bound("bind")]
fn the_last_verdict_is_served_for_the_grace(#[case] way: &str) {
    let extra = ["--port-takeover", way, "--shutdown-grace", "2s"];
    let mut scene = Scene::new(Backend::Nftables, &extra);
    let agent = scene.take_agent();
    assert!(agent.signal(libc::SIGTERM));
    throughout(Duration::from_millis(1_500), || {
        assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    });
    eventually("an end", || outside(&scene) == [Who::Nobody; 2]);
    assert_eq!(agent.terminate().expect("it ended").code(), Some(0));
}

/// An agent exits at once if the port's owner will answer clients outside.
#[test]
fn an_owner_is_not_kept_waiting() {
    let mut scene = Scene::bare(Backend::Nftables);
    let _owner = Owner::start(&scene.world.node);
    scene.start(&["--shutdown-grace", "10m"]);
    let watch = scene.watch();
    // `terminate` fails after 5 s.
    let status = scene.take_agent().terminate().expect("an end at once");
    assert_eq!(status.code(), Some(0));
    assert_eq!(outside(&scene), [Who::Owner; 2]);
    // `/livez` does not change either, because this owner answers every path.
    let changes = watch.changes();
    assert_eq!(changes.len(), 1, "all requests are answered: {changes:?}");
}

/// An owner that listens for clients outside in only one family is no successor of the agent.
#[test]
fn an_owner_of_one_family_is_no_successor() {
    let mut scene = Scene::bare(Backend::Nftables);
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, HEALTHZ_PORT));
    let _owner = Owner::at(&scene.world.node, address);
    scene.start(&["--shutdown-grace", "2s"]);
    let agent = scene.take_agent();
    assert!(agent.signal(libc::SIGTERM));
    throughout(Duration::from_millis(1_500), || {
        assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    });
    eventually("an end", || outside(&scene) == [Who::Owner, Who::Nobody]);
    assert_eq!(agent.terminate().expect("it ended").code(), Some(0));
}

/// A process that listens on the port at another address gets none of the agent's connections, so it is no
/// successor.
#[test]
fn an_owner_beside_a_bound_port_is_no_successor() {
    let mut scene = Scene::bare(Backend::Nftables);
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTHZ_PORT));
    let owner = Owner::at(&scene.world.node, loopback);
    let own = node_address(&scene, Family::V4).to_string();
    let bound = ["--port-takeover", "bind", "--healthz-bind-address", &own];
    scene.start(&bound);
    let succeeded = |scene: &Scene| scene.report()["port"]["succeeded"] == true;
    throughout(Duration::from_millis(2_500), || {
        assert!(!succeeded(&scene), "{:#}", scene.report()["port"]);
    });
    drop(owner);

    // A second agent is a successor.
    let admin = "127.0.0.1:19257";
    let extra = [&bound[..], &["--admin-bind-address", admin]].concat();
    let later = scene.spawn_beside(&extra);
    eventually("the earlier one is told", || succeeded(&scene));
    let port_of_later = || {
        let admin: SocketAddr = admin.parse().expect("an address");
        let get = || http::get(admin, "/verdict", Duration::from_secs(2));
        let answer = scene.world.node.run(get).ok()?;
        let report: serde_json::Value = serde_json::from_str(&answer.body).ok()?;
        report["port"]["succeeded"].as_bool()
    };
    eventually("the later one answers", || port_of_later().is_some());
    throughout(Duration::from_millis(2_500), || {
        // A failed request gives no result and is not compared.
        assert_ne!(port_of_later(), Some(true));
    });
    later.kill().expect("kill");
    eventually("a successor that dies is none", || !succeeded(&scene));
}
