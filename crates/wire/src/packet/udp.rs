//! Parses bytes into a UDP datagram, and hashes the beginning of its payload. The hash identifies the
//! datagram after NAT has changed its addresses.

use super::{
    Bytes, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ends, IPV4_LEN, IPV6_LEN, Kind, Link, Segment, bare,
    ethernet, extension_headers, ipv6_ends, mapped,
};
use crate::evidence::Fault;
use crate::service::{Family, UDP};

const UDP_LEN: usize = 8;

/// Number of payload bytes that are hashed. Of a shorter payload, only whole words of four bytes are
/// hashed.
pub const HASHED: usize = 32;
/// Minimum payload of a datagram that is followed. Shorter payloads are too often equal. Every DNS message
/// is long enough.
pub const MATCHABLE: u32 = 8;

/// Parses the datagram at the start of `bytes`. Returns it with the offset of its payload. Its `isn` is
/// zero: the caller sets it to the [`payload_hash`]. Faults in the headers before UDP are not reported
/// here, but by [`parse`](super::parse).
#[inline(always)]
pub fn parse<B: Bytes>(bytes: &B, link: Link) -> Result<Option<(Segment, usize)>, Fault> {
    let Some((ends, offset)) = network(bytes, link) else {
        return Ok(None);
    };
    let ends = ends.ok_or(Fault::Malformed)?;
    let [ports, lengths] = bytes.words(offset).ok_or(Fault::Truncated)?;
    let [high, low, _, _] = lengths.to_ne_bytes();
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length < UDP_LEN {
        return Err(Fault::Malformed);
    }
    if offset + length > bytes.length() {
        return Err(Fault::Truncated);
    }
    let payload = length - UDP_LEN;
    let beginning = match payload {
        0..4 => [0; 4],
        _ => bytes.load(offset + UDP_LEN).ok_or(Fault::Truncated)?,
    };
    let [source_high, source_low, destination_high, destination_low] = ports.to_ne_bytes();
    let segment = Segment {
        source: ends.source,
        destination: ends.destination,
        kind: Kind::Datagram,
        family: ends.family,
        isn: 0,
        payload: payload as u32,
        source_port: [source_high, source_low],
        destination_port: [destination_high, destination_low],
        beginning,
    };
    Ok(Some((segment, offset + UDP_LEN)))
}

/// Addresses of a datagram, and the offset of its UDP header. The addresses are `None` if one is
/// IPv4-mapped ([`ipv6_ends`]). The result is `None` for other protocols, later fragments and headers that
/// cannot be parsed.
#[inline(always)]
fn network<B: Bytes>(bytes: &B, link: Link) -> Option<(Option<Ends>, usize)> {
    let (ethertype, offset) = match link {
        Link::Ethernet => ethernet(bytes).ok()?,
        Link::None => bare(bytes).ok()?,
    };
    match ethertype {
        ETHERTYPE_IPV4 => {
            let [lengths, fragment, protocol, source, destination] = bytes.words(offset)?;
            let [version, _, _, _] = lengths.to_ne_bytes();
            let [_, _, fragment_high, fragment_low] = fragment.to_ne_bytes();
            let header_len = usize::from(version & 0x0f) * 4;
            if version >> 4 != 4
                || header_len < IPV4_LEN
                || protocol.to_ne_bytes()[1] != UDP
                || u16::from_be_bytes([fragment_high, fragment_low]) & 0x1fff != 0
            {
                return None;
            }
            let ends = Ends {
                source: mapped(source),
                destination: mapped(destination),
                family: Family::V4,
            };
            Some((Some(ends), offset + header_len))
        }
        ETHERTYPE_IPV6 => {
            let [_, lengths, s0, s1, s2, s3, d0, d1, d2, d3] = bytes.words(offset)?;
            let [_, _, next, _] = lengths.to_ne_bytes();
            let headers = extension_headers(bytes, offset + IPV6_LEN, next, [UDP, UDP]);
            let (_, skipped) = headers.ok()??;
            let ends = ipv6_ends([s0, s1, s2, s3, d0, d1, d2, d3]);
            Some((ends, offset + IPV6_LEN + skipped))
        }
        _ => None,
    }
}

/// Hash of a payload's length and its first [`HASHED`] bytes. It needs no secret key: an attacker who wants
/// two equal hashes can simply send the same datagram twice.
#[inline(always)]
pub fn payload_hash<B: Bytes>(bytes: &B, offset: usize, length: u32) -> Option<u32> {
    let mut hash = Hash::new(u64::from(length));
    if length as usize >= HASHED {
        hash.add(bytes.words::<8>(offset)?);
        return Some(hash.finish());
    }
    // Add all whole words, in three loads at most.
    let mut at = offset;
    if length & 16 != 0 {
        hash.add(bytes.words::<4>(at)?);
        at += 16;
    }
    if length & 8 != 0 {
        hash.add(bytes.words::<2>(at)?);
        at += 8;
    }
    if length & 4 != 0 {
        hash.add(bytes.words::<1>(at)?);
    }
    Some(hash.finish())
}

/// A hash that spreads neighbouring values, by multiplications like those in `budget`.
pub(crate) struct Hash(u64);

impl Hash {
    #[inline(always)]
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    #[inline(always)]
    pub(crate) fn add<const N: usize>(&mut self, words: [u32; N]) {
        for word in words {
            self.0 = (self.0 ^ u64::from(word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            self.0 ^= self.0 >> 33;
        }
    }

    #[inline(always)]
    pub(crate) fn finish(self) -> u32 {
        let mixed = self.0.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        (mixed >> 32) as u32
    }
}
