//! A boot: when new connections are refused, and what ends the wait.

use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::cause::State;
use pathproof_facts::cluster::{Change, NodeFacts, ObjectName, Protocol};
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::time::Mono;
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::coverage::Hooks;
use pathproof_witness::topology;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::boot::still_waits;
use crate::event::{Event, KernelSample, ViewFacts, ViewUpdate};
use crate::{Node, Start};

const YOUNG: Mono = Mono(20_000_000_000);

/// An agent that started at `now` after boot, and received the cluster with or without the pod probe.
fn booted(now: Mono, probe: Option<bool>) -> Node {
    let mut node = Node::new(settings(), Start { now, ..start() });
    let mut changes = cluster();
    let synced = changes.pop().expect("the cluster ends with Synced");
    changes.extend(probe.map(pod_probe).into_iter().flatten());
    changes.push(synced);
    for event in [
        view_of(changes),
        Event::Installed(Default::default()),
        Event::Hooks(hooks()),
    ] {
        node.step(event, now);
    }
    node
}

fn view_of(changes: Vec<Change>) -> Event {
    Event::View(Box::new(ViewUpdate {
        changes,
        ..ViewUpdate::default()
    }))
}

/// The node with these addresses, and an IPv6 Service.
fn with_ipv6(addresses: &[&str]) -> Vec<Change> {
    let node = NodeFacts {
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        ..node_facts()
    };
    vec![
        Change::Node(Arc::new(node)),
        service("six", "fd00:10:96::6"),
        slice("six", Protocol::Tcp, &["fd00:10:1::6"]),
    ]
}

fn topology_of(netkit: u32) -> Event {
    Event::Topology(Box::new(topology::TopologyFacts {
        owners: kube_proxy(),
        netkit,
        ..topology::TopologyFacts::default()
    }))
}

/// A connection from outside gets through.
fn prove(node: &mut Node, now: Mono) -> Effects {
    let mut sample = KernelSample::default();
    sample.last_proofs[Family::V4 as usize][SourceClass::External as usize] = Some(now);
    Effects(node.step(Event::Sample(Box::new(sample)), now))
}

/// A pod's connection leaks; if `proven`, a connection from outside gets through.
fn leak(node: &mut Node, now: Mono, proven: bool) -> Effects {
    let failed = delta(id_of(node, "web"), &[Outcome::Arrived, Outcome::Leaked]);
    let mut sample = KernelSample {
        counts: vec![failed],
        ..KernelSample::default()
    };
    let proof = proven.then_some(now);
    sample.last_proofs[Family::V4 as usize][SourceClass::External as usize] = proof;
    Effects(node.step(Event::Sample(Box::new(sample)), now))
}

/// If the sentinel never worked, a node is Starting for the first two minutes.
#[rstest]
#[case::young(20, State::Starting, [503, 200])]
#[case::old(121, State::Unknown, [200, 200])]
fn a_boot_in_which_nothing_was_proven(
    #[case] seconds: u64,
    #[case] state: State,
    #[case] statuses: [u16; 2],
) {
    let now = Mono(seconds * 1_000_000_000);
    let sample = Event::Sample(Default::default());
    let effects = Effects(booted(now, None).step(sample, now));
    assert_eq!(effects.told(), (state, statuses));
}

/// Before the view is read nothing is known, and new connections are refused. After two minutes
/// they are accepted, because the API server may be away for hours.
#[rstest]
#[case::young(20, [503, 200])]
#[case::old(121, [200, 200])]
fn a_boot_waits_for_the_view(#[case] seconds: u64, #[case] statuses: [u16; 2]) {
    let now = Mono(seconds * 1_000_000_000);
    let mut node = Node::new(settings(), Start { now, ..start() });
    for event in [Event::Tick, Event::Sample(Default::default())] {
        let effects = Effects(node.step(event, now));
        assert_eq!(effects.told(), (State::Unknown, statuses));
    }
}

/// The agent restarts during the wait, before or after it read the view.
#[rstest]
#[case::nothing_was_read(false, State::Unknown)]
#[case::the_view_was_read(true, State::Starting)]
fn a_restart_does_not_end_the_wait_of_a_boot(#[case] is_read: bool, #[case] state: State) {
    let mut node = match is_read {
        true => booted(YOUNG, None),
        false => Node::new(
            settings(),
            Start {
                now: YOUNG,
                ..start()
            },
        ),
    };
    let effects = Effects(node.step(Event::Sample(Default::default()), YOUNG));
    assert_eq!(effects.told(), (state, [503, 200]));
    let persisted = effects.persisted().cloned();
    assert!(persisted.is_some());
    let now = YOUNG.plus(Duration::from_secs(5));
    let mut heir = Node::new(
        settings(),
        Start {
            now,
            persisted,
            ..start()
        },
    );
    let effects = Effects(heir.step(Event::Tick, now));
    assert_eq!(effects.told(), (State::Unknown, [503, 200]));
}

