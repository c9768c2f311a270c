//! Every hook passes every kind of packet unchanged (TCX_NEXT, -1), and writes the maps as expected.

use std::net::{IpAddr, SocketAddr};

use aya::{TestRun as _, TestRunOptions};
use node_tests::observer::{LO, monotonic};
use node_tests::packet::{self, Extension, Packet, QINQ, VLAN, mapped};
use pathproof_wire::abi::program;
use pathproof_wire::evidence::Fault::{self, LaterFragment, Malformed, TooDeep, Truncated};
use pathproof_wire::evidence::{Anomaly, Outcome, Pending, anomaly_flag, state};
use pathproof_wire::service::Family::{self, V4, V6};
use pathproof_wire::service::{ExpectedHandling, FrontendKind, PEER_SHIFT, SourceClass};
use rstest::rstest;

use self::Left::{Connection, Nothing};
use crate::stage::{SERVICE, Stage, at, client, frontend, on_stage};

const ISN: u32 = 0x0102_0304;

fn syn(family: Family) -> Packet {
    packet::syn(client(family), frontend(family), ISN)
}

/// Expected content of the maps after a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// A connection at an ingress hook, and nothing at an egress hook.
    Connection,
    Fault(Fault),
}

/// Packets with an Ethernet header.
fn packets() -> Vec<(&'static str, Vec<u8>, Left)> {
    let whole = syn(V4).bytes();
    let tagged = syn(V4).tagged(VLAN);
    let two_tags = || syn(V4).tagged(QINQ).tagged(VLAN);
    let extended = syn(V6).extension(Extension::Routing(4)).bytes();
    let mut arp = whole.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut contradicts = whole.clone();
    // The header length field says 16 bytes, less than any IPv4 header has.
    contradicts[14] = 0x44;
    let padded = [whole.as_slice(), &[0; 6]].concat();
    let cut = |name, bytes: &[u8], length| {
        let bytes = bytes[..length].to_vec();
        (name, bytes, Left::Fault(Truncated))
    };
    let three_tags = two_tags().tagged(VLAN).bytes();
    let mut packets = vec![
        // These packets have a VLAN tag: without one, the kernel itself refuses a test packet this short.
        cut("cut within the IP header", &tagged.bytes(), 30),
        cut("cut within the TCP header", &whole, 44),
        cut("cut within TCP options", &whole, 56),
        cut("cut within an extension header", &extended, 64),
        ("VLAN", tagged.bytes(), Connection),
        ("VLAN, IPv6", syn(V6).tagged(VLAN).bytes(), Connection),
        ("QinQ", two_tags().bytes(), Connection),
        ("three tags", three_tags, Left::Fault(TooDeep)),
        ("no IP", arp, Nothing),
        ("contradicts itself", contradicts, Left::Fault(Malformed)),
        ("padded", padded, Connection),
    ];
    let of_ip = packets_of_ip().into_iter();
    packets.extend(of_ip.map(|(name, packet, left)| (name, packet.bytes(), left)));
    packets
}

