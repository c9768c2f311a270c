//! How the sentinel's programs classify packets of probes, and how the echo program answers them, on
//! slices. The compiled programs run the same functions (tests/kernel).

use std::net::{IpAddr, SocketAddr};

use etherparse::{SlicedPacket, TcpHeader, TransportSlice};
use frame::Frame;
use packet::{Extension, Packet, VLAN, flag, is_sound};
use pathproof_wire::packet::Bytes;
use pathproof_wire::probe::answer::answer;
use pathproof_wire::probe::packet::{Kind, ProbePacket, parse, ports, source};
use pathproof_wire::probe::{DATA_LEN, Phase, ProbeKey, UDP, UDP_MAGIC, echo_isn, token_of_echo};
use pathproof_wire::service::{Family, TCP};
use proptest::prelude::*;
use rstest::rstest;

#[path = "parts/frame.rs"]
pub mod frame;
#[path = "../../../tests/src/packet.rs"]
pub mod packet;

const TOKEN: u32 = 0xfeed_beef;

fn ends(family: Family) -> (SocketAddr, SocketAddr) {
    let (client, echo) = match family {
        Family::V4 => ("198.18.0.1:40001", "198.18.0.2:8080"),
        Family::V6 => ("[2001:2::1]:40001", "[2001:2::2]:8080"),
    };
    (
        client.parse().expect("an address"),
        echo.parse().expect("an address"),
    )
}

fn payload(token: u32) -> [u8; DATA_LEN] {
    let mut payload = [0; DATA_LEN];
    payload[..UDP_MAGIC.len()].copy_from_slice(&UDP_MAGIC);
    payload[UDP_MAGIC.len()..].copy_from_slice(&token.to_be_bytes());
    payload
}

fn data(from: SocketAddr, to: SocketAddr, token: u32) -> Packet {
    let flags = flag::ACK | flag::PSH;
    packet::tcp(from, to, flags, 1_001, 2_002, &payload(token))
}

fn expected(family: Family, protocol: u8, kind: Kind) -> (ProbeKey, Kind) {
    let key = ProbeKey {
        token: TOKEN,
        family: family as u8,
        protocol,
        padding: [0; 2],
    };
    (key, kind)
}

/// Parses the packet, and asserts that no prefix of it is a probe's.
fn read(packet: &Packet) -> Option<(ProbeKey, Kind)> {
    let bytes = packet.bytes();
    let parsed = parse(&bytes.as_slice()).map(|packet| (packet.key, packet.kind));
    for length in 0..bytes.len() {
        assert_eq!(parse(&&bytes[..length]), None, "{length} bytes");
    }
    let mut padded = bytes;
    padded.extend([0; 9]);
    let with_padding = parse(&padded.as_slice()).map(|packet| (packet.key, packet.kind));
    assert_eq!(with_padding, parsed);
    parsed
}

type Make = fn(SocketAddr, SocketAddr) -> Packet;

#[rstest]
#[case::syn(|c, e| packet::syn(c, e, TOKEN), TCP, Kind::Syn)]
#[case::syn_ack(|c, e| packet::syn_ack(e, c, TOKEN), TCP, Kind::SynAck)]
#[case::data(|c, e| data(c, e, TOKEN), TCP, Kind::Data)]
#[case::data_back(|c, e| data(e, c, TOKEN), TCP, Kind::Data)]
#[case::refused(|c, e| packet::reset(e, c, TOKEN), TCP, Kind::Reset)]
#[case::data_refused(
    |c, e| packet::tcp(e, c, flag::RST, echo_isn(TOKEN).wrapping_add(1), 0, &[]), TCP, Kind::Reset
)]
#[case::datagram(|c, e| packet::udp(c, e, &payload(TOKEN)), UDP, Kind::Data)]
fn packets_of_a_probe(
    #[values(Family::V4, Family::V6)] family: Family,
    #[case] make: Make,
    #[case] protocol: u8,
    #[case] kind: Kind,
) {
    let (client, echo) = ends(family);
    let packet = make(client, echo);
    assert_eq!(read(&packet), Some(expected(family, protocol, kind)));
}

