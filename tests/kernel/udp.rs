//! Datagrams for UDP Services: what is counted of them, per Service and apart from connections.

use std::net::SocketAddr;

use agent_common::abi::program;
use agent_common::evidence::Fault;
use agent_common::evidence::Outcome::{self, Answered, Arrived, Forwarded, Proven, Retransmitted};
use agent_common::service::{
    Family, FrontendKind, FrontendValue, Owed, SourceClass, endpoint_flag, frontend_flag,
};
use agent_common::transition::{Failed, failed};
use node_tests::observer::{Observer, Sandbox};
use node_tests::packet::{self, Extension, Packet, VLAN};
use node_tests::scenario::mapped;
use node_tests::traffic::dns::{self, question};
use rstest::rstest;

use crate::{SERVICE, on_stage};

mod limits;

/// The Service of these tests, in both families.
const NAMES: u32 = 40;

/// Who there is, in one family.
#[derive(Clone, Copy)]
struct Ends {
    client: SocketAddr,
    /// Behind the same device.
    other: SocketAddr,
    frontend: SocketAddr,
    endpoint: SocketAddr,
    left: SocketAddr,
    stranger: SocketAddr,
}

fn ends(family: Family) -> Ends {
    let texts = match family {
        Family::V4 => [
            "10.244.1.5:40001",
            "10.244.1.6:40001",
            "10.96.0.10:53",
            "10.244.2.7:53",
            "10.244.2.8:53",
            "10.244.2.9:53",
        ],
        Family::V6 => [
            "[fd00:10:244:1::5]:40001",
            "[fd00:10:244:1::6]:40001",
            "[fd00:10:96::a]:53",
            "[fd00:10:244:2::7]:53",
            "[fd00:10:244:2::8]:53",
            "[fd00:10:244:2::9]:53",
        ],
    };
    let [client, other, frontend, endpoint, left, stranger] =
        texts.map(|text| text.parse().expect("an address"));
    Ends {
        client,
        other,
        frontend,
        endpoint,
        left,
        stranger,
    }
}

fn answer(id: u16) -> Vec<u8> {
    dns::answer(&question(id))
}

fn stage(test: impl FnOnce(&mut Observer, Sandbox) + Send) {
    stage_with(&[], test);
}

