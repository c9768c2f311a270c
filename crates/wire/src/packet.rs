//! Parses bytes into the few packets that are evidence: SYN, SYN-ACK, RST, ICMP errors about a SYN, data,
//! and UDP datagrams ([`udp`]).
//!
//! Every read is bounds-checked and generic over the source of the bytes ([`Bytes`]). So the eBPF programs
//! (`bpf_skb_load_bytes`) and the host tests (a slice) run the same functions. No input makes them panic.
//! For bytes that cannot be parsed they return a [`Fault`], which the caller counts.
//!
//! Length: one walk through the headers of a packet, in their order.

use crate::evidence::Fault;
use crate::service::{Address, Family, Port, TCP};

pub mod udp;

/// Access to a packet's bytes.
pub trait Bytes {
    fn length(&self) -> usize;
    /// `N` bytes at `offset`, or `None` if the packet is shorter.
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;
    /// `N` words of four bytes at `offset` in memory order, or `None` if the packet is shorter. Addresses
    /// are copied by words, because that takes a quarter of the instructions: the BPF target has no
    /// unaligned access, so the compiler copies an array of bytes byte by byte.
    fn words<const N: usize>(&self, offset: usize) -> Option<[u32; N]>;
}

impl Bytes for &[u8] {
    fn length(&self) -> usize {
        self.len()
    }

    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.get(offset..)?.first_chunk().copied()
    }

    fn words<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        let bytes = self.get(offset..)?.get(..N * 4)?;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        Some(words)
    }
}

/// Header before the network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet header, possibly with VLAN tags.
    Ethernet,
    /// None: tun, WireGuard, IPIP and other devices without a link-layer header.
    None,
}

/// Kinds of packets that are evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The first segment of a connection.
    Syn = 0,
    /// The answer to a SYN.
    SynAck,
    /// A refusal by RST.
    Reset,
    /// A refusal by ICMP.
    Unreachable,
    /// A UDP datagram; see [`udp`].
    Datagram,
    Data,
}

/// A packet that is evidence. Aligned, so that its addresses are copied by words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Segment {
    /// Mapped source address.
    pub source: Address,
    /// Mapped destination address.
    pub destination: Address,
    pub kind: Kind,
    pub family: Family,
    /// The client's initial sequence number. For a SYN, its sequence number. For a SYN-ACK or RST, the
    /// acknowledged number minus one. For an ICMP error, the quoted sequence number. For data, the sequence
    /// number minus one, which is the initial one only for the client's first data. For a datagram, the
    /// hash of its payload.
    pub isn: u32,
    /// Bytes of payload in a SYN (TCP fast open), datagram or data segment; else zero.
    pub payload: u32,
    /// Source port; zero for ICMP.
    pub source_port: Port,
    /// Destination port; zero for ICMP.
    pub destination_port: Port,
    /// For a datagram, the first four bytes of its payload, which begin with the two-byte id if it is a DNS
    /// message. For data, the bytes of [`Self::acknowledged`]. Else zero.
    pub beginning: [u8; 4],
}

impl Segment {
    /// For data, the sequence number that it acknowledges, minus one.
    #[inline(always)]
    pub fn acknowledged(&self) -> u32 {
        u32::from_ne_bytes(self.beginning)
    }
}

pub const ETHERTYPE_IPV4: u16 = 0x0800;
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const ETHERNET_LEN: usize = 14;
const VLAN_LEN: usize = 4;
/// Maximum number of VLAN tags: an outer and an inner one (802.1ad).
const MAX_VLAN_TAGS: usize = 2;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// Maximum number of extension headers that the parser follows. It knows five kinds. By RFC 8200 each
/// occurs once at most, and destination options twice.
const MAX_EXTENSION_HEADERS: usize = 6;
const HOP_BY_HOP: u8 = 0;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
pub mod tcp_flag {
    /// The sender has no more data.
    pub const FIN: u8 = 0x01;
    /// Start of a connection: synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    /// Push: set on the last segment of a write, so at the end of nearly every message.
    pub const PSH: u8 = 0x08;
    /// Acknowledgement field is valid.
    pub const ACK: u8 = 0x10;
}

