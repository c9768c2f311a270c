//! What happens when there is more than there is room for: it is counted, bounded, and every packet
//! passes.

use std::net::{Ipv4Addr, SocketAddr};

use agent_common::abi::{
    BUDGET_PER_WINDOW, BUDGET_WINDOW_SHIFT, CPU_REPORT_WINDOW_SHIFT, CPU_REPORTS, FOLLOW_ALL,
    SERVICE_REPORT_NS, map, program,
};
use agent_common::evidence::{Fault, Outcome};
use agent_common::service::{FrontendKind, FrontendValue, Owed, SourceClass};
use agent_common::transition::{Failed, failed};
use node_tests::observer::{Observer, monotonic};
use node_tests::packet;
use node_tests::scenario::mapped;
use rstest::rstest;

use crate::{SERVICE, on_stage};

fn pod(index: u32) -> SocketAddr {
    let address = Ipv4Addr::from(0x0af4_0000 + index);
    SocketAddr::from((address, 40_001))
}

fn cluster_ip(index: u32) -> SocketAddr {
    let address = Ipv4Addr::from(0x0a60_0001 + index);
    SocketAddr::from((address, 80))
}

fn pass(observer: &Observer, hook: &str, bytes: &[u8], device: u32) {
    let passed = observer.run(hook, bytes, device).expect("a run");
    assert_eq!((passed.verdict, passed.bytes.as_slice()), (-1, bytes));
}

fn fault(observer: &Observer, fault: Fault) -> u64 {
    let faults = observer.faults().expect("faults");
    let found = faults.iter().find(|(found, _)| *found == fault);
    found.map_or(0, |(_, count)| *count)
}

fn counted(observer: &Observer, service: u32, outcome: Outcome) -> u64 {
    let outcomes = observer
        .outcomes(service, SourceClass::Pod)
        .expect("counts");
    let found = outcomes.iter().find(|(found, _)| *found == outcome);
    found.map_or(0, |(_, count)| u64::from(*count))
}

#[test]
fn full_map_of_connections() {
    const ROOM: u32 = 16;
    on_stage(
        &[(map::PENDING, ROOM), (FOLLOW_ALL, 1)],
        |observer, sandbox| {
            for index in 0..64 {
                let bytes = packet::syn(pod(index), cluster_ip(0), 1_000 * index).bytes();
                pass(observer, program::INGRESS, &bytes, sandbox.client);
            }
            let followed = observer.connections().expect("connections") as u64;
            assert_eq!(followed, u64::from(ROOM));
            assert_eq!(fault(observer, Fault::PendingFull), 64 - followed);
            assert_eq!(counted(observer, SERVICE, Outcome::Arrived), followed);

            // One that is not followed is judged by nothing that it does.
            let unfollowed = packet::syn(
                pod(60),
                "10.244.7.7:80".parse().expect("an address"),
                60_000,
            );
            pass(observer, program::EGRESS, &unfollowed.bytes(), sandbox.pods);
            assert_eq!(counted(observer, SERVICE, Outcome::Misrouted), 0);
        },
    );
}

/// A flood of sources must not silence the others: sources share a budget by a hash, and that
/// spreads them.
#[test]
fn many_sources() {
    on_stage(&[(FOLLOW_ALL, 1)], |observer, sandbox| {
        for index in 0..4_000 {
            let bytes = packet::syn(pod(index), cluster_ip(0), 1_000 * index).bytes();
            pass(observer, program::INGRESS, &bytes, sandbox.client);
        }
        assert_eq!(counted(observer, SERVICE, Outcome::Arrived), 4_000);
        assert_eq!(observer.faults().expect("faults"), []);
        let used = observer.budgets_in_use().expect("budgets");
        // 4,000 of 8,192 at random leave 3,164 in use; a poor hash far fewer.
        assert!(used > 3_000, "{used} budgets for 4,000 sources");
    });
}

/// One source's flood is followed up to its budget only, by whichever hook it is seen (finding 14).
#[rstest]
#[case(program::INGRESS)]
#[case(program::EGRESS)]
fn flood_of_one_source(#[case] hook: &'static str) {
    const FLOOD: u32 = 10_000;
    on_stage(&[(FOLLOW_ALL, 1)], |observer, sandbox| {
        let began = monotonic();
        for index in 0..FLOOD {
            let bytes = packet::syn(pod(1), cluster_ip(0), 1_000 * index).bytes();
            pass(observer, hook, &bytes, sandbox.uplink);
        }
        let windows = ((monotonic() >> BUDGET_WINDOW_SHIFT) - (began >> BUDGET_WINDOW_SHIFT)) + 1;
        let followed = observer.connections().expect("connections") as u64;
        assert!(followed >= u64::from(BUDGET_PER_WINDOW));
        assert!(
            followed <= windows * u64::from(BUDGET_PER_WINDOW),
            "{followed}"
        );
        assert_eq!(
            fault(observer, Fault::OverBudget),
            u64::from(FLOOD) - followed
        );
    });
}

/// A storm of failures fills neither the ring buffer nor its reader's time: what is not reported is
/// counted.
#[rstest]
#[case::of_one_service(1)]
#[case::of_many_services(2_000)]
fn storm_of_anomalies(#[case] services: u32) {
    const STORM: u32 = 10_000;
    on_stage(&[], |observer, sandbox| {
        for index in 1..services {
            let value = FrontendValue {
                service: SERVICE + index,
                kind: FrontendKind::ClusterIp as u8,
                owed: [Owed::Forward as u8; 3],
                ..FrontendValue::default()
            };
            let address = mapped(cluster_ip(index).ip());
            observer.put_frontend(address, 80, value).expect("room");
        }
        let began = monotonic();
        for index in 0..STORM {
            let bytes = packet::syn(pod(index), cluster_ip(index % services), 1_000 * index);
            pass(observer, program::EGRESS, &bytes.bytes(), sandbox.uplink);
        }
        let ended = monotonic();
        let followed = observer.followed_whole().expect("connections");
        let leaked = followed
            .iter()
            .filter(|pending| failed(pending, u64::MAX) == Some(Failed::Leaked))
            .count() as u64;
        assert_eq!(leaked, u64::from(STORM), "every one is known");

        let records = observer.anomalies().expect("a ring buffer").len() as u64;
        let unreported = fault(observer, Fault::ReportLimited) + fault(observer, Fault::RingFull);
        assert_eq!(records + unreported, leaked);
        let per_service = (ended - began) / SERVICE_REPORT_NS + 1;
        assert!(
            records >= 1 && records <= per_service * u64::from(services),
            "{records}"
        );
        let processors = aya::util::nr_cpus().expect("processors") as u64;
        let windows = ((ended >> CPU_REPORT_WINDOW_SHIFT) - (began >> CPU_REPORT_WINDOW_SHIFT)) + 1;
        let per_processor = windows * u64::from(CPU_REPORTS);
        assert!(records <= per_processor * processors, "{records}");
    });
}
