//! Failing probes: how often the sentinel's parts are checked, and when a verdict is published at once.

use pathproof_facts::cause::{ProbeCause, State};
use pathproof_facts::switches::Enforcement;
use pathproof_facts::trace::{ProbePath, ProbeTrace};
use pathproof_witness::probes::{ProbeOutcome, VoidReason};
use rstest::rstest;

use super::scene::*;

const PATH: ProbePath = ProbePath::OffCluster;

/// Times of an effect, for probes that end every `step` ms from 12.25 s on.
fn times(
    scene: &mut Scene,
    effect: &str,
    step: u64,
    until: u64,
    probe: fn(ProbePath, u64) -> ProbeTrace,
) -> Vec<u64> {
    let mut found = Vec::new();
    let begin = scene.now();
    for at in (0..=until).step_by(usize::try_from(step).unwrap()) {
        let effects = scene.at(begin + at).probe(probe(PATH, begin + at));
        if effects.has(effect) {
            found.push(at);
        }
    }
    found
}

#[test]
fn the_parts_are_checked_fast_at_first_and_then_slowly() {
    let mut scene = Scene::probed();
    // Six failures in a row, at 0, 50, 100, 150, 200 and 250 ms.
    let checks = times(&mut scene, "check parts", 50, 4_500, leaking);
    assert_eq!(checks, [0, 100, 200, 2_200, 4_200]);
}

#[test]
fn a_fast_check_waits_for_its_interval() {
    let mut scene = Scene::probed();
    let mut check = |after: u64| scene.later(after).leak(PATH).has("check parts");
    assert!(check(0));
    assert!(!check(99));
    assert!(check(1));
    assert!(!check(99));
    assert!(check(1), "the fifth failure");
    assert!(!check(1_000), "the sixth");
    assert!(!check(999));
    assert!(check(1));
}

/// Void probes may be due to damage of the sentinel's parts, which only a check repairs.
#[test]
fn the_parts_are_checked_slowly_where_probes_say_nothing() {
    let mut scene = Scene::probed();
    let checks = times(&mut scene, "check parts", 250, 4_500, void);
    assert_eq!(checks, [0, 2_000, 4_000]);
}

#[test]
fn probes_that_pass_or_come_late_check_nothing() {
    let late: fn(ProbePath, u64) -> ProbeTrace = |path, sent| {
        let mut trace = leaking(path, sent);
        trace.due = ms(sent - 300);
        trace
    };
    for probe in [passing, late] {
        let mut scene = Scene::probed();
        assert!(times(&mut scene, "check parts", 250, 3_000, probe).is_empty());
    }
}

#[test]
fn the_api_server_is_asked_at_most_every_ten_seconds() {
    let mut scene = Scene::probed();
    let readings = times(&mut scene, "read sentinel", 500, 21_000, leaking);
    assert_eq!(readings.len(), 3, "{readings:?}");
    assert_eq!(readings[0], 0);
    let apart = readings.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(apart.min().unwrap() >= 10_000, "{readings:?}");
}

#[test]
fn a_verdict_that_holds_needs_no_reading() {
    let mut scene = Scene::probed();
    assert_eq!(scene.fault().state(), State::Broken);
    let readings = times(&mut scene, "read sentinel", 500, 30_000, leaking);
    assert!(readings.is_empty(), "{readings:?}");
    assert_eq!(scene.idle().state(), State::Broken);
}

#[test]
fn a_sentinel_of_files_is_not_read_past_them() {
    let mut scene = Scene::probed_with(|settings, _| settings.rereads = false);
    assert!(times(&mut scene, "read sentinel", 250, 3_000, leaking).is_empty());
    assert_eq!(scene.state(), State::Suspect);
    scene.leak(PATH);
    // A check alone is enough to confirm.
    let mut scene = Scene::probed_with(|settings, _| settings.rereads = false);
    scene.leak(PATH);
    scene.sound();
    for _ in 0..3 {
        scene.later(250).leak(PATH);
    }
    assert_eq!(scene.state(), State::Broken);
}

/// A path that always fails must cost no more than one that works.
#[test]
fn only_the_first_five_failures_are_judged_at_once() {
    let mut scene = Scene::probed();
    let published = times(&mut scene, "publish", 250, 3_000, leaking);
    assert_eq!(published, [0, 250, 500, 750, 1_000]);
    let effects = scene.later(250).probe(passing(PATH, PROBED + 3_250));
    assert_eq!(effects.names(), ["probed", "log", "remember", "publish"]);
    assert_eq!(effects.state(), State::Proven);
    let effects = scene.later(250).probe(passing(PATH, PROBED + 3_500));
    assert_eq!(effects.names(), ["probed"]);
}

#[test]
fn probes_that_say_nothing_are_not_judged_at_once() {
    let mut scene = Scene::probed();
    assert!(times(&mut scene, "publish", 250, 3_000, void).is_empty());
}

#[derive(Clone, Copy, Debug)]
enum Without {
    Check,
    Reading,
}