/// Nothing got through in IPv6. The node waits for this family only if it has a node address and a
/// sentinel.
#[rstest]
#[case::addressed(&["192.0.2.10", "2001:db8::10"], true, [503, 200])]
#[case::not_addressed(&["192.0.2.10"], true, [200, 200])]
#[case::without_a_sentinel(&["192.0.2.10", "2001:db8::10"], false, [200, 200])]
fn a_boot_waits_for_each_family_of_the_node(
    #[case] addresses: &[&str],
    #[case] probed: bool,
    #[case] statuses: [u16; 2],
) {
    let mut node = booted(YOUNG, None);
    let mut changes = with_ipv6(addresses);
    changes.extend(probed.then(dual_stack_sentinel).into_iter().flatten());
    node.step(view_of(changes), YOUNG);
    assert_eq!(prove(&mut node, YOUNG).told(), (State::Proven, statuses));
}

/// A node that accepted new connections does not refuse them again.
#[test]
fn a_family_that_comes_late_is_not_waited_for() {
    let mut node = booted(YOUNG, None);
    assert_eq!(prove(&mut node, YOUNG).told(), (State::Proven, [200, 200]));
    let later = YOUNG.plus(Duration::from_secs(1));
    let mut changes = with_ipv6(&["192.0.2.10", "2001:db8::10"]);
    changes.extend(dual_stack_sentinel());
    node.step(view_of(changes), later);
    assert_eq!(prove(&mut node, later).told(), (State::Proven, [200, 200]));
}

/// 20 s after boot: a connection from outside got through, but none of a pod.
#[rstest]
#[case::another_node_has_one(Some(false), 0, State::Starting, [503, 200])]
#[case::only_this_node_has_one(Some(true), 0, State::Proven, [200, 200])]
#[case::there_is_none(None, 0, State::Proven, [200, 200])]
#[case::connections_of_pods_may_be_hidden(Some(false), 2, State::Proven, [200, 200])]
fn a_boot_waits_for_the_pod_probe(
    #[case] probe: Option<bool>,
    #[case] netkit: u32,
    #[case] state: State,
    #[case] statuses: [u16; 2],
) {
    let mut node = booted(YOUNG, probe);
    node.step(topology_of(netkit), YOUNG);
    let effects = prove(&mut node, YOUNG);
    assert_eq!(effects.told(), (state, statuses));
}

/// Another Service may use the pod probe's frontend, so that connections to it are not followed.
#[rstest]
#[case::the_probes_frontend("10.96.0.77", 19_257, State::Proven, [200, 200])]
#[case::another_port("10.96.0.77", 80, State::Starting, [503, 200])]
#[case::another_address("10.96.0.78", 19_257, State::Starting, [503, 200])]
fn a_boot_waits_for_no_contested_pod_probe(
    #[case] address: &str,
    #[case] port: u16,
    #[case] state: State,
    #[case] statuses: [u16; 2],
) {
    let mut node = booted(YOUNG, Some(false));
    node.step(topology_of(0), YOUNG);
    assert_eq!(prove(&mut node, YOUNG).state(), State::Starting);
    node.step(
        view_of(vec![conflicting(address, Protocol::Tcp, port)]),
        YOUNG,
    );
    assert_eq!(prove(&mut node, YOUNG).told(), (state, statuses));
    // Once the probe is alone again, a node that serves does not wait for it.
    let gone = Change::ServiceGone(ObjectName::new("shop", "claim"));
    node.step(view_of(vec![gone]), YOUNG);
    assert_eq!(prove(&mut node, YOUNG).told(), (state, statuses));
}

/// The pod probe's interface may never be observed, or not yet.
#[rstest]
#[case::never(1, 0, State::Proven)]
#[case::one_of_two_never(2, 1, State::Proven)]
#[case::not_yet(2, 2, State::Starting)]
fn a_boot_waits_for_no_pod_probe_that_stays_unseen(
    #[case] unseen: u64,
    #[case] new: u64,
    #[case] expected: State,
) {
    let mut node = booted(YOUNG, Some(false));
    let hooks = Hooks {
        unseen,
        new,
        ..hooks()
    };
    node.step(Event::Hooks(hooks), YOUNG);
    assert_eq!(prove(&mut node, YOUNG).state(), expected);
}

/// Other nodes have IPv6 pods, and this one has no IPv6 address.
#[test]
fn a_boot_waits_for_pods_of_the_nodes_families_alone() {
    let mut node = booted(YOUNG, Some(false));
    let [service, slice] = pod_probe_of("fd00:10:96::77", "fd00:10:2::9", false);
    node.step(view_of(vec![service, slice]), YOUNG);
    assert_eq!(prove(&mut node, YOUNG).state(), State::Proven);
}

