use std::time::Duration;

use pathproof_judge::verdict::LaneState;
use pathproof_samples as sample;
use pathproof_samples::probed;
use rstest::rstest;

use super::*;

fn checked(report: &Report) -> Checked<'_> {
    Checked::of(report, Source::Itself, Duration::from_secs(4))
}

#[rstest]
#[case(sample::proven(), CheckResult::Healthy)]
#[case(probed::flushed(), CheckResult::Broken)]
#[case(sample::broken(), CheckResult::Broken)]
#[case(probed::filtered(), CheckResult::Unknown)]
#[case(probed::never_worked(), CheckResult::Unknown)]
#[case(sample::degraded(), CheckResult::Unknown)]
#[case(sample::blind(), CheckResult::Unknown)]
fn the_result_is_the_verdict(#[case] report: Report, #[case] expected: CheckResult) {
    assert_eq!(checked(&report).result, expected);
}

#[test]
fn a_failed_check_has_the_findings_sentence() {
    let filtered = probed::filtered();
    assert_eq!(checked(&filtered).sentence, filtered.verdict.reason());
}

#[test]
fn a_proven_node_is_sound_only_if_every_tcp_path_passes() {
    let mut report = sample::proven();
    let lane = &mut report.verdict.families[1].lanes[1];
    (lane.state, lane.cause) = (LaneState::Void, None);
    let void = checked(&report);
    assert_eq!(void.result, CheckResult::Unknown);
    assert!(void.sentence.starts_with("IPv6 node ports: "), "{void:?}");
    report.verdict.families.iter_mut().for_each(|family| {
        family
            .lanes
            .iter_mut()
            .for_each(|lane| lane.state = LaneState::Off);
    });
    assert_eq!(checked(&report).result, CheckResult::Unknown);
}

/// Without the Node object, neither taints nor its deletion can be seen.
#[test]
fn a_node_without_an_object_is_unknown() {
    let mut report = sample::proven();
    report.cluster.missing_node = Some("no Node is named here".to_owned());
    let checked = checked(&report);
    assert_eq!(checked.result, CheckResult::Unknown);
    assert_eq!(checked.sentence, "no Node is named here");
}

#[test]
fn without_a_sentinel_nothing_is_known() {
    let report = sample::degraded();
    let checked = checked(&report);
    assert_eq!(checked.result, CheckResult::Unknown);
    assert!(checked.sentence.starts_with("there is no sentinel"));
}

#[rstest]
#[case("sound", sample::proven())]
#[case("flushed", probed::flushed())]
#[case("never_worked", probed::never_worked())]
#[case("absent", sample::degraded())]
fn pages(#[case] name: &str, #[case] report: Report) {
    let source = match name {
        "flushed" => Source::Agent {
            address: "127.0.0.1:19256".to_owned(),
            version: "0.1.0".to_owned(),
        },
        _ => Source::Itself,
    };
    let checked = Checked::of(&report, source, Duration::from_secs(4));
    crate::cli::page::assert_page("check", name, &checked.page(&report, false));
}