/// Parses the packet at the start of `bytes`. `Ok(None)` means a valid packet that is no evidence.
#[inline(always)]
pub fn parse<B: Bytes>(bytes: &B, link: Link) -> Result<Option<Segment>, Fault> {
    let (ethertype, offset) = match link {
        Link::Ethernet => ethernet(bytes)?,
        Link::None => bare(bytes)?,
    };
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(bytes, offset),
        ETHERTYPE_IPV6 => ipv6(bytes, offset),
        _ => Ok(None),
    }
}

/// Parses a packet like [`parse`] if it is a common one: Ethernet without tags or no link-layer header,
/// IPv4 without options or IPv6 without extension headers, TCP, not a fragment. Returns `None` for others
/// and invalid ones. All offsets are constants, as direct packet access in a program requires.
#[inline(always)]
pub fn parse_plain<B: Bytes>(bytes: &B, link: Link) -> Option<Segment> {
    let (ethertype, offset) = match link {
        Link::Ethernet => {
            let ethertype = u16::from_be_bytes(bytes.load(ETHERNET_LEN - 2)?);
            (ethertype, ETHERNET_LEN)
        }
        Link::None => {
            // Load 20 bytes, the shortest IP header, because the verifier learns nothing from a bounds
            // check of one byte.
            let [first, ..]: [u32; 5] = bytes.words(0)?;
            match first.to_ne_bytes()[0] >> 4 {
                4 => (ETHERTYPE_IPV4, 0),
                6 => (ETHERTYPE_IPV6, 0),
                _ => return None,
            }
        }
    };
    match ethertype {
        ETHERTYPE_IPV4 => plain_ipv4(bytes, offset),
        ETHERTYPE_IPV6 => plain_ipv6(bytes, offset),
        _ => None,
    }
}

#[inline(always)]
fn plain_ipv4<B: Bytes>(bytes: &B, offset: usize) -> Option<Segment> {
    let [lengths, fragment, protocol, source, destination] = bytes.words(offset)?;
    let [version, _, total_high, total_low] = lengths.to_ne_bytes();
    let [_, _, fragment_high, fragment_low] = fragment.to_ne_bytes();
    let total_len = usize::from(u16::from_be_bytes([total_high, total_low]));
    if version != 0x45
        || u16::from_be_bytes([fragment_high, fragment_low]) & 0x3fff != 0
        || protocol.to_ne_bytes()[1] != TCP
        || total_len < IPV4_LEN
        || offset + total_len > bytes.length()
    {
        return None;
    }
    let ends = Ends {
        source: mapped(source),
        destination: mapped(destination),
        family: Family::V4,
    };
    tcp(bytes, offset + IPV4_LEN, total_len - IPV4_LEN, ends).ok()?
}

#[inline(always)]
fn plain_ipv6<B: Bytes>(bytes: &B, offset: usize) -> Option<Segment> {
    let [version, lengths, s0, s1, s2, s3, d0, d1, d2, d3] = bytes.words(offset)?;
    let [payload_high, payload_low, next, _] = lengths.to_ne_bytes();
    let payload_len = usize::from(u16::from_be_bytes([payload_high, payload_low]));
    if version.to_ne_bytes()[0] >> 4 != 6
        || next != TCP
        || offset + IPV6_LEN + payload_len > bytes.length()
    {
        return None;
    }
    let ends = ipv6_ends([s0, s1, s2, s3, d0, d1, d2, d3])?;
    tcp(bytes, offset + IPV6_LEN, payload_len, ends).ok()?
}

#[inline(always)]
fn at<B: Bytes, const N: usize>(bytes: &B, offset: usize) -> Result<[u8; N], Fault> {
    bytes.load(offset).ok_or(Fault::Truncated)
}

