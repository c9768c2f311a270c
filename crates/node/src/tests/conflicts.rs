//! Services that use ("claim") the destinations of the sentinel's probes, which must not accuse the node.

use pathproof_facts::cause::State;
use pathproof_facts::cluster::{Change, NodeFacts, ObjectName, Protocol};
use pathproof_facts::trace::{ProbePath, ProbeTrace};
use pathproof_plan::MapChange;
use pathproof_wire::evidence::Outcome;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::effect::Notice;
use crate::event::{Event, ViewUpdate};

const NODE: &str = "192.0.2.10";
const CLUSTER_IP: &str = "10.96.0.9";

fn scene() -> Scene {
    Scene::probed_with(|settings, _| settings.rereads = false)
}

fn withdrawn() -> Change {
    Change::ServiceGone(ObjectName::new("shop", "claim"))
}

/// A probe of this path that leaves for an address that is no endpoint.
fn misrouted(path: ProbePath, sent: u64) -> ProbeTrace {
    let mut trace = arriving(path, sent);
    trace.sightings.misrouted = true;
    trace
}

/// A probe that connects, but gets no data back.
fn muted(path: ProbePath, sent: u64) -> ProbeTrace {
    let arrived = arriving(path, sent);
    ProbeTrace {
        data: arrived.handshake,
        ended: arrived.ended,
        ..passing(path, sent)
    }
}

type Fault = fn(ProbePath, u64) -> ProbeTrace;

/// Probes of one path fail for 3 s; those of the other path pass.
fn astray(scene: &mut Scene, path: ProbePath, fault: Fault) {
    scene.sound();
    for _ in 0..12 {
        scene.later(250);
        let sent = scene.now();
        for other in [ProbePath::OffCluster, ProbePath::NodePort] {
            if other != path {
                scene.probe(passing(other, sent));
            }
        }
        scene.probe(fault(path, sent));
        scene.sound();
    }
    scene.idle();
}

/// The same probes with and without a claim.
#[rstest]
#[case::nobody(None, ProbePath::NodePort, muted, State::Broken)]
#[case::node_port(Some((NODE, Protocol::Tcp, 30_080)), ProbePath::NodePort, muted, State::Proven)]
#[case::cluster_ip(Some((CLUSTER_IP, Protocol::Tcp, 80)), ProbePath::OffCluster, misrouted, State::Proven)]
#[case::nobody_told_of_it(None, ProbePath::OffCluster, misrouted, State::Degraded)]
#[case::untranslated(Some((CLUSTER_IP, Protocol::Tcp, 80)), ProbePath::OffCluster, leaking, State::Broken)]
#[case::another_lane(Some((CLUSTER_IP, Protocol::Tcp, 80)), ProbePath::NodePort, muted, State::Broken)]
#[case::another_port(Some((NODE, Protocol::Tcp, 30_081)), ProbePath::NodePort, muted, State::Broken)]
#[case::another_transport(Some((NODE, Protocol::Udp, 30_080)), ProbePath::NodePort, muted, State::Broken)]
#[case::another_address(Some(("192.0.2.11", Protocol::Tcp, 30_080)), ProbePath::NodePort, muted, State::Broken)]
fn what_another_service_claims_accuses_nobody(
    #[case] claimed: Option<(&str, Protocol, u16)>,
    #[case] path: ProbePath,
    #[case] fault: Fault,
    #[case] expected: State,
) {
    let mut scene = scene();
    if let Some((address, protocol, port)) = claimed {
        scene.view(vec![conflicting(address, protocol, port)]);
        scene.rest(10_000);
    }
    astray(&mut scene, path, fault);
    assert_eq!(scene.state(), expected);
}

#[test]
fn a_claim_is_told_once_with_its_service() {
    let mut scene = scene();
    let effects = scene.view(vec![conflicting(NODE, Protocol::Tcp, 30_080)]);
    let told: Vec<String> = effects
        .notices()
        .into_iter()
        .map(Notice::to_string)
        .collect();
    let sentence = "probes of IPv4 node_port (tcp) are not judged: Service shop/claim uses the address that \
                    they dial";
    assert_eq!(told, [sentence]);
    let effects = scene.view(vec![tainted(&["x"])]);
    assert!(effects.notices().is_empty());
}

/// After a claim ends, the node's rules are updated later. Until then, failures of the lane do not count.
#[test]
fn a_lane_that_is_released_has_to_pass_first() {
    let mut scene = scene();
    scene.view(vec![conflicting(NODE, Protocol::Tcp, 30_080)]);
    astray(&mut scene, ProbePath::NodePort, muted);
    scene.view(vec![withdrawn()]);
    astray(&mut scene, ProbePath::NodePort, muted);
    assert_ne!(
        scene.state(),
        State::Broken,
        "rules of the claim may be there"
    );
    scene.rest(1_000);
    astray(&mut scene, ProbePath::NodePort, muted);
    assert_eq!(scene.state(), State::Broken);
}

