//! Accusations while pathproof's devices are damaged, off, or unchecked.

use std::time::Duration;

use pathproof_facts::cause::{State, Why};
use pathproof_witness::probes::SentinelView;
use rstest::rstest;

use super::probes::change;
use super::scene::*;
use super::world::*;
use crate::answer::UnknownPolicy;
use crate::damping::Damping;

/// Probes leak from 2.25 s to 60 s, except in rounds for which `meddle` returns false. Returns the sequence
/// of states after 40 s. The answer must be 503 throughout.
fn broken_throughout(meddle: impl Fn(&mut World, u64) -> bool) -> Vec<(State, String)> {
    let mut world = World::probed(&USUAL);
    let mut damping = Damping::new(Duration::from_secs(10));
    let mut told: Vec<(State, String)> = Vec::new();
    for at in (2_250..=60_000).step_by(250) {
        if meddle(&mut world, at) {
            world.rounds(at, at, &USUAL, |_| Fate::Leak);
        } else {
            world.look(at + 200);
        }
        let verdict = world.verdict(at + 200);
        let served = damping.step(&verdict, UnknownPolicy::Open);
        assert_eq!(served.healthy, at < 3_000, "at {at}: {}", verdict.reason());
        if at >= 40_000 && told.last().is_none_or(|(last, _)| *last != verdict.state) {
            told.push((verdict.state, verdict.reason()));
        }
    }
    told
}

fn is_damaged(world: &mut World, at: u64) -> bool {
    if at == 40_000 {
        let sentence = "pathproof-c0 is down".to_owned();
        world.ledger.sentinel.damaged(ms(at), sentence);
    }
    true
}

fn is_off_for_4_s(world: &mut World, at: u64) -> bool {
    let off = (at < 44_000).then(|| "the addresses cannot be read".to_owned());
    if [40_000, 44_000].contains(&at) {
        let view = SentinelView {
            off,
            ..sentinel_view()
        };
        change(world, at, view);
    }
    !(40_000..44_000).contains(&at)
}

fn is_edited(world: &mut World, at: u64) -> bool {
    if at == 40_000 {
        let view = SentinelView {
            identity: 2,
            ..sentinel_view()
        };
        change(world, at, view);
    }
    true
}

#[rstest]
#[case::damage(is_damaged, "the sentinel's interfaces were damaged a moment ago")]
#[case::parts_that_fail_temporarily(
    is_off_for_4_s,
    "the sentinel is off: the addresses cannot be read"
)]
#[case::an_edit(is_edited, "the sentinel changed a moment ago")]
fn the_answer_stays_while_broken(#[case] meddle: fn(&mut World, u64) -> bool, #[case] why: &str) {
    let told = broken_throughout(meddle);
    let [(State::Suspect, reason), (State::Broken, _)] = &told[..] else {
        panic!("{told:?}");
    };
    assert!(
        reason.ends_with(&format!("not confirmed: {why}")),
        "{reason}"
    );
}

#[test]
fn after_damage_one_more_has_to_fail() {
    let mut world = World::faulty(20_000, |_| Fate::Leak);
    let sentence = "pathproof-c0 is down".to_owned();
    world.ledger.sentinel.damaged(ms(20_250), sentence);
    world.rounds(20_500, 31_000, &USUAL, |_| Fate::ControlFails);
    assert_eq!(world.verdict(31_200).state, State::Suspect);
    world.rounds(31_250, 31_250, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(31_450).state, State::Broken);
}

#[test]
fn the_reason_for_a_disabled_sentinel_is_reported() {
    let mut world = World::with_sentinel();
    world.inputs.sentinel_exists = false;
    let view = SentinelView {
        off: Some("198.18.0.1 is an address of this node".to_owned()),
        ..sentinel_view()
    };
    world.ledger.sentinel.view_changed(ms(100), view);
    let verdict = world.look(250).verdict(250);
    assert_eq!(verdict.why, Some(Why::Idle));
    assert_eq!(
        verdict.reason(),
        "IPv4: no new connection to a Service was observed in the last 30 s; the sentinel is off: 198.18.0.1 is \
         an address of this node",
        "the agent is younger than 30 s"
    );
}

#[test]
fn a_look_has_to_begin_after_the_failures_did() {
    let mut world = World::probed(&USUAL);
    world.sound = false;
    world.rounds(2_250, 3_000, &USUAL, |_| Fate::Leak);
    world.ledger.sentinel.looked(ms(2_249));
    assert_eq!(world.verdict(3_200).state, State::Suspect);
    world.ledger.sentinel.looked(ms(2_250));
    world.ledger.sentinel.looked(ms(2_100));
    assert_eq!(world.verdict(3_200).state, State::Broken);
}
