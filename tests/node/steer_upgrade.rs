//! Upgrades of the agent under constant requests from outside: each request is answered by one of the two
//! agents.

use std::fs::File;

use aya::Ebpf;
use aya::programs::SkLookup;
use node_tests::http;
use node_tests::prelude::*;
use node_tests::wait::slowness;
use node_tests::watch::Poll;
use node_tests::world::{Agent, HEALTHZ_PORT};
use pathproof::clock;
use pathproof::datapath::attach::Mode;
use pathproof::datapath::devices::Device;
use pathproof::datapath::{Observer, load};
use pathproof_wire::abi::program;
use pathproof_wire::packet::Link;

use crate::agent_attach::filters;
use crate::agent_kernel::detach_all;

/// Timeout of a load balancer's probe.
const BALANCER: Duration = Duration::from_secs(1);
/// Minimum time between two requests of a poller.
const PAUSE: Duration = Duration::from_millis(2);
/// Minimum number of answers that each poller gets during an action, above one because the first may belong
/// to an earlier request.
const MEANWHILE: u64 = 5;

/// One poller for each path and family. Each uses a new connection for every request, and keeps results other
/// than 200.
struct Pollers(Vec<Poll<String>>);

impl Pollers {
    fn start(scene: &Scene) -> Self {
        let all = Family::ALL
            .into_iter()
            .flat_map(|family| ["/healthz", "/livez"].map(|path| (family, path)));
        let start = |(family, path)| {
            let address = SocketAddr::new(scene.world.node_address(family), HEALTHZ_PORT);
            let began = Instant::now();
            let ask = move || match http::get(address, path, scaled(BALANCER)) {
                Ok(response) if response.status == 200 => None,
                other => {
                    let bad = format!("{:?}: {other:?}", began.elapsed());
                    Some((Instant::now(), bad))
                }
            };
            Poll::start(&scene.world.outside, "poller", PAUSE, ask).expect("a poller")
        };
        Self(all.map(start).collect())
    }

    /// Performs an action, and asserts that each poller got answers during it.
    fn during<T>(&self, what: &str, act: impl FnOnce() -> T) -> T {
        let asked = || self.0.iter().map(Poll::asked).collect::<Vec<_>>();
        let before = asked();
        let done = act();
        let meanwhile: Vec<u64> = asked().iter().zip(before).map(|(now, b)| now - b).collect();
        let least = meanwhile.iter().copied().min();
        assert!(
            least >= Some(MEANWHILE),
            "{what}: requests of each poller meanwhile: {meanwhile:?}"
        );
        done
    }

    /// Number of all requests, and the results other than 200.
    fn end(self) -> (u64, Vec<String>) {
        let (asked, bad): (Vec<u64>, Vec<_>) = self.0.into_iter().map(Poll::end).unzip();
        let bad = bad.into_iter().flatten().map(|(_, bad)| bad);
        (asked.iter().sum(), bad.collect())
    }

    fn assert_all_answered(self) {
        let (asked, bad) = self.end();
        println!("{asked} requests, {} not answered with 200", bad.len());
        assert_no_503(&bad);
        assert!(bad.is_empty(), "of {asked}: {bad:#?}");
    }
}

fn assert_no_503(bad: &[String]) {
    let is_503 = |bad: &String| bad.contains("status: 503");
    assert!(!bad.iter().any(is_503), "false 503: {bad:#?}");
}

/// Starts a second agent beside the first, and waits until it is ready.
fn successor(scene: &Scene, extra: &[&str]) -> Agent {
    let before = scene.agent().started();
    let mut agent = scene.spawn_beside(extra);
    let answers = || {
        let now = agent.started();
        (now.is_some() && now != before).then_some(())
    };
    until(PATIENCE, answers).unwrap_or_else(|| panic!("it never answers:\n{}", agent.log()));
    agent.wait_ready(PATIENCE).expect("a ready successor");
    agent
}

