//! The sentinel of sample reports: its block and its lanes.

use super::*;
use crate::cause::ProbeCause;
use crate::conntrack::Table;
use crate::report::sentinel::{SentinelAddresses, SentinelDevices};
use crate::trace::{ProbePath, Transport};
use crate::verdict::finding::{FailedLane, LaneLacking, NeverWorked};
use crate::verdict::{LaneState, LaneView, StageDelays};

/// It is probed in both families, without pods' own path.
pub fn sentinel() -> SentinelReport {
    SentinelReport {
        state: SentinelState::Probing,
        sentence: "Service pathproof/pathproof-sentinel is probed".to_owned(),
        service: Some("pathproof/pathproof-sentinel".to_owned()),
        devices: Some(SentinelDevices {
            client_far: "pathproof-c1".to_owned(),
            client_near: "pathproof-c0".to_owned(),
            server_near: "pathproof-s0".to_owned(),
            server_far: "pathproof-s1".to_owned(),
        }),
        families: vec![
            addresses(
                Family::V4,
                "198.18.0.1",
                "10.96.240.1:80",
                "192.0.2.10:30999",
                "198.18.0.2:20001",
            ),
            addresses(
                Family::V6,
                "2001:2::1",
                "[fd00:96::f0]:80",
                "[2001:db8::10]:30999",
                "[2001:2::2]:20001",
            ),
        ],
    }
}

/// It is not probed.
pub fn unprobed(state: SentinelState, sentence: &str) -> SentinelReport {
    SentinelReport {
        state,
        sentence: sentence.to_owned(),
        families: Vec::new(),
        ..sentinel()
    }
}

fn addresses(
    family: Family,
    client: &str,
    cluster_ip: &str,
    node_port: &str,
    endpoint: &str,
) -> SentinelAddresses {
    let socket = |text: &str| -> SocketAddr { text.parse().unwrap() };
    SentinelAddresses {
        family,
        client: client.parse().unwrap(),
        pod_client: None,
        cluster_ip: socket(cluster_ip),
        cluster_ip_udp: Some(socket(cluster_ip)),
        node_port: Some(socket(node_port)),
        node_port_udp: Some(socket(node_port)),
        endpoint: socket(endpoint),
        outside_rests: false,
    }
}

/// Lanes of a sound family.
pub fn passing(family: Family) -> Vec<LaneView> {
    [
        (ProbePath::OffCluster, Transport::Tcp),
        (ProbePath::NodePort, Transport::Tcp),
        (ProbePath::Host, Transport::Tcp),
        (ProbePath::OffCluster, Transport::Udp),
        (ProbePath::NodePort, Transport::Udp),
    ]
    .into_iter()
    .enumerate()
    .map(|(index, (path, transport))| {
        let ms = 40 + 50 * index as u64;
        LaneView {
            path,
            transport,
            armed: true,
            state: LaneState::Passing,
            cause: None,
            failures: 0,
            failing_since: None,
            last_pass: Some(ago(ms)),
            last_failure: None,
            delays: StageDelays {
                arrived: (path != ProbePath::Host).then_some(9_000),
                translated: Some(31_000),
                echoed: Some(4_000),
                returned: Some(6_000),
                collected: Some(22_000),
                round_trip: Some(118_000 + 7_000 * index as u64),
            },
            generation: Some(20_001),
            wanted: Some(20_001),
            lag: Some(180_000_000),
            late: None,
            passed: 14_200,
            failed: 0,
            void: 2,
            client: client(family, path),
            local: false,
            void_cause: None,
            beside_cilium: false,
            rival: None,
        }
    })
    .collect()
}

fn client(family: Family, path: ProbePath) -> Option<IpAddr> {
    let client: IpAddr = match family {
        Family::V4 => "198.18.0.1".parse().unwrap(),
        Family::V6 => "2001:2::1".parse().unwrap(),
    };
    (path != ProbePath::Host).then_some(client)
}

