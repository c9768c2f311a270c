//! Arbitrary frames. The parsers of the observer and of the sentinel's programs agree with another parser,
//! with each other, and with their results for every prefix of the frame.

use etherparse::{EtherType, IpNumber, LinkExtSlice, NetSlice, SlicedPacket};
use pathproof_wire::evidence::Fault;
use pathproof_wire::packet::{Kind, Link, Segment, parse, parse_plain, udp};
use pathproof_wire::probe::answer::answer;
use pathproof_wire::probe::packet::{self as probe, Kind as ProbeKind, ProbePacket};
use pathproof_wire::probe::{UDP, echo_isn};

use crate::by_etherparse;
use crate::frame::Frame;
use crate::packet::is_sound;

/// Maximum length of the prefixes. All headers that the parsers follow fit into it.
const CUT: usize = 256;

pub(crate) fn check(frame: &[u8]) -> bool {
    let [ethernet, bare] = [Link::Ethernet, Link::None].map(|link| observer(frame, link));
    against_etherparse(frame, ethernet);
    let datagrams = [Link::Ethernet, Link::None].map(|link| datagram(frame, link));
    let probe = probe::parse(&frame);
    if let Some(packet) = &probe {
        of_a_probe(frame, packet, ethernet);
    }
    [ethernet, bare]
        .iter()
        .any(|seen| matches!(seen, Ok(Some(_))))
        || probe.is_some()
        || datagrams.contains(&true)
}

/// If a frame is parsed as a datagram, it contains the whole datagram.
fn datagram(frame: &[u8], link: Link) -> bool {
    let Ok(Some((segment, at))) = udp::parse(&frame, link) else {
        return false;
    };
    let payload = segment.payload;
    assert!(at + payload as usize <= frame.len(), "{segment:?} at {at}");
    assert!(
        udp::payload_hash(&frame, at, payload).is_some(),
        "{segment:?}"
    );
    true
}

type Seen = Result<Option<Segment>, Fault>;

fn observer(frame: &[u8], link: Link) -> Seen {
    let seen = parse(&frame, link);
    if let Some(short) = parse_plain(&frame, link) {
        assert_eq!(seen, Ok(Some(short)), "the fast path differs");
    }
    if let Ok(Some(segment)) = seen {
        let length = frame.len();
        assert!(
            (segment.payload as usize) < length,
            "{segment:?} of {length}"
        );
    }
    // Bytes after a packet are ignored. So if a prefix gives a packet, the whole frame gives the same one.
    for length in 0..frame.len().min(CUT) {
        let piece = parse(&&frame[..length], link);
        if let Ok(Some(_)) = piece {
            assert_eq!(piece, seen, "a prefix of {length} bytes differs");
            let end = end(frame, link);
            assert!(
                end <= length,
                "a prefix of {length} of {end} bytes is accepted"
            );
        }
    }
    seen
}

/// End of an untagged packet, by its network header; zero if it cannot be determined.
fn end(frame: &[u8], link: Link) -> usize {
    let word = |at: usize| {
        frame
            .get(at..at + 2)
            .map(|b| u16::from_be_bytes([b[0], b[1]]))
    };
    let at = match (link, word(12)) {
        (Link::Ethernet, Some(0x0800 | 0x86dd)) => 14,
        (Link::Ethernet, _) => return 0,
        (Link::None, _) => 0,
    };
    let end = match frame.get(at).map(|first| first >> 4) {
        Some(4) => word(at + 2).map(|total| at + usize::from(total)),
        Some(6) => word(at + 4).map(|payload| at + 40 + usize::from(payload)),
        _ => None,
    };
    end.unwrap_or_default()
}

/// Both parsers agree on a frame that both understand.
fn against_etherparse(frame: &[u8], ours: Seen) {
    let Ok(sliced) = SlicedPacket::from_ethernet(frame) else {
        return;
    };
    let theirs = by_etherparse::segment(&sliced);
    match ours {
        Ok(Some(segment)) if segment.kind != Kind::Unreachable && sliced.transport.is_some() => {
            assert_eq!(Some(segment), theirs);
        }
        Ok(None) if is_followed(&sliced, frame) => assert_eq!(None, theirs),
        _ => {}
    }
}

