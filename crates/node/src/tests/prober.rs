//! The sentinel's parts: the reaction to each of their reports.

use pathproof_facts::cause::State;
use pathproof_wire::service::{Family, SourceClass};
use rstest::rstest;

use super::scene::*;
use super::world::TAKEN;
use crate::Condition;
use crate::effect::Notice;
use crate::event::{KernelState, SentinelEvent};

fn off(why: &str) -> SentinelEvent {
    SentinelEvent::Off(why.to_owned())
}

fn failed(why: &str) -> SentinelEvent {
    SentinelEvent::Started(Some(why.to_owned()))
}

/// A node whose parts have sent these reports.
fn after(reports: &[SentinelEvent]) -> Scene {
    let mut scene = Scene::new();
    scene.synced();
    for event in reports {
        scene.sentinel_changed(event.clone());
    }
    scene
}

fn running() -> Vec<SentinelEvent> {
    vec![SentinelEvent::Ready, SentinelEvent::Started(None)]
}

#[rstest]
#[case::made(vec![], SentinelEvent::Ready, &["start", "publish"], Condition::Settling)]
#[case::started(vec![SentinelEvent::Ready], SentinelEvent::Started(None), &["retarget", "publish"], Condition::Probing)]
#[case::made_again(running(), SentinelEvent::Ready, &["start", "publish"], Condition::Probing)]
#[case::cannot_start(vec![SentinelEvent::Ready], failed("e"), &["log", "stop", "retarget", "publish"], Condition::Off("e"))]
#[case::not_to_be_had(vec![], off("e"), &["log", "stop", "retarget", "publish"], Condition::Off("e"))]
#[case::lost(running(), off("e"), &["log", "stop", "retarget", "publish"], Condition::Off("e"))]
#[case::the_same_again(vec![off("e")], off("e"), &["stop", "retarget", "publish"], Condition::Off("e"))]
#[case::for_another_reason(vec![off("e")], off("f"), &["log", "stop", "retarget", "publish"], Condition::Off("f"))]
#[case::made_after_all(vec![off("e")], SentinelEvent::Ready, &["start", "publish"], Condition::Off("e"))]
#[case::on_again(vec![off("e"), SentinelEvent::Ready], SentinelEvent::Started(None), &["log", "retarget", "publish"], Condition::Probing)]
#[case::fails_as_before(vec![failed("e"), SentinelEvent::Ready], failed("e"), &["stop", "retarget", "publish"], Condition::Off("e"))]
#[case::ended(running(), SentinelEvent::Ended, &["start", "publish"], Condition::Settling)]
#[case::ended_and_on_again(
    vec![SentinelEvent::Ready, SentinelEvent::Started(None), SentinelEvent::Ended],
    SentinelEvent::Started(None),
    &["retarget", "publish"],
    Condition::Probing
)]
#[case::never_began(vec![failed("e")], SentinelEvent::Ended, &["start", "publish"], Condition::Off("e"))]
#[case::detached(running(), SentinelEvent::Detached, &["log", "start anew", "publish"], Condition::Probing)]
#[case::damaged(running(), SentinelEvent::Damaged("d".to_owned()), &["log", "publish"], Condition::Probing)]
#[case::damaged_alike(
    vec![SentinelEvent::Ready, SentinelEvent::Damaged("d".to_owned())],
    SentinelEvent::Damaged("d".to_owned()),
    &["publish"],
    Condition::Settling
)]
#[case::kernel(running(), SentinelEvent::Kernel(KernelState::default()), &["read topology"], Condition::Probing)]
fn a_report_of_the_parts(
    #[case] before: Vec<SentinelEvent>,
    #[case] report: SentinelEvent,
    #[case] effects: &[&str],
    #[case] condition: Condition<'_>,
) {
    let mut scene = after(&before);
    assert_eq!(scene.sentinel_changed(report).names(), effects);
    assert_eq!(scene.condition(), condition);
}

#[rstest]
#[case::off(off("e"), Notice::SentinelOff("e".to_owned()))]
#[case::damaged(SentinelEvent::Damaged("d".to_owned()), Notice::Damaged("d".to_owned()))]
#[case::detached(SentinelEvent::Detached, Notice::Detached)]
fn trouble_is_logged(#[case] report: SentinelEvent, #[case] notice: Notice) {
    assert_eq!(
        after(&running()).sentinel_changed(report).notices(),
        [&notice]
    );
}

#[test]
fn recovery_is_logged_once() {
    let mut scene = after(&[off("e"), SentinelEvent::Ready]);
    assert_eq!(
        scene
            .sentinel_changed(SentinelEvent::Started(None))
            .notices(),
        [&Notice::SentinelOn]
    );
    assert!(
        scene
            .sentinel_changed(SentinelEvent::Started(None))
            .notices()
            .is_empty()
    );
}

