//! Two agents at the same time, as in a rolling update: which one answers, whether the probes of both pass,
//! and whether the update continues.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use aya::maps::{HashMap, Map};
use node_tests::http;
use node_tests::prelude::*;
use node_tests::watch::Poll;
use node_tests::world::Agent;
use pathproof_wire::abi::map;
use pathproof_wire::service::{FrontendKey, FrontendValue};

use crate::agent_kernel::map_data;
use crate::steer::{Owner, Who, node_address, outside};

/// Minimum time between two requests of a poller.
const PAUSE: Duration = Duration::from_millis(2);
/// A kubeconfig with an API server that does not exist.
const NOWHERE: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "x",
"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
"users": [{"name": "u", "user": {}}],
"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}"#;

/// The successor's report. The later of two agents answers at the admin port as soon as it can, so the
/// function waits for a report of another agent than `before`.
fn said_by(successor: &Agent, before: &Value) -> Value {
    let started = |report: &Value| report["agent"]["started"].clone();
    let said = until(PATIENCE, || {
        let report = successor.verdict().ok()?;
        (started(&report) != started(before)).then_some(report)
    });
    said.unwrap_or_else(|| panic!("it never answers:\n{}", successor.log()))
}

fn pending(agent: &Agent) -> String {
    agent.admin("/agent/readyz").expect("an answer").body
}

/// Starts a successor that cannot read the cluster, and waits until it steers. It waits for a view for 15 s.
fn blind_successor(scene: &Scene) -> Agent {
    let kubeconfig = scene.world.dir().join("nowhere.json");
    fs::write(&kubeconfig, NOWHERE).expect("write");
    let before = scene.report();
    let next = scene.spawn_beside(&["--kubeconfig", kubeconfig.to_str().expect("UTF-8")]);
    let said = said_by(&next, &before);
    assert_eq!(said["port"]["waits"], true, "{:#}", said["port"]);
    next
}

/// A field of the report about the healthz port.
fn port_of(agent: &Agent, field: &str) -> Value {
    agent.verdict().expect("a report")["port"][field].clone()
}

/// A successor that cannot read the cluster leaves the answers to its predecessor. If it still cannot after
/// some time, it answers from its state file, like an agent without an API server.
#[test]
fn a_successor_without_a_view_leaves_the_answers_to_its_predecessor() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let next = blind_successor(&scene);
    let missing = pending(&next);
    assert!(
        missing.contains("cluster view") && missing.contains("healthz port"),
        "{missing}"
    );
    // Only the predecessor can read the taint.
    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    eventually("the taint is answered", || scene.asked("/healthz") == 503);
    let late = until(Duration::from_secs(40), || {
        let report = next.verdict().ok()?;
        (report["port"]["waits"] == false).then_some(())
    });
    assert!(late.is_some(), "it answers after a while:\n{}", next.log());
    assert!(pending(&next).contains("cluster view"), "and is not ready");
    // The predecessor answers again as soon as the successor is gone.
    next.kill().expect("kill");
    eventually("the taint is answered again", || {
        scene.asked("/healthz") == 503
    });
    scene.take_agent().kill().expect("kill");
}

/// A successor that still waits for its view answers if nobody else does. Otherwise the load balancer's
/// connections would be refused.
#[test]
fn a_waiting_successor_answers_when_the_former_agent_and_the_owner_are_gone() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let owner = Owner::start(&scene.world.node);
    let next = blind_successor(&scene);
    drop(owner);
    eventually("no owner is seen", || port_of(&next, "owner") == false);
    let pollers = Family::ALL.map(|family| {
        let address = node_address(&scene, family);
        let ask = move || {
            let asked = http::get(address, "/healthz", scaled(Duration::from_secs(1)));
            let bad = asked.err().map(|error| format!("{error:#}"));
            bad.map(|bad| (Instant::now(), bad))
        };
        Poll::start(&scene.world.outside, "poller", PAUSE, ask).expect("a poller")
    });
    // The successor checks for other responders every 0.2 s, and for at most 15 s. If it had stopped waiting
    // already, the rest of this test would prove nothing.
    assert_eq!(port_of(&next, "waits"), true, "{}", next.log());
    let ended = scene.take_agent().terminate().expect("an end in order");
    assert_eq!(ended.code(), Some(0));
    thread::sleep(Duration::from_millis(500));
    for poller in pollers {
        let (asked, bad) = poller.end();
        assert!(asked > 20 && bad.is_empty(), "of {asked}: {bad:#?}");
    }
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    next.kill().expect("kill");
}

