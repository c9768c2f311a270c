//! Parsing: tables of packets, every prefix of each, and properties of arbitrary bytes. The results are
//! compared with etherparse.
//!
//! Length: tables of packets, one after the other.

use std::net::{IpAddr, SocketAddr};

use by_etherparse::by_etherparse;
use packet::Extension::{self, Authentication, Destination, Fragment, HopByHop, Routing};
use packet::{Packet, QINQ, VLAN, flag, mapped};
use pathproof_wire::evidence::Fault;
use pathproof_wire::packet::{Kind, Link, Segment, parse, parse_plain, udp};
use pathproof_wire::service::Family;
use proptest::prelude::*;
use rstest::rstest;

#[path = "parts/by_etherparse.rs"]
pub mod by_etherparse;
#[path = "../../../tests/src/packet.rs"]
pub mod packet;

const ISN: u32 = 0xfeed_beef;

fn ends(family: Family) -> (SocketAddr, SocketAddr) {
    let (client, server) = match family {
        Family::V4 => ("10.244.1.5:40001", "10.96.0.1:443"),
        Family::V6 => ("[fd00:10:244:1::5]:40001", "[fd00:10:96::1]:443"),
    };
    (
        client.parse().expect("an address"),
        server.parse().expect("an address"),
    )
}

fn segment(kind: Kind, from: SocketAddr, to: SocketAddr) -> Segment {
    Segment {
        kind,
        family: if from.is_ipv4() {
            Family::V4
        } else {
            Family::V6
        },
        isn: ISN,
        payload: 0,
        source: mapped(from.ip()),
        destination: mapped(to.ip()),
        source_port: from.port().to_be_bytes(),
        destination_port: to.port().to_be_bytes(),
        beginning: [0; 4],
    }
}

fn ethernet(packet: &Packet) -> Result<Option<Segment>, Fault> {
    parse(&packet.bytes().as_slice(), Link::Ethernet)
}

/// Checks the packet and each of its prefixes. A prefix never gives evidence.
fn check(packet: &Packet, expected: Result<Option<Segment>, Fault>) {
    assert_eq!(ethernet(packet), expected, "{packet:?}");
    let bytes = packet.bytes();
    for length in 0..bytes.len() {
        let prefix = parse(&&bytes[..length], Link::Ethernet);
        let sound = match prefix {
            Ok(None) | Err(Fault::Truncated | Fault::Malformed) => true,
            // The error may already be in the prefix.
            other => other == expected && expected.is_err(),
        };
        assert!(
            sound,
            "{length} of {} bytes of {packet:?}: {prefix:?}",
            bytes.len()
        );
    }
    if let Ok(Some(_)) = expected {
        let bare = packet.clone().without_link().bytes();
        assert_eq!(parse(&bare.as_slice(), Link::None), expected, "{packet:?}");
    }
}

type Make = fn(SocketAddr, SocketAddr) -> Packet;

#[rstest]
#[case::syn(|c, s| packet::syn(c, s, ISN), Kind::Syn, true)]
#[case::syn_ack(|c, s| packet::syn_ack(s, c, ISN), Kind::SynAck, false)]
#[case::reset(|c, s| packet::reset(s, c, ISN), Kind::Reset, false)]
fn handshakes(
    #[values(Family::V4, Family::V6)] family: Family,
    #[case] make: Make,
    #[case] kind: Kind,
    #[case] from_client: bool,
) {
    let (client, server) = ends(family);
    let (from, to) = if from_client {
        (client, server)
    } else {
        (server, client)
    };
    let packet = make(client, server);
    let expected = segment(kind, from, to);
    check(&packet, Ok(Some(expected)));
    let short = parse_plain(&packet.bytes().as_slice(), Link::Ethernet);
    assert_eq!(
        short,
        Some(expected),
        "the fast path must parse the common case"
    );
    let bare = packet.without_link().bytes();
    assert_eq!(parse_plain(&bare.as_slice(), Link::None), Some(expected));
}