#[inline(always)]
fn words_at<B: Bytes, const N: usize>(bytes: &B, offset: usize) -> Result<[u32; N], Fault> {
    bytes.words(offset).ok_or(Fault::Truncated)
}

/// Rejects a packet that is shorter than its network header claims. Its receiver drops it, so it is no
/// evidence, even if the parsed part is complete.
#[inline(always)]
fn whole<B: Bytes>(bytes: &B, end: usize) -> Result<(), Fault> {
    if end > bytes.length() {
        return Err(Fault::Truncated);
    }
    Ok(())
}

/// Returns the EtherType and the offset of the network header. Skips at most two VLAN tags.
#[inline(always)]
fn ethernet<B: Bytes>(bytes: &B) -> Result<(u16, usize), Fault> {
    let mut ethertype = u16::from_be_bytes(at(bytes, ETHERNET_LEN - 2)?);
    let mut offset = ETHERNET_LEN;
    for _ in 0..MAX_VLAN_TAGS {
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_QINQ {
            return Ok((ethertype, offset));
        }
        ethertype = u16::from_be_bytes(at(bytes, offset + 2)?);
        offset += VLAN_LEN;
    }
    if ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ {
        return Err(Fault::TooDeep);
    }
    Ok((ethertype, offset))
}

/// Like [`ethernet`], for packets without a link-layer header: the IP version gives the EtherType.
#[inline(always)]
fn bare<B: Bytes>(bytes: &B) -> Result<(u16, usize), Fault> {
    let [first] = at(bytes, 0)?;
    match first >> 4 {
        4 => Ok((ETHERTYPE_IPV4, 0)),
        6 => Ok((ETHERTYPE_IPV6, 0)),
        _ => Ok((0, 0)),
    }
}

#[inline(always)]
fn ipv4<B: Bytes>(bytes: &B, offset: usize) -> Result<Option<Segment>, Fault> {
    let [lengths, fragment, protocol, source, destination] = words_at(bytes, offset)?;
    let [version, _, total_high, total_low] = lengths.to_ne_bytes();
    let header_len = usize::from(version & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([total_high, total_low]));
    if version >> 4 != 4 || header_len < IPV4_LEN || total_len < header_len {
        return Err(Fault::Malformed);
    }
    let [_, protocol, _, _] = protocol.to_ne_bytes();
    if protocol != TCP && protocol != ICMP {
        return Ok(None);
    }
    let [_, _, fragment_high, fragment_low] = fragment.to_ne_bytes();
    if u16::from_be_bytes([fragment_high, fragment_low]) & 0x1fff != 0 {
        return Err(Fault::LaterFragment);
    }
    whole(bytes, offset + total_len)?;
    let ends = Ends {
        source: mapped(source),
        destination: mapped(destination),
        family: Family::V4,
    };
    if protocol == ICMP {
        return icmp(bytes, offset + header_len, ends);
    }
    tcp(bytes, offset + header_len, total_len - header_len, ends)
}

#[inline(always)]
fn ipv6<B: Bytes>(bytes: &B, offset: usize) -> Result<Option<Segment>, Fault> {
    let [version, lengths, s0, s1, s2, s3, d0, d1, d2, d3] = words_at(bytes, offset)?;
    if version.to_ne_bytes()[0] >> 4 != 6 {
        return Err(Fault::Malformed);
    }
    let [payload_high, payload_low, next, _] = lengths.to_ne_bytes();
    let payload_len = usize::from(u16::from_be_bytes([payload_high, payload_low]));
    if payload_len == 0 && next == HOP_BY_HOP {
        // A jumbogram (RFC 2675). Linux merges received segments into jumbograms (BIG TCP), so this is data
        // in the middle of a connection.
        return Ok(None);
    }
    let wanted = [TCP, ICMPV6];
    let Some((protocol, skipped)) = extension_headers(bytes, offset + IPV6_LEN, next, wanted)?
    else {
        return Ok(None);
    };
    whole(bytes, offset + IPV6_LEN + payload_len)?;
    let ends = ipv6_ends([s0, s1, s2, s3, d0, d1, d2, d3]).ok_or(Fault::Malformed)?;
    if protocol == ICMPV6 {
        return icmp(bytes, offset + IPV6_LEN + skipped, ends);
    }
    if payload_len < skipped {
        return Err(Fault::Malformed);
    }
    tcp(
        bytes,
        offset + IPV6_LEN + skipped,
        payload_len - skipped,
        ends,
    )
}

