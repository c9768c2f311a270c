//! One agent after another, while outsiders ask all the time: every connection is answered, by one
//! agent or the other.

use std::fs::File;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use agent_common::abi::program;
use aya::Ebpf;
use aya::programs::SkLookup;
use node_tests::http;
use node_tests::manifests::Sentinel;
use node_tests::rules::Backend;
use node_tests::wait::{scaled, slowness};
use node_tests::watch::Poll;
use node_tests::world::{Agent, Family, HEALTHZ_PORT};
use pathproof::datapath::load;
use rstest::rstest;

use crate::agent_attach::filters;
use crate::agent_kernel::detach_all;
use node_tests::scene::{PATIENCE, Scene, eventually, repairs, until};

/// Time for which a load balancer waits for an answer.
const BALANCER: Duration = Duration::from_secs(1);
/// Between two questions of a poller, at least.
const PAUSE: Duration = Duration::from_millis(2);
/// Answers that each poller gets at least while something is done: one may have been asked for before.
const MEANWHILE: u64 = 5;

/// One for each path and family. Asks without a pause, a new connection each time, and keeps the
/// answers that are not 200, no two of which are equal.
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

    /// Does something; each poller asked meanwhile, or it would show nothing.
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

    /// Number of their requests, and the answers that were not 200.
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

/// A successor beside the agent, ready.
fn successor(scene: &Scene, extra: &[&str]) -> Agent {
    let started =
        |report: serde_json::Value| report["agent"]["started"].as_str().map(str::to_owned);
    let before = scene.agent().verdict().ok().and_then(started);
    let mut agent = scene.spawn_beside(extra);
    // Of two agents the later one answers at the admin port, once it steers.
    let answers = || {
        let now = agent.verdict().ok().and_then(started);
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

/// With filters the one that ends must leave what its successor put in place of its own.
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
    // Before the agent that is left can have put anything back.
    let left = ["eth0", "veth-client-1"].map(|device| filters(&scene, device));
    pollers.assert_all_answered();
    ends.sort();
    println!(
        "SIGTERM to end: median {:?}, longest {:?}",
        ends[rounds / 2],
        ends[rounds - 1]
    );
    if !attach.is_empty() {
        assert_eq!(left, [2, 2], "the observer's");
        // An agent may be ready before its sentinel is.
        eventually("two more of the sentinel's", || {
            filters(&scene, "pathproof-s0") == 4
        });
    }
    // The last one is a whole agent.
    scene.wait_probed();
    let log = scene.agent().log();
    assert_eq!(repairs(&scene), 0, "{log}");
    assert!(!log.contains("programs were attached again"), "{log}");
    // It would wait for a successor.
    scene.take_agent().kill().expect("kill");
}

/// A successor that dies gives the connections back: a rollback is no gap either.
#[test]
fn a_successor_that_dies_gives_them_back() {
    let mut scene = Scene::new(Backend::Nftables, &["--shutdown-grace", "5s"]);
    let succeeded = |scene: &Scene| scene.report()["port"]["succeeded"] == true;
    assert!(!succeeded(&scene));
    let started = scene.report()["agent"]["started"].clone();
    for _ in 0..3 {
        let next = successor(&scene, &[]);
        next.kill().expect("kill");
        // What the dead one had accepted is lost with it; from then on all is answered.
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

/// SIGTERM before the successor is there: the agent goes on until it is.
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
        // Less than its grace, at whose end it would leave by itself.
        until(Duration::from_secs(25), || old.exited().ok().flatten())
    });
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
    // What was on its way to a bound listener that closes may be reset
    // (docs/known-issues.md); what is steered is not.
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

/// A program of the same kind that is somebody else's: hooks are put back as ever, and what the agent
/// leaves behind is removed. It is not waited for anyone else, since it may take the connections.
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

/// While a successor stands, its predecessor leaves alone what both would put back.
#[test]
fn a_predecessor_lets_its_successor_be() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    let next = successor(&scene, &[]);
    let earlier = scene.take_agent();
    // New devices are its own: a hook that both attach would be the last one's.
    for n in 0..8 {
        let add = format!("link add new{n} type veth peer name wen{n}");
        scene.world.node.ip(&add).expect("add");
    }
    // Several checks of both.
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
