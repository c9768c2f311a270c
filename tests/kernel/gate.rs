//! Sampling under load: what is not followed leaves no trace at any hook, what is followed is followed
//! whole, and few connections beside many are all followed.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use agent_common::abi::{RETRANSMIT_NS, program};
use agent_common::evidence::Outcome::{self, Answered, Arrived, Forwarded, Proven};
use agent_common::evidence::{Fault, Pending, anomaly_flag, state};
use agent_common::gate::WHOLE;
use agent_common::service::{
    Family, FrontendKind, FrontendValue, Owed, SourceClass, endpoint_flag, frontend_flag,
};
use agent_common::transition::{Failed, failed};
use agent_core::time::Mono;
use node_tests::observer::{Observer, Sandbox, monotonic};
use node_tests::packet::{self, Packet};
use node_tests::scenario::mapped;
use node_tests::traffic::dns::{answer, question};
use rstest::rstest;

use crate::{SERVICE, on_stage};

/// A Service with few connections.
const QUIET: u32 = SERVICE + 1;
/// Connections of the busy one: of a second or so.
const MANY: u32 = 8_000;
const CLIENTS: u32 = 200;

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn client(number: u32) -> SocketAddr {
    let address = Ipv4Addr::from(0x0af4_0100 + number % CLIENTS);
    SocketAddr::from((address, 1_024 + (number / CLIENTS) as u16))
}

/// Odd, so that no two numbers share one.
fn isn(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1)
}

fn sees(observer: &Observer, hook: &str, packet: &Packet, device: u32) {
    let bytes = packet.bytes();
    let passed = observer.run(hook, &bytes, device).expect("a run");
    assert_eq!((passed.verdict, passed.bytes), (-1, bytes));
}

fn put_frontend(observer: &mut Observer, service: u32, address: &str, flags: u8) {
    let value = FrontendValue {
        service,
        kind: FrontendKind::ClusterIp as u8,
        owed: [Owed::Forward as u8; 3],
        flags,
        ..FrontendValue::default()
    };
    let address = at(address);
    observer
        .put_frontend(mapped(address.ip()), address.port(), value)
        .expect("room for a frontend");
}

fn count(observer: &Observer, service: u32, outcome: Outcome) -> u32 {
    let counts = observer.outcomes(service, SourceClass::Pod);
    let counts = counts.expect("counts").into_iter();
    counts
        .filter(|(of, _)| *of == outcome)
        .map(|(_, count)| count)
        .sum()
}

const BUSY_AT: &str = "10.96.0.1:80";
const QUIET_AT: &str = "10.96.0.2:80";

/// The way of a connection to an endpoint and of its answer back.
fn whole(observer: &Observer, sandbox: Sandbox, number: u32, frontend: &str, endpoint: &str) {
    let (client, isn) = (client(number), isn(number));
    let (frontend, endpoint) = (at(frontend), at(endpoint));
    let syn = |to| packet::syn(client, to, isn);
    let answer = |from| packet::syn_ack(from, client, isn);
    sees(observer, program::INGRESS, &syn(frontend), sandbox.client);
    sees(observer, program::EGRESS, &syn(endpoint), sandbox.pods);
    sees(observer, program::INGRESS, &answer(endpoint), sandbox.pods);
    sees(observer, program::EGRESS, &answer(frontend), sandbox.client);
}

/// Bound of what is followed of a busy Service that began at `began`: a rush, and its windows.
fn most(began: Instant) -> u32 {
    let windows = began.elapsed().as_millis() as u32 / 65 + 2;
    windows * WHOLE * 3 / 2 + 8 * WHOLE
}

#[test]
fn a_quiet_service_beside_a_busy_one_is_followed_whole() {
    on_stage(&[], |observer, sandbox| {
        put_frontend(observer, QUIET, QUIET_AT, 0);
        for (service, endpoint) in [(SERVICE, "10.244.2.7"), (QUIET, "10.244.2.8")] {
            let address = mapped(endpoint.parse().expect("an address"));
            observer
                .put_endpoint(service, address, 80, endpoint_flag::LOCAL)
                .expect("room");
        }
        let began = Instant::now();
        for number in 0..MANY {
            let (to, endpoint) = match number % 200 {
                0 => (QUIET_AT, "10.244.2.8:80"),
                _ => (BUSY_AT, "10.244.2.7:80"),
            };
            whole(observer, sandbox, number, to, endpoint);
        }
        for outcome in [Arrived, Forwarded, Proven, Answered] {
            assert_eq!(count(observer, QUIET, outcome), MANY / 200, "{outcome:?}");
        }
        let arrived = count(observer, SERVICE, Arrived);
        assert!((WHOLE..most(began)).contains(&arrived), "{arrived}");
        for outcome in [Forwarded, Proven, Answered] {
            assert_eq!(count(observer, SERVICE, outcome), arrived, "{outcome:?}");
        }
        let followed = observer.followed_whole().expect("connections");
        assert_eq!(followed.len() as u32, arrived + MANY / 200);
        let clients: BTreeSet<_> = followed.iter().map(|of| of.client).collect();
        assert!(clients.len() as u32 > CLIENTS / 2, "{}", clients.len());
        assert_eq!(observer.faults().expect("faults"), []);
    });
}

