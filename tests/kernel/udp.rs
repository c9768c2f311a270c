//! Datagrams of UDP Services are counted per Service, separately from connections.

use node_tests::packet::{self, Extension, Packet, VLAN};
use node_tests::prelude::*;
use node_tests::traffic::dns::{self, question};
use pathproof_wire::abi::{map, program};
use pathproof_wire::evidence::Fault;
use pathproof_wire::evidence::Outcome::{
    self, Answered, Arrived, Forwarded, Proven, Retransmitted,
};
use pathproof_wire::service::Family::{self, V4, V6};
use pathproof_wire::service::{
    ExpectedHandling, FrontendKind, FrontendValue, endpoint_flag, frontend_flag,
};
use pathproof_wire::transition::Failed;

use crate::stage::{SERVICE, Stage, at, choose, cluster_ip, failures, on_stage};

mod limits;

const NAMES: u32 = 40;

#[derive(Clone, Copy)]
struct Ends {
    client: SocketAddr,
    /// Another client behind the same device.
    other: SocketAddr,
    frontend: SocketAddr,
    endpoint: SocketAddr,
    left: SocketAddr,
    stranger: SocketAddr,
}

fn ends(family: Family) -> Ends {
    let at = |v4, v6| at(choose(family, v4, v6));
    Ends {
        client: at("10.244.1.5:40001", "[fd00:10:244:1::5]:40001"),
        other: at("10.244.1.6:40001", "[fd00:10:244:1::6]:40001"),
        frontend: at("10.96.0.10:53", "[fd00:10:96::a]:53"),
        endpoint: at("10.244.2.7:53", "[fd00:10:244:2::7]:53"),
        left: at("10.244.2.8:53", "[fd00:10:244:2::8]:53"),
        stranger: at("10.244.2.9:53", "[fd00:10:244:2::9]:53"),
    }
}

fn stage(test: impl FnOnce(&mut Stage) + Send) {
    stage_with(&[], test);
}

