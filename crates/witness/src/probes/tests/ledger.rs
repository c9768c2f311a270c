//! Arming, runs of failures, and what ends them.

use std::time::Duration;

use pathproof_facts::cause::ProbeCause;
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::{DatapathOwners, Owner};
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{ProbePath, ProbeTrace};
use pathproof_wire::probe::Stage;
use pathproof_wire::service::Family;
use rstest::rstest;

use crate::probes::{ProbeOutcome, SentinelLedger, SentinelMemory, SentinelView, VoidReason};
use crate::testing::traces::{passed, stuck, tcp};

pub(super) const PATH: ProbePath = ProbePath::OffCluster;

pub(super) fn ms(ms: u64) -> Mono {
    Mono(1_000_000_000 * 1_000 + ms * 1_000_000)
}

pub(super) fn view(identity: u64, at: Mono) -> SentinelView {
    SentinelView {
        exists: true,
        identity,
        changed_at: at,
        ..SentinelView::default()
    }
}

pub(super) fn set(owners: &[Owner]) -> DatapathOwners {
    owners.iter().copied().collect()
}

/// A sentinel that has existed for a long time.
pub(super) fn settled() -> SentinelLedger {
    let mut ledger = SentinelLedger::new(Limits::default());
    ledger.view_changed(ms(0), view(1, ms(0)));
    ledger.owner_seen(Family::V4, set(&[Owner::KubeProxyIptables]), ms(0));
    ledger
}

pub(super) fn pass(
    ledger: &mut SentinelLedger,
    path: ProbePath,
    at: u64,
    masqueraded: bool,
) -> ProbeOutcome {
    let trace = passed(tcp(path), ms(at));
    ledger.absorb(&trace, ProbeOutcome::Passed { masqueraded }, trace.ended)
}

pub(super) fn fail(ledger: &mut SentinelLedger, at: u64, cause: ProbeCause) -> ProbeOutcome {
    let trace: ProbeTrace = stuck(tcp(PATH), ms(at), Some(Stage::Arrived));
    ledger.absorb(&trace, ProbeOutcome::Failed(cause), trace.ended)
}

fn restart(ledger: &SentinelLedger) -> SentinelLedger {
    let written = serde_json::to_string(&ledger.memory()).unwrap();
    let read: SentinelMemory = serde_json::from_str(&written).unwrap();
    SentinelLedger::restore(Limits::default(), read)
}

pub(super) fn failures(ledger: &SentinelLedger) -> u32 {
    let run = &ledger.lane(tcp(PATH)).run;
    run.as_ref().map_or(0, |run| run.failures)
}

/// Armed, settled, with `n` failures every 250 ms from 20 s on.
fn failing_by(cause: ProbeCause, n: u64) -> SentinelLedger {
    let mut ledger = settled();
    pass(&mut ledger, PATH, 19_750, true);
    for step in 0..n {
        fail(&mut ledger, 20_000 + 250 * step, cause);
    }
    ledger
}

pub(super) fn failing(n: u64) -> SentinelLedger {
    failing_by(ProbeCause::Leaked, n)
}

#[test]
fn a_pass_arms_and_ends_the_run() {
    let mut ledger = failing(3);
    assert!(ledger.lane(tcp(PATH)).armed && ledger.is_armed(Family::V4));
    assert!(!ledger.is_armed(Family::V6));
    assert_eq!(failures(&ledger), 3);
    assert!(ledger.is_failing(Family::V4));
    pass(&mut ledger, PATH, 20_750, true);
    assert_eq!(failures(&ledger), 0);
    assert!(!ledger.is_failing(Family::V4));
}

#[test]
fn without_a_sentinel_nothing_is_armed() {
    let mut ledger = SentinelLedger::new(Limits::default());
    pass(&mut ledger, PATH, 20_000, true);
    assert!(!ledger.lane(tcp(PATH)).armed);
}

