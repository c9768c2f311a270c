//! Stages that probes reach on every path, with every cause.

use std::fmt::Write as _;

use pathproof_facts::cause::ProbeCause;
use pathproof_facts::testing::assert_words;
use pathproof_facts::trace::ProbePath;
use pathproof_judge::explain::*;
use pathproof_judge::verdict::{LaneView, StageDelays};
use pathproof_wire::service::Family;

use crate::probed;

const DEVICES: [&str; 4] = [
    "pathproof-c1",
    "pathproof-c0",
    "pathproof-s0",
    "pathproof-s1",
];

/// A lane whose last probe reached this number of stages.
fn lane(path: ProbePath, cause: ProbeCause, came: usize) -> LaneView {
    let mut lane = probed::passing(Family::V4).remove(0);
    probed::fail(&mut lane, cause, 4);
    let at = |stage: usize, ns: u64| (stage < came).then_some(ns);
    lane.path = path;
    lane.delays = StageDelays {
        arrived: at(0, 9_000).filter(|_| path != ProbePath::Host),
        translated: at(1, 31_000),
        echoed: at(2, 4_000),
        returned: at(3, 6_000),
        collected: at(4, 22_000),
        round_trip: None,
    };
    lane
}

fn told(text: &mut String, lane: &LaneView, interfaces: &Interfaces<'_>) {
    for step in steps(lane, interfaces) {
        let reached = if step.reached { "" } else { "not " };
        let after = step
            .after_ns
            .map_or(String::new(), |ns| format!(", {ns} ns"));
        let device = step.device.as_deref().unwrap_or("-");
        let _ = writeln!(
            text,
            "    {reached}{} ({device}{after}): {}",
            step.stage.name(),
            step.sentence
        );
    }
}

#[test]
fn every_stage_has_its_words() {
    let mut text = String::new();
    let full = Interfaces {
        sentinel: Some(DEVICES),
        uplinks: vec!["eth0", "eth1"],
    };
    for path in [ProbePath::OffCluster, ProbePath::Host] {
        for came in 0..=5 {
            let _ = writeln!(text, "{}, {came} stages", path_label(path));
            told(
                &mut text,
                &lane(path, ProbeCause::LostBeforeLeaving, came),
                &full,
            );
        }
    }
    for cause in ProbeCause::ALL {
        for path in [ProbePath::NodePort, ProbePath::Host] {
            let _ = writeln!(text, "{}, {}", path_label(path), cause.name());
            let came = match cause {
                ProbeCause::NoData | ProbeCause::NotMasqueraded => 5,
                ProbeCause::AnswerLost => 4,
                _ => 1,
            };
            told(&mut text, &lane(path, cause, came), &full);
        }
    }
    let one = Interfaces {
        uplinks: vec!["eth0"],
        ..Interfaces::default()
    };
    for (name, interfaces) in [("one uplink", one), ("no interface", Interfaces::default())] {
        let _ = writeln!(text, "{name} known");
        told(
            &mut text,
            &lane(ProbePath::NodePort, ProbeCause::Leaked, 1),
            &interfaces,
        );
    }
    assert_words("stages", &text);
}

/// Even if a probe of the host path reached no stage, it was certainly sent once it failed.
#[test]
fn unknown_stages_are_omitted() {
    let count = |path, failed, came| {
        let mut lane = lane(path, ProbeCause::LostBeforeLeaving, came);
        lane.failed = failed;
        steps(&lane, &Interfaces::default()).len()
    };
    assert_eq!(count(ProbePath::Host, 4, 0), 2);
    assert_eq!(count(ProbePath::Host, 0, 0), 0);
    assert_eq!(count(ProbePath::Pod, 4, 0), 0);
    assert_eq!(count(ProbePath::Pod, 0, 0), 0);
    assert_eq!(count(ProbePath::Pod, 0, 1), 3);
    assert_eq!(count(ProbePath::Host, 0, 2), 3);
    let mut passing = lane(ProbePath::Pod, ProbeCause::Leaked, 5);
    passing.cause = None;
    assert!(steps(&passing, &Interfaces::default()).is_empty());
}