/// The negative control: somebody else would answer.
#[test]
fn a_waiting_successor_leaves_the_port_to_the_owner() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let _owner = Owner::start(&scene.world.node);
    let next = blind_successor(&scene);
    assert_eq!(outside(&scene), [Who::Pathproof; 2]);
    let ended = scene.take_agent().terminate().expect("an end in order");
    assert_eq!(ended.code(), Some(0));
    throughout(Duration::from_secs(2), || {
        assert_eq!(outside(&scene), [Who::Owner; 2]);
    });
    assert_eq!(port_of(&next, "waits"), true, "{}", next.log());
    next.kill().expect("kill");
}

/// Kubelet's startup probe of the new pod may reach the old agent, which must not report success for the new
/// one.
#[test]
fn a_predecessor_does_not_report_its_successor_as_started() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let before = scene.report();
    let startup = |agent: &Agent| agent.admin("/agent/startupz").expect("an answer").status;
    assert_eq!(startup(scene.agent()), 200, "nobody starts");
    let next = scene.spawn_beside(&[]);
    let seen = until(PATIENCE, || (startup(scene.agent()) == 503).then_some(()));
    assert!(seen.is_some(), "its start is seen:\n{}", next.log());
    // Stop the successor, as if the verifier took long.
    assert!(next.signal(libc::SIGSTOP));
    throughout(Duration::from_secs(2), || {
        assert_eq!(startup(scene.agent()), 503, "it has not started");
        let alive = scene.agent().admin("/agent/livez").expect("an answer");
        assert_eq!(alive.status, 200, "the old agent goes on");
    });
    assert!(next.signal(libc::SIGCONT));
    said_by(&next, &before);
    eventually("it has started", || startup(&next) == 200);
    scene.take_agent().terminate().expect("the old agent ends");
    next.terminate().expect("the new one ends");
}

/// A rollback while the successor still loads its programs: it has not taken anything over yet, and must
/// remove nothing.
#[test]
fn a_successor_that_still_loads_ends_on_sigterm() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    let repaired = repairs(&scene);
    let next = scene.spawn_beside(&[]);
    eventually("it listens for signals", || listens(next.pid()));
    assert!(next.signal(libc::SIGTERM));
    eventually("it ends", || {
        next.log().contains("ending before the observer is loaded")
    });
    let status = next.terminate().expect("it has ended");
    assert!(status.success(), "{status}");
    scene.wait_probed();
    assert_eq!(repairs(&scene), repaired);
}

/// Whether a process catches SIGTERM.
fn listens(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.expect("a mask").trim(), 16).expect("a mask");
    caught & (1 << (libc::SIGTERM - 1)) != 0
}