/// A filter on the sentinel's addresses explains lost probes; nothing innocent explains leaked ones. `before`:
/// since when a new agent assumes that the lane fails, 10 s after the last probe.
#[rstest]
#[case::lost(ProbeCause::LostBeforeLeaving, 4, Some(20_000))]
#[case::too_few(ProbeCause::LostBeforeLeaving, 3, None)]
#[case::leaked(ProbeCause::Leaked, 4, None)]
fn the_onset_outlives_a_gap_and_a_restart(
    #[case] cause: ProbeCause,
    #[case] probes: u64,
    #[case] before: Option<u64>,
) {
    let ledger = failing_by(cause, probes);
    let mut restored = restart(&ledger);
    let lane = |ledger: &SentinelLedger| ledger.lane(tcp(PATH)).clone();
    assert_eq!(lane(&ledger).failed_before(ms(31_000)), before.map(ms));
    assert_eq!(lane(&restored).failed_before(ms(31_000)), before.map(ms));
    assert_eq!(lane(&restored).failed_before(ms(400_000)), None, "long ago");
    fail(&mut restored, 60_000, cause);
    let onset = lane(&restored).run.map(|run| run.onset());
    assert_eq!(onset, Some(ms(before.unwrap_or(60_000))));
    pass(&mut restored, PATH, 61_000, true);
    fail(&mut restored, 62_000, cause);
    let onset = lane(&restored).run.map(|run| run.onset());
    assert_eq!(onset, Some(ms(62_000)), "it passed since");
}

#[test]
fn a_silence_ends_what_is_not_confirmed() {
    let mut three = failing(3);
    fail(&mut three, 30_500, ProbeCause::Leaked);
    assert_eq!(failures(&three), 1);
    let mut four = failing(4);
    fail(&mut four, 30_750, ProbeCause::Leaked);
    assert_eq!(failures(&four), 5, "confirmed before the silence");
    let mut doubtful = failing_by(ProbeCause::AnswerLost, 6);
    fail(&mut doubtful, 31_000, ProbeCause::AnswerLost);
    assert_eq!(failures(&doubtful), 1, "these do not accuse by themselves");
}

#[test]
fn what_is_confirmed_is_continued_within_the_proof_age() {
    let again = |mut ledger: SentinelLedger, at| {
        fail(&mut ledger, at, ProbeCause::Leaked);
        failures(&ledger)
    };
    // The last failure ended at 20.95 s.
    assert_eq!(again(failing(4), 50_950), 5);
    assert_eq!(again(failing(4), 51_000), 1);
    assert_eq!(
        again(restart(&failing(4)), 50_950),
        5,
        "also over a restart"
    );
    assert_eq!(again(restart(&failing(4)), 7_200_000), 1, "hours later");
}

#[test]
fn failures_apart_are_not_in_a_row() {
    let mut ledger = failing(3);
    // In the meantime other lanes have results, and this lane has none.
    for at in (20_750..22_000).step_by(250) {
        pass(&mut ledger, ProbePath::Host, at, false);
    }
    fail(&mut ledger, 22_000, ProbeCause::Leaked);
    assert_eq!(failures(&ledger), 1);
}

#[test]
fn a_young_sentinel_accuses_nobody() {
    let mut ledger = settled();
    pass(&mut ledger, PATH, 0, true);
    for at in (250..10_000).step_by(250) {
        let outcome = fail(&mut ledger, at, ProbeCause::Leaked);
        assert_eq!(
            outcome,
            ProbeOutcome::Failed(ProbeCause::Leaked),
            "for metrics"
        );
    }
    assert_eq!(failures(&ledger), 0);
    let (_, last) = ledger.lane(tcp(PATH)).last.unwrap();
    assert_eq!(last, ProbeOutcome::Void(VoidReason::Unsettled));
    fail(&mut ledger, 10_000, ProbeCause::Leaked);
    assert_eq!(failures(&ledger), 1);
}

#[test]
fn the_same_view_again_changes_nothing() {
    let mut ledger = failing(3);
    ledger.view_changed(ms(20_700), view(1, ms(20_700)));
    fail(&mut ledger, 20_750, ProbeCause::Leaked);
    assert_eq!(failures(&ledger), 4);
}

#[test]
fn a_change_voids_what_began_shortly_before() {
    let mut ledger = failing(8);
    ledger.view_changed(ms(22_000), view(2, ms(22_000)));
    assert_eq!(failures(&ledger), 0, "this node may have received it late");
    fail(&mut ledger, 22_250, ProbeCause::Leaked);
    assert_eq!(failures(&ledger), 0);
    assert!(ledger.lane(tcp(PATH)).armed);
}

#[test]
fn a_rotation_heals_nothing_that_was_broken_long_before() {
    let mut ledger = failing(80);
    ledger.view_changed(ms(40_000), view(2, ms(40_000)));
    assert_eq!(failures(&ledger), 80);
    fail(&mut ledger, 40_250, ProbeCause::Leaked);
    assert_eq!(failures(&ledger), 80, "but new failures do not count yet");
    let mut altered = failing(80);
    altered.view_changed(
        ms(40_000),
        SentinelView {
            altered: Some("its selector is set".to_owned()),
            ..view(2, ms(40_000))
        },
    );
    assert_eq!(failures(&altered), 0);
}

