//! Parses bytes into a packet of a probe. The sentinel's programs run this on packets, and the host tests
//! on slices.
//!
//! Only the formats that the agent, the echo and the node's stack use for probes are accepted: Ethernet
//! without tags, IPv4 without options or IPv6 without extension headers, no fragments, TCP, UDP, and ICMP
//! errors about them. All other packets are rejected. Nothing here panics, whatever the bytes.

use super::{DATA_LEN, Phase, ProbeKey, UDP, UDP_MAGIC, token_of_echo};
use crate::packet::{Bytes, ETHERTYPE_IPV4, ETHERTYPE_IPV6, tcp_flag};
use crate::service::{Address, Family, Port, TCP, mapped};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The first segment.
    Syn = 0,
    /// The answer to a SYN.
    SynAck,
    /// Data with magic and token, in either direction.
    Data,
    /// A RST that refuses the SYN or the data, or by which the client abandons an unanswered connection.
    Reset,
    /// An ICMP error about the SYN or the data.
    Unreachable,
}

impl Kind {
    /// The phase of a packet on its way to the echo.
    #[inline(always)]
    pub fn request(self) -> Option<Phase> {
        match self {
            Kind::Syn => Some(Phase::Handshake),
            Kind::Data => Some(Phase::Data),
            _ => None,
        }
    }

    /// The phase of a packet on its way back.
    #[inline(always)]
    pub fn answer(self) -> Option<Phase> {
        match self {
            Kind::SynAck => Some(Phase::Handshake),
            Kind::Data => Some(Phase::Data),
            _ => None,
        }
    }
}

/// A packet that may belong to a probe. The caller must check whether its token is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePacket {
    pub key: ProbeKey,
    pub kind: Kind,
    pub family: Family,
    /// Offset of the transport header.
    pub transport: u32,
    /// Length of the TCP header; zero for UDP and ICMP.
    pub header_len: u32,
    /// Sequence number (TCP) in host order.
    pub sequence: u32,
    /// Acknowledgement number (TCP) in host order.
    pub acknowledged: u32,
}

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// Offsets of the addresses, the source first.
pub(super) const IPV4_ADDRESSES: usize = ETHERNET_LEN + 12;
pub(super) const IPV6_ADDRESSES: usize = ETHERNET_LEN + 8;
const UDP_LEN: usize = 8;
const TCP_LEN: usize = 20;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ICMP_LEN: usize = 8;
/// Types of "destination unreachable" by family.
const ICMP_UNREACHABLE: u8 = 3;
const ICMPV6_UNREACHABLE: u8 = 1;
/// "Fragmentation needed" is no refusal.
const ICMP_FRAGMENTATION_NEEDED: u8 = 4;

/// Parses the packet at the start of `bytes`, which begins with an Ethernet header.
#[inline(always)]
pub fn parse<B: Bytes>(bytes: &B) -> Option<ProbePacket> {
    let network = network(bytes)?;
    match network.protocol {
        TCP => tcp(bytes, &network),
        UDP => udp(bytes, &network),
        ICMP | ICMPV6 => icmp(bytes, &network),
        _ => None,
    }
}

impl ProbePacket {
    /// Key of the probe that the client abandons by this RST. If its SYN was not answered, the RST has the
    /// sequence number after that of the SYN.
    #[inline(always)]
    pub fn closes(&self) -> Option<ProbeKey> {
        let token = self.sequence.wrapping_sub(1);
        (self.kind == Kind::Reset).then_some(ProbeKey { token, ..self.key })
    }
}

/// Source address of a packet that [`parse`] accepted.
#[inline(always)]
pub fn source<B: Bytes>(bytes: &B, family: Family) -> Option<Address> {
    match family {
        Family::V4 => Some(mapped(bytes.load(IPV4_ADDRESSES)?)),
        Family::V6 => bytes.load(IPV6_ADDRESSES),
    }
}

