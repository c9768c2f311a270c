//! Health check node ports: memory and listeners of an agent that serves many of them, clients that reuse
//! their source ports, and owners of a port that refuse.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv6Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use node_tests::manifests::Manifests;
use node_tests::prelude::*;
use node_tests::traffic::{Manner, RawSender};
use node_tests::world::Agent;
use node_tests::{http, usage};
use socket2::{Domain, Protocol, Socket, Type};

use crate::steer::{Owner, answer};

const SERVICES: u16 = 1_000;
const FIRST: u16 = 30_000;
/// Number of starts. Only the agent with the least memory counts, because the allocator's overhead varies.
const STARTS: usize = 3;
const MAY_COST: u64 = 1024 * 1024;

/// Writes a Node, and Services with externalTrafficPolicy Local, with or without a health check node port.
fn write(world: &World, name: &str, port: fn(u16) -> Option<u16>) -> PathBuf {
    let dir = world.dir().join(name);
    Manifests::write_to(dir.clone(), Vec::new()).expect("a Node");
    let mut text = String::new();
    for index in 0..SERVICES {
        let [high, low] = (index + 10).to_be_bytes();
        let (v4, node_port) = (format!("10.96.{high}.{low}"), FIRST + SERVICES + index);
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: service-{index}\n  namespace: demo\n\
             spec:\n  type: LoadBalancer\n  clusterIP: {v4}\n  clusterIPs:\n  - {v4}\n  ipFamilies:\n  - IPv4\n  \
             externalTrafficPolicy: Local\n  ports:\n  - name: http\n    port: 80\n    protocol: TCP\n    \
             targetPort: 8080\n    nodePort: {node_port}\n"
        );
        if let Some(port) = port(index) {
            let _ = writeln!(text, "  healthCheckNodePort: {port}");
        }
    }
    fs::write(dir.join("services.yaml"), text).expect("Services");
    dir
}

/// Bytes of the agent's memory and maps together, and the number of listening sockets in its network
/// namespace.
fn weigh(agent: &Agent) -> (u64, usize) {
    let maps = usage::maps_kib(agent.pid()).expect("its maps");
    let memory = usage::memory(agent.pid()).expect("its memory");
    let bytes = (memory.anonymous_kib + maps) * 1024;
    let listening = |file: &str| {
        let file = format!("/proc/{}/net/{file}", agent.pid());
        let text = fs::read_to_string(&file).expect("sockets");
        let state = |line: &str| line.split_whitespace().nth(3) == Some("0A");
        text.lines().filter(|line| state(line)).count()
    };
    (bytes, listening("tcp") + listening("tcp6"))
}

/// Starts an agent [`STARTS`] times, and returns the figures of the smallest one.
fn least(world: &World, manifests: &Path, settled: impl Fn() -> bool) -> (u64, usize) {
    let weights = (0..STARTS).map(|_| {
        let agent = world.spawn_agent(&agent_binary().expect("a binary"), manifests, &[]);
        let mut agent = agent.expect("an agent");
        agent.wait_ready(PATIENCE).expect("a ready agent");
        assert!(until(PATIENCE, || settled().then_some(())).is_some());
        let weight = weigh(&agent);
        println!("{} KiB, {} listeners", weight.0 / 1024, weight.1);
        agent.terminate().expect("it ends");
        weight
    });
    weights.min().expect("some")
}

#[test]
fn a_thousand_health_check_node_ports_cost_little_and_take_no_listener_each() {
    let world = World::builder().build().expect("a world");
    let without = write(&world, "without", |_| None);
    let with = write(&world, "with", |index| Some(FIRST + index));
    let address = world.node_address(Family::V4);
    let named = |index: u16| {
        let to = SocketAddr::new(address, FIRST + index);
        let answer = http::get(to, "/", Duration::from_secs(1)).ok();
        answer.is_some_and(|answer| answer.body.contains(&format!("\"service-{index}\"\n")))
    };
    let all = || world.outside.run(|| (0..SERVICES).all(named));
    let (base, listeners) = least(&world, &without, || true);
    let (bytes, with_ports) = least(&world, &with, all);
    let cost = bytes.saturating_sub(base);
    println!("{SERVICES} ports: {} KiB", cost / 1024);
    assert!(cost <= MAY_COST, "{cost} bytes");
    assert_eq!(with_ports, listeners);
}

