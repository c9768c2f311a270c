//! The stages that a probe reached.

use pathproof_facts::cause::ProbeCause;
use pathproof_judge::explain::{Interfaces, steps};
use pathproof_wire::service::Family;
use rstest::rstest;

use crate::probed;

#[rstest]
#[case(0, ProbeCause::Leaked, "sent arrived !translated")]
#[case(
    0,
    ProbeCause::AnswerLost,
    "sent arrived translated echoed returned !collected"
)]
#[case(
    0,
    ProbeCause::NoData,
    "sent arrived translated echoed returned collected !data"
)]
#[case(
    1,
    ProbeCause::NotMasqueraded,
    "sent arrived translated echoed returned collected !masqueraded"
)]
#[case(2, ProbeCause::Leaked, "sent !translated")]
#[case(
    2,
    ProbeCause::AnswerLost,
    "sent translated echoed returned !collected"
)]
fn chains(#[case] index: usize, #[case] cause: ProbeCause, #[case] expected: &str) {
    let mut lane = probed::passing(Family::V4).remove(index);
    probed::fail(&mut lane, cause, 4);
    let said: Vec<String> = steps(&lane, &Interfaces::default())
        .iter()
        .map(|step| match step.reached {
            true => step.stage.name().to_owned(),
            false => format!("!{}", step.stage.name()),
        })
        .collect();
    assert_eq!(said.join(" "), expected);
}

#[test]
fn unknown_steps_are_empty() {
    let passing = probed::passing(Family::V4).remove(0);
    assert!(steps(&passing, &Interfaces::default()).is_empty());
    // A confirmed run from a previous agent.
    let mut restored = passing.clone();
    probed::fail(&mut restored, ProbeCause::Leaked, 9);
    restored.delays = Default::default();
    assert!(steps(&restored, &Interfaces::default()).is_empty());
}