fn stage_with(capacities: &[(&'static str, u32)], test: impl FnOnce(&mut Stage) + Send) {
    on_stage(capacities, |stage| {
        for hosts in Family::ALL.map(ends) {
            stage.put_udp_frontend(hosts.frontend, cluster_ip(NAMES, 0));
            stage.put_endpoint(NAMES, hosts.endpoint, endpoint_flag::LOCAL);
            stage.put_endpoint(NAMES, hosts.left, endpoint_flag::LEFT);
        }
        test(stage);
    });
}

/// A DNS question with this id.
fn asked(from: SocketAddr, to: SocketAddr, id: u16) -> Packet {
    packet::udp(from, to, &question(id))
}

/// The answer to the DNS question with this id.
fn said(from: SocketAddr, to: SocketAddr, id: u16) -> Packet {
    packet::udp(from, to, &dns::answer(&question(id)))
}

/// The client's query arrives for the frontend.
fn asks(stage: &Stage, hosts: Ends) {
    stage.comes(&asked(hosts.client, hosts.frontend, 7), stage.at.client);
}

fn outcomes(stage: &Stage) -> Vec<Outcome> {
    let counted = stage.outcomes(NAMES).into_iter();
    let each = |(outcome, count)| (0..count).map(move |_| outcome);
    counted.flat_map(each).collect()
}

/// A query and its answer are followed on the whole path in both families, also with a VLAN tag, IP options
/// or extension headers. They leave no evidence of connections.
#[test]
fn a_question_and_its_answer() {
    let dress = |family| ["plain", "VLAN", "options"].map(|dress| (family, dress));
    stage(|stage| {
        for (family, dress) in Family::ALL.into_iter().flat_map(dress) {
            stage.reset();
            let hosts = ends(family);
            let dressed = |packet: Packet| match (dress, family) {
                ("VLAN", _) => packet.tagged(VLAN),
                ("options", V4) => packet.ip_options(2),
                ("options", V6) => packet.extension(Extension::Routing(4)),
                _ => packet,
            };
            let (client, pods) = (stage.at.client, stage.at.pods);
            stage.comes(&dressed(asked(hosts.client, hosts.frontend, 7)), client);
            assert_eq!(outcomes(stage), [Arrived]);
            stage.goes(&dressed(asked(hosts.client, hosts.endpoint, 7)), pods);
            assert_eq!(outcomes(stage), [Arrived, Forwarded, Proven]);
            stage.comes(&dressed(said(hosts.endpoint, hosts.client, 7)), pods);
            stage.goes(&dressed(said(hosts.frontend, hosts.client, 7)), client);
            assert_eq!(outcomes(stage), [Arrived, Forwarded, Proven, Answered]);
            assert_eq!(stage.faults(), []);
            assert_eq!(stage.last_proof(family), 0);
            assert_eq!(stage.connections(), []);
        }
    });
}

/// With masquerade, the answer that the endpoint sends to the node's address matches no client. Only the
/// translated answer that leaves for the client does.
#[test]
fn an_answer_behind_masquerade() {
    stage(|stage| {
        let hosts = ends(V4);
        let node = at("192.0.2.2:60000");
        asks(stage, hosts);
        stage.goes(&asked(node, hosts.endpoint, 7), stage.at.pods);
        stage.comes(&said(hosts.endpoint, node, 7), stage.at.pods);
        assert_eq!(outcomes(stage), [Arrived, Forwarded, Proven]);
        stage.goes(&said(hosts.frontend, hosts.client, 7), stage.at.client);
        assert_eq!(outcomes(stage), [Arrived, Forwarded, Proven, Answered]);
    });
}

#[test]
fn a_datagram_is_judged_by_where_it_leaves() {
    stage(|stage| {
        let (uplink, pods) = (stage.at.uplink, stage.at.pods);
        for hosts in Family::ALL.map(ends) {
            let proven: &[Outcome] = &[Arrived, Forwarded, Proven];
            // Each case: destination, device, counted outcomes, and the failure after the loss window.
            for (to, device, expected, became) in [
                (hosts.frontend, uplink, &proven[..1], Some(Failed::Leaked)),
                (hosts.stranger, pods, &proven[..1], Some(Failed::Misrouted)),
                (hosts.left, pods, &proven[..1], Some(Failed::Stale)),
                (hosts.frontend, pods, &proven[..1], Some(Failed::Lost)),
                (hosts.endpoint, pods, proven, None),
            ] {
                stage.reset();
                asks(stage, hosts);
                stage.goes(&asked(hosts.client, to, 7), device);
                let failed = failures(&stage.datagrams());
                let became = (expected.to_vec(), Vec::from_iter(became));
                assert_eq!((outcomes(stage), failed), became, "to {to}");
                assert_eq!(stage.anomalies(), [], "to {to}: datagrams are no anomalies");
            }
        }
    });
}

/// Cilium wrote an endpoint's address into a pod's socket. The pod still sends to the endpoint after its
/// removal.
#[rstest]
#[case::silent(None, &[Failed::Stale])]
#[case::answered_past_the_egress_hooks(Some(program::INGRESS), &[])]
#[case::answered(Some(program::EGRESS), &[])]
fn to_an_endpoint_that_left_by_its_own_address(
    #[case] answered: Option<&str>,
    #[case] expected: &[Failed],
) {
    stage(|stage| {
        let hosts = ends(V4);
        let value = FrontendValue {
            kind: FrontendKind::ExternalIp as u8,
            owed: [
                ExpectedHandling::Forward,
                ExpectedHandling::Nothing,
                ExpectedHandling::Nothing,
            ]
            .map(|owed| owed as u8),
            ..cluster_ip(NAMES, frontend_flag::DEPARTED)
        };
        stage.put_udp_frontend(hosts.left, value);
        let question = asked(hosts.client, hosts.left, 7);
        stage.comes(&question, stage.at.client);
        stage.goes(&question, stage.at.uplink);
        if let Some(hook) = answered {
            let device = match hook {
                program::INGRESS => stage.at.uplink,
                _ => stage.at.client,
            };
            stage.pass(hook, &said(hosts.left, hosts.client, 7).bytes(), device);
        }
        assert_eq!(failures(&stage.datagrams()), expected);
        assert_eq!(outcomes(stage), []);
    });
}

/// A pod's datagram to a cluster IP leaves by the uplink, although its arrival was not observed.
#[test]
fn leaked_without_an_arrival() {
    stage(|stage| {
        let hosts = ends(V4);
        for (id, device) in [(7, stage.at.uplink), (8, stage.at.pods)] {
            stage.goes(&asked(hosts.client, hosts.frontend, id), device);
            let failed = failures(&stage.datagrams());
            assert_eq!(failed, [Failed::Leaked], "it leaks at the uplink only");
        }
    });
}

/// One socket sends two queries at once, as resolvers do. Each is matched with its own answer.
#[test]
fn two_questions_of_one_socket() {
    stage(|stage| {
        let hosts = ends(V4);
        for id in [7, 8] {
            stage.comes(&asked(hosts.client, hosts.frontend, id), stage.at.client);
            stage.goes(&asked(hosts.client, hosts.endpoint, id), stage.at.pods);
        }
        for _ in 0..2 {
            stage.goes(&said(hosts.frontend, hosts.client, 8), stage.at.client);
        }
        let counts = [Arrived, Forwarded, Answered].map(|outcome| stage.count(NAMES, outcome));
        assert_eq!(counts, [2, 2, 1]);
    });
}

/// A retransmission counts as one. A copy of a datagram at another device on the path does not count.
#[test]
fn sent_again() {
    stage(|stage| {
        let hosts = ends(V4);
        asks(stage, hosts);
        stage.comes(&asked(hosts.client, hosts.frontend, 7), stage.at.bridge);
        assert_eq!(outcomes(stage), [Arrived]);
        stage.change_pending(map::UDP_PENDING, |_, pending| {
            pending.arrived_ns = pending.arrived_ns.saturating_sub(300_000_000);
        });
        asks(stage, hosts);
        assert_eq!(outcomes(stage), [Arrived, Retransmitted]);
        assert_eq!(stage.faults(), []);
    });
}

/// If two clients send the same payload at the same time, the later datagram is ambiguous, and so no
/// evidence.
#[test]
fn two_clients_with_one_payload() {
    stage(|stage| {
        let hosts = ends(V4);
        for client in [hosts.client, hosts.other] {
            stage.comes(&asked(client, hosts.frontend, 7), stage.at.client);
        }
        stage.goes(&asked(hosts.other, hosts.stranger, 7), stage.at.pods);
        assert_eq!(outcomes(stage), [Arrived]);
        assert_eq!(stage.faults(), [(Fault::UdpAmbiguous, 1)]);
    });
}

/// Answers to another client, from another address, or to another question are not matched.
#[test]
fn answers_of_others_are_not_matched() {
    stage(|stage| {
        let hosts = ends(V4);
        asks(stage, hosts);
        for (from, to, id) in [
            (hosts.frontend, hosts.other, 7),
            (hosts.endpoint, hosts.client, 7),
            (hosts.frontend, hosts.client, 8),
        ] {
            stage.goes(&said(from, to, id), stage.at.client);
        }
        stage.comes(&said(hosts.stranger, hosts.client, 7), stage.at.pods);
        assert_eq!(outcomes(stage), [Arrived]);
    });
}

/// Datagrams to addresses of no UDP Service, and later fragments, leave nothing in the maps.
#[test]
fn what_is_not_followed() {
    stage(|stage| {
        let hosts = ends(V4);
        let (elsewhere, tcp_alone) = (at("10.96.0.99:53"), at("10.96.0.1:80"));
        let later = asked(hosts.client, hosts.frontend, 7).fragment(100);
        for packet in [
            asked(hosts.client, elsewhere, 7),
            asked(hosts.client, tcp_alone, 7),
            later,
        ] {
            stage.comes(&packet, stage.at.client);
        }
        assert_eq!(stage.datagrams(), []);
        assert_eq!(stage.outcomes(SERVICE), []);
        assert_eq!(stage.faults(), []);
    });
}

/// Devices without a link-layer header, such as tunnels.
#[test]
fn without_a_link_layer() {
    stage(|stage| {
        for hosts in Family::ALL.map(ends) {
            stage.reset();
            let (client, pods) = (stage.at.client, stage.at.pods);
            for (hook, packet, device) in [
                (
                    program::INGRESS_L3,
                    asked(hosts.client, hosts.frontend, 7),
                    client,
                ),
                (
                    program::EGRESS_L3,
                    asked(hosts.client, hosts.endpoint, 7),
                    pods,
                ),
                (
                    program::EGRESS_L3,
                    said(hosts.frontend, hosts.client, 7),
                    client,
                ),
            ] {
                stage.pass(hook, &packet.without_link().bytes(), device);
            }
            assert_eq!(outcomes(stage), [Arrived, Forwarded, Proven, Answered]);
        }
    });
}