fn stage_with(
    capacities: &[(&'static str, u32)],
    test: impl FnOnce(&mut Observer, Sandbox) + Send,
) {
    on_stage(capacities, |observer, sandbox| {
        for family in Family::ALL {
            let of = ends(family);
            put_frontend(observer, NAMES, of.frontend);
            for (endpoint, flags) in [
                (of.endpoint, endpoint_flag::LOCAL),
                (of.left, endpoint_flag::LEFT),
            ] {
                observer
                    .put_endpoint(NAMES, mapped(endpoint.ip()), endpoint.port(), flags)
                    .expect("room for an endpoint");
            }
        }
        test(observer, sandbox);
    });
}

fn put_frontend(observer: &mut Observer, service: u32, at: SocketAddr) {
    let value = FrontendValue {
        service,
        kind: FrontendKind::ClusterIp as u8,
        owed: [Owed::Forward as u8; 3],
        ..FrontendValue::default()
    };
    observer
        .put_udp_frontend(mapped(at.ip()), at.port(), value)
        .expect("room for a frontend");
}

fn run(observer: &Observer, hook: &str, packet: &Packet, device: u32) {
    let bytes = packet.bytes();
    let passed = observer.run(hook, &bytes, device).expect("a run");
    assert_eq!(
        (passed.verdict, passed.bytes),
        (-1, bytes),
        "passed on as it was"
    );
}

fn comes(observer: &Observer, packet: &Packet, device: u32) {
    run(observer, program::INGRESS, packet, device);
}

fn goes(observer: &Observer, packet: &Packet, device: u32) {
    run(observer, program::EGRESS, packet, device);
}

fn udp_comes(observer: &Observer, from: SocketAddr, to: SocketAddr, data: &[u8], device: u32) {
    comes(observer, &packet::udp(from, to, data), device);
}

/// The client's question arrives.
fn asks(observer: &Observer, of: Ends, sandbox: Sandbox) {
    let data = question(7);
    udp_comes(observer, of.client, of.frontend, &data, sandbox.client);
}

fn udp_goes(observer: &Observer, from: SocketAddr, to: SocketAddr, data: &[u8], device: u32) {
    goes(observer, &packet::udp(from, to, data), device);
}

fn outcomes(observer: &Observer) -> Vec<Outcome> {
    let counted = observer.outcomes(NAMES, SourceClass::Pod).expect("counts");
    let counted = counted.into_iter();
    counted
        .flat_map(|(outcome, count)| (0..count).map(move |_| outcome))
        .collect()
}

/// What became of those that failed, once the loss window is over.
fn failures(observer: &Observer) -> Vec<Failed> {
    let followed = observer.followed_datagrams().expect("datagrams");
    followed
        .iter()
        .filter_map(|datagram| failed(datagram, u64::MAX))
        .collect()
}

fn faults(observer: &Observer) -> Vec<(Fault, u64)> {
    observer.faults().expect("faults")
}

/// The whole way of a question and its answer, in both families, also behind a VLAN tag, IP options
/// and extension headers; of connections nothing is counted.
#[test]
fn a_question_and_its_answer() {
    let dress = |family| ["plain", "VLAN", "options"].map(|dress| (family, dress));
    stage(|observer, sandbox| {
        for (family, dress) in Family::ALL.into_iter().flat_map(dress) {
            observer.reset(NAMES + 1).expect("no evidence");
            let of = ends(family);
            let dressed = |packet: Packet| match (dress, family) {
                ("VLAN", _) => packet.tagged(VLAN),
                ("options", Family::V4) => packet.ip_options(2),
                ("options", Family::V6) => packet.extension(Extension::Routing(4)),
                _ => packet,
            };
            let udp = |from, to, payload: &[u8]| dressed(packet::udp(from, to, payload));
            let asks = udp(of.client, of.frontend, &question(7));
            comes(observer, &asks, sandbox.client);
            assert_eq!(outcomes(observer), [Arrived]);
            let forwarded = udp(of.client, of.endpoint, &question(7));
            goes(observer, &forwarded, sandbox.pods);
            assert_eq!(outcomes(observer), [Arrived, Forwarded, Proven]);
            let answered = udp(of.endpoint, of.client, &answer(7));
            comes(observer, &answered, sandbox.pods);
            let translated = udp(of.frontend, of.client, &answer(7));
            goes(observer, &translated, sandbox.client);
            assert_eq!(outcomes(observer), [Arrived, Forwarded, Proven, Answered]);
            assert_eq!(faults(observer), []);
            assert_eq!(
                observer
                    .last_proof(family, SourceClass::Pod)
                    .expect("proofs"),
                0
            );
            assert_eq!(observer.connections().expect("connections"), 0);
            assert_eq!(observer.delays(family).expect("delays"), 0);
        }
    });
}

/// From outside the source is masqueraded: the endpoint's answer is nobody's that is known, the one
/// that leaves for the client is.
#[test]
fn an_answer_behind_masquerade() {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        let node = "192.0.2.2:60000".parse().expect("an address");
        asks(observer, of, sandbox);
        udp_goes(observer, node, of.endpoint, &question(7), sandbox.pods);
        udp_comes(observer, of.endpoint, node, &answer(7), sandbox.pods);
        assert_eq!(outcomes(observer), [Arrived, Forwarded, Proven]);
        udp_goes(observer, of.frontend, of.client, &answer(7), sandbox.client);
        assert_eq!(outcomes(observer), [Arrived, Forwarded, Proven, Answered]);
    });
}

