//! Realistic sample reports for tests. Its own tests compare every sentence with crates/report/testdata/words.

use pathproof_facts::cause::{Cause, Failure, State};
use pathproof_facts::switches::{AuditBy, Enforcement};
use pathproof_facts::time::Mono;
use pathproof_judge::eligibility::Eligibility;
use pathproof_judge::verdict::finding::{BrokenServices, Evidence, Finding, Named, Rule, Scope};
use pathproof_judge::verdict::{FamilyVerdict, PathState, PathView, ServiceTrouble};
use pathproof_report::{
    AnswerReport, AnswersReport, Attached, DeviceReport, FailedConnectionReport, FleetSeen, Report,
    SentinelCondition,
};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::evidence::CoverageLoss;

mod cilium;
mod found;
pub mod probed;

pub use cilium::beside_cilium;
pub use found::set_finding;
use found::{connected, of};

#[cfg(test)]
mod tests;

/// The time of every sample: one hour after boot.
const AT: Mono = Mono(3_600_000_000_000);

/// This many milliseconds before the time of every sample.
pub fn ago(ms: u64) -> Mono {
    Mono(AT.0 - ms * 1_000_000)
}

/// The time of every sample on the wall clock.
pub fn written() -> jiff::Timestamp {
    "2026-11-21T13:00:00.25Z".parse().unwrap()
}

/// A sound node under steady traffic.
pub fn proven() -> Report {
    serde_json::from_str(include_str!("../testdata/report.json")).unwrap()
}

fn answered(status: u16) -> AnswersReport {
    let answer = AnswerReport {
        status,
        healthy: status == 200,
        would_fail: false,
    };
    AnswersReport {
        healthz: answer,
        livez: answer,
        audit: None,
        held: None,
        broken_services: Vec::new(),
        refused_by_owner: Vec::new(),
        refused_by_owner_omitted: None,
    }
}

/// The Service chain was flushed 8.7 s ago.
pub fn broken() -> Report {
    let mut report = proven();
    let verdict = &mut report.verdict;
    verdict.since = ago(8_700);
    let failures = [Some(110), None, Some(420)];
    verdict.families[0] = family(
        Family::V4,
        State::Broken,
        [Some(12_300), None, Some(12_450)],
        failures,
    );
    probed::flush(&mut verdict.families[0].lanes);
    set_finding(verdict, 0, probed::flushed_finding());
    verdict.families[0].findings.extend(beside_flushed());
    verdict.services = vec![
        ServiceTrouble {
            service: "shop/web:http".to_owned(),
            family: Family::V4,
            confirmed: true,
            cause: Cause::Leaked,
            failures: [(Failure::Refused, 4), (Failure::Leaked, 160)].into(),
            since: ago(12_200),
            last_failure: ago(110),
            last_proof: None,
            endpoints: 3,
        },
        ServiceTrouble {
            service: "shop/cart:grpc".to_owned(),
            family: Family::V4,
            confirmed: false,
            cause: Cause::Refused,
            failures: [(Failure::Refused, 48)].into(),
            since: ago(11_900),
            last_failure: ago(420),
            last_proof: None,
            endpoints: 4,
        },
    ];
    report.services[0].trouble = true;
    report.services[0].outcomes.leaked = 160;
    report.services[1].trouble = true;
    report.services[1].outcomes.refused = 48;
    report.answers = answered(503);
    report.failed_connections = vec![FailedConnectionReport {
        at: ago(110),
        service: "shop/web:http".to_owned(),
        path: SourceClass::Pod,
        failure: Failure::Leaked,
        client: "10.244.1.17".parse().unwrap(),
        frontend: "10.96.14.201:80".parse().unwrap(),
        destination: Some("10.96.14.201:80".parse().unwrap()),
        device: "eth0".to_owned(),
    }];
    report
}

/// Findings about real connections while the Service chain is empty.
fn beside_flushed() -> [Finding; 2] {
    let evidence = Evidence::Connections {
        services: Named::of(["shop/web:http", "shop/cart:grpc"].into_iter()),
        since: ago(8_600),
        lacking: None,
        clients: vec![Scope::Pods, Scope::Outside],
        failures: 212,
        last_success: Some(ago(8_900)),
    };
    let not_delivered = Evidence::AnswerNotDelivered {
        services: Named::of(["shop/cart:grpc"].into_iter()),
        clients: 3,
    };
    let causes = [Cause::Leaked, Cause::AnswerNotDelivered].map(Some);
    let degraded = Rule::DegradedAnswerNotDelivered;
    [
        of(Family::V4, causes[0], Rule::BrokenByRules, evidence),
        of(Family::V4, causes[1], degraded, not_delivered),
    ]
}