/// A prober that cannot start is retried every few seconds. That must neither fill the log nor make
/// the sentinel exist for a moment.
#[test]
fn a_start_that_fails_again_and_again_changes_nothing() {
    let mut scene = after(&[SentinelEvent::Ready, failed("e")]);
    for _ in 0..3 {
        scene.later(5_000);
        for report in [SentinelEvent::Ended, failed("e")] {
            let effects = scene.sentinel_changed(report);
            assert!(effects.notices().is_empty(), "{effects:?}");
            let watched = scene.node.sentinel().unwrap();
            assert_eq!((watched.exists(), watched.off()), (false, Some("e")));
        }
    }
}

#[test]
fn damage_is_logged_again_once_the_parts_were_sound() {
    let damaged = || SentinelEvent::Damaged("d".to_owned());
    let mut scene = after(&running());
    scene.sentinel_changed(damaged());
    scene.kernel(None, Some(true));
    assert!(
        scene.sentinel_changed(damaged()).notices().is_empty(),
        "damaged still"
    );
    scene.sound();
    assert_eq!(scene.sentinel_changed(damaged()).notices().len(), 1);
}

/// The sentinel is off, and clients outside fail. `None`: only some interfaces forward, so it is unknown
/// whether the node does, and the earlier result no longer counts.
#[rstest]
#[case::it_does_not(Some(false), true)]
#[case::it_does(Some(true), false)]
#[case::others_do(None, false)]
fn whether_the_node_forwards_is_known_without_interfaces(
    #[case] forwards: Option<bool>,
    #[case] expected: bool,
) {
    let mut scene = after(&[off("an address is taken")]);
    scene.topology();
    scene.kernel(None, Some(false));
    scene.kernel(None, forwards);
    for family in Family::ALL {
        let ledger = scene.node.judge().ledger.family(family);
        let has_obstacle = ledger.obstacle.present(SourceClass::External).is_some();
        assert_eq!(has_obstacle, expected, "{family:?}");
    }
}

/// Failures during or shortly after damage of the sentinel's parts accuse no node.
#[rstest]
#[case::damaged(SentinelEvent::Damaged("d".to_owned()), 0, State::Suspect)]
#[case::detached(SentinelEvent::Detached, 0, State::Suspect)]
#[case::long_ago(SentinelEvent::Damaged("d".to_owned()), 10_000, State::Broken)]
fn failures_beside_damage_do_not_count(
    #[case] report: SentinelEvent,
    #[case] before: u64,
    #[case] not_damaged: State,
) {
    let mut scene = Scene::probed();
    scene.sentinel_changed(report);
    scene.rest(before);
    scene.fault();
    match before {
        0 => assert_eq!(scene.idle().state(), State::Proven),
        _ => assert_eq!(scene.idle().state(), not_damaged),
    }
}

/// The addresses are in use, so their devices are about to be removed.
#[rstest]
#[case::ready(SentinelEvent::Ready)]
#[case::ended(SentinelEvent::Ended)]
fn nothing_is_started_at_addresses_that_are_taken(#[case] report: SentinelEvent) {
    let mut scene = after(&running());
    scene.taken(true);
    assert!(!scene.sentinel_changed(report.clone()).has("start"));
    // The result of an earlier start.
    scene.sentinel_changed(SentinelEvent::Started(None));
    assert!(!scene.node.sentinel().unwrap().is_running());
    assert_eq!(scene.condition(), Condition::Off(TAKEN));
    scene.taken(false);
    assert_eq!(scene.condition(), Condition::Settling);
    assert!(scene.sentinel_changed(report).has("start"));
}

/// The devices could not be made before the conflict, and that is reported only once.
#[test]
fn devices_that_cannot_be_had_stay_off_over_a_conflict() {
    let mut scene = after(&[off("e")]);
    scene.taken(true);
    assert_eq!(scene.condition(), Condition::Off(TAKEN));
    scene.taken(false);
    assert_eq!(scene.condition(), Condition::Off("e"));
}

/// Lanes stay armed while the sentinel is off. After that, failures count only once the sentinel was on for
/// ten seconds.
#[test]
fn a_sentinel_that_was_off_has_to_settle() {
    let mut scene = Scene::probed();
    scene.sentinel_changed(off("e"));
    scene.started();
    scene.later(1_000);
    scene.fault();
    assert_eq!(
        scene.idle().state(),
        State::Proven,
        "it was turned on a moment ago"
    );
    scene.rest(10_000);
    assert_eq!(scene.fault().state(), State::Broken);
}