/// Packets that can also occur on devices without a link-layer header.
fn packets_of_ip() -> Vec<(&'static str, Packet, Left)> {
    let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let datagram = |protocol| {
        let (from, to) = (client(V4), frontend(V4));
        Packet::ip(from.ip(), to.ip(), protocol, vec![0; 40])
    };
    let mut many = syn(V6);
    for _ in 0..7 {
        many = many.extension(Extension::Destination(0));
    }
    let stranger = |family, at: &str| packet::syn(client(family), SocketAddr::new(ip(at), 80), ISN);
    let data = |family| packet::data(client(family), frontend(family), &[7; 900]);
    let extensions = syn(V6)
        .extension(Extension::HopByHop(0))
        .extension(Extension::Routing(2))
        .extension(Extension::Authentication(3))
        .extension(Extension::Destination(1));
    let fragment = |offset| syn(V6).extension(Extension::Fragment(offset));
    let mapped = stranger(V6, "::ffff:10.96.0.1");
    let answer = packet::syn_ack(frontend(V4), client(V4), ISN);
    let reset = packet::reset(frontend(V6), client(V6), ISN);
    let error = packet::icmp_error(ip("192.0.2.1"), client(V4).ip(), 3, 3, &syn(V4));
    let later = Left::Fault(LaterFragment);
    vec![
        ("SYN", syn(V4), Connection),
        ("SYN, IPv6", syn(V6), Connection),
        ("SYN with IPv4 options", syn(V4).ip_options(4), Connection),
        ("SYN behind extension headers", extensions, Connection),
        ("too many extension headers", many, Left::Fault(TooDeep)),
        ("first fragment", syn(V4).fragment(0), Connection),
        ("first fragment, IPv6", fragment(0), Connection),
        ("later fragment", syn(V4).fragment(3), later),
        ("later fragment, IPv6", fragment(3), later),
        ("SYN to a stranger", stranger(V4, "203.0.113.1"), Nothing),
        ("the same, IPv6", stranger(V6, "2001:db8::99"), Nothing),
        ("to IPv4, by IPv6", mapped, Left::Fault(Malformed)),
        ("data", data(V4), Nothing),
        ("data, IPv6", data(V6), Nothing),
        ("answer of nobody", answer, Nothing),
        ("reset of nobody", reset, Nothing),
        ("ICMP about nobody", error, Nothing),
        ("UDP", datagram(17), Nothing),
        ("SCTP", datagram(132), Nothing),
        ("later fragment of UDP", datagram(17).fragment(3), Nothing),
    ]
}

/// Runs a packet with empty maps. It must pass unchanged, and the maps must then contain exactly `left`.
fn check(stage: &mut Stage, hook: &str, device: u32, name: &str, bytes: &[u8], left: Left) {
    println!("{hook}: {name}");
    stage.reset();
    stage.pass(hook, bytes, device);
    let arrives = hook == program::INGRESS || hook == program::INGRESS_L3;
    let follows = arrives && left == Connection;
    let counted = follows.then_some((Outcome::Arrived, 1));
    assert_eq!(stage.outcomes(SERVICE), Vec::from_iter(counted));
    assert_eq!(stage.connections().len(), usize::from(follows));
    let faults = match left {
        Left::Fault(fault) => vec![(fault, 1)],
        _ => Vec::new(),
    };
    assert_eq!(stage.faults(), faults);
    assert_eq!(stage.anomalies(), []);
    assert_eq!(Family::ALL.map(|family| stage.last_proof(family)), [0; 2]);
}

#[test]
fn packets_pass() {
    on_stage(&[], |stage| {
        let device = stage.at.client;
        for hook in [program::INGRESS, program::EGRESS] {
            for (name, bytes, left) in packets() {
                check(stage, hook, device, name, &bytes, left);
            }
        }
        for hook in [program::INGRESS_L3, program::EGRESS_L3] {
            for (name, packet, left) in packets_of_ip() {
                let bytes = packet.without_link().bytes();
                check(stage, hook, device, name, &bytes, left);
            }
            check(stage, hook, device, "neither version", &[0x15; 60], Nothing);
        }
    });
}

/// The kernel refuses test packets that end with the Ethernet header, or within the IP header that this
/// header announces. So the programs cannot be tested with them. On a device, the driver drops packets of the
/// first kind.
#[test]
fn runts() {
    on_stage(&[], |stage| {
        for hook in [program::INGRESS, program::EGRESS] {
            let plain = syn(V4).bytes();
            for length in 1..34 {
                let program = stage.program(hook);
                let refused = program.test_run(TestRunOptions {
                    data_in: Some(&plain[..length]),
                    ..TestRunOptions::default()
                });
                assert!(refused.is_err(), "{length} bytes");
            }
        }
        let (tagged, bare) = (syn(V4).tagged(VLAN), syn(V6).without_link());
        for (hook, whole) in [
            (program::INGRESS, tagged.bytes()),
            (program::EGRESS, tagged.bytes()),
            (program::INGRESS_L3, bare.bytes()),
            (program::EGRESS_L3, bare.bytes()),
        ] {
            for length in 15..whole.len() {
                let runt = &whole[..length];
                check(stage, hook, LO, "runt", runt, Left::Fault(Truncated));
            }
        }
    });
}

