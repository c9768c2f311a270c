//! Sampling under load: a connection is followed at every hook, or at none. A Service with few connections is
//! not sampled, even beside a busy one.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use node_tests::observer::monotonic;
use node_tests::packet::{self, Packet};
use node_tests::prelude::*;
use node_tests::traffic::dns::{answer, question};
use pathproof_facts::time::Mono;
use pathproof_wire::abi::{RETRANSMIT_NS, map};
use pathproof_wire::evidence::Outcome::{Answered, Arrived, Forwarded, Proven};
use pathproof_wire::evidence::{Fault, anomaly_flag, state};
use pathproof_wire::gate::{Marks, WHOLE};
use pathproof_wire::service::Family::V4;
use pathproof_wire::service::{endpoint_flag, frontend_flag};
use pathproof_wire::transition::Failed;

use crate::stage::{SERVICE, Stage, at, cluster_ip, failures, on_stage};

const QUIET: u32 = SERVICE + 1;
/// Number of connections of the quiet Service. All of them fit into one window of the gate.
const FEW: u32 = WHOLE / 2;
/// Number of connections of the busy Service, about one second's worth.
const MANY: u32 = 8_000;
const CLIENTS: u32 = 200;

fn client(number: u32) -> SocketAddr {
    let address = Ipv4Addr::from(0x0af4_0100 + number % CLIENTS);
    SocketAddr::from((address, 1_024 + (number / CLIENTS) as u16))
}

/// Initial sequence number of a connection. The multiplier is odd, so that no two connections have the same
/// one.
fn isn(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1)
}

const BUSY_AT: &str = "10.96.0.1:80";
const QUIET_AT: &str = "10.96.0.2:80";

fn syn(number: u32, to: &str) -> Packet {
    packet::syn(client(number), at(to), isn(number))
}

/// Runs the arrival of a SYN for the busy Service.
fn arrives(stage: &Stage, number: u32) {
    stage.comes(&syn(number, BUSY_AT), stage.at.client);
}

/// Runs a SYN to the endpoint, and the endpoint's answer to the client.
fn whole(stage: &Stage, number: u32, frontend: &str, endpoint: &str) {
    let answer = |from| packet::syn_ack(at(from), client(number), isn(number));
    stage.comes(&syn(number, frontend), stage.at.client);
    stage.goes(&syn(number, endpoint), stage.at.pods);
    stage.comes(&answer(endpoint), stage.at.pods);
    stage.goes(&answer(frontend), stage.at.client);
}

/// Maximum number of connections that may be followed since `began`: a burst at the start, and a limit per
/// window.
fn most(began: Instant) -> u32 {
    let windows = began.elapsed().as_millis() as u32 / 65 + 2;
    windows * WHOLE * 3 / 2 + 8 * WHOLE
}

#[test]
fn a_quiet_service_beside_a_busy_one_is_followed_whole() {
    on_stage(&[], |stage| {
        stage.put_frontend(at(QUIET_AT), cluster_ip(QUIET, 0));
        stage.put_endpoint(SERVICE, at("10.244.2.7:80"), endpoint_flag::LOCAL);
        stage.put_endpoint(QUIET, at("10.244.2.8:80"), endpoint_flag::LOCAL);
        let began = Instant::now();
        for number in 0..MANY {
            match number % (MANY / FEW) {
                0 => whole(stage, number, QUIET_AT, "10.244.2.8:80"),
                _ => whole(stage, number, BUSY_AT, "10.244.2.7:80"),
            }
        }
        let arrived = stage.count(SERVICE, Arrived);
        assert!((WHOLE..most(began)).contains(&arrived), "{arrived}");
        for outcome in [Arrived, Forwarded, Proven, Answered] {
            let counts = [SERVICE, QUIET].map(|service| stage.count(service, outcome));
            assert_eq!(counts, [arrived, FEW], "{outcome:?}");
        }
        let followed = stage.connections();
        assert_eq!(followed.len() as u32, arrived + FEW);
        let clients: BTreeSet<_> = followed.iter().map(|pending| pending.client).collect();
        assert!(clients.len() as u32 > CLIENTS / 3, "{}", clients.len());
        assert_eq!(stage.faults(), []);
    });
}

/// Failures count only for connections that are followed at every hook. Others could only count as failures,
/// and never as successes.
#[rstest]
#[case::untranslated(BUSY_AT, Failed::Leaked)]
#[case::to_an_endpoint_that_left("10.244.2.9:80", Failed::Stale)]
#[case::to_a_stranger("10.244.7.7:80", Failed::Misrouted)]
fn a_busy_service_that_is_broken(#[case] to: &str, #[case] expected: Failed) {
    on_stage(&[], |stage| {
        stage.put_endpoint(SERVICE, at("10.244.2.9:80"), endpoint_flag::LEFT);
        let device = match expected {
            Failed::Leaked => stage.at.uplink,
            _ => stage.at.pods,
        };
        let began = Instant::now();
        for number in 0..MANY {
            arrives(stage, number);
            stage.goes(&syn(number, to), device);
        }
        let arrived = stage.count(SERVICE, Arrived);
        assert!(arrived < most(began), "{arrived}");
        let mut followed = stage.connections();
        assert_eq!(
            followed.len() as u32,
            arrived,
            "only followed ones are kept"
        );
        // Leave out possible retransmissions, which are no evidence: when the rate has fallen, a SYN may
        // repeat one that was not sampled.
        followed.retain(|pending| pending.state & state::RETRANSMITTED == 0);
        assert!(followed.len() as u32 >= WHOLE, "{}", followed.len());
        assert_eq!(failures(&followed), vec![expected; followed.len()]);
        let unseen = |flags| flags & anomaly_flag::UNSEEN_ARRIVAL != 0;
        assert!(!stage.anomalies().iter().any(|one| unseen(one.flags)));
    });
}