/// What goes wrong is seen of those that are followed alone: the others' failures would be too many
/// for their successes.
#[rstest]
#[case::untranslated("10.96.0.1:80", "uplink", Failed::Leaked)]
#[case::to_an_endpoint_that_left("10.244.2.9:80", "pods", Failed::Stale)]
#[case::to_a_stranger("10.244.7.7:80", "pods", Failed::Misrouted)]
fn a_busy_service_that_is_broken(#[case] to: &str, #[case] device: &str, #[case] expected: Failed) {
    on_stage(&[], |observer, sandbox| {
        let left = mapped("10.244.2.9".parse().expect("an address"));
        observer
            .put_endpoint(SERVICE, left, 80, endpoint_flag::LEFT)
            .expect("room");
        let device = match device {
            "uplink" => sandbox.uplink,
            _ => sandbox.pods,
        };
        let began = Instant::now();
        for number in 0..MANY {
            let syn = |to| packet::syn(client(number), at(to), isn(number));
            sees(observer, program::INGRESS, &syn(BUSY_AT), sandbox.client);
            sees(observer, program::EGRESS, &syn(to), device);
        }
        let arrived = count(observer, SERVICE, Arrived);
        assert!(arrived < most(began), "{arrived}");
        let followed = observer.followed_whole().expect("connections");
        // Of a window with fewer of them some may have come before, which is no evidence.
        let first = |of: &&Pending| of.state & state::RETRANSMITTED == 0;
        let failures: Vec<_> = followed
            .iter()
            .filter(first)
            .map(|of| failed(of, u64::MAX))
            .collect();
        assert!(
            failures.iter().all(|of| *of == Some(expected)),
            "{failures:?}"
        );
        assert!(failures.len() as u32 >= WHOLE, "{}", failures.len());
        assert_eq!(followed.len() as u32, arrived, "none of the others");
        let anomalies = observer.anomalies().expect("a ring buffer");
        let unseen = |flags| flags & anomaly_flag::UNSEEN_ARRIVAL != 0;
        assert!(!anomalies.iter().any(|one| unseen(one.flags)));
    });
}

/// As soon as before: a second after a busy Service broke, far more failures of many clients are known
/// than a verdict wants.
#[test]
fn a_broken_busy_service_is_known_as_soon() {
    on_stage(&[], |observer, sandbox| {
        let mut sampler = observer.sampler().expect("the maps");
        sampler.sample(Mono(monotonic())).expect("a first look");
        let began = Instant::now();
        let mut number = 0;
        // It has long been busy, at thousands of connections a second.
        while began.elapsed() < Duration::from_millis(400) {
            let syn = packet::syn(client(number), at(BUSY_AT), isn(number));
            sees(observer, program::INGRESS, &syn, sandbox.client);
            number += 1;
        }
        let broke = monotonic();
        let until = Instant::now() + Duration::from_millis(250);
        while Instant::now() < until {
            let syn = |to| packet::syn(client(number), at(to), isn(number));
            sees(observer, program::INGRESS, &syn(BUSY_AT), sandbox.client);
            sees(observer, program::EGRESS, &syn(BUSY_AT), sandbox.uplink);
            number += 1;
        }
        let read = sampler.sample(Mono(monotonic() + 1_000_000_000));
        let sightings = read.expect("a look").sample.sightings;
        let leaked = sightings.iter().filter(|one| one.arrived.0 >= broke);
        let clients: BTreeSet<_> = leaked.clone().map(|one| one.client).collect();
        assert!(leaked.count() >= 10 && clients.len() >= 5, "{clients:?}");
    });
}

#[test]
fn probes_are_never_sampled_out() {
    on_stage(&[], |observer, sandbox| {
        put_frontend(observer, QUIET, QUIET_AT, frontend_flag::SENTINEL);
        for number in 0..1_000 {
            let syn = packet::syn(client(number), at(QUIET_AT), isn(number));
            sees(observer, program::INGRESS, &syn, sandbox.client);
        }
        assert_eq!(count(observer, QUIET, Arrived), 1_000);
    });
}