#[rstest]
#[case::payload_in_syn(|c, e| packet::tcp(c, e, flag::SYN, TOKEN, 0, &payload(TOKEN)))]
#[case::fin(|c, e| packet::tcp(c, e, flag::FIN | flag::ACK, 1, 1, &payload(TOKEN)))]
#[case::syn_fin(|c, e| packet::tcp(c, e, flag::SYN | flag::FIN, TOKEN, 0, &[]))]
#[case::syn_reset(|c, e| packet::tcp(c, e, flag::SYN | flag::RST, TOKEN, 0, &[]))]
#[case::no_flags(|c, e| packet::tcp(c, e, 0, TOKEN, 0, &payload(TOKEN)))]
#[case::acknowledgement(|c, e| packet::tcp(c, e, flag::ACK, TOKEN, 7, &[]))]
#[case::too_little(|c, e| packet::tcp(c, e, flag::ACK, 1, 1, &payload(TOKEN)[..11]))]
#[case::too_much(|c, e| packet::tcp(c, e, flag::ACK, 1, 1, &[&payload(TOKEN)[..], b"x"].concat()))]
#[case::other_magic(|c, e| packet::tcp(c, e, flag::ACK, 1, 1, b"pathprf2\xfe\xed\xbe\xef"))]
#[case::other_datagram(|c, e| packet::udp(c, e, b"pathprf2\xfe\xed\xbe\xef"))]
#[case::short_datagram(|c, e| packet::udp(c, e, b"pathprf1\xfe\xed\xbe"))]
#[case::empty_datagram(|c, e| packet::udp(c, e, b""))]
#[case::tagged(|c, e| packet::syn(c, e, TOKEN).tagged(VLAN))]
#[case::other_protocol(other_protocol)]
fn other_packets_are_no_probes(
    #[values(Family::V4, Family::V6)] family: Family,
    #[case] make: Make,
) {
    let (client, echo) = ends(family);
    assert_eq!(read(&make(client, echo)), None);
}

fn other_protocol(from: SocketAddr, to: SocketAddr) -> Packet {
    Packet::ip(from.ip(), to.ip(), 132, vec![0; 40])
}

/// Neither the agent, the echo program nor the node ever send such packets for a probe.
#[test]
fn packets_of_another_shape() {
    let (client, echo) = ends(Family::V4);
    let syn = || packet::syn(client, echo, TOKEN);
    assert_eq!(read(&syn().ip_options(2)), None);
    assert_eq!(read(&syn().fragment(0)), None);
    assert_eq!(read(&syn().fragment(3)), None);
    let (client, echo) = ends(Family::V6);
    let syn = packet::syn(client, echo, TOKEN).extension(Extension::HopByHop(0));
    assert_eq!(read(&syn), None);
}

#[rstest]
fn errors_about_a_probe(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(0, 1, 2, 3, 4, 11)] kind: u8,
    #[values(0, 1, 3, 4, 9, 13)] code: u8,
) {
    let (client, echo) = ends(family);
    let fragmentation_needed = family == Family::V4 && code == 4;
    let unreachable = kind == if family == Family::V4 { 3 } else { 1 } && !fragmentation_needed;
    let seq = TOKEN.wrapping_add(1);
    let data = packet::tcp(client, echo, flag::ACK, seq, 9, &payload(TOKEN));
    for (about, protocol) in [
        (packet::syn(client, echo, TOKEN), TCP),
        (data, TCP),
        (packet::udp(client, echo, &payload(TOKEN)), UDP),
    ] {
        let error = packet::icmp_error(echo.ip(), client.ip(), kind, code, &about);
        let found = unreachable.then_some(expected(family, protocol, Kind::Unreachable));
        assert_eq!(read(&error), found);
    }
    let other = other_protocol(client, echo);
    let error = packet::icmp_error(echo.ip(), client.ip(), kind, code, &other);
    assert_eq!(read(&error), None);
}