fn succeed(scene: &mut Scene, extra: &[&str]) -> Duration {
    let next = successor(scene, extra);
    let told = Instant::now();
    let status = scene.take_agent().terminate().expect("an end in order");
    assert_eq!(status.code(), Some(0));
    scene.agent = Some(next);
    told.elapsed()
}

/// With clsact, a successor replaces the filters of the old agent. The old agent must not remove the new
/// ones.
#[rstest]
#[case::tcx(20, &[])]
#[case::clsact(5, &["--attach", "clsact"])]
fn upgrades_lose_no_answer(#[case] rounds: usize, #[case] attach: &[&str]) {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    let extra = [&["--shutdown-grace", "5s"], attach].concat();
    scene.start(&extra);
    scene.wait_proven();
    let rounds = rounds.div_ceil(slowness() as usize);
    let pollers = Pollers::start(&scene);
    let mut rollout = |round| {
        let what = format!("rollout {round}");
        pollers.during(&what, || succeed(&mut scene, &extra))
    };
    let mut ends: Vec<Duration> = (0..rounds).map(&mut rollout).collect();
    // Count before the remaining agent could repair anything.
    let left = ["eth0", "veth-client-1"].map(|device| filters(&scene, device));
    pollers.assert_all_answered();
    ends.sort();
    println!(
        "SIGTERM to end: median {:?}, longest {:?}",
        ends[rounds / 2],
        ends[rounds - 1]
    );
    if !attach.is_empty() {
        assert_eq!(left, [2, 2], "the observer's filters");
        // Wait, because an agent may be ready before its sentinel is.
        eventually("two more of the sentinel's", || {
            filters(&scene, "pathproof-s0") == 4
        });
    }
    // The last agent must work completely.
    scene.wait_probed();
    let log = scene.agent().log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains(" WARN ")).collect();
    assert_eq!(repairs(&scene), 0, "{warnings:#?}");
    assert!(!log.contains("programs were attached again"), "{log}");
    // Kill the agent: after SIGTERM it would wait for a successor.
    scene.take_agent().kill().expect("kill");
}

/// When a successor dies, its predecessor answers again, so that a rollback leaves no gap.
#[test]
fn a_successor_that_dies_returns_the_connections() {
    let mut scene = Scene::new(Backend::Nftables, &["--shutdown-grace", "5s"]);
    let succeeded = |scene: &Scene| scene.report()["port"]["succeeded"] == true;
    assert!(!succeeded(&scene));
    let started = scene.report()["agent"]["started"].clone();
    for _ in 0..3 {
        let next = successor(&scene, &[]);
        next.kill().expect("kill");
        // Start the pollers now: connections that the dead agent had accepted are lost, but all later ones
        // are answered.
        let pollers = Pollers::start(&scene);
        let many = || (pollers.0.iter().map(Poll::asked).min() > Some(25)).then_some(());
        until(PATIENCE, many).expect("a hundred requests");
        pollers.assert_all_answered();
        assert_eq!(scene.report()["agent"]["started"], started);
    }
    let gone = until(PATIENCE, || (!succeeded(&scene)).then_some(()));
    assert!(gone.is_some(), "{:#}", scene.report()["port"]);
    scene.take_agent().kill().expect("kill");
}

/// An agent that gets SIGTERM before its successor has started runs until the successor answers.
#[rstest]
#[case::steered("steer")]
#[case::bound("bind")]
fn a_late_successor_is_waited_for(#[case] way: &str) {
    let extra = ["--port-takeover", way, "--shutdown-grace", "30s"];
    let mut scene = Scene::new(Backend::Nftables, &extra);
    let pollers = Pollers::start(&scene);
    let mut old = scene.take_agent();
    let ended = pollers.during("a late successor", || {
        assert!(old.signal(libc::SIGTERM));
        std::thread::sleep(Duration::from_secs(1));
        assert!(old.exited().expect("ask").is_none(), "{}", old.log());
        scene.start(&extra);
        // Wait less than the grace, after which the agent would exit anyway.
        until(Duration::from_secs(25), || old.exited().ok().flatten())
    });
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
    // A bound listener may reset connections when it closes (docs/known-issues.md). Steered connections are
    // never reset.
    if way == "steer" {
        pollers.assert_all_answered();
    } else {
        let (_, bad) = pollers.end();
        assert_no_503(&bad);
        assert!(bad.len() <= 4, "connections of one moment: {bad:#?}");
    }
    old.terminate().expect("it has ended");
    scene.take_agent().kill().expect("kill");
}