/// Only a proof or the end of the boot ends the wait; a failure does not.
#[rstest]
#[case::something_gets_through(true)]
#[case::nothing_does(false)]
fn a_failure_does_not_end_the_wait_of_a_boot(#[case] proven: bool) {
    let later = |seconds| YOUNG.plus(Duration::from_secs(seconds));
    let mut node = booted(YOUNG, None);
    let idle = Effects(node.step(Event::Sample(Default::default()), YOUNG));
    assert_eq!(idle.told(), (State::Starting, [503, 200]));
    for seconds in [1, 2] {
        let told = leak(&mut node, later(seconds), false).told();
        assert_eq!(told, (State::Suspect, [503, 200]), "after {seconds} s");
    }
    if proven {
        let told = prove(&mut node, later(3)).told();
        assert_eq!(told, (State::Proven, [200, 200]));
    }
    let later_failure = later(if proven { 5 } else { 101 });
    let told = leak(&mut node, later_failure, false);
    assert_eq!(told.statuses(), [200, 200]);
}

/// A fault of the node does not end the wait: after its repair the same proofs are still missing.
#[rstest]
#[case::fails(State::Broken, true)]
#[case::is_stale(State::Stale, true)]
#[case::serves(State::Proven, false)]
fn a_fault_does_not_end_the_wait_of_a_boot(#[case] state: State, #[case] expected: bool) {
    let sample = Event::Sample(Default::default());
    let effects = Effects(booted(YOUNG, None).step(sample, YOUNG));
    let mut verdict = effects.verdict_update().verdict.clone();
    verdict.state = state;
    let waits = |waited| still_waits([waited, false], &verdict, &ViewFacts::default(), [false; 2]);
    assert_eq!([waits(true), waits(false)], [expected, false]);
}

/// The brake holds back a fault, but lets in no connections that the boot still refused.
#[rstest]
#[case::waiting(true, [503, 200])]
#[case::serving(false, [200, 200])]
fn the_brake_does_not_end_the_wait_of_a_boot(#[case] waits: bool, #[case] statuses: [u16; 2]) {
    let mut scene = Scene::with(|settings, _| {
        settings.fleet_brake = Some(20);
        // The scene begins long after the boot.
        settings.limits.boot_deadline = Duration::from_secs(86_400);
    });
    scene.view(pod_probe(!waits).to_vec());
    scene.prove();
    let fleet = r#"{"nodes":200,"unsound":{"DatapathBrokenLeaked":40},"written":1700000000}"#;
    scene.view(vec![counted(FIRST_GENERATION, Some(fleet))]);
    assert_eq!(scene.fault().told(), (State::Broken, statuses));
}

/// Pods lose their connections, and clients outside do not: the pod network is not ready.
#[rstest]
#[case::pods_are_waited_for(Some(false), [503, 200])]
#[case::nobody_waits_for_pods(None, [200, 200])]
fn a_service_that_fails_does_not_end_the_wait_for_pods(
    #[case] probe: Option<bool>,
    #[case] statuses: [u16; 2],
) {
    let mut node = booted(YOUNG, probe);
    prove(&mut node, YOUNG);
    let later = |half_seconds| YOUNG.plus(Duration::from_millis(500) * half_seconds);
    let told: Vec<_> = (1..=8)
        .map(|turn| leak(&mut node, later(turn), true).told())
        .collect();
    assert_eq!(told.last(), Some(&(State::Degraded, statuses)), "{told:?}");
}

/// After a power failure every node boots and the pod probes start one by one. A node that already accepts
/// connections must not refuse them again.
#[test]
fn a_node_that_serves_waits_for_no_pod_probe() {
    let later = |seconds| YOUNG.plus(Duration::from_secs(seconds));
    let mut node = booted(YOUNG, None);
    assert_eq!(prove(&mut node, later(2)).state(), State::Proven);
    node.step(view_of(pod_probe(false).to_vec()), later(4));
    assert_eq!(prove(&mut node, later(5)).state(), State::Proven);
}

/// The topology may be read only after the first proof. With netkit, it shows that connections of pods are
/// hidden.
#[rstest]
#[case::nothing_does(0, State::Starting)]
#[case::something_does(2, State::Proven)]
fn a_topology_that_comes_late_ends_the_wait_and_begins_none(
    #[case] netkit: u32,
    #[case] then: State,
) {
    let mut node = booted(YOUNG, Some(false));
    assert_eq!(prove(&mut node, YOUNG).state(), State::Starting);
    node.step(topology_of(netkit), YOUNG);
    assert_eq!(prove(&mut node, YOUNG).state(), then);
}