/// Refused node ports accuse the node only if cluster IPs fail too. Otherwise a filter may refuse them, or
/// the proxy may serve node ports on other addresses only.
#[rstest]
#[case::cluster_ips_are_claimed(true, false)]
#[case::cluster_ips_fail_too(false, true)]
fn refused_node_ports_do_not_accuse_alone(#[case] claimed: bool, #[case] broken: bool) {
    let mut scene = scene();
    if claimed {
        scene.view(vec![conflicting(CLUSTER_IP, Protocol::Tcp, 80)]);
        scene.rest(10_000);
    }
    for _ in 0..40 {
        scene.later(250);
        let mut refused = arriving(ProbePath::NodePort, scene.now());
        refused.sightings.refused = true;
        scene.probe(refused);
        scene.probe(misrouted(ProbePath::OffCluster, scene.now()));
        scene.sound();
        scene.idle();
    }
    assert_eq!(scene.state() == State::Broken, broken);
}

/// The claim may be withdrawn while no agent is running: then the lane must pass first, too.
#[test]
fn a_claimed_lane_does_not_stand_for_the_next_agent() {
    let mut scene = scene();
    let is_applicable = |scene: &Scene| {
        let lane = pathproof_witness::testing::traces::tcp(ProbePath::NodePort);
        let memory = scene.node.judge().ledger.sentinel.memory();
        let restored =
            pathproof_witness::probes::SentinelLedger::restore(Default::default(), memory);
        restored.lane(lane).armed && restored.is_applicable(lane)
    };
    assert!(is_applicable(&scene));
    scene.view(vec![conflicting(NODE, Protocol::Tcp, 30_080)]);
    assert!(!is_applicable(&scene));
}

/// A claim of an address that the node gets later, or had before.
#[test]
fn the_nodes_addresses_are_followed() {
    let mut scene = scene();
    scene.view(vec![conflicting("192.0.2.99", Protocol::Tcp, 30_080)]);
    let moved = |address: &str| {
        Change::Node(std::sync::Arc::new(NodeFacts {
            addresses: vec![ip(address)],
            ..node_facts()
        }))
    };
    let effects = scene.view(vec![moved("192.0.2.99")]);
    let in_conflict = |notice: &&Notice| matches!(notice, Notice::FrontendConflict(..));
    assert_eq!(effects.notices().into_iter().filter(in_conflict).count(), 1);
    assert_eq!(scene.node.sentinel().unwrap().found().conflicts.len(), 1);
    scene.view(vec![moved(NODE)]);
    assert_eq!(scene.node.sentinel().unwrap().found().conflicts, []);
}

/// The cluster IP and the node port are claimed.
fn use_all(scene: &mut Scene) {
    scene.view(vec![conflicting(NODE, Protocol::Tcp, 30_080)]);
    scene.view(vec![conflicting_as("other", CLUSTER_IP, Protocol::Tcp, 80)]);
}

/// Every path fails in this way for this number of rounds.
fn rounds(scene: &mut Scene, fault: Fault, rounds: u32) -> State {
    for _ in 0..rounds {
        scene.later(250);
        for path in PATHS {
            scene.probe(fault(path, scene.now()));
        }
        scene.sound();
        scene.idle();
    }
    scene.state()
}

/// If every lane is claimed, only probes that no rule translates accuse the node.
#[test]
fn a_node_of_which_every_lane_is_claimed_is_accused_by_leaks_alone() {
    let mut scene = scene();
    use_all(&mut scene);
    for _ in 0..200 {
        assert_ne!(rounds(&mut scene, misrouted, 1), State::Broken);
    }
    assert_eq!(scene.state(), State::Unknown);
    assert_eq!(rounds(&mut scene, leaking, 6), State::Broken);
    // A rule translated one probe, so the series of leaks ends.
    assert_ne!(rounds(&mut scene, misrouted, 1), State::Broken);
    assert_ne!(rounds(&mut scene, leaking, 3), State::Broken);
}

/// A tenant's rule may drop probes, but cannot turn off forwarding.
#[rstest]
#[case::the_kernel_forwards(true, false)]
#[case::it_does_not(false, true)]
fn disabled_forwarding_is_not_excused_by_a_claim(#[case] forwards: bool, #[case] broken: bool) {
    let mut scene = scene();
    use_all(&mut scene);
    for _ in 0..20 {
        scene.later(250);
        scene.kernel(Some(ms(scene.now())), Some(forwards));
        for path in [ProbePath::OffCluster, ProbePath::NodePort] {
            scene.probe(arriving(path, scene.now()));
        }
        scene.kernel(Some(ms(scene.now())), Some(forwards));
        scene.idle();
    }
    assert_eq!(
        scene.state() == State::Broken,
        broken,
        "{:?}",
        scene.state()
    );
}