/// Where a datagram goes, what is counted of it, and what became of it once the loss window is over.
type Way = (
    fn(Ends) -> SocketAddr,
    &'static str,
    &'static [Outcome],
    Option<Failed>,
);

const WAYS: [Way; 5] = [
    (|of| of.frontend, "uplink", &[Arrived], Some(Failed::Leaked)),
    (
        |of| of.stranger,
        "pods",
        &[Arrived],
        Some(Failed::Misrouted),
    ),
    (|of| of.left, "pods", &[Arrived], Some(Failed::Stale)),
    (|of| of.frontend, "pods", &[Arrived], Some(Failed::Lost)),
    (
        |of| of.endpoint,
        "pods",
        &[Arrived, Forwarded, Proven],
        None,
    ),
];

#[test]
fn where_it_goes() {
    let ways = |family| WAYS.map(|way| (family, way));
    stage(|observer, sandbox| {
        for (family, (to, device, expected, became)) in Family::ALL.into_iter().flat_map(ways) {
            observer.reset(NAMES + 1).expect("no evidence");
            let of = ends(family);
            let to = to(of);
            let index = match device {
                "uplink" => sandbox.uplink,
                _ => sandbox.pods,
            };
            asks(observer, of, sandbox);
            udp_goes(observer, of.client, to, &question(7), index);
            let way = format!("to {to}, {device}");
            assert_eq!(outcomes(observer), expected, "{way}");
            assert_eq!(failures(observer), Vec::from_iter(became), "{way}");
            let anomalies = observer.anomalies().expect("a ring buffer");
            assert!(anomalies.is_empty(), "{way}: judged apart");
        }
    });
}

/// A pod sends a datagram to an endpoint that left, whose address Cilium gave to its socket.
#[rstest]
#[case::silent(None, &[Failed::Stale])]
#[case::answered_past_the_egress_hooks(Some(program::INGRESS), &[])]
#[case::answered(Some(program::EGRESS), &[])]
fn to_an_endpoint_that_left_by_its_own_address(
    #[case] answered: Option<&str>,
    #[case] expected: &[Failed],
) {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        let value = FrontendValue {
            service: NAMES,
            kind: FrontendKind::ExternalIp as u8,
            flags: frontend_flag::DEPARTED,
            owed: [Owed::Forward, Owed::Nothing, Owed::Nothing].map(|owed| owed as u8),
            ..FrontendValue::default()
        };
        let (left, port) = (mapped(of.left.ip()), of.left.port());
        let put = observer.put_udp_frontend(left, port, value);
        put.expect("room for a frontend");
        udp_comes(observer, of.client, of.left, &question(7), sandbox.client);
        udp_goes(observer, of.client, of.left, &question(7), sandbox.uplink);
        if let Some(hook) = answered {
            let device = match hook {
                program::INGRESS => sandbox.uplink,
                _ => sandbox.client,
            };
            let back = packet::udp(of.left, of.client, &answer(7));
            run(observer, hook, &back, device);
        }
        assert_eq!(failures(observer), expected);
        assert_eq!(outcomes(observer), []);
    });
}

/// A pod's datagram that leaves the uplink for a cluster IP, though it was not seen coming in.
#[test]
fn leaked_without_an_arrival() {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        udp_goes(
            observer,
            of.client,
            of.frontend,
            &question(7),
            sandbox.uplink,
        );
        assert_eq!(failures(observer), [Failed::Leaked]);
        udp_goes(observer, of.client, of.frontend, &question(8), sandbox.pods);
        assert_eq!(
            failures(observer),
            [Failed::Leaked],
            "a device that is no uplink"
        );
    });
}

