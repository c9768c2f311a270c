//! Leaked connections of the node itself. Each test removes one condition under which they accuse the node.

use std::ops::RangeInclusive;

use pathproof_facts::cause::Failure::Leaked;
use pathproof_facts::cause::State;
use pathproof_facts::trace::ProbePath;
use pathproof_wire::service::SourceClass::{self, External, Host, Pod};
use rstest::rstest;

use super::accusation::Client;
use super::scene::*;
use super::world::*;
use crate::verdict::CountedFamilies;

/// The node itself dials two Services.
const NODE: &[Client] = &[(WEB, Host, 1), (API, Host, 1)];

/// Start of the leaks. All Services but cart are older than 2 min then.
const BEGIN: u64 = 2_250;
/// Time after which the leaks have lasted long enough.
const LASTED: u64 = 18_250;

/// The clients' connections leak every 250 ms in this range, while probes of these paths pass.
fn leaking(world: &mut World, clients: &[Client], times: RangeInclusive<u64>, paths: &[ProbePath]) {
    for at in times.step_by(250) {
        for (service, class, client) in clients {
            world.fail(*service, *class, *client, Leaked, at - 10);
        }
        world.rounds(at, at, paths, |_| Fate::Pass);
    }
}

fn probed() -> World {
    let mut world = World::with_sentinel();
    world.inputs.counted = CountedFamilies::Used;
    world.rounds(250, 2_000, &USUAL, |_| Fate::Pass);
    world
}

fn state(world: &World, at: u64) -> State {
    let verdict = world.verdict(at);
    eprintln!("{}", verdict.reason());
    verdict.state
}

#[rstest]
#[case::two_services(NODE, LASTED, State::Broken)]
#[case::for_less_than_15_seconds(NODE, 16_000, State::Degraded)]
#[case::one_service(&NODE[..1], LASTED, State::Degraded)]
#[case::a_new_service(&[(WEB, Host, 1), (CART, Host, 1)], LASTED, State::Degraded)]
fn leaks_of_the_node_accuse_for_two_old_services(
    #[case] clients: &[Client],
    #[case] until: u64,
    #[case] expected: State,
) {
    let mut world = probed();
    leaking(&mut world, clients, BEGIN..=until, &USUAL);
    assert_eq!(state(&world, until + 200), expected);
}

/// Its processes go on dialling and nothing shows their successes, so the accusation ends with the leaks.
#[test]
fn they_accuse_no_longer_than_30_seconds() {
    let mut world = probed();
    leaking(&mut world, NODE, BEGIN..=LASTED, &USUAL);
    world.rounds(LASTED + 250, LASTED + 31_000, &USUAL, |_| Fate::Pass);
    assert_eq!(state(&world, LASTED + 29_500), State::Broken);
    assert_ne!(state(&world, LASTED + 31_000), State::Broken);
}

/// The host's probes show that a proxy translates the node's own connections. Without such a proxy, all of
/// them leave untranslated.
#[rstest]
#[case::never_passed(ProbePath::Host)]
#[case::another_path(ProbePath::NodePort)]
fn they_accuse_only_while_probes_of_the_node_pass(#[case] missing: ProbePath) {
    let mut world = World::with_sentinel();
    world.inputs.counted = CountedFamilies::Used;
    let paths: Vec<ProbePath> = USUAL.into_iter().filter(|path| *path != missing).collect();
    world.rounds(250, 2_000, &paths, |_| Fate::Pass);
    leaking(&mut world, NODE, BEGIN..=LASTED, &paths);
    let accused = state(&world, LASTED + 200) == State::Broken;
    assert_eq!(accused, missing != ProbePath::Host);
}

/// Pods or clients outside used the family within the last hour.
#[rstest]
#[case::pods(Pod, 20_000, State::Degraded)]
#[case::clients_outside(External, 20_000, State::Degraded)]
#[case::pods_more_than_an_hour_before(Pod, 0, State::Broken)]
fn other_users_are_better_witnesses(
    #[case] class: SourceClass,
    #[case] dialled: u64,
    #[case] expected: State,
) {
    let mut world = probed();
    world.dial(CART, class, dialled);
    let begin = 3_600_000 + 1_000;
    world.rounds(begin - 2_000, begin - 250, &USUAL, |_| Fate::Pass);
    leaking(&mut world, NODE, begin..=begin + 16_000, &USUAL);
    assert_eq!(state(&world, begin + 16_200), expected);
}

/// Whether anybody else uses the node is not known.
#[rstest]
#[case::clients_are_not_seen(|world: &mut World| world.inputs.clients_unseen = true)]
#[case::users_are_not_recorded(|world: &mut World| world.inputs.counted = CountedFamilies::All)]
fn they_accuse_only_if_users_are_known(#[case] hide: impl Fn(&mut World)) {
    let mut world = probed();
    hide(&mut world);
    leaking(&mut world, NODE, BEGIN..=LASTED, &USUAL);
    assert_eq!(state(&world, LASTED + 200), State::Degraded);
}

/// Any success shows that rules are there.
#[rstest]
#[case::of_the_pod_probe(ECHO, Pod)]
#[case::from_outside(WEB, External)]
fn a_later_success_of_anybody_refutes_them(#[case] service: u32, #[case] class: SourceClass) {
    let mut world = probed();
    leaking(&mut world, NODE, BEGIN..=LASTED, &USUAL);
    world
        .prove(service, class, LASTED - 1_000)
        .look(LASTED + 100);
    assert_eq!(state(&world, LASTED + 200), State::Degraded);
}

/// Successes during a gap in observation are not seen.
#[test]
fn a_gap_ends_them() {
    let mut world = probed();
    leaking(&mut world, NODE, BEGIN..=LASTED, &USUAL);
    world.rounds(LASTED + 20_000, LASTED + 20_000, &USUAL, |_| Fate::Pass);
    assert_ne!(state(&world, LASTED + 20_200), State::Broken);
}