#[rstest]
fn payload_of_a_syn(#[values(Family::V4, Family::V6)] family: Family) {
    let (client, server) = ends(family);
    let packet = packet::tcp(client, server, flag::SYN, ISN, 0, &[1; 37]);
    let expected = Segment {
        payload: 37,
        ..segment(Kind::Syn, client, server)
    };
    check(&packet, Ok(Some(expected)));
    // Ethernet pads short frames: bytes after the packet are not its payload.
    let mut padded = packet::syn(client, server, ISN).bytes();
    padded.extend([0; 40]);
    let parsed = parse(&padded.as_slice(), Link::Ethernet);
    assert_eq!(parsed, Ok(Some(segment(Kind::Syn, client, server))));
}

/// Flags that are no handshake, and contradictory ones.
#[rstest]
#[case::data_in_the_middle_of_a_message(flag::ACK, Ok(None))]
#[case::fin(flag::ACK | flag::FIN, Ok(None))]
#[case::reset_alone(flag::RST, Ok(None))]
#[case::none(0, Ok(None))]
#[case::syn_fin(flag::SYN | flag::FIN, Err(Fault::Malformed))]
#[case::syn_reset(flag::SYN | flag::RST, Err(Fault::Malformed))]
#[case::all(0x1f, Err(Fault::Malformed))]
fn other_flags(
    #[values(Family::V4, Family::V6)] family: Family,
    #[case] flags: u8,
    #[case] expected: Result<Option<Segment>, Fault>,
) {
    let (client, server) = ends(family);
    check(&packet::tcp(client, server, flags, ISN, 1, b"x"), expected);
}

/// Data at the end of a message. An acknowledgement alone is no data.
#[rstest]
fn data(#[values(Family::V4, Family::V6)] family: Family) {
    let (client, server) = ends(family);
    let push = flag::ACK | flag::PSH;
    let expected = Segment {
        isn: ISN,
        payload: 3,
        beginning: 0x5eed_u32.to_ne_bytes(),
        ..segment(Kind::Data, client, server)
    };
    assert_eq!(expected.acknowledged(), 0x5eed);
    let of = |payload| packet::tcp(client, server, push, ISN.wrapping_add(1), 0x5eee, payload);
    check(&of(b"abc"), Ok(Some(expected)));
    check(&of(b""), Ok(None));
}

/// Explicit congestion notification sets two more flags on the SYN.
#[test]
fn syn_with_ecn() {
    let (client, server) = ends(Family::V4);
    let mut bytes = packet::syn(client, server, ISN).bytes();
    bytes[14 + 20 + 13] |= 0xc0;
    let parsed = parse(&bytes.as_slice(), Link::Ethernet);
    assert_eq!(parsed, Ok(Some(segment(Kind::Syn, client, server))));
}

#[rstest]
fn icmp(#[values(Family::V4, Family::V6)] family: Family, #[values(0, 1, 3, 4, 11)] kind: u8) {
    let (client, server) = ends(family);
    let unreachable = if family == Family::V4 { 3 } else { 1 };
    // The sender may be any router; only the quoted packet matters.
    let router = server.ip();
    for code in 0..16 {
        let about = packet::syn(client, server, ISN);
        let packet = packet::icmp_error(router, client.ip(), kind, code, &about);
        let fragmentation_needed = family == Family::V4 && code == 4;
        let expected = (kind == unreachable && !fragmentation_needed).then_some(Segment {
            source_port: [0; 2],
            destination_port: [0; 2],
            beginning: [0; 4],
            ..segment(Kind::Unreachable, server, client)
        });
        check(&packet, Ok(expected));
    }
}

#[rstest]
fn icmp_about_other_things(#[values(Family::V4, Family::V6)] family: Family) {
    let (client, server) = ends(family);
    let kind = if family == Family::V4 { 3 } else { 1 };
    let error = |about: &Packet| packet::icmp_error(server.ip(), client.ip(), kind, 1, about);
    let datagram = Packet::ip(client.ip(), server.ip(), 17, vec![0; 16]);
    check(&error(&datagram), Ok(None));
    if family == Family::V4 {
        check(
            &error(&packet::syn(client, server, ISN).fragment(9)),
            Ok(None),
        );
        // A quoted header with an impossible length.
        let mut bytes = error(&packet::syn(client, server, ISN)).bytes();
        bytes[14 + 20 + 8] = 0x44;
        assert_eq!(
            parse(&bytes.as_slice(), Link::Ethernet),
            Err(Fault::Malformed)
        );
        let optioned = error(&packet::syn(client, server, ISN).ip_options(3));
        assert!(matches!(
            ethernet(&optioned),
            Ok(Some(Segment { isn: ISN, .. }))
        ));
    }
}

