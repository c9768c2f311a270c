//! Services that claim what the sentinel's probes dial: theirs is the trouble, not the node's.

use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::cause::State;
use crate::cluster::{Change, NodeFacts, ObjectName, Protocol};
use crate::effect::Notice;
use crate::trace::ProbePath;

const NODE: &str = "192.0.2.10";
const CLUSTER_IP: &str = "10.96.0.9";

fn scene() -> Scene {
    Scene::probed_with(|settings, _| settings.rereads = false)
}

fn withdrawn() -> Change {
    Change::ServiceGone(ObjectName::new("shop", "claim"))
}

/// Probes of one path go astray for seconds; the others pass.
fn astray(scene: &mut Scene, path: ProbePath) {
    scene.sound();
    for _ in 0..12 {
        scene.later(250);
        let sent = scene.now();
        for other in [ProbePath::OffCluster, ProbePath::NodePort] {
            if other != path {
                scene.probe(passing(other, sent));
            }
        }
        scene.leak(path);
        scene.sound();
    }
    scene.idle();
}

/// The same probes with and without a claim.
#[rstest]
#[case::nobody(None, ProbePath::NodePort, State::Broken)]
#[case::node_port(Some((NODE, Protocol::Tcp, 30_080)), ProbePath::NodePort, State::Proven)]
#[case::cluster_ip(Some((CLUSTER_IP, Protocol::Tcp, 80)), ProbePath::OffCluster, State::Proven)]
#[case::another_lane(Some((CLUSTER_IP, Protocol::Tcp, 80)), ProbePath::NodePort, State::Broken)]
#[case::another_port(Some((NODE, Protocol::Tcp, 30_081)), ProbePath::NodePort, State::Broken)]
#[case::another_transport(Some((NODE, Protocol::Udp, 30_080)), ProbePath::NodePort, State::Broken)]
#[case::another_address(Some(("192.0.2.11", Protocol::Tcp, 30_080)), ProbePath::NodePort, State::Broken)]
fn what_another_service_claims_accuses_nobody(
    #[case] claimed: Option<(&str, Protocol, u16)>,
    #[case] path: ProbePath,
    #[case] expected: State,
) {
    let mut scene = scene();
    if let Some((address, protocol, port)) = claimed {
        scene.view(vec![claim(address, protocol, port)]);
        scene.rest(10_000);
    }
    astray(&mut scene, path);
    assert_eq!(scene.state(), expected);
}

#[test]
fn a_claim_is_told_once_with_its_service() {
    let mut scene = scene();
    let effects = scene.view(vec![claim(NODE, Protocol::Tcp, 30_080)]);
    let told: Vec<String> = effects
        .notices()
        .into_iter()
        .map(Notice::to_string)
        .collect();
    let sentence =
        "probes of IPv4 node_port (tcp) are not judged: Service shop/claim claims what they dial";
    assert_eq!(told, [sentence]);
    let effects = scene.view(vec![tainted(&["x"])]);
    assert!(effects.notices().is_empty());
}

/// Its rules go in their own time, and one that failed meanwhile has no past.
#[test]
fn a_lane_that_is_released_has_to_pass_first() {
    let mut scene = scene();
    scene.view(vec![claim(NODE, Protocol::Tcp, 30_080)]);
    astray(&mut scene, ProbePath::NodePort);
    scene.view(vec![withdrawn()]);
    astray(&mut scene, ProbePath::NodePort);
    assert_ne!(
        scene.state(),
        State::Broken,
        "rules of the claim may be there"
    );
    scene.rest(1_000);
    astray(&mut scene, ProbePath::NodePort);
    assert_eq!(scene.state(), State::Broken);
}

/// Nobody tells then whether the proxy serves node ports on other addresses, or a filter refuses both.
#[rstest]
#[case::cluster_ips_are_claimed(true, false)]
#[case::cluster_ips_fail_too(false, true)]
fn refused_node_ports_do_not_accuse_alone(#[case] claimed: bool, #[case] broken: bool) {
    let mut scene = scene();
    if claimed {
        scene.view(vec![claim(CLUSTER_IP, Protocol::Tcp, 80)]);
        scene.rest(10_000);
    }
    for _ in 0..40 {
        scene.later(250);
        let mut refused = arriving(ProbePath::NodePort, scene.now());
        refused.sightings.refused = true;
        scene.probe(refused);
        scene.leak(ProbePath::OffCluster);
        scene.sound();
        scene.idle();
    }
    assert_eq!(scene.state() == State::Broken, broken);
}

/// A claim that is withdrawn while no agent looks.
#[test]
fn a_claimed_lane_is_not_armed_by_the_next_agent() {
    let mut scene = scene();
    let armed = |scene: &Scene| {
        let lane = crate::probes::tests::traces::tcp(ProbePath::NodePort);
        let memory = scene.node.judge().ledger.sentinel.memory();
        crate::probes::SentinelLedger::restore(Default::default(), memory)
            .lane(lane)
            .armed
    };
    assert!(armed(&scene));
    scene.view(vec![claim(NODE, Protocol::Tcp, 30_080)]);
    assert!(!armed(&scene));
}

/// A claim of an address that the node gets later, or had before.
#[test]
fn the_nodes_addresses_are_followed() {
    let mut scene = scene();
    scene.view(vec![claim("192.0.2.99", Protocol::Tcp, 30_080)]);
    let moved = |address: &str| {
        Change::Node(std::sync::Arc::new(NodeFacts {
            addresses: vec![ip(address)],
            ..node_facts()
        }))
    };
    let effects = scene.view(vec![moved("192.0.2.99")]);
    let contested = |notice: &&Notice| matches!(notice, Notice::Contested(..));
    assert_eq!(effects.notices().into_iter().filter(contested).count(), 1);
    assert_eq!(scene.node.sentinel().unwrap().found().contested.len(), 1);
    scene.view(vec![moved(NODE)]);
    assert_eq!(scene.node.sentinel().unwrap().found().contested, []);
}

/// Every lane is claimed: nothing is known, and nothing is accused.
#[test]
fn a_node_of_which_every_lane_is_claimed_is_not_broken() {
    let mut scene = scene();
    let mut both = |change| scene.view(vec![change]);
    both(claim(NODE, Protocol::Tcp, 30_080));
    let Change::Service(other) = claim(CLUSTER_IP, Protocol::Tcp, 80) else {
        unreachable!("it is a Service");
    };
    let mut other = (*other).clone();
    other.name = ObjectName::new("shop", "other");
    both(Change::Service(std::sync::Arc::new(other)));
    for _ in 0..200 {
        scene.later(250);
        scene.leak(ProbePath::OffCluster);
        scene.leak(ProbePath::NodePort);
        scene.leak(ProbePath::Host);
        scene.sound();
        scene.idle();
        assert_ne!(scene.state(), State::Broken);
    }
    assert_eq!(scene.state(), State::Unknown);
}