/// The time of a change may be in the future, as in a recording whose clock was set back.
#[test]
fn a_change_that_is_yet_to_come_counts_from_now_on() {
    let mut ledger = failing(0);
    ledger.view_changed(ms(20_000), view(2, ms(90_000)));
    for step in 0..4 {
        fail(&mut ledger, 40_000 + 250 * step, ProbeCause::Leaked);
    }
    assert_eq!(failures(&ledger), 4);
}

#[test]
fn a_sentinel_that_is_gone_disarms() {
    let mut ledger = failing(80);
    ledger.view_changed(ms(40_000), SentinelView::default());
    assert_eq!(failures(&ledger), 0);
    assert!(
        !ledger.lane(tcp(PATH)).armed,
        "a new sentinel must work first"
    );
}

#[test]
fn a_pass_of_the_old_sentinel_does_not_arm_the_new_one() {
    let mut ledger = failing(0);
    ledger.view_changed(ms(40_000), SentinelView::default());
    ledger.view_changed(ms(40_100), view(2, ms(40_100)));
    pass(&mut ledger, PATH, 40_099, true);
    assert!(!ledger.lane(tcp(PATH)).armed);
    pass(&mut ledger, PATH, 40_100, true);
    assert!(ledger.lane(tcp(PATH)).armed);
}

#[test]
fn another_frontend_disarms_its_lane_until_it_works() {
    let mut ledger = failing(4);
    pass(&mut ledger, ProbePath::NodePort, 20_750, true);
    let leak = |ledger: &mut SentinelLedger, frontend: [u8; 4], at| {
        let mut trace = stuck(tcp(PATH), ms(at), Some(Stage::Arrived));
        trace.frontend = (frontend, 80).into();
        trace.generation = Some(7_000 + (at % 1_000) as u16);
        let outcome = ProbeOutcome::Failed(ProbeCause::Leaked);
        ledger.absorb(&trace, outcome, trace.ended);
    };
    leak(&mut ledger, [10, 96, 0, 9], 21_000);
    assert_eq!(failures(&ledger), 5, "a rotation changes no frontend");
    let mut again = restart(&ledger);
    leak(&mut again, [10, 96, 0, 9], 21_250);
    assert_eq!(failures(&again), 6, "nor does a restart");
    for mut ledger in [ledger, again] {
        leak(&mut ledger, [10, 96, 0, 10], 21_500);
        assert!(!ledger.lane(tcp(PATH)).armed);
        assert_eq!(failures(&ledger), 1, "the run of the old one is over");
        assert!(ledger.lane(tcp(ProbePath::NodePort)).armed);
        pass(&mut ledger, PATH, 21_750, true);
        assert!(ledger.lane(tcp(PATH)).armed);
    }
}

#[test]
fn damage_voids_the_run_and_the_next_moments() {
    let mut ledger = failing(6);
    ledger.damaged(ms(21_400), "pathproof-c0 is down".to_owned());
    assert_eq!(failures(&ledger), 0);
    fail(&mut ledger, 21_500, ProbeCause::Leaked);
    assert_eq!(failures(&ledger), 0);
    let (_, last) = ledger.lane(tcp(PATH)).last.unwrap();
    assert_eq!(last, ProbeOutcome::Void(VoidReason::Damaged));
    fail(&mut ledger, 31_400, ProbeCause::Leaked);
    assert_eq!(failures(&ledger), 1);
    assert!(ledger.damage(ms(22_000)).is_some() && ledger.damage(ms(40_000)).is_none());
}

#[test]
fn damage_heals_nothing_that_was_broken_long_before() {
    let mut ledger = failing(80);
    ledger.damaged(ms(40_000), "pathproof-c0 is down".to_owned());
    assert_eq!(failures(&ledger), 80);
    fail(&mut ledger, 40_250, ProbeCause::Leaked);
    assert_eq!(failures(&ledger), 80, "but new failures do not count yet");
    let mut doubtful = failing_by(ProbeCause::AnswerLost, 80);
    doubtful.damaged(ms(40_000), "pathproof-c0 is down".to_owned());
    assert_eq!(failures(&doubtful), 0, "it never accused by itself");
}

