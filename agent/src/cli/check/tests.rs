use std::time::Duration;

use agent_common::service::Family;
use rstest::rstest;

use super::*;
use agent_core::cause::ProbeCause;
use agent_core::probes::ProbeOutcome;
use agent_core::report::sample::{self, probed};
use agent_core::trace::{ProbePath, Transport};

const PASSED: ProbeOutcome = ProbeOutcome::Passed { masqueraded: true };

fn tally(path: ProbePath, outcomes: &[ProbeOutcome]) -> Tally {
    let mut tally = Tally::new(Lane {
        path,
        family: Family::V4,
        transport: Transport::Tcp,
    });
    for outcome in outcomes {
        tally.count(*outcome);
    }
    tally
}

fn observed(report: Report, tallies: Vec<Tally>) -> Observed {
    Observed {
        report,
        time: Duration::from_secs(4),
        tallies,
    }
}

fn result(observed: &Observed) -> CheckResult {
    Checked::of(observed, Source::Itself).result
}

#[rstest]
#[case(ProbePath::OffCluster, None, CheckResult::Sound)]
#[case(ProbePath::OffCluster, Some(ProbeCause::Leaked), CheckResult::Broken)]
#[case(ProbePath::NodePort, Some(ProbeCause::Refused), CheckResult::Broken)]
#[case(ProbePath::Pod, Some(ProbeCause::ForwardingOff), CheckResult::Broken)]
#[case(ProbePath::Host, Some(ProbeCause::Leaked), CheckResult::Unknown)]
#[case(
    ProbePath::OffCluster,
    Some(ProbeCause::LostBeforeLeaving),
    CheckResult::Unknown
)]
#[case(
    ProbePath::NodePort,
    Some(ProbeCause::Unreachable),
    CheckResult::Unknown
)]
fn a_node_is_judged(
    #[case] path: ProbePath,
    #[case] cause: Option<ProbeCause>,
    #[case] expected: CheckResult,
) {
    let outcome = cause.map_or(PASSED, ProbeOutcome::Failed);
    let tallies = vec![
        tally(ProbePath::OffCluster, &[PASSED; 8]),
        tally(path, &[outcome; 8]),
    ];
    assert_eq!(result(&observed(sample::proven(), tallies)), expected);
}

#[rstest]
#[case(&[PASSED], PathResult::Pass)]
#[case(&[], PathResult::Unsure)]
#[case(&[ProbeOutcome::Failed(ProbeCause::Leaked)], PathResult::Unsure)]
#[case(&[ProbeOutcome::Failed(ProbeCause::Leaked); 2], PathResult::Fail)]
#[case(&[PASSED, ProbeOutcome::Failed(ProbeCause::Leaked)], PathResult::Unsure)]
#[case(&[ProbeOutcome::Failed(ProbeCause::Leaked), PASSED], PathResult::Pass)]
fn a_path_is_judged(#[case] outcomes: &[ProbeOutcome], #[case] expected: PathResult) {
    let tallies = vec![tally(ProbePath::OffCluster, outcomes)];
    let checked = Checked::of(&observed(sample::proven(), tallies), Source::Itself);
    assert_eq!(checked.paths[0].result, expected);
}

#[test]
fn real_connections_alone_may_be_broken() {
    assert_eq!(
        result(&observed(sample::broken(), Vec::new())),
        CheckResult::Broken
    );
}

#[test]
fn without_a_sentinel_nothing_is_known() {
    let checked = Checked::of(&observed(sample::degraded(), Vec::new()), Source::Itself);
    assert_eq!(checked.result, CheckResult::Unknown);
    assert!(checked.sentence.starts_with("there is no sentinel"));
}

#[test]
fn an_agents_probes_are_those_between_two_reports() {
    let first = sample::proven();
    let mut last = probed::flushed();
    for family in &mut last.verdict.families {
        for lane in &mut family.lanes {
            lane.passed = 14_210;
        }
    }
    let tallies = between(&first, &last);
    assert_eq!(tallies.len(), 10);
    assert_eq!((tallies[0].passed, tallies[0].failed), (10, 8));
    assert_eq!(
        (tallies[0].in_row, tallies[0].cause),
        (8, Some(ProbeCause::Leaked))
    );
    assert_eq!((tallies[5].passed, tallies[5].failed), (10, 0));
}

/// Pages as they are printed: agent/testdata/check.
#[rstest]
#[case("sound", sample::proven())]
#[case("flushed", probed::flushed())]
#[case("never_worked", probed::never_worked())]
#[case("absent", sample::degraded())]
fn pages(#[case] name: &str, #[case] last: Report) {
    let mut first = sample::proven();
    for family in &mut first.verdict.families {
        for lane in &mut family.lanes {
            lane.passed = lane.passed.saturating_sub(16);
        }
    }
    let tallies = between(&first, &last);
    let source = match name {
        "flushed" => Source::Agent {
            address: "127.0.0.1:19256".to_owned(),
            version: "0.1.0".to_owned(),
        },
        _ => Source::Itself,
    };
    let page = render(&Checked::of(&observed(last, tallies), source), false);
    crate::cli::paper::assert_page("check", name, &page);
}