/// Another tool's program of the same kind is no successor: the agent still repairs hooks, and removes its
/// devices when it exits. It exits at once, because the other program may take the connections.
#[test]
fn a_strange_program_is_no_successor() {
    let extra = ["--shutdown-grace", "10m"];
    let mut scene = Scene::idle(Backend::Nftables, &extra);
    let node = scene.world.node.clone();
    let mut ebpf = Ebpf::load(load::OBJECT).expect("load the object");
    let program: &mut SkLookup = ebpf
        .program_mut(program::STEER)
        .and_then(|program| program.try_into().ok())
        .expect("a program that steers nothing: it has no rules");
    program.load().expect("load it");
    let namespace = node.run(|| File::open("/proc/thread-self/ns/net"));
    program
        .attach(namespace.expect("the namespace"))
        .expect("attach it");
    eventually("it is noticed", || {
        scene.agent().log().contains("and not by an agent")
    });
    assert_eq!(scene.report()["port"]["succeeded"], false);
    detach_all(&node, "veth-client-1").expect("detach");
    eventually("the hook is put back", || repairs(&scene) > 0);
    let status = scene.take_agent().terminate().expect("an end at once");
    assert_eq!(status.code(), Some(0));
    assert!(
        node.ifindex("pathproof-c0").is_err(),
        "the devices are gone"
    );
}

/// While a successor runs, its predecessor repairs nothing, so that the two do not replace each other's
/// hooks.
#[test]
fn a_predecessor_does_not_interfere_with_its_successor() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    let next = successor(&scene, &[]);
    let earlier = scene.take_agent();
    // Only the successor may attach to new devices: if both agents did, each would replace the other's
    // program.
    for n in 0..8 {
        let add = format!("link add new{n} type veth peer name wen{n}");
        scene.world.node.ip(&add).expect("add");
    }
    // Wait for several checks of both agents.
    std::thread::sleep(Duration::from_secs(12));
    scene.agent = Some(next);
    assert_eq!(repairs(&scene), 0, "{}", scene.agent().log());
    assert!(
        !scene.agent().log().contains("attached the observer again"),
        "{}",
        scene.agent().log()
    );
    earlier.kill().expect("kill");
}

/// A successor may start while its predecessor is in the middle of a check that began before.
#[test]
fn a_check_that_a_successor_overtakes_repairs_nothing() {
    let world = World::builder().build().expect("build a world");
    let name = "eth0".to_owned();
    let device = Device {
        index: world.node.ifindex(&name).expect("the device"),
        name,
        link: Link::Ethernet,
        uplink: false,
        leads_elsewhere: false,
        may_be_a_pods: false,
    };
    let pins = world.pin_dir().to_owned();
    let (overtaken, successors, displaced) = world.node.run(|| {
        let load = || {
            Observer::load(Mode::Auto, Some(&pins))
                .expect("an observer")
                .0
        };
        let (mut earlier, mut later) = (load(), load());
        earlier.follow(std::slice::from_ref(&device), clock::mono());
        later.follow(std::slice::from_ref(&device), clock::mono());
        earlier.check(clock::mono(), || true);
        let overtaken = earlier.attacher.repairs;
        later.check(clock::mono(), || false);
        // Without a successor, it was another program that took its place.
        earlier.check(clock::mono(), || false);
        (overtaken, later.attacher.repairs, earlier.attacher.repairs)
    });
    assert_eq!((overtaken, successors), (0, 0));
    assert_eq!(displaced, 2, "both directions");
}