/// Destination address of a packet that [`parse`] accepted.
#[inline(always)]
pub fn destination<B: Bytes>(bytes: &B, family: Family) -> Option<Address> {
    match family {
        Family::V4 => Some(mapped(bytes.load(IPV4_ADDRESSES + 4)?)),
        Family::V6 => bytes.load(IPV6_ADDRESSES + 16),
    }
}

/// Source and destination port of a TCP or UDP packet that [`parse`] accepted.
#[inline(always)]
pub fn ports<B: Bytes>(bytes: &B, packet: &ProbePacket) -> Option<(Port, Port)> {
    let [a, b, c, d] = bytes.load(packet.transport as usize)?;
    Some(([a, b], [c, d]))
}

struct Network {
    family: Family,
    protocol: u8,
    /// Offset of the transport header.
    transport: usize,
    /// Number of bytes from the transport header on, according to the IP header. The packet is at least as
    /// long.
    length: usize,
}

#[inline(always)]
fn network<B: Bytes>(bytes: &B) -> Option<Network> {
    let network = match u16::from_be_bytes(bytes.load(ETHERNET_LEN - 2)?) {
        ETHERTYPE_IPV4 => ipv4(bytes)?,
        ETHERTYPE_IPV6 => ipv6(bytes)?,
        _ => return None,
    };
    (network.transport + network.length <= bytes.length()).then_some(network)
}

#[inline(always)]
fn ipv4<B: Bytes>(bytes: &B) -> Option<Network> {
    let [lengths, fragment, protocol]: [u32; 3] = bytes.words(ETHERNET_LEN)?;
    let [version, _, total_high, total_low] = lengths.to_ne_bytes();
    let [_, _, fragment_high, fragment_low] = fragment.to_ne_bytes();
    let total = usize::from(u16::from_be_bytes([total_high, total_low]));
    let fragmented = u16::from_be_bytes([fragment_high, fragment_low]) & 0x3fff != 0;
    if version != 0x45 || fragmented || total < IPV4_LEN {
        return None;
    }
    Some(Network {
        family: Family::V4,
        protocol: protocol.to_ne_bytes()[1],
        transport: ETHERNET_LEN + IPV4_LEN,
        length: total - IPV4_LEN,
    })
}

#[inline(always)]
fn ipv6<B: Bytes>(bytes: &B) -> Option<Network> {
    let [version, lengths]: [u32; 2] = bytes.words(ETHERNET_LEN)?;
    let [payload_high, payload_low, next, _] = lengths.to_ne_bytes();
    if version.to_ne_bytes()[0] >> 4 != 6 {
        return None;
    }
    Some(Network {
        family: Family::V6,
        protocol: next,
        transport: ETHERNET_LEN + IPV6_LEN,
        length: usize::from(u16::from_be_bytes([payload_high, payload_low])),
    })
}

#[inline(always)]
fn key(family: Family, protocol: u8, token: u32) -> ProbeKey {
    ProbeKey {
        token,
        family: family as u8,
        protocol,
        padding: [0; 2],
    }
}

/// The token of a probe's data at `at`, if it begins with the magic.
#[inline(always)]
fn token_at<B: Bytes>(bytes: &B, at: usize) -> Option<u32> {
    let [first, second, token]: [u32; DATA_LEN / 4] = bytes.words(at)?;
    let [a, b, c, d, e, f, g, h] = UDP_MAGIC;
    let magic =
        first == u32::from_ne_bytes([a, b, c, d]) && second == u32::from_ne_bytes([e, f, g, h]);
    magic.then_some(u32::from_be(token))
}