/// A SYN that was not followed may come again when all are: it follows the old conntrack entry, and is
/// no evidence of staleness (finding 11).
#[test]
fn what_was_not_followed_is_no_first_syn_later() {
    const FEW: u32 = WHOLE / 2;
    on_stage(&[], |observer, sandbox| {
        let left = mapped("10.244.2.9".parse().expect("an address"));
        observer
            .put_endpoint(SERVICE, left, 80, endpoint_flag::LEFT)
            .expect("room");
        let arrives = |number| {
            let syn = packet::syn(client(number), at(BUSY_AT), isn(number));
            sees(observer, program::INGRESS, &syn, sandbox.client);
        };
        (0..MANY).for_each(arrives);
        let before = count(observer, SERVICE, Arrived);
        thread::sleep(Duration::from_millis(400));
        let out: Vec<u32> = (0..MANY)
            .filter(|number| {
                let of = observer.connection(isn(*number), Family::V4);
                of.expect("connections").is_none()
            })
            .take(FEW as usize)
            .collect();
        for number in &out {
            arrives(*number);
            let syn = packet::syn(client(*number), at("10.244.2.9:80"), isn(*number));
            sees(observer, program::EGRESS, &syn, sandbox.pods);
        }
        assert_eq!(count(observer, SERVICE, Arrived), before + FEW);
        assert_eq!(observer.anomalies().expect("a ring buffer"), []);
    });
}

/// A SYN that comes again after its mark is old is known as the same: it follows the old conntrack entry.
/// Before that an answer is not looked for.
#[test]
fn a_syn_that_comes_again_without_its_mark() {
    on_stage(&[], |observer, sandbox| {
        let (client, isn) = (client(1), isn(1));
        let syn = packet::syn(client, at(BUSY_AT), isn);
        let answer = packet::syn_ack(at("10.244.2.7:80"), client, isn);
        let state = |observer: &Observer| {
            let of = observer.connection(isn, Family::V4);
            of.expect("connections").expect("the connection").state
        };
        let endpoint = mapped("10.244.2.7".parse().expect("an address"));
        observer
            .put_endpoint(SERVICE, endpoint, 80, endpoint_flag::LOCAL)
            .expect("room");
        sees(observer, program::INGRESS, &syn, sandbox.client);
        observer.forget_marks().expect("the marks");
        sees(observer, program::INGRESS, &answer, sandbox.pods);
        assert_eq!(state(observer), 0);
        thread::sleep(Duration::from_nanos(2 * RETRANSMIT_NS));
        sees(observer, program::INGRESS, &syn, sandbox.client);
        assert_eq!(state(observer), state::RETRANSMITTED);
        assert_eq!(count(observer, SERVICE, Arrived), 1);
        sees(observer, program::INGRESS, &answer, sandbox.pods);
        assert_ne!(state(observer) & state::ANSWER_IN, 0);
    });
}

/// A UDP Service with a flood of flows, and a question to another one: it is followed through
/// masquerade to its answer.
#[test]
fn a_question_beside_a_flood_of_datagrams() {
    const FLOOD: u32 = 20_000;
    on_stage(&[], |observer, sandbox| {
        let (names, quic) = (at("10.96.0.10:53"), at("10.96.0.11:53"));
        for (service, address) in [(QUIET, names), (QUIET + 1, quic)] {
            let value = FrontendValue {
                service,
                kind: FrontendKind::ClusterIp as u8,
                owed: [Owed::Forward as u8; 3],
                ..FrontendValue::default()
            };
            observer
                .put_udp_frontend(mapped(address.ip()), address.port(), value)
                .expect("room for a frontend");
        }
        let endpoint = at("10.244.2.7:53");
        observer
            .put_endpoint(QUIET, mapped(endpoint.ip()), 53, endpoint_flag::LOCAL)
            .expect("room");
        // The rate of all may be used up by the flood at the begin of a window.
        let asked = packet::udp(client(1), names, &question(7));
        sees(observer, program::INGRESS, &asked, sandbox.client);
        for number in 0..FLOOD {
            let mut payload = [7; 64];
            payload[..4].copy_from_slice(&isn(number).to_be_bytes());
            let packet = packet::udp(client(number), quic, &payload);
            sees(observer, program::INGRESS, &packet, sandbox.client);
            let packet = packet::udp(client(number), at("10.244.2.8:53"), &payload);
            sees(observer, program::EGRESS, &packet, sandbox.pods);
        }
        let node = at("192.0.2.2:60000");
        let sent = packet::udp(node, endpoint, &question(7));
        sees(observer, program::EGRESS, &sent, sandbox.pods);
        let said = packet::udp(names, client(1), &answer(&question(7)));
        sees(observer, program::EGRESS, &said, sandbox.client);
        for outcome in [Arrived, Forwarded, Proven, Answered] {
            assert_eq!(count(observer, QUIET, outcome), 1, "{outcome:?}");
        }
        let faults = observer.faults().expect("faults");
        let over = faults.iter().find(|(of, _)| *of == Fault::UdpOverRate);
        assert!(over.is_some_and(|(_, count)| *count > 10_000), "{faults:?}");
    });
}
