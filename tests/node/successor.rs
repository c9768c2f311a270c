//! Two agents at once, as in a rolling update: who answers meanwhile, whose probes pass, and whether
//! the update goes on.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use agent_common::abi::map;
use agent_common::service::{FrontendKey, FrontendValue};
use aya::maps::{HashMap, Map};

use node_tests::manifests::{AUTOSCALER_TAINT, Service};
use node_tests::rules::Backend;
use node_tests::world::{Agent, Family, agent_binary};
use rstest::rstest;
use serde_json::Value;

use crate::agent_kernel::map_data;

use node_tests::scene::{PATIENCE, Scene, eventually, family_of, repairs, throughout, until};

/// An API server that nobody is.
const NOWHERE: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "x",
"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
"users": [{"name": "u", "user": {}}],
"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}"#;

/// What the successor says: of two agents it answers at the admin port, as soon as it can.
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

/// A version that cannot read the cluster answers nobody's question: its predecessor does. Where that
/// lasts it answers from memory, as an agent does whose API server is away.
#[test]
fn a_successor_without_a_view_leaves_the_answers_to_its_predecessor() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let kubeconfig = scene.world.dir().join("nowhere.json");
    fs::write(&kubeconfig, NOWHERE).expect("write");
    let before = scene.report();
    let next = scene.spawn_beside(&["--kubeconfig", kubeconfig.to_str().expect("UTF-8")]);
    let said = said_by(&next, &before);
    assert_eq!(said["port"]["waits"], true, "{:#}", said["port"]);
    let missing = pending(&next);
    assert!(
        missing.contains("cluster view") && missing.contains("healthz port"),
        "{missing}"
    );
    // What only the predecessor can know.
    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    eventually("the taint is answered", || scene.asked("/healthz") == 503);
    let late = until(Duration::from_secs(40), || {
        let report = next.verdict().ok()?;
        (report["port"]["waits"] == false).then_some(())
    });
    assert!(late.is_some(), "it answers after a while:\n{}", next.log());
    assert!(pending(&next).contains("cluster view"), "and is not ready");
    // The predecessor has it back as soon as the successor is gone.
    next.kill().expect("kill");
    eventually("the taint is answered again", || {
        scene.asked("/healthz") == 503
    });
    scene.take_agent().kill().expect("kill");
}

/// Kubelet's startup probe of the new pod reaches the old agent, which must not call it started.
#[test]
fn a_predecessor_calls_no_successor_started() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let before = scene.report();
    let startup = |agent: &Agent| agent.admin("/agent/startupz").expect("an answer").status;
    assert_eq!(startup(scene.agent()), 200, "nobody starts");
    let next = scene.spawn_beside(&[]);
    let seen = until(PATIENCE, || (startup(scene.agent()) == 503).then_some(()));
    assert!(seen.is_some(), "its start is seen:\n{}", next.log());
    // As if the kernel checked its programs for long.
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

/// A rollback, while loading takes long: nothing was taken over, and nothing is taken away.
#[test]
fn a_successor_that_still_loads_ends_when_it_is_told_to() {
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

/// Both agents' probes get through: an upgrade leaves no node unjudged.
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
    // The sums go on from the predecessor's: all lanes must grow by its own probes.
    let first = said_by(&next, &before);
    for family in Family::ALL {
        let begun = passed(&first, family);
        eventually("every lane passes", || {
            let now = passed(&next.verdict().expect("a report"), family);
            now.len() == begun.len() && now.iter().zip(&begun).all(|(now, then)| *now > then + 5)
        });
    }
    // Neither takes the other's programs for another tool's, also when it reads them once more.
    throughout(Duration::from_secs(6), || {
        let datapath = &scene.report()["datapath"];
        assert_eq!(datapath["sentinel_managed"], "no", "{datapath:#}");
    });
    // Both write there.
    let log = next.log();
    assert!(!log.contains("other BPF programs"), "{log}");
    next.kill().expect("kill");
    let begun = scene.report();
    // And so did the predecessor's all the while: no run of failures stands.
    assert_eq!(begun["verdict"]["state"], "proven", "{begun:#}");
    scene.take_agent().kill().expect("kill");
}

/// Where the verdict begins to fail with a new version it is not ready, so that a rolling update
/// stops at this node; once it does not, it is.
#[test]
fn an_update_stops_where_the_verdict_begins_to_fail() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let before = scene.report();
    let mut next = scene.spawn_beside(&[]);
    next.wait_ready(PATIENCE).expect("ready");
    // Until then its predecessor answers, and a fault would be older than the new version.
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

/// The innocent twin: a fault that was there before is not the new version's.
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

/// Services that come while two agents run count for themselves, whichever agent lives on: each gives
/// them ids of its own, so one alone may keep the maps. The other is held while they come, and hears
/// of both at once: it would number them the other way round.
#[rstest]
#[case::the_successor(true)]
#[case::the_predecessor(false)]
fn services_that_come_during_an_update_count_for_themselves(#[case] successor_lives: bool) {
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let before = scene.report();
    let mut next = scene.spawn_beside(&[]);
    // Until the successor answers its predecessor does, which is ready.
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

/// A successor that knows less of the cluster takes what it does not know out of the maps, and dies
/// before its predecessor looks for one.
#[test]
fn what_a_successor_that_lived_for_a_moment_left_is_mended() {
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

/// A pod in the node's network namespace, root of its container, holds the names by which agents knew
/// each other before ADR 37: ids of programs can be guessed. Such names say that the successor keeps
/// the maps and answers, before it does.
#[test]
fn names_that_a_pod_holds_stop_no_upgrade() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let names = squatter(&scene);
    let kubeconfig = scene.world.dir().join("nowhere.json");
    fs::write(&kubeconfig, NOWHERE).expect("write");
    let before = scene.report();
    let kubeconfig = kubeconfig.to_str().expect("UTF-8");
    let blind = scene.spawn_beside(&["--kubeconfig", kubeconfig]);
    said_by(&blind, &before);
    let said = blind.log();
    assert!(said.contains("Address already in use"), "{said}");
    // Facts that only the predecessor knows, and has to write.
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

/// Holds all names of the programs that are loaded next.
fn squatter(scene: &Scene) -> Vec<UnixDatagram> {
    let limit = libc::rlimit {
        rlim_cur: 16_384,
        rlim_max: 16_384,
    };
    // SAFETY: the pointer is to a local that outlives the call, which only reads it.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let claims = fs::read_dir(scene.world.pin_dir().join("programs")).expect("claims");
    let ids = claims.filter_map(|claim| claim.ok()?.file_name().to_str()?.parse::<u32>().ok());
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

/// Frontends that are written in the kernel.
fn frontends(scene: &Scene) -> usize {
    let map = Map::HashMap(map_data(&scene.world, map::FRONTENDS));
    let map: HashMap<_, FrontendKey, FrontendValue> = map.try_into().expect("a map of frontends");
    map.keys().flatten().count()
}