#[inline(always)]
fn tcp<B: Bytes>(bytes: &B, network: &Network) -> Option<ProbePacket> {
    let [_, sequence, acknowledged, lengths]: [u32; 4] = bytes.words(network.transport)?;
    let (sequence, acknowledged) = (u32::from_be(sequence), u32::from_be(acknowledged));
    let [units, flags, _, _] = lengths.to_ne_bytes();
    let header_len = usize::from(units >> 4) * 4;
    if header_len < TCP_LEN || header_len > network.length {
        return None;
    }
    let payload = network.length - header_len;
    const SYN_ACK: u8 = tcp_flag::SYN | tcp_flag::ACK;
    const RST_ACK: u8 = tcp_flag::RST | tcp_flag::ACK;
    let known = tcp_flag::FIN | tcp_flag::SYN | tcp_flag::RST | tcp_flag::ACK;
    let (kind, token) = match flags & known {
        tcp_flag::SYN if payload == 0 => (Kind::Syn, sequence),
        SYN_ACK if payload == 0 => (Kind::SynAck, acknowledged.wrapping_sub(1)),
        // Refuses a SYN, and acknowledges it.
        RST_ACK => (Kind::Reset, acknowledged.wrapping_sub(1)),
        // Refuses data: its sequence number is the one that the data acknowledged (RFC 9293, section
        // 3.5.2).
        tcp_flag::RST => (Kind::Reset, token_of_echo(sequence.wrapping_sub(1))),
        tcp_flag::ACK if payload == DATA_LEN => {
            (Kind::Data, token_at(bytes, network.transport + header_len)?)
        }
        _ => return None,
    };
    Some(ProbePacket {
        key: key(network.family, TCP, token),
        kind,
        family: network.family,
        transport: network.transport as u32,
        header_len: header_len as u32,
        sequence,
        acknowledged,
    })
}

#[inline(always)]
fn udp<B: Bytes>(bytes: &B, network: &Network) -> Option<ProbePacket> {
    let length = u16::from_be_bytes(bytes.load(network.transport + 4)?);
    if usize::from(length) != UDP_LEN + DATA_LEN || network.length != UDP_LEN + DATA_LEN {
        return None;
    }
    let token = token_at(bytes, network.transport + UDP_LEN)?;
    Some(bare(network, UDP, Kind::Data, token))
}

#[inline(always)]
fn bare(network: &Network, protocol: u8, kind: Kind, token: u32) -> ProbePacket {
    ProbePacket {
        key: key(network.family, protocol, token),
        kind,
        family: network.family,
        transport: network.transport as u32,
        header_len: 0,
        sequence: 0,
        acknowledged: 0,
    }
}

/// Destination unreachable, with the token in the quoted packet.
#[inline(always)]
fn icmp<B: Bytes>(bytes: &B, network: &Network) -> Option<ProbePacket> {
    let [kind, code] = bytes.load(network.transport)?;
    let at = network.transport + ICMP_LEN;
    let (protocol, quoted) = match network.family {
        Family::V4 => {
            let unreachable = kind == ICMP_UNREACHABLE && code != ICMP_FRAGMENTATION_NEEDED;
            let header: [u8; 10] = bytes.load(at)?;
            let plain =
                header[0] == 0x45 && u16::from_be_bytes([header[6], header[7]]) & 0x3fff == 0;
            if network.protocol != ICMP || !unreachable || !plain {
                return None;
            }
            (header[9], at + IPV4_LEN)
        }
        Family::V6 => {
            let [version] = bytes.load(at)?;
            let [next] = bytes.load(at + 6)?;
            if network.protocol != ICMPV6 || kind != ICMPV6_UNREACHABLE || version >> 4 != 6 {
                return None;
            }
            (next, at + IPV6_LEN)
        }
    };
    let token = match protocol {
        TCP => {
            let sequence = u32::from_be_bytes(bytes.load(quoted + 4)?);
            // RFC 792 guarantees only eight quoted bytes of the TCP header, which do not include the flags.
            // Without the flags, the quoted packet is assumed to be the SYN, whose sequence number is the
            // token.
            match bytes.load::<1>(quoted + 13) {
                Some([flags]) if flags & tcp_flag::SYN == 0 => sequence.wrapping_sub(1),
                _ => sequence,
            }
        }
        UDP => token_at(bytes, quoted + UDP_LEN)?,
        _ => return None,
    };
    Some(bare(network, protocol, Kind::Unreachable, token))
}