/// Follows the chain of headers from `next` at `offset`. Returns which of the wanted protocols is at its
/// end, and the number of skipped bytes; `None` for other protocols.
#[inline(always)]
fn extension_headers<B: Bytes>(
    bytes: &B,
    offset: usize,
    mut next: u8,
    wanted: [u8; 2],
) -> Result<Option<(u8, usize)>, Fault> {
    let [one, other] = wanted;
    let mut skipped = 0;
    for _ in 0..MAX_EXTENSION_HEADERS {
        match next {
            of if of == one || of == other => return Ok(Some((next, skipped))),
            // Hop-by-hop, routing, destination options: length in units of 8 bytes, less one.
            HOP_BY_HOP | 43 | 60 => {
                let [following, units] = at(bytes, offset + skipped)?;
                skipped += (usize::from(units) + 1) * 8;
                next = following;
            }
            // Fragment: eight bytes, offset in the upper 13 bits of the third and fourth.
            44 => {
                let fields: [u8; 8] = at(bytes, offset + skipped)?;
                if u16::from_be_bytes([fields[2], fields[3]]) & 0xfff8 != 0 {
                    return match fields[0] {
                        of if of == one || of == other => Err(Fault::LaterFragment),
                        _ => Ok(None),
                    };
                }
                skipped += 8;
                next = fields[0];
            }
            // Authentication header: length in units of 4 bytes, less two (RFC 4302).
            51 => {
                let [following, units] = at(bytes, offset + skipped)?;
                skipped += (usize::from(units) + 2) * 4;
                next = following;
            }
            _ => return Ok(None),
        }
    }
    match next {
        of if of == one || of == other => Ok(Some((next, skipped))),
        HOP_BY_HOP | 43 | 44 | 51 | 60 => Err(Fault::TooDeep),
        _ => Ok(None),
    }
}

/// Addresses and family of the network header.
#[repr(C, align(8))]
pub(crate) struct Ends {
    source: Address,
    destination: Address,
    family: Family,
}

/// The addresses in eight words of an IPv6 header. `None` if one of them is an IPv4-mapped address (RFC
/// 4291, section 2.5.5.2). No network carries such addresses, but the maps store IPv4 addresses in this
/// form. So the packet would match an IPv4 frontend.
#[inline(always)]
pub(crate) fn ipv6_ends([s0, s1, s2, s3, d0, d1, d2, d3]: [u32; 8]) -> Option<Ends> {
    let is_mapped = |a: u32, b: u32, c: u32| a | b == 0 && c == 0xffff_u32.to_be();
    if is_mapped(s0, s1, s2) || is_mapped(d0, d1, d2) {
        return None;
    }
    Some(Ends {
        source: address([s0, s1, s2, s3]),
        destination: address([d0, d1, d2, d3]),
        family: Family::V6,
    })
}

/// The address in four words of a packet. It is built as one number, because the compiler turns an array of
/// bytes into sixteen variables.
#[inline(always)]
fn address(words: [u32; 4]) -> Address {
    let [a, b, c, d] = words.map(|word| u128::from(u32::from_be(word)));
    (a << 96 | b << 64 | c << 32 | d).to_be_bytes()
}

