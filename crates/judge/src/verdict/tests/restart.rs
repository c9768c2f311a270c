//! A restart of the agent changes nothing, and names in JSON are stable.

use std::time::Duration;

use pathproof_facts::cause::Failure::Leaked;
use pathproof_facts::cause::{State, Why};
use pathproof_facts::limits::Limits;
use pathproof_wire::service::Family;
use pathproof_wire::service::SourceClass::Pod;
use pathproof_witness::ledger::{Ledger, LedgerMemory};
use rstest::rstest;

use super::scene::USUAL;
use super::world::*;
use crate::answer::UnknownPolicy;
use crate::damping::Damping;
use crate::verdict::LastVerdict;

fn broken() -> World {
    let mut world = World::new();
    for at in (250..=4_000).step_by(250) {
        world
            .fail(WEB, Pod, 1, Leaked, at - 10)
            .fail(API, Pod, 2, Leaked, at - 10)
            .look(at);
    }
    world
}

/// One agent ends and another starts from its state file.
fn restart(world: &mut World, observed_meanwhile: bool, at: u64) {
    let verdict = world.verdict(at.min(4_000));
    let mut damping = Damping::new(Duration::from_secs(10));
    damping.step(&verdict, UnknownPolicy::Open);
    let written = serde_json::to_string(&world.ledger.memory()).unwrap();
    let read: LedgerMemory = serde_json::from_str(&written).unwrap();
    assert_eq!(read, world.ledger.memory());
    world.ledger = Ledger::restore(Limits::default(), read, observed_meanwhile, ms(at));
}

#[test]
fn broken_stays_broken() {
    let mut world = broken();
    restart(&mut world, true, 12_000);
    assert_eq!(
        world.verdict(12_000).state,
        State::Broken,
        "before the first sample"
    );
    world.inputs.view_synced = false;
    world.inputs.families = [false, false];
    assert_eq!(
        world.verdict(12_000).state,
        State::Broken,
        "while the API server is away"
    );
    world.inputs.view_synced = true;
    world.inputs.families = [true, false];
    world.look(12_250);
    assert_eq!(world.verdict(12_250).state, State::Broken, "and after it");
    world.prove(WEB, Pod, 12_300).look(12_500);
    assert_eq!(world.verdict(12_500).state, State::Proven);
}

/// The second agent ends before its first sample and must not forget what it read from the state file.
#[test]
fn broken_stays_broken_over_an_agent_that_never_looked() {
    let mut world = broken();
    restart(&mut world, true, 12_000);
    restart(&mut world, true, 12_500);
    assert_eq!(world.verdict(12_500).state, State::Broken);
    world.look(12_750);
    assert_eq!(world.verdict(12_750).state, State::Broken, "and after it");
}

/// If no agent ran for more than an hour, the next one cannot know how the node changed.
#[rstest]
#[case::an_hour(3_600_000, true)]
#[case::more(3_600_001, false)]
fn lanes_that_worked_long_ago_have_to_work_again(#[case] away: u64, #[case] armed: bool) {
    let mut world = World::probed(&USUAL);
    let sampled = 2_250;
    world.look(sampled);
    assert!(world.ledger.sentinel.is_armed(Family::V4));
    restart(&mut world, true, sampled + away);
    assert_eq!(world.ledger.sentinel.is_armed(Family::V4), armed);
}

#[test]
fn a_run_that_was_not_confirmed_begins_anew() {
    let mut world = World::new();
    world
        .fail(WEB, Pod, 1, Leaked, 200)
        .fail(API, Pod, 2, Leaked, 200)
        .look(250);
    restart(&mut world, true, 9_000);
    world
        .fail(WEB, Pod, 1, Leaked, 9_100)
        .fail(API, Pod, 2, Leaked, 9_100)
        .look(9_250);
    assert_eq!(world.verdict(9_250).state, State::Suspect);
}

#[test]
fn a_quick_restart_goes_on_counting_but_not_while_nobody_looks() {
    let mut world = World::new();
    for at in (250..=2_000).step_by(250) {
        world
            .fail(WEB, Pod, 1, Leaked, at - 10)
            .fail(API, Pod, 2, Leaked, at - 10)
            .look(at);
    }
    restart(&mut world, true, 4_500);
    assert_eq!(
        world.verdict(4_500).state,
        State::Suspect,
        "events since then are unknown"
    );
    world.fail(WEB, Pod, 1, Leaked, 4_600).look(4_750);
    assert_eq!(world.verdict(4_750).state, State::Broken);
}

#[test]
fn a_restored_ledger_that_is_never_read_is_unknown() {
    let mut world = broken();
    restart(&mut world, true, 6_000);
    assert_eq!(world.verdict(11_001).why, Some(Why::NotSampled));
}

#[test]
fn a_state_holds_since_it_began() {
    let world = broken();
    let first = world.verdict(4_000);
    let last = LastVerdict::of(&first);
    let second = world.verdict(5_000).following(Some(&last));
    assert_eq!((second.since, second.at), (ms(4_000), ms(5_000)));
    assert!(!second.differs(&last));
    let other = LastVerdict {
        state: State::Proven,
        ..last
    };
    assert_eq!(
        world.verdict(5_000).following(Some(&other)).since,
        ms(5_000)
    );
    assert!(second.differs(&other));
}
