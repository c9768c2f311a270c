//! The sentinel and its lanes in sample reports.

use pathproof_facts::cause::{Cause, ProbeCause};
use pathproof_facts::trace::ProbePath;
use pathproof_judge::verdict::finding::{
    ConcurrentFailures, Evidence, FailedLane, Finding, LaneLacking, Named, NeverWorked, Rule, Scope,
};
use pathproof_judge::verdict::{LaneState, LaneView, PathState, StageDelays};
use pathproof_report::{Report, SentinelCondition, SentinelReport};
use pathproof_wire::service::Family;
use pathproof_witness::conntrack::{Conntrack, Table};

use super::found::{of, set_finding};
use super::{ago, answered, proven};

/// A sentinel that is not probed.
pub fn unprobed(state: SentinelCondition, sentence: &str) -> SentinelReport {
    SentinelReport {
        state,
        sentence: sentence.to_owned(),
        families: Vec::new(),
        ..proven().sentinel
    }
}

pub fn passing(family: Family) -> Vec<LaneView> {
    proven().verdict.families.swap_remove(family as usize).lanes
}

/// Makes the lane fail for this number of probes.
pub fn fail(lane: &mut LaneView, cause: ProbeCause, failures: u32) {
    let since = 250 * u64::from(failures) + 110;
    lane.state = LaneState::Failing;
    lane.cause = Some(cause);
    lane.failures = failures;
    lane.failing_since = Some(ago(since));
    lane.last_failure = Some(ago(110));
    lane.last_pass = Some(ago(since + 190));
    lane.failed = u64::from(failures);
    lane.delays = reached(cause, lane.delays);
    lane.refusal_clear = matches!(lane.path, ProbePath::NodePort | ProbePath::Host);
}

/// Makes a lane that never worked in this boot.
pub fn never(lane: &mut LaneView, cause: ProbeCause) {
    fail(lane, cause, 0);
    lane.state = LaneState::NeverWorked;
    lane.armed = false;
    lane.failing_since = None;
    lane.last_pass = None;
    lane.passed = 0;
    lane.failed = 240;
}

/// A failing lane, in the form of a finding.
fn failed(lane: &LaneView) -> FailedLane {
    FailedLane {
        path: lane.path,
        transport: lane.transport,
        cause: lane.cause.unwrap(),
        failures: lane.failures,
        refusal_clear: lane.refusal_clear,
        client: lane.client,
    }
}

fn reached(cause: ProbeCause, delays: StageDelays) -> StageDelays {
    match cause {
        ProbeCause::NoData | ProbeCause::NotMasqueraded => delays,
        ProbeCause::AnswerLost => StageDelays {
            collected: None,
            ..delays
        },
        _ => StageDelays {
            arrived: delays.arrived,
            ..StageDelays::default()
        },
    }
}

/// An idle node whose Service chain was flushed two seconds ago: only probes show it.
pub fn flushed() -> Report {
    let mut report = proven();
    report.services.clear();
    let verdict = &mut report.verdict;
    verdict.since = ago(1_100);
    set_finding(verdict, 0, flushed_finding());
    let family = &mut verdict.families[0];
    family.failing_since = Some(ago(2_110));
    family.last_failure = Some(ago(110));
    flush(&mut family.lanes);
    report.answers = answered(503);
    report
}

/// The kernel's connection table has been full for six seconds.
pub fn crowded() -> Report {
    let mut report = flushed();
    let verdict = &mut report.verdict;
    verdict.conntrack = full_table();
    let lanes = &mut verdict.families[0].lanes;
    for lane in &mut *lanes {
        fail(lane, ProbeCause::ConntrackFull, 24);
        lane.last_pass = Some(ago(1_300));
    }
    let finding = broken_by_probes(lanes, Cause::ConntrackFull);
    set_finding(verdict, 0, finding);
    report
}

/// A full connection table.
pub fn full_table() -> Conntrack {
    Conntrack {
        table: Some(Table {
            entries: 262_144,
            limit: 262_144,
            drop: 18_201,
            insert_failed: 40,
            early_drop: 1_207,
        }),
        read: Some(ago(320)),
        dropped: 18_120,
        full: Some(ago(320)),
    }
}

