//! Parses packets with an independent library, for comparison.

use std::net::Ipv4Addr;

use etherparse::err::packet::SliceError;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pathproof_wire::packet::{Kind, Segment};
use pathproof_wire::service::Family;

/// Parses a frame with etherparse and converts the result to our types. Only TCP.
///
/// # Errors
/// etherparse finds the frame invalid.
pub fn by_etherparse(bytes: &[u8]) -> Result<Option<Segment>, SliceError> {
    Ok(segment(&SlicedPacket::from_ethernet(bytes)?))
}

/// Like [`by_etherparse`], for an already sliced packet.
pub fn segment(sliced: &SlicedPacket<'_>) -> Option<Segment> {
    let (family, source, destination) = match sliced.net.as_ref()? {
        NetSlice::Ipv4(ip) => {
            let mapped = |ip: Ipv4Addr| ip.to_ipv6_mapped().octets();
            let header = ip.header();
            (
                Family::V4,
                mapped(header.source_addr()),
                mapped(header.destination_addr()),
            )
        }
        NetSlice::Ipv6(ip) => (Family::V6, ip.header().source(), ip.header().destination()),
        _ => return None,
    };
    let TransportSlice::Tcp(tcp) = sliced.transport.as_ref()? else {
        return None;
    };
    let before = tcp.acknowledgment_number().wrapping_sub(1);
    let length = tcp.payload().len() as u32;
    let mut beginning = [0; 4];
    let (kind, isn, payload) = match (tcp.syn(), tcp.rst(), tcp.ack()) {
        (true, false, false) if !tcp.fin() => (Kind::Syn, tcp.sequence_number(), length),
        (true, false, true) => (Kind::SynAck, before, 0),
        (false, true, true) => (Kind::Reset, before, 0),
        (false, false, true) if tcp.psh() && length != 0 => {
            beginning = before.to_ne_bytes();
            (Kind::Data, tcp.sequence_number().wrapping_sub(1), length)
        }
        _ => return None,
    };
    Some(Segment {
        kind,
        family,
        isn,
        payload,
        source,
        destination,
        source_port: tcp.source_port().to_be_bytes(),
        destination_port: tcp.destination_port().to_be_bytes(),
        beginning,
    })
}
