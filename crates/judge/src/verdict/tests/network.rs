//! A node whose pods have no network, during boot and later.

use pathproof_facts::cause::Failure::{self, Leaked};
use pathproof_facts::cause::{Cause, State};
use pathproof_facts::time::Mono;
use pathproof_wire::service::SourceClass::{self, External, Pod};
use rstest::rstest;

use super::world::*;
use crate::verdict::Rule;

const SAID: &str = "NetworkPluginNotReady: cni plugin not initialized";

/// A node with a proof from outside at 1.5 s, judged at 2 s.
fn proven() -> World {
    let mut world = World::new();
    world.inputs.sentinel_exists = true;
    world
        .prove(WEB, External, 1_500)
        .look(1_600)
        .idle(1_750, 2_000);
    world
}

#[rstest]
#[case::the_probe_is_waited_for(true, ms(0), &[], State::Starting)]
#[case::no_other_node_has_one(false, ms(0), &[], State::Proven)]
#[case::pods_get_through(true, ms(0), &[Pod], State::Proven)]
#[case::the_boot_is_long_ago(true, Mono(0), &[], State::Proven)]
fn a_boot_waits_for_the_pods_network(
    #[case] expected: bool,
    #[case] booted: Mono,
    #[case] paths: &[SourceClass],
    #[case] state: State,
) {
    let mut world = proven();
    world.inputs.booted = booted;
    world.inputs.pods_expected = [expected, false];
    for path in paths {
        world.prove(WEB, *path, 1_700).look(1_800);
    }
    let verdict = world.verdict(2_000);
    assert_eq!(verdict.state, state, "{}", verdict.reason());
}

/// IPv6 pods of other nodes show nothing about IPv4.
#[test]
fn families_are_waited_for_apart() {
    let mut world = proven();
    world.inputs.booted = ms(0);
    world.inputs.pods_expected = [false, true];
    assert_eq!(world.verdict(2_000).state, State::Proven);
}

/// A fault is reported even while the pod probe is expected.
#[test]
fn a_fault_is_told_while_the_probe_is_waited_for() {
    let mut world = World::new();
    world.inputs.sentinel_exists = true;
    world.inputs.booted = ms(0);
    world.inputs.pods_expected = [true, false];
    for at in (250..=4_000).step_by(250) {
        world
            .fail(WEB, Pod, 1, Leaked, at - 10)
            .fail(API, Pod, 2, Leaked, at - 10)
            .look(at);
    }
    assert_eq!(world.verdict(4_000).state, State::Broken);
}

#[rstest]
#[case::gone(Some(SAID), Mono(0), (State::Degraded, Some(Cause::Cni)))]
#[case::being_made(Some(SAID), ms(0), (State::Proven, None))]
#[case::sound(None, Mono(0), (State::Proven, None))]
fn the_nodes_condition_names_a_missing_network(
    #[case] said: Option<&str>,
    #[case] booted: Mono,
    #[case] expected: (State, Option<Cause>),
) {
    let mut world = proven();
    world.inputs.booted = booted;
    world.inputs.network = said.map(Into::into);
    let verdict = world.verdict(2_000);
    assert_eq!((verdict.state, verdict.cause), expected);
    if expected.1.is_some() {
        assert_eq!(verdict.finding.rule, Rule::DegradedByNode);
        assert!(verdict.reason().ends_with(SAID), "{}", verdict.reason());
    }
}

/// The Node's condition replaces Proven and no other state.
#[rstest]
#[case::nothing_proven(&[], State::Unknown)]
#[case::failures(&[Leaked], State::Suspect)]
fn the_nodes_condition_ends_no_other_state(#[case] failures: &[Failure], #[case] state: State) {
    let mut world = World::new();
    world.inputs.sentinel_exists = true;
    world.inputs.network = Some(SAID.into());
    for at in (250..=2_500).step_by(250) {
        for failure in failures {
            world
                .fail(WEB, Pod, 1, *failure, at - 10)
                .fail(API, Pod, 2, *failure, at - 10);
        }
        world.look(at);
    }
    assert_eq!(world.verdict(2_500).state, state);
}