/// The mapped form of the IPv4 address in a word of a packet.
#[inline(always)]
fn mapped(word: u32) -> Address {
    (0xffff << 32 | u128::from(u32::from_be(word))).to_be_bytes()
}

#[inline(always)]
fn tcp<B: Bytes>(
    bytes: &B,
    offset: usize,
    segment_len: usize,
    ends: Ends,
) -> Result<Option<Segment>, Fault> {
    // The first 16 of at least 20 bytes.
    let [ports, sequence, acknowledged, lengths] = words_at(bytes, offset)?;
    let [units, flags, _, _] = lengths.to_ne_bytes();
    let header_len = usize::from(units >> 4) * 4;
    if header_len < 20 || header_len > segment_len {
        return Err(Fault::Malformed);
    }
    let sequence = u32::from_be(sequence);
    let acknowledged = u32::from_be(acknowledged);
    let payload = (segment_len - header_len) as u32;
    let mut beginning = [0; 4];
    let (kind, isn, payload) = match flags & (tcp_flag::SYN | tcp_flag::RST | tcp_flag::ACK) {
        tcp_flag::SYN if flags & tcp_flag::FIN == 0 => (Kind::Syn, sequence, payload),
        f if f == tcp_flag::SYN | tcp_flag::ACK => (Kind::SynAck, acknowledged.wrapping_sub(1), 0),
        f if f == tcp_flag::RST | tcp_flag::ACK => (Kind::Reset, acknowledged.wrapping_sub(1), 0),
        f if f & tcp_flag::SYN != 0 => return Err(Fault::Malformed),
        tcp_flag::ACK if flags & tcp_flag::PSH != 0 && payload != 0 => {
            beginning = acknowledged.wrapping_sub(1).to_ne_bytes();
            (Kind::Data, sequence.wrapping_sub(1), payload)
        }
        _ => return Ok(None),
    };
    let [source_high, source_low, destination_high, destination_low] = ports.to_ne_bytes();
    Ok(Some(Segment {
        source: ends.source,
        destination: ends.destination,
        kind,
        family: ends.family,
        isn,
        payload,
        source_port: [source_high, source_low],
        destination_port: [destination_high, destination_low],
        beginning,
    }))
}

/// Bytes of the ICMP header before the quoted packet.
const ICMP_LEN: usize = 8;

/// Parses "destination unreachable", which quotes the SYN with its sequence number. "Fragmentation needed"
/// is ignored, because it concerns later segments.
#[inline(always)]
fn icmp<B: Bytes>(bytes: &B, offset: usize, ends: Ends) -> Result<Option<Segment>, Fault> {
    let [kind, code] = at(bytes, offset)?;
    let quoted = offset + ICMP_LEN;
    let tcp_at = match ends.family {
        Family::V4 => {
            if kind != 3 || code == 4 {
                return Ok(None);
            }
            let header: [u8; 10] = at(bytes, quoted)?;
            let later = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
            if header[9] != TCP || later {
                return Ok(None);
            }
            let header_len = usize::from(header[0] & 0x0f) * 4;
            if header[0] >> 4 != 4 || header_len < IPV4_LEN {
                return Err(Fault::Malformed);
            }
            quoted + header_len
        }
        Family::V6 => {
            if kind != 1 {
                return Ok(None);
            }
            let [next] = at(bytes, quoted + 6)?;
            if next != TCP {
                return Ok(None);
            }
            ipv6_ends(words_at(bytes, quoted + 8)?).ok_or(Fault::Malformed)?;
            quoted + IPV6_LEN
        }
    };
    Ok(Some(Segment {
        kind: Kind::Unreachable,
        family: ends.family,
        isn: u32::from_be_bytes(at(bytes, tcp_at + 4)?),
        payload: 0,
        source: ends.source,
        destination: ends.destination,
        source_port: [0; 2],
        destination_port: [0; 2],
        beginning: [0; 4],
    }))
}