#[rstest]
#[case(Kind::Syn, Some(Phase::Handshake), None)]
#[case(Kind::SynAck, None, Some(Phase::Handshake))]
#[case(Kind::Data, Some(Phase::Data), Some(Phase::Data))]
#[case(Kind::Reset, None, None)]
#[case(Kind::Unreachable, None, None)]
fn phases(#[case] kind: Kind, #[case] request: Option<Phase>, #[case] answer: Option<Phase>) {
    assert_eq!((kind.request(), kind.answer()), (request, answer));
}

fn answered(packet: &Packet) -> (ProbePacket, Vec<u8>) {
    let bytes = packet.bytes();
    let probe = parse(&bytes.as_slice()).expect("a probe's packet");
    let frame = Frame::new(bytes);
    answer(&frame, &probe).expect("an answer");
    (probe, frame.into_bytes())
}

fn address(octets: &[u8; 16]) -> IpAddr {
    IpAddr::from(*octets).to_canonical()
}

/// Checks that the checksums are valid, and that source and destination are exchanged.
fn check_turned(question: &[u8], answer: &[u8]) {
    assert!(is_sound(answer));
    assert_eq!(answer.len(), question.len());
    assert_eq!(answer[..6], question[6..12]);
    assert_eq!(answer[6..12], question[..6]);
    let (asked, told) = (
        parse(&question).expect("asked"),
        parse(&answer).expect("told"),
    );
    let (from, to) = ports(&question, &asked).expect("ports");
    assert_eq!(ports(&answer, &told), Some((to, from)));
    let back = Frame::new(answer.to_vec());
    // The answer to the answer has the original addresses.
    if told.kind == Kind::Data {
        pathproof_wire::probe::answer::answer(&back, &told).expect("an answer");
        let again = back.into_bytes();
        assert_eq!(
            source(&again.as_slice(), told.family),
            source(&question, asked.family)
        );
    }
}

fn tcp_of(bytes: &[u8]) -> TcpHeader {
    let sliced = SlicedPacket::from_ethernet(bytes).expect("sound");
    match sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => tcp.to_header(),
        other => panic!("no TCP: {other:?}"),
    }
}

#[rstest]
fn a_syn_is_answered(#[values(Family::V4, Family::V6)] family: Family) {
    let (client, echo) = ends(family);
    let question = packet::syn(client, echo, TOKEN);
    let (_, answer) = answered(&question);
    check_turned(&question.bytes(), &answer);
    let header = tcp_of(&answer);
    assert_eq!(header.sequence_number, echo_isn(TOKEN));
    assert_eq!(header.acknowledgment_number, TOKEN.wrapping_add(1));
    assert_eq!(
        (header.syn, header.ack, header.fin, header.rst),
        (true, true, false, false)
    );
    assert_eq!(header.options.as_slice(), [1; 4]);
    let told = parse(&answer.as_slice()).expect("a SYN-ACK");
    assert_eq!((told.key.token, told.kind), (TOKEN, Kind::SynAck));
    let from = source(&answer.as_slice(), family).expect("an address");
    assert_eq!(address(&from), echo.ip());
}

#[rstest]
fn data_is_echoed(#[values(Family::V4, Family::V6)] family: Family) {
    let (client, echo) = ends(family);
    let question = data(client, echo, TOKEN);
    let (_, answer) = answered(&question);
    check_turned(&question.bytes(), &answer);
    let header = tcp_of(&answer);
    assert_eq!(header.sequence_number, 2_002);
    assert_eq!(header.acknowledgment_number, 1_001 + DATA_LEN as u32);
    assert!(answer.ends_with(&payload(TOKEN)));
}

#[rstest]
fn a_datagram_is_echoed(#[values(Family::V4, Family::V6)] family: Family) {
    let (client, echo) = ends(family);
    let question = packet::udp(client, echo, &payload(TOKEN));
    let (_, answer) = answered(&question);
    check_turned(&question.bytes(), &answer);
    assert!(answer.ends_with(&payload(TOKEN)));
    if family == Family::V4 {
        // A datagram without a checksum gets none.
        let mut bytes = question.bytes();
        bytes[14 + 20 + 6..14 + 20 + 8].fill(0);
        let probe = parse(&bytes.as_slice()).expect("a datagram");
        let frame = Frame::new(bytes);
        pathproof_wire::probe::answer::answer(&frame, &probe).expect("an answer");
        assert_eq!(frame.load(14 + 20 + 6), Some([0; 2]));
    }
}