/// The eight quoted bytes of the TCP header that RFC 792 guarantees are enough.
#[test]
fn icmp_with_a_short_quote() {
    let (client, server) = ends(Family::V4);
    let full = packet::icmp_error(
        server.ip(),
        client.ip(),
        3,
        3,
        &packet::syn(client, server, ISN),
    );
    let mut bytes = full.bytes();
    bytes.truncate(14 + 20 + 8 + 20 + 8);
    let total = (bytes.len() - 14) as u16;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    let parsed = parse(&bytes.as_slice(), Link::Ethernet);
    assert!(
        matches!(parsed, Ok(Some(Segment { isn: ISN, .. }))),
        "{parsed:?}"
    );
}

#[rstest]
#[case::vlan(&[VLAN], true)]
#[case::qinq(&[QINQ, VLAN], true)]
#[case::vlan_in_vlan(&[VLAN, VLAN], true)]
#[case::three(&[QINQ, VLAN, VLAN], false)]
fn vlan_tags(
    #[values(Family::V4, Family::V6)] family: Family,
    #[case] tags: &[u16],
    #[case] followed: bool,
) {
    let (client, server) = ends(family);
    let mut packet = packet::syn(client, server, ISN);
    for tag in tags {
        packet = packet.tagged(*tag);
    }
    if followed {
        check(&packet, Ok(Some(segment(Kind::Syn, client, server))));
    } else {
        assert_eq!(ethernet(&packet), Err(Fault::TooDeep));
    }
}

#[rstest]
fn ipv4_options(#[values(1, 5, 10)] words: u8) {
    let (client, server) = ends(Family::V4);
    let packet = packet::syn(client, server, ISN).ip_options(words);
    check(&packet, Ok(Some(segment(Kind::Syn, client, server))));
}

#[rstest]
#[case::hop_by_hop(&[HopByHop(0)])]
#[case::long_hop_by_hop(&[HopByHop(31)])]
#[case::routing(&[Routing(2)])]
#[case::destination(&[Destination(1)])]
#[case::authentication(&[Authentication(3)])]
#[case::first_fragment(&[Fragment(0)])]
#[case::all(&[HopByHop(0), Destination(0), Routing(4), Fragment(0), Authentication(3), Destination(0)])]
fn extension_headers(#[case] extensions: &[Extension]) {
    let (client, server) = ends(Family::V6);
    let mut syn = packet::syn(client, server, ISN);
    let about = packet::syn(client, server, ISN);
    let mut error = packet::icmp_error(server.ip(), client.ip(), 1, 4, &about);
    let mut datagram = Packet::ip(client.ip(), server.ip(), 17, vec![0; 16]);
    for extension in extensions {
        syn = syn.extension(*extension);
        error = error.extension(*extension);
        datagram = datagram.extension(*extension);
    }
    check(&syn, Ok(Some(segment(Kind::Syn, client, server))));
    assert!(matches!(
        ethernet(&error),
        Ok(Some(Segment {
            kind: Kind::Unreachable,
            ..
        }))
    ));
    check(&datagram, Ok(None));
}

#[test]
fn too_many_extensions() {
    let (client, server) = ends(Family::V6);
    let mut packet = packet::syn(client, server, ISN);
    for _ in 0..7 {
        packet = packet.extension(Destination(0));
    }
    assert_eq!(ethernet(&packet), Err(Fault::TooDeep));
}

/// Later fragments lack a TCP header. Fragments of other protocols are not counted.
#[rstest]
#[case(6, Err(Fault::LaterFragment))]
#[case(17, Ok(None))]
fn later_fragments(#[case] protocol: u8, #[case] expected: Result<Option<Segment>, Fault>) {
    for family in Family::ALL {
        let (client, server) = ends(family);
        let whole = Packet::ip(client.ip(), server.ip(), protocol, vec![0x5a; 32]);
        let later = match family {
            Family::V4 => whole.fragment(185),
            Family::V6 => whole.extension(Fragment(185)),
        };
        check(&later, expected);
    }
}

