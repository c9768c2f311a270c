//! What the node's own proxy says beside what packets show.

use rstest::rstest;

use super::lag::{NEW, OLD, followed};
use super::world::*;
use crate::cause::{Cause, State};
use crate::upstream::{Kind, Voice};
use agent_common::service::SourceClass;

fn voice(kind: Kind, families: [bool; 2]) -> Option<Voice> {
    Some(Voice {
        kind,
        since: ms(0),
        families,
        said: "503, last brought up to date 71 s before".into(),
    })
}

/// Real connections get through, and no sentinel measures how old the rules are.
fn busy() -> World {
    let mut world = World::new();
    world.prove(WEB, SourceClass::Pod, 9_000);
    world.look(9_250);
    world
}

#[rstest]
#[case::unhealthy(Kind::Unhealthy, [true, true], State::Stale, Some(Cause::UpstreamUnhealthy))]
#[case::of_the_other_family(Kind::Unhealthy, [false, true], State::Proven, None)]
// Old rules may be good ones, and nothing says that anything changed.
#[case::silent(Kind::Silent, [true, true], State::Degraded, Some(Cause::UpstreamSilent))]
fn without_a_measure_it_is_believed_as_load_balancers_did(
    #[case] kind: Kind,
    #[case] families: [bool; 2],
    #[case] state: State,
    #[case] cause: Option<Cause>,
) {
    let mut world = busy();
    world.inputs.upstream = voice(kind, families);
    let verdict = world.verdict(9_500);
    assert_eq!(
        (verdict.state, verdict.cause),
        (state, cause),
        "{}",
        verdict.reason()
    );
    assert!(!verdict.rests_on_sentinel());
}

/// Silence is no evidence either way: what is Unknown stays so, whatever the policy makes of it.
#[test]
fn silence_does_not_hide_that_nothing_is_known() {
    let mut world = World::new();
    world.inputs.upstream = voice(Kind::Silent, [true; 2]);
    assert_eq!(world.verdict(500).state, State::Unknown);
}

/// The sentinel's endpoint moved and was followed since: measured beats said.
#[test]
fn rules_that_are_seen_to_follow_outweigh_it() {
    let mut world = followed();
    world.inputs.upstream = voice(Kind::Unhealthy, [true; 2]);
    world.meet((10_050, 15_000), 400, |_| Some(NEW));
    let verdict = world.verdict(15_250);
    assert_eq!(verdict.state, State::Degraded, "{}", verdict.reason());
    assert_eq!(verdict.cause, Some(Cause::UpstreamUnhealthy));
    assert!(
        verdict.reason().contains("unhealthy (503, last"),
        "{}",
        verdict.reason()
    );
}

/// Both say so: no need to wait for the two minutes that the sentinel alone takes.
#[test]
fn rules_that_do_not_follow_bear_it_out() {
    let mut world = followed();
    world.inputs.upstream = voice(Kind::Unhealthy, [true; 2]);
    world.meet((10_050, 35_000), 400, |_| Some(OLD));
    assert_ne!(
        world.verdict(35_250).state,
        State::Stale,
        "a lag of 25 s may be usual"
    );
    world.meet((35_400, 41_000), 400, |_| Some(OLD));
    let verdict = world.verdict(41_250);
    assert_eq!(verdict.state, State::Stale, "{}", verdict.reason());
    assert!(
        verdict.reason().contains("not followed the sentinel"),
        "{}",
        verdict.reason()
    );
    // A proxy that is upgraded is silent, and its rules lag meanwhile.
    world.inputs.upstream = voice(Kind::Silent, [true; 2]);
    assert_eq!(world.verdict(41_250).state, State::Degraded);
    world.inputs.upstream = None;
    assert_ne!(world.verdict(41_250).state, State::Stale);
}

/// Without an API server no rules can follow: it says so on every node at once.
#[test]
fn an_api_server_that_is_away_is_no_fault_of_the_node() {
    let mut world = busy();
    world.ledger.sentinel_mut().source_away(ms(9_300));
    world.inputs.upstream = voice(Kind::Unhealthy, [true; 2]);
    assert_eq!(world.verdict(9_500).state, State::Degraded);
    world.ledger.sentinel_mut().source_back(ms(9_600));
    assert_eq!(world.verdict(9_700).state, State::Stale);
}
