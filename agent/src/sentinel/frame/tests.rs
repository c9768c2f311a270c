use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use pathproof_wire::packet::{Kind, Link, parse};
use pathproof_wire::service::{Family, mapped};
use rstest::rstest;

use super::*;

const FAR: Mac = [2, 0, 0, 0, 0, 1];
const NEAR: Mac = [2, 0, 0, 0, 0, 2];

type Ends = (&'static str, &'static str);

fn sockets(ends: Ends) -> (SocketAddr, SocketAddr) {
    (ends.0.parse().unwrap(), ends.1.parse().unwrap())
}

fn written(ends: Ends, packet: Packet) -> Vec<u8> {
    let mut frame = vec![9; 3];
    write(&mut frame, (FAR, NEAR), sockets(ends), packet).unwrap();
    frame
}

const V4: Ends = ("198.18.0.1:20000", "10.96.0.10:7");
const V6: Ends = ("[2001:2::1]:20000", "[fd00::10]:7");

/// Parses the headers and checks both checksums.
fn sound(frame: &[u8]) -> PacketHeaders<'_> {
    let headers = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let payload = headers.payload.slice();
    let checksum = match (headers.net.as_ref().unwrap(), &headers.transport) {
        (NetHeaders::Ipv4(ip, _), transport) => {
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            assert_eq!(usize::from(ip.total_len), frame.len() - 14);
            match transport {
                Some(TransportHeader::Tcp(tcp)) => tcp.calc_checksum_ipv4(ip, payload).unwrap(),
                Some(TransportHeader::Udp(udp)) => udp.calc_checksum_ipv4(ip, payload).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        (NetHeaders::Ipv6(ip, _), transport) => {
            assert_eq!(usize::from(ip.payload_length), frame.len() - 14 - 40);
            match transport {
                Some(TransportHeader::Tcp(tcp)) => tcp.calc_checksum_ipv6(ip, payload).unwrap(),
                Some(TransportHeader::Udp(udp)) => udp.calc_checksum_ipv6(ip, payload).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    match &headers.transport {
        Some(TransportHeader::Tcp(tcp)) => assert_eq!(tcp.checksum, checksum),
        Some(TransportHeader::Udp(udp)) => assert_eq!(udp.checksum, checksum),
        other => panic!("{other:?}"),
    }
    headers
}

fn tcp(headers: &PacketHeaders<'_>) -> TcpHeader {
    match &headers.transport {
        Some(TransportHeader::Tcp(tcp)) => tcp.clone(),
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[case(V4, Family::V4, 1_460)]
#[case(V6, Family::V6, 1_440)]
fn the_observer_sees_a_syn_with_its_token(
    #[case] ends: Ends,
    #[case] family: Family,
    #[case] mss: u16,
) {
    let (from, to) = sockets(ends);
    let frame = written(ends, Packet::Syn(0xdead_beef));
    let headers = sound(&frame);
    let options: Vec<_> = tcp(&headers).options_iterator().flatten().collect();
    assert_eq!(options, [TcpOptionElement::MaximumSegmentSize(mss)]);
    assert_eq!((&frame[..6], &frame[6..12]), (&NEAR[..], &FAR[..]));

    let segment = parse(&frame.as_slice(), Link::Ethernet).unwrap().unwrap();
    assert_eq!(segment.kind, Kind::Syn);
    assert_eq!((segment.isn, segment.payload), (0xdead_beef, 0));
    assert_eq!(segment.family, family);
    let address = |ip| match ip {
        IpAddr::V4(v4) => mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    };
    assert_eq!(segment.source, address(from.ip()));
    assert_eq!(segment.destination, address(to.ip()));
    assert_eq!(segment.source_port, from.port().to_be_bytes());
    assert_eq!(segment.destination_port, to.port().to_be_bytes());
}

#[rstest]
fn data_and_reset_carry_their_numbers(#[values(V4, V6)] ends: Ends) {
    let data = Packet::Data {
        sequence: 11,
        acknowledged: 71,
        token: 10,
    };
    let frame = written(ends, data);
    let headers = sound(&frame);
    let header = tcp(&headers);
    assert_eq!(headers.payload.slice(), b"pathprf1\0\0\0\x0a");
    assert!(header.psh && header.ack && !header.syn && !header.rst);
    assert_eq!(
        (header.sequence_number, header.acknowledgment_number),
        (11, 71)
    );

    let reset = |sequence, acknowledged| {
        let frame = written(
            ends,
            Packet::Reset {
                sequence,
                acknowledged,
            },
        );
        tcp(&sound(&frame))
    };
    let header = reset(23, Some(83));
    assert!(header.rst && header.ack && !header.syn);
    assert_eq!(
        (header.sequence_number, header.acknowledgment_number),
        (23, 83)
    );
    assert_eq!(header.options.len(), 0);

    let header = reset(11, None);
    assert!(header.rst && !header.ack && !header.syn);
    assert_eq!(
        (header.sequence_number, header.acknowledgment_number),
        (11, 0)
    );
}

#[rstest]
fn a_datagram_carries_the_token(#[values(V4, V6)] ends: Ends) {
    let frame = written(ends, Packet::Datagram(0x0102_0304));
    let headers = sound(&frame);
    assert_eq!(headers.payload.slice(), b"pathprf1\x01\x02\x03\x04");
}

#[test]
fn two_families_are_refused() {
    let ends = sockets((V4.0, V6.1));
    let error = write(&mut Vec::new(), (FAR, NEAR), ends, Packet::Syn(1)).unwrap_err();
    assert_eq!(
        error,
        "cannot send from 198.18.0.1 to fd00::10: one address is IPv4 and the other IPv6"
    );
}
