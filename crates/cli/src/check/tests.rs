use std::time::Duration;

use pathproof_judge::verdict::LaneState;
use pathproof_samples as sample;
use pathproof_samples::probed;
use rstest::rstest;

use super::*;

#[rstest]
#[case(sample::proven(), CheckResult::Healthy)]
#[case(probed::flushed(), CheckResult::Broken)]
#[case(sample::broken(), CheckResult::Broken)]
#[case(probed::filtered(), CheckResult::Unknown)]
#[case(probed::never_worked(), CheckResult::Unknown)]
#[case(sample::degraded(), CheckResult::Unknown)]
#[case(sample::blind(), CheckResult::Unknown)]
fn the_result_is_the_verdict(#[case] report: Report, #[case] expected: CheckResult) {
    assert_eq!(result(&report).0, expected);
}

#[test]
fn a_failed_check_has_the_findings_sentence() {
    let filtered = probed::filtered();
    assert_eq!(result(&filtered).1, filtered.verdict.reason());
}

#[test]
fn a_proven_node_is_sound_only_if_every_tcp_path_passes() {
    let mut report = sample::proven();
    let lane = &mut report.verdict.families[1].lanes[1];
    (lane.state, lane.cause) = (LaneState::Void, None);
    let (void, why) = result(&report);
    assert_eq!(void, CheckResult::Unknown);
    assert!(why.starts_with("IPv6 node ports: "), "{why}");
    report.verdict.families.iter_mut().for_each(|family| {
        family
            .lanes
            .iter_mut()
            .for_each(|lane| lane.state = LaneState::Off);
    });
    assert_eq!(result(&report).0, CheckResult::Unknown);
}

/// Without the Node object, neither taints nor its deletion can be seen.
#[test]
fn a_node_without_an_object_is_unknown() {
    let mut report = sample::proven();
    report.cluster.missing_node = Some("no Node is named here".to_owned());
    let expected = (CheckResult::Unknown, "no Node is named here".to_owned());
    assert_eq!(result(&report), expected);
}

#[test]
fn without_a_sentinel_nothing_is_known() {
    let (found, why) = result(&sample::degraded());
    assert_eq!(found, CheckResult::Unknown);
    assert!(why.starts_with("there is no sentinel"));
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
    let page = page(&report, &source, Duration::from_secs(4), false);
    crate::page::assert_page("check", name, &page);
}