/// During an upgrade the probes of both agents pass, so that the node is still judged.
#[test]
fn both_of_two_agents_probe() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let before = scene.report();
    let mut next = scene.spawn_beside(&[]);
    next.wait_ready(PATIENCE).expect("ready");
    let passed = |report: &Value, family: Family| -> Vec<u64> {
        let lanes = family_of(report, family)["lanes"].as_array().cloned();
        let lanes = lanes.unwrap_or_default();
        lanes
            .iter()
            .map(|lane| lane["passed"].as_u64().unwrap_or_default())
            .collect()
    };
    // The successor continues its predecessor's counts, and must add passed probes on all lanes.
    let first = said_by(&next, &before);
    for family in Family::ALL {
        let begun = passed(&first, family);
        eventually("every lane passes", || {
            let now = passed(&next.verdict().expect("a report"), family);
            now.len() == begun.len() && now.iter().zip(&begun).all(|(now, then)| *now > then + 5)
        });
    }
    // Neither agent may take the other's programs for those of another tool, even when it lists them again.
    throughout(Duration::from_secs(6), || {
        let datapath = &scene.report()["datapath"];
        assert_eq!(datapath["sentinel_managed"], "no", "{datapath:#}");
    });
    // Both agents write to this log.
    let log = next.log();
    assert!(!log.contains("other BPF programs"), "{log}");
    next.kill().expect("kill");
    let begun = scene.report();
    // The predecessor's probes must have passed as well: it has no series of failures.
    assert_eq!(begun["verdict"]["state"], "proven", "{begun:#}");
    scene.take_agent().kill().expect("kill");
}

/// If the verdict fails for the first time under a new version, that agent is not ready, and a rolling update
/// stops at this node. The agent is ready again after the verdict recovers.
#[test]
fn an_update_stops_where_the_verdict_begins_to_fail() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let before = scene.report();
    let mut next = scene.spawn_beside(&[]);
    next.wait_ready(PATIENCE).expect("ready");
    // First wait until the successor answers: an earlier fault would not count against the new version.
    said_by(&next, &before);
    scene.rules.flush_services().expect("flush");
    eventually("it is not ready", || {
        pending(&next).contains("node became unhealthy")
    });
    assert_eq!(scene.asked("/healthz"), 503, "its answers are its own");
    scene.rules.install().expect("install");
    next.wait_ready(PATIENCE).expect("ready again");
    next.kill().expect("kill");
    scene.take_agent().kill().expect("kill");
}

/// The negative control: a fault from before the update does not count against the new version.
#[test]
fn an_update_goes_on_where_the_node_was_broken_before() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    let before = scene.report();
    let mut next = scene.spawn_beside(&[]);
    next.wait_ready(PATIENCE).expect("ready");
    said_by(&next, &before);
    eventually("it is broken", || {
        next.verdict()
            .is_ok_and(|said| said["verdict"]["state"] == "broken")
    });
    next.wait_ready(PATIENCE).expect("still ready");
    assert_eq!(scene.asked("/healthz"), 503);
    next.kill().expect("kill");
    scene.take_agent().kill().expect("kill");
}