/// Health check node port of web.
const HEALTH: u16 = 31_000;
/// Node port of web.
const WEB: u16 = 30_080;
/// The local endpoints of web.
const OLD: [&str; 2] = ["web-1", "web-2"];
/// Generation of the sentinel after web's endpoints were replaced.
const ROTATED: u16 = 20_002;
/// New connections to a removed endpoint may show a stale proxy once it left 15 s ago.
const AGE: Duration = Duration::from_secs(16);

/// A node with a sentinel, where outside clients dial web, which has a health check node port.
struct Rollout {
    scene: Scene,
    watch: Watch,
    web: SocketAddr,
}

impl Rollout {
    fn new() -> Self {
        let mut scene = Scene::bare(Backend::Nftables);
        let balance = |web: &mut Service| *web = web.clone().health_port(HEALTH);
        scene.manifests.change("web", balance).expect("web");
        for pod in OLD {
            scene.servers.remove(pod);
            let ns = &scene.world.pod(pod).ns;
            let server = Server::start_as(ns, pod, PORT, Manner::Keeps).expect("a server");
            scene.servers.insert(pod.to_owned(), server);
        }
        scene.add_sentinel(&Sentinel::default());
        scene.start(&[]);
        scene.wait_probed();
        let health = scene.node_port(HEALTH, Family::V4);
        let every = Duration::from_millis(50);
        let watch = Watch::start_at(&scene.world.outside, health, every).expect("a poller");
        wait_answers(&watch, 200);
        let web = scene.node_port(WEB, Family::V4);
        Self { scene, watch, web }
    }

    /// Opens a connection of an outside client to web. Returns the client's address and port, too.
    fn open(&self, client: u8) -> (SocketAddr, TcpStream) {
        let world = &self.scene.world;
        let source = world.outside_client(client, Family::V4);
        let from = SocketAddr::new(source, world.source_ports(source).start);
        let to = self.web;
        let open = move || -> std::io::Result<TcpStream> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
            socket.bind(&from.into())?;
            socket.connect(&to.into())?;
            Ok(socket.into())
        };
        (from, world.outside.run(open).expect("a connection"))
    }

    /// Replaces web's endpoints, and afterwards the sentinel's generation. The old pods vanish at once, so
    /// conntrack does not see their connections end.
    fn replace(&mut self, proxy_follows: bool) {
        let scene = &mut self.scene;
        let spare = scene.world.pod("spare").clone();
        let replace = |web: &mut Service| web.endpoints = vec![(&spare).into()];
        scene.manifests.change("web", replace).expect("web");
        if proxy_follows {
            scene.rules.install().expect("the rules follow");
        }
        for pod in OLD {
            scene.world.remove_pod(pod).expect("remove a pod");
            scene.servers.remove(pod);
        }
        thread::sleep(Duration::from_secs(2));
        let sentinel = Sentinel {
            generation: ROTATED,
            ..Sentinel::default()
        };
        scene.manifests.put_sentinel(&sentinel).expect("rotate");
        if proxy_follows {
            scene.rules.install().expect("the rules follow");
        }
    }

    fn failed(&self) -> u64 {
        let count = |outcome| self.scene.count("web", Family::V4, "", outcome);
        ["stale", "refused", "lost"].map(count).into_iter().sum()
    }
}