/// An agent that cannot load its programs, on a node that is being removed, in audit mode.
pub fn blind() -> Report {
    let mut report = proven();
    let verdict = &mut report.verdict;
    verdict.since = ago(3_541_000);
    verdict.eligibility = Eligibility::Tainted {
        taint: "ToBeDeletedByClusterAutoscaler".to_owned(),
    };
    report.drain.since = Some(ago(95_000));
    report.drain.connections = 1_720;
    report.drain.blind = Some("the observer is attached nowhere".to_owned());
    verdict.families = vec![family(Family::V4, State::Unknown, [None; 3], [None; 3])];
    verdict.families[0].lanes.clear();
    verdict.coverage.attached = 0;
    let loss = CoverageLoss::NotLoaded {
        why: "permission denied: the agent needs CAP_BPF and CAP_NET_ADMIN".to_owned(),
    };
    let evidence = Evidence::Unseen {
        loss: Some(loss.clone()),
    };
    set_finding(verdict, 0, Finding::new(Rule::ObserverBlind, evidence));
    verdict.coverage.losses = vec![loss];
    report.sentinel = probed::unprobed(SentinelCondition::Off, "CAP_NET_RAW is missing");
    report.agent.enforcement = Enforcement::Audit;
    report.answers.audit = Some(AuditBy::Flag);
    report.fleet = FleetSeen::default();
    report.answers.healthz.status = 503;
    report.services.clear();
    report.udp.services.clear();
    for device in &mut report.devices {
        device.attached = Attached::None;
    }
    report.expectations.missing = 3;
    report.cluster.problems = vec![
        "/etc/pathproof/cluster/services.yaml:41: Service shop/web: spec.ports[0].port is \"99999\": must be a port, 1 to 65535".to_owned(),
    ];
    report
}

fn family(
    family: Family,
    state: State,
    proofs: [Option<u64>; 3],
    failures: [Option<u64>; 3],
) -> FamilyVerdict {
    let paths: Vec<PathView> = SourceClass::ALL
        .into_iter()
        .zip(proofs.into_iter().zip(failures))
        .map(|(path, (proof, failure))| PathView {
            path,
            state: match (proof, failure) {
                (_, Some(_)) => PathState::Failing,
                (Some(_), None) => PathState::Proven,
                (None, None) => PathState::Quiet,
            },
            last_proof: proof.map(ago),
            last_failure: failure.map(ago),
        })
        .collect();
    let finding = connected(family, proofs[0].unwrap_or_default());
    FamilyVerdict {
        family,
        state,
        cause: None,
        why: None,
        findings: vec![finding.clone()],
        finding,
        last_proof: paths.iter().filter_map(|path| path.last_proof).max(),
        last_failure: paths.iter().filter_map(|path| path.last_failure).max(),
        failing_since: None,
        paths,
        lanes: probed::passing(family),
    }
}

fn device(name: &str, index: u32, uplink: bool) -> DeviceReport {
    DeviceReport {
        name: name.to_owned(),
        index,
        attached: Attached::Tcx,
        ingress_head: Some(true),
        egress_head: Some(true),
        uplink,
        problem: None,
    }
}

/// A busy node with single Services broken, many interfaces, and clsact beside TCX.
pub fn degraded() -> Report {
    let mut report = proven();
    let verdict = &mut report.verdict;
    verdict.since = ago(190_000);
    let first = "shop/checkout-with-a-rather-long-name-for-a-service:https";
    let services = Named::of([first].into_iter());
    let cause = Cause::Stale;
    let (failures, more) = (40, 2);
    let broken = vec![BrokenServices {
        cause,
        services,
        failures,
    }];
    let evidence = Evidence::Services {
        broken,
        more,
        last_success: Some(ago(120)),
    };
    let finding = of(Family::V4, Some(cause), Rule::DegradedServices, evidence);
    set_finding(verdict, 0, finding);
    verdict.services = (0..15)
        .map(|index| ServiceTrouble {
            service: match index {
                0 => first.to_owned(),
                index => format!("team-{index}/api"),
            },
            family: Family::V4,
            confirmed: index < 3,
            cause: Cause::Stale,
            failures: [(Failure::Stale, 40 - index)].into(),
            since: ago(188_000),
            last_failure: ago(900),
            last_proof: Some(ago(1_000)),
            endpoints: 2,
        })
        .collect();
    for family in &mut verdict.families {
        family.lanes.clear();
    }
    verdict.coverage.attached = 249;
    verdict.coverage.wanted = 250;
    let loss = CoverageLoss::NotFirst {
        device: "eth1".to_owned(),
    };
    verdict.coverage.losses = vec![loss];
    report
        .devices
        .extend((0..240).map(|index| device(&format!("lxc{index:04x}"), 40 + index, false)));
    report.devices.push(DeviceReport {
        attached: Attached::Clsact,
        egress_head: Some(false),
        ..device("eth1", 4, true)
    });
    report.devices.push(DeviceReport {
        attached: Attached::None,
        problem: Some("TCX: too many programs on the hook (64)".to_owned()),
        ..device("bond0", 5, false)
    });
    report.sentinel = probed::unprobed(
        SentinelCondition::Absent,
        "Service pathproof/pathproof-sentinel is not in the cluster",
    );
    report.services_omitted = 31;
    report
}
