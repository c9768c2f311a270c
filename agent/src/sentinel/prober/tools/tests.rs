use std::collections::HashSet;

use pathproof_facts::trace::{Lane, ProbePath};
use pathproof_wire::service::mapped;
use rstest::rstest;

use super::*;

#[test]
fn random_numbers_do_not_repeat() {
    let words: HashSet<u32> = (0..1_000).map(|_| random().unwrap()).collect();
    // Two equal numbers occur in one of 8,600 runs; ten never.
    assert!(words.len() > 990, "{}", words.len());
}

#[test]
fn times_stay_in_their_span() {
    let span = Duration::from_millis(80)..Duration::from_millis(100);
    for _ in 0..1_000 {
        assert!(span.contains(&jitter(random, &span)));
    }
    let none: Dice = || Err(io::ErrorKind::Unsupported.into());
    assert_eq!(jitter(none, &span), span.start);
    assert_eq!(
        jitter(random, &(span.start..span.start)),
        span.start,
        "an empty span"
    );
}

#[test]
fn a_port_is_reused_after_all_others() {
    let mut ports = Ports::new(|| Ok(u32::MAX));
    let mut drawn = Vec::new();
    for path in [ProbePath::OffCluster, ProbePath::NodePort] {
        let range = RANGES[path as usize].clone();
        let seen: HashSet<u16> = range.clone().map(|_| ports.next(path as usize)).collect();
        assert_eq!(seen.len(), range.len());
        assert!(seen.iter().all(|port| range.contains(port)));
        drawn.push(seen);
    }
    assert!(drawn[0].is_disjoint(&drawn[1]));
}

#[test]
fn control_probes_have_ports_of_their_own() {
    let mut ports = Ports::new(|| Ok(0));
    assert_eq!(ports.next(ProbePath::Pod as usize), 20_000);
    assert_eq!(ports.next(CONTROL), 60_000);
    assert_eq!(ports.next(CONTROL), 60_001);
    assert_eq!(ports.next(ProbePath::Pod as usize), 20_001);
}

fn trace() -> ProbeTrace {
    let lane = Lane {
        path: ProbePath::OffCluster,
        family: Family::V4,
        transport: Transport::Tcp,
    };
    let (client, frontend) = ("198.18.0.1:20000", "10.96.0.10:7");
    let (client, frontend) = (client.parse().unwrap(), frontend.parse().unwrap());
    ProbeTrace::sent(lane, (client, frontend), Mono(1), Mono(2))
}

#[test]
fn stamps_and_the_echos_view() {
    let mut probe = Probe {
        echo_source: mapped([10, 0, 0, 1]),
        echo_source_port: 1_234_u16.to_be_bytes(),
        echo_port: 9_001_u16.to_be_bytes(),
        ..Probe::default()
    };
    probe.stamps[Phase::Handshake as usize][Stage::Arrived as usize] = 7;
    probe.stamps[Phase::Data as usize][Stage::Collected as usize] = 9;
    let mut trace = trace();
    fill(&mut trace, &probe, 0);
    assert_eq!(trace.handshake, [Some(Mono(7)), None, None, None, None]);
    assert_eq!(trace.data, [None, None, None, None, Some(Mono(9))]);
    assert_eq!(trace.echo_saw, Some("10.0.0.1:1234".parse().unwrap()));
    assert_eq!(trace.generation, Some(9_001));
    assert_eq!((trace.due, trace.sent), (Mono(1), Mono(2)));
    assert_eq!(trace.sightings, ProbeSightings::default());
    assert_eq!(trace.unsent, None);
}

#[rstest]
#[case(0, 0, [false; 5])]
#[case(0, state::LEAKED, [true, false, false, false, false])]
#[case(0, state::MISROUTED, [false, true, false, false, false])]
#[case(0, state::STALE | state::PROVEN, [false, false, true, false, false])]
#[case(0, state::REFUSED, [false, false, false, true, false])]
#[case(probe_flag::REFUSED, 0, [false, false, false, true, false])]
#[case(probe_flag::UNREACHABLE, state::REFUSED, [false, false, false, false, true])]
fn sightings_come_from_flags_and_state(
    #[case] flags: u32,
    #[case] seen: u32,
    #[case] expected: [bool; 5],
) {
    let probe = Probe {
        flags,
        ..Probe::default()
    };
    let mut trace = trace();
    fill(&mut trace, &probe, seen);
    let s = trace.sightings;
    let found = [s.leaked, s.misrouted, s.stale, s.refused, s.unreachable];
    assert_eq!(found, expected);
}