/// Only a SYN and data are answered.
#[test]
fn answers_are_not_answered() {
    let (client, echo) = ends(Family::V4);
    for packet in [
        packet::syn_ack(client, echo, TOKEN),
        packet::reset(client, echo, TOKEN),
    ] {
        let bytes = packet.bytes();
        let probe = parse(&bytes.as_slice()).expect("known");
        let frame = Frame::new(bytes);
        assert_eq!(pathproof_wire::probe::answer::answer(&frame, &probe), None);
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(probe) = parse(&bytes.as_slice()) {
            let _ = source(&bytes.as_slice(), probe.family);
            let _ = answer(&Frame::new(bytes), &probe);
        }
    }

    /// Valid packets with a few changed bytes reach more code than arbitrary bytes.
    #[test]
    fn damaged_packets(
        kind in 0..5,
        family in prop_oneof![Just(Family::V4), Just(Family::V6)],
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length: prop::sample::Index,
    ) {
        let (client, echo) = ends(family);
        let syn = packet::syn(client, echo, TOKEN);
        let unreachable = if family == Family::V4 { 3 } else { 1 };
        let packet = match kind {
            0 => syn,
            1 => data(client, echo, TOKEN),
            2 => packet::udp(client, echo, &payload(TOKEN)),
            3 => packet::icmp_error(echo.ip(), client.ip(), unreachable, 1, &syn),
            _ => packet::reset(client, echo, TOKEN),
        };
        let mut bytes = packet.bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(length.index(bytes.len() + 1));
        if let Some(probe) = parse(&bytes.as_slice()) {
            let _ = answer(&Frame::new(bytes), &probe);
        }
    }

    /// The answer to any SYN of a network stack has a valid checksum and accepts no option.
    #[test]
    fn any_syn(
        family in prop_oneof![Just(Family::V4), Just(Family::V6)],
        token: u32,
        acknowledged: u32,
        window: u16,
        urgent: u16,
        options in prop::collection::vec(any::<[u8; 4]>(), 0..11),
        (ns, ece, cwr, psh) in any::<(bool, bool, bool, bool)>(),
    ) {
        let (client, echo) = ends(family);
        let mut header = TcpHeader::new(client.port(), echo.port(), token, window);
        header.acknowledgment_number = acknowledged;
        header.urgent_pointer = urgent;
        (header.syn, header.ns, header.ece, header.cwr, header.psh) = (true, ns, ece, cwr, psh);
        header.set_options_raw(&options.concat()).expect("whole words");
        let question = packet::segment(header, client.ip(), echo.ip(), &[]);
        let (_, answer) = answered(&question);
        prop_assert!(is_sound(&answer));
        let told = tcp_of(&answer);
        prop_assert_eq!(told.sequence_number, echo_isn(token));
        prop_assert_eq!(token_of_echo(told.sequence_number), token);
        prop_assert_eq!(told.acknowledgment_number, token.wrapping_add(1));
        prop_assert!(!told.ns && !told.ece && !told.cwr && !told.psh);
        prop_assert!(told.options.as_slice().iter().all(|byte| *byte == 1));
    }

    #[test]
    fn any_data(
        family in prop_oneof![Just(Family::V4), Just(Family::V6)],
        (token, sequence, acknowledged) in any::<(u32, u32, u32)>(),
        window: u16,
        options in prop::collection::vec(any::<[u8; 4]>(), 0..11),
    ) {
        let (client, echo) = ends(family);
        let mut header = TcpHeader::new(client.port(), echo.port(), sequence, window);
        header.acknowledgment_number = acknowledged;
        header.ack = true;
        header.set_options_raw(&options.concat()).expect("whole words");
        let question = packet::segment(header, client.ip(), echo.ip(), &payload(token));
        let (_, answer) = answered(&question);
        check_turned(&question.bytes(), &answer);
        let told = tcp_of(&answer);
        prop_assert_eq!(told.sequence_number, acknowledged);
        prop_assert_eq!(told.acknowledgment_number, sequence.wrapping_add(DATA_LEN as u32));
    }
}