#[test]
fn first_fragment_of_ipv4() {
    let (client, server) = ends(Family::V4);
    let packet = packet::syn(client, server, ISN).fragment(0);
    check(&packet, Ok(Some(segment(Kind::Syn, client, server))));
}

/// Contradictory headers. The offset of the changed byte is relative to the end of the Ethernet header.
#[rstest]
#[case::version(Family::V4, 0, 0x65)]
#[case::short_header(Family::V4, 0, 0x44)]
#[case::total_shorter_than_header(Family::V4, 3, 19)]
#[case::total_without_tcp(Family::V4, 3, 30)]
#[case::tcp_header_too_short(Family::V4, 20 + 12, 0x40)]
#[case::tcp_header_too_long(Family::V4, 20 + 12, 0xf0)]
#[case::version(Family::V6, 0, 0x45)]
#[case::payload_without_tcp(Family::V6, 5, 10)]
#[case::tcp_header_too_short(Family::V6, 40 + 12, 0x40)]
#[case::tcp_header_too_long(Family::V6, 40 + 12, 0xf0)]
fn contradictions(#[case] family: Family, #[case] offset: usize, #[case] byte: u8) {
    let (client, server) = ends(family);
    let mut bytes = packet::syn(client, server, ISN).bytes();
    bytes[14 + offset] = byte;
    assert_eq!(
        parse(&bytes.as_slice(), Link::Ethernet),
        Err(Fault::Malformed)
    );
}

/// The maps store IPv4 addresses as mapped ones, so a mapped address in an IPv6 header would match an IPv4
/// frontend.
#[rstest]
#[case::of_the_client("::ffff:10.244.1.5", "fd00:10:96::1", false)]
#[case::of_the_server("fd00:10:244:1::5", "::ffff:10.96.0.1", false)]
#[case::of_both("::ffff:10.244.1.5", "::ffff:10.96.0.1", false)]
#[case::shorter_prefix("::fffe:10.244.1.5", "::fffe:10.96.0.1", true)]
#[case::longer_prefix("::1:ffff:10.244.1.5", "1::ffff:10.96.0.1", true)]
#[case::translated("::ffff:0:10.244.1.5", "64:ff9b::10.96.0.1", true)]
fn mapped_addresses(#[case] client: &str, #[case] server: &str, #[case] sound: bool) {
    let end = |ip: &str, port| SocketAddr::new(ip.parse().expect("an address"), port);
    let (client, server) = (end(client, 40_001), end(server, 443));
    let about = packet::syn(client, server, ISN);
    let error = |from: SocketAddr, to: SocketAddr| {
        packet::icmp_error(from.ip(), to.ip(), 1, 4, &about).extension(Destination(0))
    };
    let (one, other) = ends(Family::V6);
    for packet in [
        about.clone(),
        about.clone().extension(Routing(2)),
        packet::syn_ack(server, client, ISN),
        packet::reset(server, client, ISN),
        error(server, client),
        // The addresses of the ICMP packet itself are valid.
        error(one, other),
    ] {
        match (ethernet(&packet), sound) {
            (Ok(Some(_)), true) | (Err(Fault::Malformed), false) => {}
            (other, _) => panic!("{packet:?}: {other:?}"),
        }
        let short = parse_plain(&packet.bytes().as_slice(), Link::Ethernet);
        assert!(sound || short.is_none(), "{packet:?}: {short:?}");
    }
    let datagram = packet::udp(client, server, &[7; 32]).bytes();
    assert_eq!(parse(&datagram.as_slice(), Link::Ethernet), Ok(None));
    match (udp::parse(&datagram.as_slice(), Link::Ethernet), sound) {
        (Ok(Some(_)), true) | (Err(Fault::Malformed), false) => {}
        (other, _) => panic!("{other:?}"),
    }
}