/// New Services are counted correctly while two agents run, whichever agent remains. Each agent would assign
/// its own ids, so only one may write the maps. The test stops the other agent while the Services are added.
/// This agent then reads both at once, and would number them in the opposite order.
#[rstest]
#[case::the_successor(true)]
#[case::the_predecessor(false)]
fn services_that_come_during_an_update_count_for_themselves(#[case] successor_lives: bool) {
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let before = scene.report();
    let mut next = scene.spawn_beside(&[]);
    // First wait for the successor's answers: until then, the predecessor answers, and reports that it is
    // ready.
    said_by(&next, &before);
    next.wait_ready(PATIENCE).expect("ready");
    let ends = if successor_lives {
        scene.agent.replace(next).expect("an agent runs")
    } else {
        next
    };
    assert!(ends.signal(libc::SIGSTOP));
    let (first, second) = ("zebra", "ant");
    for (name, index) in [(first, 3), (second, 4)] {
        let service = Service::new(name, index, [scene.world.pod("web-1")]);
        scene.add(service);
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(ends.signal(libc::SIGCONT));
    std::thread::sleep(Duration::from_secs(2));
    ends.kill().expect("kill");
    for family in Family::ALL {
        scene.dial("client-1", first, family, 10.0);
    }
    for family in Family::ALL {
        let proven = || (scene.count(first, family, "pod", "proven") > 3).then_some(());
        if until(PATIENCE, proven).is_none() {
            let (report, metrics) = (scene.report(), scene.metrics());
            let log = scene.agent().log();
            panic!("what is dialled is not proven: {report:#}\n{metrics}\n{log}");
        }
        assert_eq!(scene.count(second, family, "", "arrived"), 0, "{family:?}");
    }
    scene.wait_proven();
    scene.take_agent().kill().expect("kill");
}

/// A successor with an incomplete view removes the Services that it does not know from the maps, and dies
/// before its predecessor has noticed it. The predecessor must restore them.
#[test]
fn changes_of_a_short_lived_successor_are_reverted() {
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let known = frontends(&scene);
    let folder = scene.world.dir().join("less");
    fs::create_dir(&folder).expect("a folder");
    for file in fs::read_dir(scene.manifests.dir()).expect("manifests") {
        let file = file.expect("a file");
        let name = file.file_name();
        if !name.to_string_lossy().contains("web") {
            fs::copy(file.path(), folder.join(name)).expect("copy");
        }
    }
    let binary = agent_binary().expect("the agent's binary");
    let next = scene.world.spawn_agent(&binary, &folder, &[]);
    let next = next.expect("start a successor");
    eventually("it plans", || frontends(&scene) < known);
    next.kill().expect("kill");
    eventually("what it took is back", || frontends(&scene) == known);
    scene.wait_proven();
    scene.take_agent().kill().expect("kill");
}

/// A pod with the node's network namespace, root in its container, binds abstract socket names that contain
/// program ids, which can be guessed. If agents recognised each other by such names, an agent would conclude
/// that its successor already writes the maps and answers.
#[test]
fn names_that_a_pod_holds_stop_no_upgrade() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let names = squatter(&scene);
    let blind = blind_successor(&scene);
    // Only the predecessor can read the new Service, so it must write the maps.
    let expected = frontends(&scene);
    let service = Service::new("late", 3, [scene.world.pod("web-1")]);
    scene.manifests.add(service).expect("add a Service");
    eventually("the predecessor writes", || frontends(&scene) > expected);
    blind.kill().expect("kill");
    let mut next = scene.spawn_beside(&[]);
    next.wait_ready(PATIENCE).expect("ready");
    let status = scene.take_agent().terminate().expect("an end in order");
    assert_eq!(status.code(), Some(0));
    drop(names);
    scene.agent = Some(next);
    scene.wait_probed();
    scene.take_agent().kill().expect("kill");
}

/// Binds the names for all programs that will be loaded next.
fn squatter(scene: &Scene) -> Vec<UnixDatagram> {
    let limit = libc::rlimit {
        rlim_cur: 16_384,
        rlim_max: 16_384,
    };
    // SAFETY: the pointer is to a local that outlives the call, which only reads it.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let claims = fs::read_dir(scene.world.pin_dir().join("programs")).expect("claims");
    let claims: Vec<String> = claims
        .filter_map(|claim| claim.ok()?.file_name().into_string().ok())
        .collect();
    let is_mark = |name: &String| name.ends_with("-steer");
    assert!(claims.iter().any(is_mark), "marks on bpffs: {claims:?}");
    let ids = claims.iter().filter_map(|claim| claim.parse::<u32>().ok());
    let newest = ids.max().expect("the agent claims its programs");
    let hold = move || {
        let names = (newest + 1..newest + 1_000).flat_map(|id| {
            ["steer", "answers", "plans"].map(|mark| format!("pathproof/{mark}/{id}"))
        });
        let held = names.map(|name| {
            let name = SocketAddr::from_abstract_name(name)?;
            UnixDatagram::bind_addr(&name)
        });
        held.collect::<Result<Vec<_>, _>>().expect("hold names")
    };
    let node = &scene.world.node;
    let pod = node.spawn("squatter", hold).expect("a thread");
    pod.join().expect("it does not panic")
}

fn frontends(scene: &Scene) -> usize {
    let map = Map::HashMap(map_data(&scene.world, map::FRONTENDS));
    let map: HashMap<_, FrontendKey, FrontendValue> = map.try_into().expect("a map of frontends");
    map.keys().flatten().count()
}
