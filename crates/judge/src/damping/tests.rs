//! Flaps as a table of times, and as a property.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn ms(ms: u64) -> Mono {
    Mono(1_000_000_000_000 + ms * 1_000_000)
}

/// Steps every 100 ms until `to` with the required answers; returns the times when the answer changed.
fn changes(damping: &mut Damping, script: &[(u64, Required)], to: u64) -> Vec<(u64, u16)> {
    let mut changes = Vec::new();
    let mut last = damping.served().healthy;
    for at in (0..=to).step_by(100) {
        let required = script
            .iter()
            .rev()
            .find(|(from, _)| *from <= at)
            .map(|(_, required)| *required);
        let required = required.unwrap_or(Required::Pass);
        let served = damping.step_required([required, Required::Pass, Required::Pass], ms(at));
        if served.healthy != last {
            changes.push((at, if served.healthy { 200 } else { 503 }));
            last = served.healthy;
        }
    }
    changes
}

use Required::{Fail, Pass, Undecided};

#[rstest]
#[case::sound(&[], &[])]
#[case::suspicion_changes_nothing(&[(1_000, Undecided)], &[])]
#[case::down_at_once_up_after_a_second(
    &[(1_000, Fail), (5_000, Pass)], &[(1_000, 503), (6_000, 200)]
)]
#[case::a_second_without_failure(
    &[(1_000, Fail), (5_000, Pass), (5_900, Undecided), (6_100, Pass)],
    &[(1_000, 503), (7_100, 200)]
)]
#[case::suspicion_keeps_it_down(&[(1_000, Fail), (5_000, Undecided)], &[(1_000, 503)])]
#[case::suspicion_before_it_was_confirmed(
    &[(1_000, Undecided), (11_000, Fail), (15_000, Undecided)], &[(11_000, 503)]
)]
#[case::suspicion_before_and_after(
    &[(1_000, Undecided), (11_100, Fail), (15_000, Undecided)], &[(11_100, 503), (46_100, 200)]
)]
#[case::suspicion_that_is_borne_out(
    &[(1_000, Undecided), (15_000, Fail), (16_000, Undecided), (40_000, Fail), (50_000, Undecided),
      (70_000, Fail)],
    &[(15_000, 503)]
)]
#[case::a_flap_is_held(
    &[(1_000, Fail), (2_000, Pass), (4_000, Fail), (5_000, Pass)],
    &[(1_000, 503), (3_000, 200), (4_000, 503), (14_000, 200)]
)]
#[case::the_next_flap_twice_as_long(
    &[(1_000, Fail), (2_000, Pass), (4_000, Fail), (5_000, Pass), (15_000, Fail), (16_000, Pass)],
    &[(1_000, 503), (3_000, 200), (4_000, 503), (14_000, 200), (15_000, 503), (35_000, 200)]
)]
#[case::late_enough_is_no_flap(
    &[(1_000, Fail), (2_000, Pass), (33_100, Fail), (34_000, Pass)],
    &[(1_000, 503), (3_000, 200), (33_100, 503), (35_000, 200)]
)]
#[case::still_broken_after_the_dwell(
    &[(1_000, Fail), (2_000, Pass), (4_000, Fail), (20_000, Pass)],
    &[(1_000, 503), (3_000, 200), (4_000, 503), (21_000, 200)]
)]
fn one_family(#[case] script: &[(u64, Required)], #[case] expected: &[(u64, u16)]) {
    let mut damping = Damping::new(DWELL_DEFAULT);
    assert_eq!(changes(&mut damping, script, 60_000), expected);
}

#[test]
fn without_dwell_only_the_second_is_left() {
    let script = [(1_000, Fail), (2_000, Pass), (4_000, Fail), (5_000, Pass)];
    let changes = changes(&mut Damping::new(Duration::ZERO), &script, 30_000);
    assert_eq!(
        changes,
        [(1_000, 503), (3_000, 200), (4_000, 503), (6_000, 200)]
    );
}

#[rstest]
#[case(10, 1, 10)]
#[case(10, 2, 20)]
#[case(10, 5, 160)]
#[case(10, 6, 300)]
#[case(10, 400, 300)]
#[case(600, 1, 600)]
fn dwells_double_up_to_five_minutes(#[case] first: u64, #[case] flaps: u32, #[case] expected: u64) {
    assert_eq!(
        dwell(Duration::from_secs(first), flaps),
        Duration::from_secs(expected)
    );
}

#[test]
fn a_second_family_that_follows_is_not_another_flap() {
    let mut damping = Damping::new(DWELL_DEFAULT);
    assert!(!damping.step_required([Fail, Pass, Pass], ms(0)).healthy);
    let served = damping.step_required([Fail, Fail, Pass], ms(200));
    assert_eq!((served.families, damping.memory.flaps), ([false, false], 0));
    damping.step_required([Pass, Fail, Pass], ms(400));
    let served = damping.step_required([Pass, Fail, Pass], ms(1_500));
    assert_eq!((served.families, served.healthy), ([true, false], false));
    damping.step_required([Pass, Pass, Pass], ms(1_600));
    assert!(damping.step_required([Pass, Pass, Pass], ms(2_600)).healthy);
}