/// Failures need both a check of the parts and an uncached read. With only one of them, the node is
/// Suspect.
#[rstest]
#[case(Without::Check)]
#[case(Without::Reading)]
fn one_check_alone_does_not_accuse(#[case] without: Without) {
    let mut scene = Scene::probed();
    scene.rest(11_000);
    for _ in 0..8 {
        scene.later(250).leak(PATH);
        match without {
            Without::Check => scene.reread_same(),
            Without::Reading => scene.sound(),
        };
    }
    assert_eq!(scene.idle().state(), State::Suspect);
    assert_eq!(scene.idle().statuses(), [200, 200]);
    match without {
        Without::Check => scene.sound(),
        Without::Reading => scene.reread_same(),
    };
    assert_eq!(scene.idle().state(), State::Broken, "with both");
}

/// A check from before the first failure does not show later damage.
#[test]
fn a_check_of_before_the_failures_does_not_count() {
    let mut scene = Scene::probed();
    scene.sound();
    for _ in 0..6 {
        scene.later(250).leak(PATH);
        scene.reread_same();
    }
    assert_eq!(scene.idle().state(), State::Suspect);
    scene.kernel(Some(ms(PROBED + 250)), Some(true));
    assert_eq!(scene.idle().state(), State::Broken, "it began with them");
}

/// A second accusation while the verdict already holds needs no further read.
#[test]
fn a_second_path_accuses_after_the_first_recovered() {
    let mut scene = Scene::probed();
    scene.leak(PATH);
    scene.sound();
    scene.reread_same();
    for step in 1..=40 {
        scene.later(500).leak(PATH);
        match step {
            ..30 => scene.probe(passing(ProbePath::NodePort, PROBED + 500 * step)),
            _ => {
                let mut probe = passing(ProbePath::NodePort, scene.now());
                probe.echo_saw = Some(probe.client);
                scene.probe(probe)
            }
        };
        scene.sound();
        scene.idle();
    }
    assert_eq!(scene.state(), State::Broken);
    let sent = scene.now() + 500;
    scene.at(sent).probe(passing(PATH, sent));
    assert_eq!(scene.idle().state(), State::Broken);
    scene.probe(passing(ProbePath::NodePort, sent));
    assert_eq!(scene.idle().state(), State::Proven);
}

/// One read is valid for ten seconds.
#[rstest]
#[case::lately(9_000, State::Broken)]
#[case::long_ago(11_000, State::Suspect)]
fn a_reading_serves_for_a_while(#[case] age: u64, #[case] state: State) {
    let mut scene = Scene::probed();
    scene.reread_same();
    scene.rest(age);
    for _ in 0..5 {
        scene.later(250).leak(PATH);
        scene.sound();
    }
    assert_eq!(scene.idle().state(), state);
}

/// An accused node does not read from the API server again and again, in audit mode either.
#[test]
fn in_audit_an_accused_node_rereads_nothing() {
    let mut scene = Scene::probed_with(|settings, _| settings.enforcement = Enforcement::Audit);
    assert_eq!(scene.fault().statuses(), [200, 200]);
    scene.later(11_000);
    assert!(!scene.leak(PATH).has("read sentinel"));
}

#[rstest]
#[case::now(0, Some(false), ProbeCause::ForwardingOff)]
#[case::a_while_ago(15_000, Some(false), ProbeCause::ForwardingOff)]
#[case::too_long_ago(15_001, Some(false), ProbeCause::LostBeforeLeaving)]
#[case::it_forwards(0, Some(true), ProbeCause::LostBeforeLeaving)]
#[case::unread(0, None, ProbeCause::LostBeforeLeaving)]
fn only_recent_kernel_facts_are_used(
    #[case] age: u64,
    #[case] forwards: Option<bool>,
    #[case] cause: ProbeCause,
) {
    let mut scene = Scene::probed();
    scene.kernel(None, forwards);
    let sent = PROBED + age;
    let (outcome, _) = scene.at(sent).probe(arriving(PATH, sent)).probed();
    assert_eq!(outcome, ProbeOutcome::Failed(cause));
}

#[test]
fn each_probe_is_measured_with_its_outcome() {
    let mut scene = Scene::probed();
    let passed = ProbeOutcome::Passed { masqueraded: true };
    let sent = PROBED + 10;
    scene.at(sent);
    assert_eq!(scene.probe(passing(PATH, sent)).probed().0, passed);
    let nothing = ProbeOutcome::Void(VoidReason::ControlFailed);
    assert_eq!(scene.probe(void(PATH, sent)).probed().0, nothing);
    // The lane was masqueraded before, so a probe that is not masqueraded is a fault.
    let mut bare = passing(ProbePath::NodePort, sent);
    bare.echo_saw = Some(bare.client);
    let missing = ProbeOutcome::Failed(ProbeCause::NotMasqueraded);
    assert_eq!(scene.probe(bare).probed().0, missing);
}
