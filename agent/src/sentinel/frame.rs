//! Ethernet frames of probes over IPv4 and IPv6, as a pod would send them, with correct lengths and
//! checksums. This module must not send anything.

use std::net::{IpAddr, SocketAddr};

use etherparse::{Ethernet2Header, PacketBuilder, TcpHeader, TcpOptionElement};
use pathproof_wire::probe::{DATA_LEN, UDP_MAGIC};

use super::devices::Mac;

/// Hop limit of every frame, as Linux sets it.
const HOPS: u8 = 64;
/// Window of every segment, as Linux offers it in a SYN.
const WINDOW: u16 = 64_240;
/// Maximum segment size for packets of 1500 bytes, by family.
const MSS_IPV4: u16 = 1_460;
const MSS_IPV6: u16 = 1_440;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// A connection's first segment, with this sequence number.
    Syn(u32),
    Data {
        sequence: u32,
        acknowledged: u32,
        token: u32,
    },
    /// The end of a connection. `sequence` is the number after the last byte sent. `acknowledged` is the
    /// number after the last byte received, and `None` if nothing was received. With other numbers connection
    /// tracking would not close its entry, but keep it for five minutes.
    Reset {
        sequence: u32,
        acknowledged: Option<u32>,
    },
    Datagram(u32),
}

/// The data of a probe, which the echo must return.
pub(super) fn data(token: u32) -> [u8; DATA_LEN] {
    let mut data = [0; DATA_LEN];
    let (magic, rest) = data.split_at_mut(UDP_MAGIC.len());
    magic.copy_from_slice(&UDP_MAGIC);
    rest.copy_from_slice(&token.to_be_bytes());
    data
}

/// The IP packet in a frame.
pub(super) fn inner(frame: &[u8]) -> &[u8] {
    frame.get(Ethernet2Header::LEN..).unwrap_or_default()
}

/// Writes a frame into `frame`, replacing its content. `link`: source and destination hardware
/// addresses.
pub(super) fn write(
    frame: &mut Vec<u8>,
    link: (Mac, Mac),
    (from, to): (SocketAddr, SocketAddr),
    packet: Packet,
) -> Result<(), String> {
    frame.clear();
    let refused = |error: &dyn std::fmt::Display| format!("cannot build a frame for {to}: {error}");
    let ethernet = PacketBuilder::ethernet2(link.0, link.1);
    let (ip, mss) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            (ethernet.ipv4(from.octets(), to.octets(), HOPS), MSS_IPV4)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            (ethernet.ipv6(from.octets(), to.octets(), HOPS), MSS_IPV6)
        }
        (from, to) => {
            return Err(format!(
                "cannot send from {from} to {to}: one address is IPv4 and the other IPv6"
            ));
        }
    };
    let mut tcp = TcpHeader::new(from.port(), to.port(), 0, WINDOW);
    let (sequence, acknowledged, payload) = match packet {
        Packet::Datagram(token) => {
            let udp = ip.udp(from.port(), to.port());
            let written = udp.write_to_vec(frame, &data(token));
            return written.map_err(|error| refused(&error));
        }
        Packet::Syn(sequence) => {
            tcp.syn = true;
            tcp.set_options(&[TcpOptionElement::MaximumSegmentSize(mss)])
                .map_err(|error| refused(&error))?;
            (sequence, None, None)
        }
        Packet::Data {
            sequence,
            acknowledged,
            token,
        } => {
            tcp.psh = true;
            (sequence, Some(acknowledged), Some(data(token)))
        }
        Packet::Reset {
            sequence,
            acknowledged,
        } => {
            tcp.rst = true;
            tcp.window_size = 0;
            (sequence, acknowledged, None)
        }
    };
    tcp.sequence_number = sequence;
    tcp.ack = acknowledged.is_some();
    tcp.acknowledgment_number = acknowledged.unwrap_or(0);
    let written = ip
        .tcp_header(tcp)
        .write_to_vec(frame, payload.as_ref().map_or(&[], |data| data));
    written.map_err(|error| refused(&error))
}

#[cfg(test)]
mod tests;