/// The tenant's endpoint is the sentinel's cluster IP, so the rule sends probes to their original
/// destination.
#[test]
fn a_claim_that_leads_back_looks_like_no_rule() {
    let mut scene = scene();
    use_all(&mut scene);
    let Change::Slice(slice) = slice("other", Protocol::Tcp, &[CLUSTER_IP]) else {
        unreachable!("it is a slice");
    };
    let mut slice = (*slice).clone();
    slice.name = ObjectName::new("shop", "other-1");
    scene.view(vec![Change::Slice(std::sync::Arc::new(slice))]);
    assert_ne!(rounds(&mut scene, leaking, 20), State::Broken);
}

/// Neither a claim nor its end repairs a flushed node, so the node stays accused.
#[test]
fn claims_do_not_end_an_accusation() {
    let mut scene = scene();
    assert_eq!(rounds(&mut scene, leaking, 6), State::Broken);
    use_all(&mut scene);
    assert_eq!(rounds(&mut scene, leaking, 6), State::Broken);
    let gone = ["claim", "other"].map(|name| Change::ServiceGone(ObjectName::new("shop", name)));
    scene.view(gone.to_vec());
    assert_eq!(rounds(&mut scene, leaking, 200), State::Broken);
}

/// A connection that arrives when a claim begins may go to either Service, so its failure does not count.
/// Later connections to the claimed frontend are not followed.
#[test]
fn a_claim_on_anothers_frontend_is_nobodys_failure() {
    let lost = [Outcome::Arrived, Outcome::Misrouted];
    let fail = |scene: &mut Scene, rounds: u32| {
        for _ in 0..rounds {
            scene.rest(250);
            scene.counted("web", &lost);
        }
        scene.state()
    };
    let mut innocent = scene();
    let effects = innocent.view(vec![conflicting("10.96.0.1", Protocol::Tcp, 80)]);
    let deleted = |change: &MapChange| matches!(change, MapChange::DeleteFrontend { .. });
    assert_eq!(
        effects
            .plan()
            .iter()
            .filter(|change| deleted(change))
            .count(),
        1
    );
    assert_eq!(fail(&mut innocent, 6), State::Proven);
    innocent.rest(10_000);
    assert_eq!(
        fail(&mut innocent, 6),
        State::Degraded,
        "by another frontend"
    );
    // The same applies when the claim ends.
    let effects = innocent.view(vec![withdrawn()]);
    let put = |change: &MapChange| matches!(change, MapChange::PutFrontend { .. });
    assert_eq!(
        effects.plan().iter().filter(|change| put(change)).count(),
        1
    );
    innocent.rest(11_000);
    let mut faulty = scene();
    assert_eq!(fail(&mut faulty, 6), State::Degraded);
}

/// Conflicts on the agent's ports, on the sentinel's frontends, and on those of other Services.
#[test]
fn conflicts_are_known_by_their_owner() {
    let mut scene = scene();
    let conflicts = [
        conflicting_as("a", "10.96.0.1", Protocol::Tcp, 80),
        conflicting_as("b", NODE, Protocol::Tcp, 10_256),
        conflicting_as("c", CLUSTER_IP, Protocol::Udp, 80),
        conflicting_as("d", NODE, Protocol::Tcp, 19_256),
    ];
    scene.view(conflicts.to_vec());
    let sentinel = scene.node.sentinel_conflicts().frontends();
    let others = sentinel.values().map(ToString::to_string);
    assert_eq!(others.collect::<Vec<_>>(), ["shop/c"]);
    let (mut with_node, mut with_services) = (Vec::new(), Vec::new());
    for conflict in scene.node.planner().conflicts() {
        let [first, second] = conflict.parties;
        let second = second.map(ToString::to_string);
        match first {
            None => with_node.extend(second),
            Some(first) => with_services.push((first.to_string(), second.unwrap_or_default())),
        }
    }
    assert_eq!(with_node, ["shop/b", "shop/d"]);
    assert!(with_services.contains(&("default/web".to_owned(), "shop/a".to_owned())));
    assert_eq!(scene.rest(250).state(), State::Proven);
}

/// A Service with unknown frontends may claim any address, so neither lanes nor misrouted connections
/// count.
#[test]
fn claims_that_are_not_known_accuse_nobody() {
    let mut scene = scene();
    let unknown = |scene: &mut Scene, rival: Option<&str>| {
        scene.feed(Event::View(Box::new(ViewUpdate {
            unknown_frontends: rival.map(|name| ObjectName::new("shop", name)),
            ..ViewUpdate::default()
        })));
    };
    unknown(&mut scene, Some("claim"));
    scene.rest(10_000);
    for path in [ProbePath::OffCluster, ProbePath::NodePort] {
        astray(&mut scene, path, misrouted);
        astray(&mut scene, path, leaking);
        assert!(!scene.state().fails(), "{:?}", scene.state());
    }
    let coverage = scene.idle().verdict_update().verdict.coverage.clone();
    let names = coverage.losses.iter().map(|loss| loss.name());
    assert!(names.collect::<Vec<_>>().contains(&"claims_unknown"));
    unknown(&mut scene, None);
    astray(&mut scene, ProbePath::OffCluster, passing);
    astray(&mut scene, ProbePath::OffCluster, leaking);
    assert_eq!(scene.state(), State::Broken);
}
