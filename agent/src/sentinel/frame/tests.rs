use agent_common::packet::{Kind, Link, parse};
use agent_common::service::{Family, mapped};
use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use rstest::rstest;

use super::*;

const FAR: Mac = [2, 0, 0, 0, 0, 1];
const NEAR: Mac = [2, 0, 0, 0, 0, 2];

fn flow(from: &str, to: &str) -> Flow {
    Flow {
        link: (FAR, NEAR),
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
    }
}

const V4: (&str, &str) = ("198.18.0.1:20000", "10.96.0.10:7");
const V6: (&str, &str) = ("[2001:2::1]:20000", "[fd00::10]:7");

/// The headers, after both checksums were computed anew and found right.
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
    #[case] ends: (&str, &str),
    #[case] family: Family,
    #[case] mss: u16,
) {
    let flow = flow(ends.0, ends.1);
    let mut frame = vec![9; 3];
    flow.syn(&mut frame, 0xdead_beef).unwrap();
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
    assert_eq!(segment.source, address(flow.from.ip()));
    assert_eq!(segment.destination, address(flow.to.ip()));
    assert_eq!(segment.source_port, flow.from.port().to_be_bytes());
    assert_eq!(segment.destination_port, flow.to.port().to_be_bytes());
}

#[rstest]
fn data_and_reset_carry_their_numbers(#[values(V4, V6)] ends: (&str, &str)) {
    let flow = flow(ends.0, ends.1);
    let mut frame = Vec::new();
    flow.push(&mut frame, 11, 71, &data(10)).unwrap();
    let headers = sound(&frame);
    let header = tcp(&headers);
    assert_eq!(headers.payload.slice(), b"pathprf1\0\0\0\x0a");
    assert!(header.psh && header.ack && !header.syn && !header.rst);
    assert_eq!(
        (header.sequence_number, header.acknowledgment_number),
        (11, 71)
    );

    flow.reset(&mut frame, 23, Some(83)).unwrap();
    let header = tcp(&sound(&frame));
    assert!(header.rst && header.ack && !header.syn);
    assert_eq!(
        (header.sequence_number, header.acknowledgment_number),
        (23, 83)
    );
    assert_eq!(header.options.len(), 0);

    flow.reset(&mut frame, 11, None).unwrap();
    let header = tcp(&sound(&frame));
    assert!(header.rst && !header.ack && !header.syn);
    assert_eq!(
        (header.sequence_number, header.acknowledgment_number),
        (11, 0)
    );
}

#[rstest]
fn a_datagram_carries_the_token(#[values(V4, V6)] ends: (&str, &str)) {
    let mut frame = Vec::new();
    flow(ends.0, ends.1)
        .datagram(&mut frame, &data(0x0102_0304))
        .unwrap();
    let headers = sound(&frame);
    assert_eq!(headers.payload.slice(), b"pathprf1\x01\x02\x03\x04");
}

#[test]
fn two_families_are_refused() {
    let error = flow(V4.0, V6.1).syn(&mut Vec::new(), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot send from 198.18.0.1 to fd00::10: the addresses are of two families"
    );
}