#[test]
fn families_that_take_turns_flap() {
    let mut damping = Damping::new(DWELL_DEFAULT);
    damping.step_required([Fail, Pass, Pass], ms(0));
    damping.step_required([Pass, Pass, Pass], ms(100));
    assert!(damping.step_required([Pass, Pass, Pass], ms(1_100)).healthy);
    damping.step_required([Pass, Fail, Pass], ms(1_200));
    assert_eq!(
        (damping.memory.flaps, damping.memory.held_until),
        (1, Some(ms(11_200)))
    );
}

#[test]
fn a_restart_keeps_the_answer_and_the_dwell() {
    let mut damping = Damping::new(DWELL_DEFAULT);
    for (at, required) in [(0, Fail), (100, Pass), (1_100, Pass), (1_200, Fail)] {
        damping.step_required([required, Pass, Pass], ms(at));
    }
    let written = serde_json::to_string(&damping.memory).unwrap();
    let memory = serde_json::from_str(&written).unwrap();
    let mut again = Damping::restore(DWELL_DEFAULT, memory);
    assert_eq!(again, damping);
    again.step_required([Pass, Pass, Pass], ms(2_000));
    assert!(!again.step_required([Pass, Pass, Pass], ms(11_000)).healthy);
    assert!(again.step_required([Pass, Pass, Pass], ms(11_200)).healthy);
}

fn any_required() -> impl Strategy<Value = Required> {
    prop::sample::select(vec![Pass, Undecided, Fail])
}

proptest! {
    /// A 503 that begins within 30 s of a recovery lasts at least for its hold-down, and any 503
    /// for a second without failure. 503 is never late.
    #[test]
    fn never_faster_than_the_dwell(
        steps in prop::collection::vec((50u64..3_000, (any_required(), any_required())), 1..200),
    ) {
        let mut damping = Damping::new(DWELL_DEFAULT);
        let (mut now, mut fell, mut recovered) = (0, None, None::<u64>);
        let (mut expected, mut failed) = (Duration::ZERO, 0);
        for (after, (four, six)) in steps {
            let required = [four, six, Pass];
            now += after;
            let before = damping.served();
            let served = damping.step_required(required, ms(now));
            if required.contains(&Fail) {
                failed = now;
                prop_assert!(!served.healthy);
            }
            if before.healthy && !served.healthy {
                let flap = recovered.is_some_and(|at| now - at <= 30_000);
                expected = if flap { dwell(DWELL_DEFAULT, damping.memory.flaps) } else { Duration::ZERO };
                prop_assert_eq!(flap, damping.memory.flaps > 0);
                fell = Some(now);
            }
            if !before.healthy && served.healthy {
                let down = Duration::from_millis(now - fell.unwrap_or(0));
                prop_assert!(down >= expected && down >= SOUND_FOR);
                prop_assert!(now - failed >= 1_000);
                recovered = Some(now);
            }
        }
    }

    /// The same input gives the same result.
    #[test]
    fn only_requirements_and_times_count(
        steps in prop::collection::vec((50u64..3_000, [any_required(), any_required(), any_required()]), 1..50),
    ) {
        let run = || {
            let (mut damping, mut now) = (Damping::new(DWELL_DEFAULT), 0);
            for (after, required) in &steps {
                now += after;
                damping.step_required(*required, ms(now));
            }
            damping
        };
        prop_assert_eq!(run(), run());
    }
}

fn second(seconds: u64) -> Mono {
    Mono(seconds * 1_000_000_000)
}

#[rstest]
#[case::began_with_it(Some(State::Proven), 20, true)]
#[case::so_did_stale(Some(State::Unknown), 60, true)]
#[case::long_after(Some(State::Proven), 61, false)]
#[case::as_before(Some(State::Broken), 20, false)]
#[case::first_of_its_boot(None, 20, false)]
fn only_a_failure_that_began_with_this_agent_closes_the_gate(
    #[case] before: Option<State>,
    #[case] failed: u64,
    #[case] closed: bool,
) {
    let mut gate = UpgradeGate::new(before.map(|state| (state, second(990))), second(1000));
    assert!(!gate.record_state(State::Degraded, second(1001)));
    assert_eq!(
        gate.record_state(State::Broken, second(1000 + failed)),
        closed
    );
    assert!(
        !gate.record_state(State::Stale, second(1000 + failed + 100)),
        "once"
    );
    assert_eq!(gate.closed, closed);
    gate.record_state(State::Proven, second(1000 + failed + 101));
    assert!(!gate.closed);
}

#[rstest]
#[case::just_now(400, true)]
#[case::long_ago(399, false)]
#[case::by_a_version_that_did_not_say_when(0, false)]
fn an_old_verdict_does_not_close_the_gate(#[case] given: u64, #[case] closed: bool) {
    let mut gate = UpgradeGate::new(Some((State::Proven, second(given))), second(1000));
    assert_eq!(gate.record_state(State::Broken, second(1001)), closed);
}