/// Whether the observer follows all headers before TCP.
fn is_followed(sliced: &SlicedPacket<'_>, frame: &[u8]) -> bool {
    let is_tag = |extension: &LinkExtSlice<'_>| matches!(extension, LinkExtSlice::Vlan(_));
    let tags = sliced.link_exts.iter().all(is_tag);
    // The observer does not follow an older EtherType of outer tags, nor MACsec, because Services do not
    // use them.
    let doubly = EtherType::VLAN_DOUBLE_TAGGED_FRAME.0.to_be_bytes();
    let untagged = !frame[..frame.len().min(22)]
        .as_chunks::<2>()
        .0
        .contains(&doubly);
    let network = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => ip.header().protocol() == IpNumber::TCP,
        // A payload length of zero means a jumbogram, which is data.
        Some(NetSlice::Ipv6(ip)) => ip.header().payload_length() != 0,
        _ => false,
    };
    tags && untagged && network
}

/// The sentinel's programs parse fewer packets, with the same results.
fn of_a_probe(frame: &[u8], packet: &ProbePacket, seen: Seen) {
    let end = packet.transport as usize + packet.header_len as usize;
    assert!(end <= frame.len(), "{packet:?} of {} bytes", frame.len());
    assert_eq!(packet.key.family, packet.family as u8);
    let token = packet.key.token;
    // The sentinel's programs may accept mapped addresses, because they only follow registered tokens.
    const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    if seen == Err(Fault::Malformed) && frame.windows(12).any(|bytes| bytes == MAPPED) {
        return;
    }
    let segment = seen.expect("the observer accepts a probe's packet");
    let is = |kind| segment.is_some_and(|s| s.kind == kind && s.isn == token);
    match packet.kind {
        ProbeKind::Syn => assert!(is(Kind::Syn), "{segment:?}"),
        ProbeKind::SynAck => assert!(is(Kind::SynAck), "{segment:?}"),
        // An RST that refuses data is no part of a handshake.
        ProbeKind::Reset => assert!(segment.is_none() || is(Kind::Reset), "{segment:?}"),
        ProbeKind::Data => assert!(
            segment.is_none_or(|segment| segment.kind == Kind::Data),
            "{segment:?}"
        ),
        ProbeKind::Unreachable if packet.key.protocol == UDP => assert_eq!(segment, None),
        ProbeKind::Unreachable => {
            let about = segment.map(|s| (s.kind, s.isn == token || s.isn == token.wrapping_add(1)));
            assert_eq!(about, Some((Kind::Unreachable, true)), "{segment:?}");
        }
    }
    let back = Frame::new(frame.to_vec());
    match (packet.kind.request(), answer(&back, packet)) {
        (Some(_), Some(())) => of_an_answer(frame, packet, &back.into_bytes()),
        (None, Some(())) if packet.key.protocol != UDP => panic!("{packet:?} is answered"),
        _ => {}
    }
}

/// Checks that the echo program's packet answers the probe, and is valid only if the request was.
fn of_an_answer(question: &[u8], asked: &ProbePacket, sent: &[u8]) {
    assert_eq!(sent.len(), question.len());
    let told = probe::parse(&sent).expect("an answer is a probe's packet");
    assert_eq!(told.kind.answer(), asked.kind.request());
    match asked.kind {
        ProbeKind::Syn => {
            assert_eq!(told.key.token, asked.sequence);
            assert_eq!(told.sequence, echo_isn(asked.key.token));
        }
        _ => assert_eq!(told.key, asked.key),
    }
    // The checksum is adjusted and not recomputed, so a damaged packet stays invalid.
    assert_eq!(is_sound(sent), is_sound(question));
}
