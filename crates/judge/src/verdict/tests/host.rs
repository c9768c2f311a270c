//! Leaked connections of the node itself. Each test removes one condition under which they accuse the node.

use pathproof_facts::cause::Failure::Leaked;
use pathproof_facts::cause::State;
use pathproof_facts::trace::ProbePath;
use pathproof_wire::service::SourceClass::{self, External, Host, Pod};
use rstest::rstest;

use super::accusation::Client;
use super::scene::*;
use super::world::*;

/// The node itself dials two Services.
const NODE: &[Client] = &[(WEB, Host, 1), (API, Host, 1)];

/// The clients' connections leak every 250 ms until 7 s, while probes have this fate.
fn leaking(world: &mut World, clients: &[Client], fate: impl Fn(ProbePath) -> Fate) {
    for at in (2_250..=7_000).step_by(250) {
        for (service, class, client) in clients {
            world.fail(*service, *class, *client, Leaked, at - 10);
        }
        world.rounds(at, at, &USUAL, |lane| fate(lane.path));
    }
}

fn probed() -> World {
    let mut world = World::with_sentinel();
    world.rounds(250, 2_000, &USUAL, |_| Fate::Pass);
    world
}

#[rstest]
#[case::two_services(NODE, State::Broken)]
#[case::one_service(&NODE[..1], State::Degraded)]
#[case::a_new_service(&[(WEB, Host, 1), (CART, Host, 1)], State::Degraded)]
fn leaks_of_the_node_accuse_for_two_old_services(
    #[case] clients: &[Client],
    #[case] expected: State,
) {
    let mut world = probed();
    leaking(&mut world, clients, |_| Fate::Pass);
    let verdict = world.verdict(7_200);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// Its processes go on dialling and nothing shows their successes, so the accusation ends with the leaks.
#[test]
fn they_accuse_no_longer_than_eight_seconds() {
    let mut world = probed();
    leaking(&mut world, NODE, |_| Fate::Pass);
    world.rounds(7_250, 15_500, &USUAL, |_| Fate::Pass);
    assert_eq!(world.verdict(14_900).state, State::Broken);
    assert_ne!(world.verdict(15_500).state, State::Broken);
}

/// Without a proxy that translates the node's own connections, all of them leave untranslated.
#[test]
fn they_accuse_only_while_probes_of_the_node_pass() {
    let mut world = World::with_sentinel();
    let others = [ProbePath::OffCluster, ProbePath::NodePort];
    world.rounds(250, 2_000, &others, |_| Fate::Pass);
    leaking(&mut world, NODE, |path| match path {
        ProbePath::Host => Fate::Leak,
        _ => Fate::Pass,
    });
    assert_ne!(world.verdict(7_200).state, State::Broken);
}

#[rstest]
#[case::pods(Pod)]
#[case::clients_outside(External)]
fn other_users_are_better_witnesses(#[case] class: SourceClass) {
    let mut world = probed();
    world.dial(CART, class, 1_000);
    leaking(&mut world, NODE, |_| Fate::Pass);
    assert_eq!(world.verdict(7_200).state, State::Degraded);
}

/// Any success shows that rules are there.
#[test]
fn a_later_success_of_anybody_refutes_them() {
    let mut world = probed();
    leaking(&mut world, NODE, |_| Fate::Pass);
    world.prove(ECHO, Pod, 6_500).look(7_100);
    assert_eq!(world.verdict(7_200).state, State::Degraded);
}