/// Compares every field of the entry that an arrival writes.
#[test]
fn a_connection_to_the_field() {
    on_stage(&[], |stage| {
        for family in Family::ALL {
            let before = monotonic();
            stage.comes(&syn(family), stage.at.client);
            let found = stage.connection(ISN, family).expect("a connection");
            assert!((before..=monotonic()).contains(&found.arrived_ns));
            let expected = Pending {
                arrived_ns: found.arrived_ns,
                state: 0,
                service: SERVICE,
                device: stage.at.client,
                client_port: 40001_u16.to_be_bytes(),
                frontend_port: 80_u16.to_be_bytes(),
                client: mapped(client(family).ip()),
                frontend: mapped(frontend(family).ip()),
                class: SourceClass::Pod as u8,
                owed: ExpectedHandling::Forward as u8,
                kind: FrontendKind::ClusterIp as u8,
                ..Pending::default()
            };
            assert_eq!(found, expected);
        }
    });
}

/// After the answer, the entry still names the node to which the SYN was sent, and the device by which it
/// left.
#[rstest]
#[case(V4, "10.244.1.9:8080")]
#[case(V6, "[fd00:10:244:1::9]:8080")]
fn an_entry_keeps_its_peer(#[case] family: Family, #[case] endpoint: &str) {
    const PEER: u16 = 5;
    on_stage(&[], |stage| {
        let (client, endpoint) = (client(family), at(endpoint));
        stage.put_endpoint(SERVICE, endpoint, u32::from(PEER) << PEER_SHIFT);
        stage.comes(&syn(family), stage.at.client);
        stage.goes(&packet::syn(client, endpoint, ISN), stage.at.overlay);
        stage.comes(&packet::syn_ack(endpoint, client, ISN), stage.at.overlay);
        let found = stage.connection(ISN, family).expect("a connection");
        assert_eq!((found.peer(), found.left_by), (PEER, stage.at.overlay));
    });
}

/// Compares every field of an anomaly's record.
#[test]
fn an_anomaly_to_the_field() {
    on_stage(&[], |stage| {
        for (family, arrival_seen) in [(V4, true), (V6, true), (V4, false)] {
            stage.reset();
            let mut flags = anomaly_flag::UNSEEN_ARRIVAL;
            if arrival_seen {
                flags = 0;
                stage.comes(&syn(family), stage.at.client);
            }
            stage.goes(&syn(family), stage.at.uplink);
            let found = stage.connection(ISN, family).expect("a connection");
            assert_eq!(found.state, state::LEAKED);
            let records = stage.anomalies();
            let [record] = records[..] else {
                panic!("one record: {records:?}");
            };
            assert!((found.arrived_ns..=monotonic()).contains(&record.at_ns));
            let expected = Anomaly {
                at_ns: record.at_ns,
                arrived_ns: found.arrived_ns,
                isn: ISN,
                service: SERVICE,
                device: stage.at.uplink,
                outcome: Outcome::Leaked as u8,
                class: SourceClass::Pod as u8,
                kind: FrontendKind::ClusterIp as u8,
                flags,
                client: mapped(client(family).ip()),
                frontend: mapped(frontend(family).ip()),
                destination: mapped(frontend(family).ip()),
                client_port: 40001_u16.to_be_bytes(),
                frontend_port: 80_u16.to_be_bytes(),
                destination_port: 80_u16.to_be_bytes(),
                padding: [0; 2],
            };
            assert_eq!(record, expected);
        }
    });
}

/// The empty program, which the benchmark uses as its baseline, passes packets.
#[test]
fn the_empty_program_passes() {
    on_stage(&[], |stage| {
        stage.pass(program::EMPTY, &syn(V4).bytes(), stage.at.client);
        assert_eq!(stage.connections(), []);
    });
}