#[test]
fn a_sentinel_that_is_off_counts_nothing_and_disarms_nothing() {
    let off = |why: &str, at| SentinelView {
        off: Some(why.to_owned()),
        ..view(1, at)
    };
    let mut ledger = failing(80);
    ledger.view_changed(ms(40_000), off("the devices cannot be made", ms(40_000)));
    assert!(ledger.lane(tcp(PATH)).armed);
    assert_eq!(failures(&ledger), 80);
    fail(&mut ledger, 40_250, ProbeCause::Leaked);
    pass(&mut ledger, PATH, 40_500, true);
    assert_eq!(failures(&ledger), 80);
    assert!(!ledger.is_settled(ms(90_000)));
    ledger.view_changed(ms(41_000), off("no programs", ms(41_000)));
    let view = restart(&ledger).view.clone();
    assert_eq!(view.off.as_deref(), Some("no programs"));
    assert_eq!(view.changed_at, ms(40_000), "another reason is no change");
    ledger.view_changed(ms(42_000), self::view(1, ms(42_000)));
    assert!(!ledger.is_settled(ms(51_999)) && ledger.is_settled(ms(52_000)));
    let mut young = failing(8);
    young.view_changed(ms(22_000), off("the devices cannot be made", ms(22_000)));
    assert_eq!(failures(&young), 0);
    assert!(young.lane(tcp(PATH)).armed);
}

#[test]
fn why_it_never_worked_is_the_commonest_failure() {
    let mut ledger = settled();
    assert_eq!(ledger.lane(tcp(PATH)).never_worked(), None);
    fail(&mut ledger, 1_000, ProbeCause::Leaked);
    fail(&mut ledger, 1_250, ProbeCause::LostBeforeLeaving);
    fail(&mut ledger, 1_500, ProbeCause::LostBeforeLeaving);
    let lane = ledger.lane(tcp(PATH));
    assert_eq!(lane.never_worked(), Some(ProbeCause::LostBeforeLeaving));
    pass(&mut ledger, PATH, 1_750, true);
    assert_eq!(ledger.lane(tcp(PATH)).never_worked(), None);
}

#[test]
fn a_run_has_the_commonest_cause_of_its_last_failures() {
    let mut ledger = failing(0);
    fail(&mut ledger, 20_000, ProbeCause::LostBeforeLeaving);
    for step in 1..4 {
        fail(&mut ledger, 20_000 + 250 * step, ProbeCause::Misrouted);
    }
    let run = ledger.lane(tcp(PATH)).run.clone().unwrap();
    assert_eq!(run.cause(), ProbeCause::Misrouted);
    assert!(
        run.is_confirmed(&Limits::default()),
        "one may differ while the fault sets in"
    );
    assert_eq!(run.confirmed_from(), ms(20_000));
}

#[test]
fn what_is_confirmed_or_armed_outlives_the_agent() {
    let broken = restart(&failing(5));
    assert_eq!(failures(&broken), 5);
    assert_eq!(broken.view.changed_at, ms(0), "still settled");
    assert!(broken.lane(tcp(PATH)).masquerade_seen);
    let mut two = restart(&failing(2));
    assert_eq!(failures(&two), 0, "not confirmed");
    assert!(two.lane(tcp(PATH)).armed);
    assert_eq!(
        two.lane(tcp(PATH)).last_pass,
        failing(2).lane(tcp(PATH)).last_pass
    );
    two.view_changed(ms(30_000), view(1, ms(30_000)));
    fail(&mut two, 30_250, ProbeCause::Leaked);
    assert_eq!(failures(&two), 1, "a view that says the same is no change");
}

#[test]
fn delays_are_from_stage_to_stage() {
    let mut ledger = settled();
    pass(&mut ledger, PATH, 1_000, true);
    let lane = ledger.lane(tcp(PATH));
    assert_eq!(lane.delays, [Some(10_000); 5]);
    assert_eq!(lane.round_trip, Some(50_000));
    assert_eq!(lane.generation, Some(7_001));
    fail(&mut ledger, 1_250, ProbeCause::Leaked);
    let lane = ledger.lane(tcp(PATH));
    assert_eq!(lane.delays, [Some(10_000), None, None, None, None]);
    assert_eq!(lane.totals, [1, 1, 0]);
    let late = Duration::from_millis(200);
    assert_eq!(lane.last_failure, Some(ms(1_250).plus(late)));
}