/// The lanes of a node whose IPv4 Service chain is empty.
pub fn flush(lanes: &mut [LaneView]) {
    for lane in lanes {
        let cause = match lane.path {
            ProbePath::NodePort => ProbeCause::Refused,
            _ => ProbeCause::Leaked,
        };
        fail(lane, cause, 8);
    }
}

pub fn flushed_finding() -> Finding {
    let mut lanes = passing(Family::V4);
    flush(&mut lanes);
    broken_by_probes(&lanes, Cause::Leaked)
}

fn broken_by_probes(lanes: &[LaneView], cause: Cause) -> Finding {
    let lanes = lanes[..2].iter().map(failed).collect();
    let evidence = Evidence::Probes {
        lanes,
        beside: None,
    };
    of(Family::V4, Some(cause), Rule::BrokenByProbes, evidence)
}

/// Everything forwarded is dropped, and all clients are outside.
pub fn dropped() -> Report {
    let mut report = proven();
    let verdict = &mut report.verdict;
    verdict.since = ago(23_600);
    let family = &mut verdict.families[0];
    for lane in &mut family.lanes {
        if matches!(lane.path, ProbePath::OffCluster | ProbePath::NodePort) {
            fail(lane, ProbeCause::LostBeforeLeaving, 99);
        }
    }
    family.failing_since = Some(ago(24_860));
    family.last_failure = Some(ago(110));
    let lanes = family
        .lanes
        .iter()
        .filter(|lane| lane.state == LaneState::Failing);
    let lanes = lanes.take(2).map(failed).collect();
    let services = ["default/np", "default/cip", "default/lb"];
    let evidence = Evidence::Probes {
        lanes,
        beside: Some(ConcurrentFailures {
            clients: vec![Scope::Outside],
            services: Named::of(services.into_iter()),
            failures: 2_320,
            since: ago(24_700),
            last_success: Some(ago(24_900)),
            others_succeed: false,
        }),
    };
    let (lost, mtu) = (Some(Cause::Lost), Some(Cause::Mtu));
    let finding = of(Family::V4, lost, Rule::BrokenByTwoScopes, evidence);
    set_finding(verdict, 0, finding);
    let failures = Evidence::LargeTransferFailures {
        transfers: 4,
        since: ago(12_000),
    };
    let failures = of(Family::V4, mtu, Rule::DegradedByLargeTransfers, failures);
    verdict.families[0].findings.push(failures);
    report.answers = answered(503);
    report
}

/// A filter drops the sentinel's packets, and no real connection failed: not confirmed.
pub fn filtered() -> Report {
    let mut report = proven();
    let verdict = &mut report.verdict;
    verdict.since = ago(40_000);
    let lane = &mut verdict.families[0].lanes[0];
    fail(lane, ProbeCause::LostBeforeLeaving, 160);
    let evidence = Evidence::Unconfirmed {
        lane: failed(lane),
        lacking: LaneLacking::Connection,
    };
    let cause = Some(Cause::Lost);
    let finding = of(Family::V4, cause, Rule::SuspectByProbes, evidence);
    set_finding(verdict, 0, finding);
    report
}

/// No probe passed in this boot, and there is no traffic.
pub fn never_worked() -> Report {
    let mut report = proven();
    report.services.clear();
    let verdict = &mut report.verdict;
    verdict.since = ago(3_400_000);
    // The first family decides for the node.
    for index in [1, 0] {
        let family = &mut verdict.families[index];
        for path in &mut family.paths {
            path.state = PathState::Quiet;
            path.last_proof = None;
        }
        for lane in &mut family.lanes {
            never(lane, ProbeCause::LostBeforeLeaving);
        }
        let lane = &family.lanes[0];
        let evidence = Evidence::Never(NeverWorked {
            path: lane.path,
            transport: lane.transport,
            cause: lane.cause,
            client: lane.client,
        });
        let finding = of(family.family, None, Rule::NeverWorked, evidence);
        set_finding(verdict, index, finding);
    }
    report
}

/// The same lane with Cilium on the node, where its probes do not count.
pub fn off(lane: &LaneView) -> LaneView {
    LaneView {
        armed: false,
        state: LaneState::Off,
        beside_cilium: true,
        last_pass: None,
        delays: StageDelays::default(),
        passed: 0,
        ..lane.clone()
    }
}