/// One second after a fault of a busy Service, the sample has more failures and clients than a verdict needs.
#[test]
fn sampling_delays_no_fault_of_a_busy_service() {
    on_stage(&[], |stage| {
        let mut sampler = stage.sampler();
        sampler.sample(Mono(monotonic())).expect("a first sample");
        let began = Instant::now();
        let mut number = 0;
        // Make the Service busy before the fault, with thousands of connections a second.
        while began.elapsed() < Duration::from_millis(400) {
            arrives(stage, number);
            number += 1;
        }
        let broke = monotonic();
        let until = Instant::now() + Duration::from_millis(250);
        while Instant::now() < until {
            arrives(stage, number);
            stage.goes(&syn(number, BUSY_AT), stage.at.uplink);
            number += 1;
        }
        let read = sampler.sample(Mono(monotonic() + 1_000_000_000));
        let failed_connections = read.expect("a sample").sample.failed_connections;
        let leaked = failed_connections
            .iter()
            .filter(|one| one.arrived.0 >= broke);
        let clients: BTreeSet<_> = leaked.clone().map(|one| one.client).collect();
        assert!(leaked.count() >= 10 && clients.len() >= 5, "{clients:?}");
    });
}

#[test]
fn probes_are_never_sampled_out() {
    on_stage(&[], |stage| {
        stage.put_frontend(at(QUIET_AT), cluster_ip(QUIET, frontend_flag::SENTINEL));
        for number in 0..1_000 {
            stage.comes(&syn(number, QUIET_AT), stage.at.client);
        }
        assert_eq!(stage.count(QUIET, Arrived), 1_000);
    });
}

/// A SYN that was not sampled may be retransmitted when the rate has fallen. The retransmission follows the
/// old conntrack entry, which is no evidence of a stale proxy (finding 11).
#[test]
fn a_retransmission_of_a_sampled_out_syn_is_no_first_syn() {
    const FEW: u32 = WHOLE / 2;
    on_stage(&[], |stage| {
        stage.put_endpoint(SERVICE, at("10.244.2.9:80"), endpoint_flag::LEFT);
        (0..MANY).for_each(|number| arrives(stage, number));
        let before = stage.count(SERVICE, Arrived);
        thread::sleep(Duration::from_millis(400));
        let followed = stage.pending(map::PENDING).into_iter();
        let followed: BTreeSet<u32> = followed.map(|(key, _)| key.isn).collect();
        let out = (0..MANY).filter(|number| !followed.contains(&isn(*number)));
        for number in out.take(FEW as usize) {
            arrives(stage, number);
            stage.goes(&syn(number, "10.244.2.9:80"), stage.at.pods);
        }
        assert_eq!(stage.count(SERVICE, Arrived), before + FEW);
        assert_eq!(stage.anomalies(), []);
    });
}

/// The entry of a connection outlives the connection's mark. Without the mark the answer is not matched. A
/// retransmitted SYN finds the entry and sets the mark again.
#[test]
fn a_syn_that_comes_again_without_its_mark() {
    on_stage(&[], |stage| {
        let endpoint = at("10.244.2.7:80");
        let answer = packet::syn_ack(endpoint, client(1), isn(1));
        let state = |stage: &Stage| stage.connection(isn(1), V4).expect("a connection").state;
        stage.put_endpoint(SERVICE, endpoint, endpoint_flag::LOCAL);
        arrives(stage, 1);
        stage.clear::<Marks>(map::MARKS, 1);
        stage.comes(&answer, stage.at.pods);
        assert_eq!(state(stage), 0);
        thread::sleep(Duration::from_nanos(2 * RETRANSMIT_NS));
        arrives(stage, 1);
        assert_eq!(state(stage), state::RETRANSMITTED);
        assert_eq!(stage.count(SERVICE, Arrived), 1);
        stage.comes(&answer, stage.at.pods);
        assert_ne!(state(stage) & state::ANSWER_IN, 0);
    });
}

/// While one UDP Service is flooded, a query to another one is followed through masquerade to its answer.
#[test]
fn a_question_beside_a_flood_of_datagrams() {
    const FLOOD: u32 = 20_000;
    on_stage(&[], |stage| {
        let (names, quic) = (at("10.96.0.10:53"), at("10.96.0.11:53"));
        stage.put_udp_frontend(names, cluster_ip(QUIET, 0));
        stage.put_udp_frontend(quic, cluster_ip(QUIET + 1, 0));
        let endpoint = at("10.244.2.7:53");
        stage.put_endpoint(QUIET, endpoint, endpoint_flag::LOCAL);
        // Send the query before the flood, which may use up the rate of all Services.
        let asked = packet::udp(client(1), names, &question(7));
        stage.comes(&asked, stage.at.client);
        for number in 0..FLOOD {
            let mut payload = [7; 64];
            payload[..4].copy_from_slice(&isn(number).to_be_bytes());
            let sent = |to| packet::udp(client(number), to, &payload);
            stage.comes(&sent(quic), stage.at.client);
            stage.goes(&sent(at("10.244.2.8:53")), stage.at.pods);
        }
        let sent = packet::udp(at("192.0.2.2:60000"), endpoint, &question(7));
        stage.goes(&sent, stage.at.pods);
        let said = packet::udp(names, client(1), &answer(&question(7)));
        stage.goes(&said, stage.at.client);
        for outcome in [Arrived, Forwarded, Proven, Answered] {
            assert_eq!(stage.count(QUIET, outcome), 1, "{outcome:?}");
        }
        let over = stage.fault(Fault::UdpOverRate);
        assert!(over > 10_000, "{over}");
    });
}