/// Linux merges received segments into packets above 64 KiB, whose length field is zero.
#[test]
fn jumbograms_are_data() {
    let (client, server) = ends(Family::V6);
    let packet = packet::data(client, server, &[0; 64]).extension(HopByHop(0));
    let mut bytes = packet.bytes();
    bytes[18..20].fill(0);
    assert_eq!(parse(&bytes.as_slice(), Link::Ethernet), Ok(None));
}

#[rstest]
#[case::empty(&[], Err(Fault::Truncated))]
#[case::shorter_than_ethernet(&[0; 13], Err(Fault::Truncated))]
#[case::arp(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 6, 0], Ok(None))]
#[case::ethernet_alone(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0], Err(Fault::Truncated))]
fn runts(#[case] bytes: &[u8], #[case] expected: Result<Option<Segment>, Fault>) {
    assert_eq!(parse(&bytes, Link::Ethernet), expected);
}

#[rstest]
#[case::empty(&[], Err(Fault::Truncated))]
#[case::neither_version(&[0x15; 60], Ok(None))]
fn runts_without_link(#[case] bytes: &[u8], #[case] expected: Result<Option<Segment>, Fault>) {
    assert_eq!(parse(&bytes, Link::None), expected);
}

fn address(family: Family) -> impl Strategy<Value = SocketAddr> {
    let ip = match family {
        Family::V4 => any::<[u8; 4]>().prop_map(IpAddr::from).boxed(),
        Family::V6 => any::<[u8; 16]>().prop_map(IpAddr::from).boxed(),
    };
    (ip, any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn sound_tcp() -> impl Strategy<Value = Packet> {
    prop_oneof![Just(Family::V4), Just(Family::V6)].prop_flat_map(|family| {
        let extension = prop_oneof![
            (0..4_u8).prop_map(Routing),
            (0..4_u8).prop_map(Destination),
            (1..5_u8).prop_map(Authentication),
        ];
        (
            (
                address(family),
                address(family),
                0..32_u8,
                any::<u32>(),
                any::<u32>(),
            ),
            prop::collection::vec(any::<u8>(), 0..40),
            prop::collection::vec(prop_oneof![Just(VLAN), Just(QINQ)], 0..3),
            0..11_u8,
            prop::collection::vec(extension, 0..2),
        )
            .prop_map(
                |((from, to, flags, sequence, acknowledged), payload, tags, words, chain)| {
                    let mut packet = packet::tcp(from, to, flags, sequence, acknowledged, &payload);
                    for tag in tags {
                        packet = packet.tagged(tag);
                    }
                    for extension in chain {
                        packet = packet.extension(extension);
                    }
                    packet.ip_options(words)
                },
            )
    })
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), ethernet: bool) {
        let link = if ethernet { Link::Ethernet } else { Link::None };
        let _ = parse(&bytes.as_slice(), link);
    }

    /// Valid packets with a few changed bytes reach more code than arbitrary bytes.
    #[test]
    fn damaged_packets(
        packet in sound_tcp(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        length: prop::sample::Index,
    ) {
        let mut bytes = packet.bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(length.index(bytes.len() + 1));
        let _ = parse(&bytes.as_slice(), Link::Ethernet);
        let _ = parse(&bytes.as_slice(), Link::None);
    }

    /// The fast path returns the result of the full parser, or nothing.
    #[test]
    fn the_fast_path_agrees(
        packet in sound_tcp(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ethernet: bool,
    ) {
        let link = if ethernet { Link::Ethernet } else { Link::None };
        let mut bytes = if ethernet { packet.bytes() } else { packet.without_link().bytes() };
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(segment) = parse_plain(&bytes.as_slice(), link) {
            prop_assert_eq!(parse(&bytes.as_slice(), link), Ok(Some(segment)));
        }
    }

    #[test]
    fn agrees_with_etherparse(packet in sound_tcp()) {
        let bytes = packet.bytes();
        let ours = match parse(&bytes.as_slice(), Link::Ethernet) {
            Ok(ours) => ours,
            // etherparse accepts contradictory flags.
            Err(Fault::Malformed) => None,
            Err(fault) => return Err(TestCaseError::fail(format!("{fault:?}"))),
        };
        prop_assert_eq!(ours, by_etherparse(&bytes).expect("sound"));
    }
}