/// One socket asks for two addresses at once, as resolvers do, and both answers are told apart.
#[test]
fn two_questions_of_one_socket() {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        for id in [7, 8] {
            udp_comes(
                observer,
                of.client,
                of.frontend,
                &question(id),
                sandbox.client,
            );
            udp_goes(
                observer,
                of.client,
                of.endpoint,
                &question(id),
                sandbox.pods,
            );
        }
        udp_goes(observer, of.frontend, of.client, &answer(8), sandbox.client);
        udp_goes(observer, of.frontend, of.client, &answer(8), sandbox.client);
        let seen = outcomes(observer);
        let count = |wanted| seen.iter().filter(|outcome| **outcome == wanted).count();
        assert_eq!(
            (count(Arrived), count(Forwarded), count(Answered)),
            (2, 2, 1),
            "{seen:?}"
        );
    });
}

/// What is sent again is no further datagram; nor is a copy at another device of its way.
#[test]
fn sent_again() {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        let asks = packet::udp(of.client, of.frontend, &question(7));
        comes(observer, &asks, sandbox.client);
        comes(observer, &asks, sandbox.bridge);
        assert_eq!(outcomes(observer), [Arrived]);
        observer.age_datagrams(300_000_000).expect("datagrams");
        comes(observer, &asks, sandbox.client);
        assert_eq!(outcomes(observer), [Arrived, Retransmitted]);
        assert_eq!(faults(observer), []);
    });
}

/// The stated error: two clients send the same while it is followed. The later one is counted as
/// such, and is no evidence against anybody.
#[test]
fn two_clients_with_one_payload() {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        for client in [of.client, of.other] {
            udp_comes(observer, client, of.frontend, &question(7), sandbox.client);
        }
        udp_goes(observer, of.other, of.stranger, &question(7), sandbox.pods);
        assert_eq!(outcomes(observer), [Arrived]);
        assert_eq!(faults(observer), [(Fault::UdpAmbiguous, 1)]);
    });
}

/// An answer to somebody else, from somebody else, or to another question is none.
#[test]
fn what_is_no_answer() {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        asks(observer, of, sandbox);
        for (from, to, id) in [
            (of.frontend, of.other, 7),
            (of.endpoint, of.client, 7),
            (of.frontend, of.client, 8),
        ] {
            udp_goes(observer, from, to, &answer(id), sandbox.client);
        }
        udp_comes(observer, of.stranger, of.client, &answer(7), sandbox.pods);
        assert_eq!(outcomes(observer), [Arrived]);
    });
}

/// Datagrams that are no Service's, and parts of datagrams, leave nothing.
#[test]
fn what_is_not_followed() {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        let elsewhere = "10.96.0.99:53".parse().expect("an address");
        udp_comes(observer, of.client, elsewhere, &question(7), sandbox.client);
        let tcp_alone = "10.96.0.1:80".parse().expect("an address");
        udp_comes(observer, of.client, tcp_alone, &question(7), sandbox.client);
        let later = packet::udp(of.client, of.frontend, &question(7)).fragment(100);
        comes(observer, &later, sandbox.client);
        assert_eq!(observer.datagrams().expect("datagrams"), 0);
        assert_eq!(
            observer
                .outcomes(SERVICE, SourceClass::Pod)
                .expect("counts"),
            []
        );
        assert_eq!(faults(observer), []);
    });
}

/// Devices without a link-layer header: a client behind a tunnel.
#[rstest]
fn without_a_link_layer(#[values(Family::V4, Family::V6)] family: Family) {
    stage(|observer, sandbox| {
        let of = ends(family);
        let bare = |from, to, payload: &[u8]| packet::udp(from, to, payload).without_link();
        let asks = bare(of.client, of.frontend, &question(7));
        run(observer, program::INGRESS_L3, &asks, sandbox.client);
        let sent = bare(of.client, of.endpoint, &question(7));
        run(observer, program::EGRESS_L3, &sent, sandbox.pods);
        let said = bare(of.frontend, of.client, &answer(7));
        run(observer, program::EGRESS_L3, &said, sandbox.client);
        assert_eq!(outcomes(observer), [Arrived, Forwarded, Proven, Answered]);
    });
}
