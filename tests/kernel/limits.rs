//! Full maps and floods: the work is bounded, connections that are not followed are counted, and every packet
//! passes.

use std::net::{Ipv4Addr, SocketAddr};

use node_tests::observer::monotonic;
use node_tests::packet::{self, Packet};
use pathproof_wire::abi::{
    BUDGET_PER_WINDOW, BUDGET_WINDOW_SHIFT, CPU_REPORT_WINDOW_SHIFT, CPU_REPORTS, FOLLOW_ALL,
    SERVICE_REPORT_NS, map, program,
};
use pathproof_wire::evidence::{Fault, Outcome};
use pathproof_wire::transition::Failed;
use rstest::rstest;

use crate::stage::{SERVICE, at, cluster_ip, failures, on_stage};

fn syn(pod: u32, service: u32, isn: u32) -> Packet {
    let pod = SocketAddr::from((Ipv4Addr::from(0x0af4_0000 + pod), 40_001));
    packet::syn(pod, address(service), isn)
}

fn address(index: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(0x0a60_0001 + index), 80))
}

#[test]
fn full_map_of_connections() {
    const ROOM: u32 = 16;
    on_stage(&[(map::PENDING, ROOM), (FOLLOW_ALL, 1)], |stage| {
        for index in 0..64 {
            stage.comes(&syn(index, 0, 1_000 * index), stage.at.client);
        }
        assert_eq!(stage.connections().len() as u32, ROOM);
        assert_eq!(stage.fault(Fault::PendingFull), u64::from(64 - ROOM));
        assert_eq!(stage.count(SERVICE, Outcome::Arrived), ROOM);

        // A connection without an entry must not be judged.
        let unfollowed = packet::syn(at("10.244.0.60:40001"), at("10.244.7.7:80"), 60_000);
        stage.goes(&unfollowed, stage.at.pods);
        assert_eq!(stage.count(SERVICE, Outcome::Misrouted), 0);
    });
}

/// A flood from one source is followed only up to the source's budget, at ingress and egress (finding 14).
#[rstest]
#[case(program::INGRESS)]
#[case(program::EGRESS)]
fn flood_of_one_source(#[case] hook: &str) {
    const FLOOD: u32 = 10_000;
    on_stage(&[(FOLLOW_ALL, 1)], |stage| {
        let began = monotonic();
        for index in 0..FLOOD {
            stage.pass(hook, &syn(1, 0, 1_000 * index).bytes(), stage.at.uplink);
        }
        let windows = ((monotonic() >> BUDGET_WINDOW_SHIFT) - (began >> BUDGET_WINDOW_SHIFT)) + 1;
        let followed = stage.connections().len() as u64;
        let budget = u64::from(BUDGET_PER_WINDOW);
        assert!(
            (budget..=windows * budget).contains(&followed),
            "{followed}"
        );
        let over = stage.fault(Fault::OverBudget);
        assert_eq!(over, u64::from(FLOOD) - followed);
    });
}

/// Many failures at once neither fill the ring buffer nor overload its reader. Failures that are not reported
/// are counted.
#[rstest]
#[case::of_one_service(1)]
#[case::of_many_services(2_000)]
fn storm_of_anomalies(#[case] services: u32) {
    const STORM: u32 = 10_000;
    on_stage(&[], |stage| {
        for index in 1..services {
            stage.put_frontend(address(index), cluster_ip(SERVICE + index, 0));
        }
        let began = monotonic();
        for index in 0..STORM {
            let syn = syn(index, index % services, 1_000 * index);
            stage.goes(&syn, stage.at.uplink);
        }
        let ended = monotonic();
        let mut failed = failures(&stage.connections());
        failed.retain(|failed| *failed == Failed::Leaked);
        assert_eq!(failed.len() as u32, STORM, "every failure is in the map");

        let records = stage.anomalies().len() as u64;
        let unreported = stage.fault(Fault::ReportLimited) + stage.fault(Fault::RingFull);
        assert_eq!(records + unreported, u64::from(STORM));
        let per_service = (ended - began) / SERVICE_REPORT_NS + 1;
        let most = per_service * u64::from(services);
        assert!((1..=most).contains(&records), "{records}");
        let processors = aya::util::nr_cpus().expect("processors") as u64;
        let windows = ((ended >> CPU_REPORT_WINDOW_SHIFT) - (began >> CPU_REPORT_WINDOW_SHIFT)) + 1;
        let per_processor = windows * u64::from(CPU_REPORTS);
        assert!(records <= per_processor * processors, "{records}");
    });
}