/// The lane fails for so many probes.
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
    lane.local = matches!(lane.path, ProbePath::NodePort | ProbePath::Host);
}

/// It never worked in this boot.
pub fn never(lane: &mut LaneView, cause: ProbeCause) {
    fail(lane, cause, 0);
    lane.state = LaneState::NeverWorked;
    lane.armed = false;
    lane.failing_since = None;
    lane.last_pass = None;
    lane.passed = 0;
    lane.failed = 240;
}

/// A lane that fails, as a finding has it.
fn failed(lane: &LaneView, clear: bool) -> FailedLane {
    FailedLane {
        path: lane.path,
        transport: lane.transport,
        cause: lane.cause.unwrap(),
        failures: lane.failures,
        local: lane.local,
        clear,
        client: lane.client,
    }
}

/// Stages that a probe with this cause reaches.
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

/// An idle node whose Service chain was flushed two seconds ago: nothing but probes tells.
pub fn flushed() -> Report {
    let mut report = proven();
    report.services.clear();
    let verdict = &mut report.verdict;
    verdict.since = ago(1_100);
    judge(verdict, 0, flushed_finding(false));
    let family = &mut verdict.families[0];
    family.by_sentinel = true;
    family.failing_since = Some(ago(2_110));
    family.last_failure = Some(ago(110));
    flush(&mut family.lanes);
    let answer = AnswerReport {
        status: 503,
        healthy: false,
        would_fail: false,
    };
    report.answers = Answers {
        healthz: answer,
        livez: answer,
        audit: None,
        held: None,
        broken_services: Vec::new(),
    };
    report
}

/// The kernel's table of connections has been full for six seconds.
pub fn crowded() -> Report {
    let mut report = flushed();
    let verdict = &mut report.verdict;
    verdict.conntrack = full_table();
    let lanes = &mut verdict.families[0].lanes;
    for lane in &mut *lanes {
        fail(lane, ProbeCause::ConntrackFull, 24);
        lane.last_pass = Some(ago(1_300));
    }
    let lanes = lanes[..2].iter().map(|lane| failed(lane, true)).collect();
    let evidence = Evidence::Probes { lanes, real: false };
    let cause = Some(Cause::ConntrackFull);
    judge(
        verdict,
        0,
        of(Family::V4, cause, Rule::BrokenByProbes, evidence),
    );
    report
}

/// A table without room.
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

/// Finding for such lanes; with real connections that fail as well, or without.
pub fn flushed_finding(real: bool) -> Finding {
    let mut lanes = passing(Family::V4);
    flush(&mut lanes);
    let lanes = lanes[..2].iter().map(|lane| failed(lane, true)).collect();
    let evidence = Evidence::Probes { lanes, real };
    let cause = Some(Cause::Leaked);
    of(Family::V4, cause, Rule::BrokenByProbes, evidence)
}

/// A filter drops the sentinel's addresses, and no real connection failed: not confirmed.
pub fn filtered() -> Report {
    let mut report = proven();
    let verdict = &mut report.verdict;
    verdict.since = ago(40_000);
    let lane = &mut verdict.families[0].lanes[0];
    fail(lane, ProbeCause::LostBeforeLeaving, 160);
    let evidence = Evidence::Unconfirmed {
        lane: failed(lane, false),
        lacking: LaneLacking::Connection,
    };
    let cause = Some(Cause::Lost);
    let finding = of(Family::V4, cause, Rule::SuspectByProbes, evidence);
    judge(verdict, 0, finding);
    report
}

/// No probe ever came through in this boot, and there is no traffic.
pub fn never_worked() -> Report {
    let mut report = proven();
    report.services.clear();
    let verdict = &mut report.verdict;
    verdict.since = ago(3_400_000);
    // The first family speaks for the node.
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
        judge(verdict, index, finding);
    }
    report
}

/// The same lane beside Cilium, where none of its probes counts.
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