/// Three clients each keep a connection to web open while its endpoints are replaced. Then they send a SYN a
/// second from the same source ports. Conntrack sends these to the old endpoints, which no longer exist, but
/// every other client is answered.
#[test]
fn clients_that_reuse_source_ports_move_no_health_check_node_port() {
    let mut rollout = Rollout::new();
    let open: Vec<_> = (0..3).map(|client| rollout.open(client)).collect();
    eventually("the connections are proven", || {
        rollout.scene.count("web", Family::V4, "", "proven") >= 3
    });
    rollout.replace(true);
    rollout.scene.wait("the rules follow", |report| {
        lane_of(report, Family::V4, "node_port", "tcp")["generation"] == ROTATED
    });
    thread::sleep(AGE);
    let raw = RawSender::from_outside(&rollout.scene.world).expect("a sender");
    for number in 1..=12_u32 {
        for (client, (from, _)) in (0..).zip(&open) {
            let sequence = (number * 3 + client).wrapping_mul(2_654_435_761);
            raw.send_syn(*from, rollout.web, sequence).expect("a SYN");
        }
        thread::sleep(Duration::from_secs(1));
    }
    eventually("their connections fail", || rollout.failed() >= 3);
    assert_never_503(&rollout.watch);
    let answered = Plan::from_outside(&rollout.scene.world, 0, rollout.web).once(0);
    assert_eq!(answered.expect("an answer").server, "spare");
    assert_never_503(&rollout.watch);
}

/// The negative control: the proxy does not follow, so new connections go to the old endpoints.
#[test]
fn a_proxy_that_stands_still_is_503_at_health_check_node_ports() {
    let mut rollout = Rollout::new();
    let _open: Vec<_> = (0..3).map(|client| rollout.open(client)).collect();
    eventually("the connections are proven", || {
        rollout.scene.count("web", Family::V4, "", "proven") >= 3
    });
    rollout.replace(false);
    for client in 0..3 {
        let web = rollout.web;
        rollout.scene.dial_outside(client, web, 1.0);
    }
    wait_answers(&rollout.watch, 503);
    let report = rollout.scene.report();
    assert_eq!(report["verdict"]["state"], "stale", "{report:#}");
    rollout.scene.rules.install().expect("the rules follow");
    wait_answers(&rollout.watch, 200);
}

/// Listens at web's health check node port, as kube-proxy does, and answers with this status; 0 gives no
/// answer. It ends when dropped.
fn own(node: &Namespace, status: &Arc<AtomicU16>) -> Owner {
    let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, HEALTH));
    let (status, mut unanswered) = (Arc::clone(status), Vec::new());
    Owner::with(node, everywhere, move |stream| {
        match status.load(Ordering::Relaxed) {
            0 => unanswered.push(stream),
            status => answer(stream, status),
        }
    })
}

/// kube-proxy may refuse although the node's datapath works, for example under a wrong node name. Negative
/// controls: no owner at all, one that agrees, one that does not answer, and one that restarts.
#[test]
fn a_port_is_503_while_its_owner_refuses_or_is_gone() {
    const ROUNDS: Duration = Duration::from_secs(7);
    let Rollout { scene, watch, .. } = Rollout::new();
    thread::sleep(ROUNDS);
    assert_never_503(&watch);
    let status = Arc::new(AtomicU16::new(200));
    let owner = own(&scene.world.node, &status);
    thread::sleep(ROUNDS);
    status.store(0, Ordering::Relaxed);
    thread::sleep(ROUNDS);
    status.store(200, Ordering::Relaxed);
    drop(owner);
    thread::sleep(Duration::from_secs(4));
    let owner = own(&scene.world.node, &status);
    thread::sleep(ROUNDS);
    assert_never_503(&watch);

    status.store(503, Ordering::Relaxed);
    wait_answers(&watch, 503);
    scene.wait("the port is named", |report| {
        let named = report["answers"]["refused_by_owner"][0].as_str();
        named == Some("demo/web, IPv4 port 31000: the port's owner answers 503")
    });
    status.store(200, Ordering::Relaxed);
    wait_answers(&watch, 200);
    drop(owner);
    // An update may take a minute.
    thread::sleep(Duration::from_secs(55));
    wait_answers(&watch, 200);
    wait_answers(&watch, 503);
    let _owner = own(&scene.world.node, &status);
    wait_answers(&watch, 200);
}
