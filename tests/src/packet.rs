//! Packets as they stand on the wire, for tests and benchmarks of the observer: made with
//! etherparse, so that a misreading of a header in `agent-common` cannot repeat itself here.
//!
//! Every builder gives a sound packet with right lengths and checksums; tests damage the bytes
//! afterwards. Nothing here may use `agent-common`: its own tests include this file.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use etherparse::{
    Ethernet2Header, IpAuthHeader, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader,
    Ipv6Header, Ipv6RawExtHeader, NetSlice, SingleVlanHeader, SlicedPacket, TcpHeader,
    TransportSlice, UdpHeader, VlanId,
};

/// EtherType of an 802.1Q tag.
pub const VLAN: u16 = 0x8100;
/// EtherType of an 802.1ad outer tag.
pub const QINQ: u16 = 0x88a8;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// TCP flags, as bits of the header's fourteenth byte.
pub mod flag {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// Acknowledgement field is valid.
    pub const ACK: u8 = 0x10;
}

/// An IPv6 extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Hop-by-hop options of `8 * (units + 1)` bytes.
    HopByHop(u8),
    /// Routing header of `8 * (units + 1)` bytes.
    Routing(u8),
    /// Destination options of `8 * (units + 1)` bytes.
    Destination(u8),
    /// Authentication header with this many words of integrity check value.
    Authentication(u8),
    /// Fragment header with an offset in units of 8 bytes; more fragments follow.
    Fragment(u16),
}

impl Extension {
    fn number(self) -> u8 {
        match self {
            Self::HopByHop(_) => 0,
            Self::Routing(_) => 43,
            Self::Destination(_) => 60,
            Self::Authentication(_) => 51,
            Self::Fragment(_) => 44,
        }
    }

    fn bytes(self, next: u8) -> Vec<u8> {
        let next_header = IpNumber(next);
        match self {
            Self::HopByHop(units) | Self::Routing(units) | Self::Destination(units) => {
                let body = vec![0; 6 + usize::from(units) * 8];
                let header = Ipv6RawExtHeader::new_raw(next_header, &body).expect("sound length");
                let mut bytes = Vec::new();
                header.write(&mut bytes).expect("a Vec takes all");
                bytes
            }
            Self::Authentication(words) => {
                let value = vec![0; usize::from(words) * 4];
                let header = IpAuthHeader::new(next_header, 1, 1, &value).expect("sound length");
                header.to_bytes().to_vec()
            }
            Self::Fragment(offset) => Ipv6FragmentHeader {
                next_header,
                fragment_offset: IpFragOffset::try_new(offset).expect("13 bits"),
                more_fragments: true,
                identification: 7,
            }
            .to_bytes()
            .to_vec(),
        }
    }
}

/// Source and destination hardware addresses.
pub type Hardware = ([u8; 6], [u8; 6]);

/// A packet in the making: what stands in front of its payload can be changed until
/// [`bytes`](Self::bytes).
#[derive(Clone, Debug)]
pub struct Packet {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    body: Vec<u8>,
    link: Option<Hardware>,
    tags: Vec<u16>,
    ip_options: Vec<u8>,
    fragment: Option<u16>,
    extensions: Vec<Extension>,
}

impl Packet {
    /// Any protocol over IP. Both addresses are of one family.
    pub fn ip(source: IpAddr, destination: IpAddr, protocol: u8, body: Vec<u8>) -> Self {
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "one family");
        Self {
            source,
            destination,
            protocol,
            body,
            link: Some(([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])),
            tags: Vec::new(),
            ip_options: Vec::new(),
            fragment: None,
            extensions: Vec::new(),
        }
    }

    /// Without a link-layer header, as a tun or WireGuard device carries it.
    pub fn without_link(mut self) -> Self {
        self.link = None;
        self
    }

    /// Between these hardware addresses.
    pub fn between(mut self, link: Hardware) -> Self {
        self.link = Some(link);
        self
    }

    /// Behind another VLAN tag of this EtherType, inside those that are there.
    pub fn tagged(mut self, ethertype: u16) -> Self {
        self.tags.push(ethertype);
        self
    }

    /// With this many words of IPv4 options (no operation).
    pub fn ip_options(mut self, words: u8) -> Self {
        self.ip_options = vec![1; usize::from(words) * 4];
        self
    }

    /// An IPv4 fragment at this offset in units of 8 bytes, with more to follow. The body stays.
    pub fn fragment(mut self, offset: u16) -> Self {
        self.fragment = Some(offset);
        self
    }

    /// Behind another IPv6 extension header.
    pub fn extension(mut self, extension: Extension) -> Self {
        self.extensions.push(extension);
        self
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut packet = self.link();
        packet.extend(self.network());
        packet
    }

    fn link(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Some((source, destination)) = self.link else {
            return bytes;
        };
        let inner = if self.source.is_ipv4() {
            0x0800
        } else {
            0x86dd
        };
        let mut types = self.tags.clone();
        types.push(inner);
        let header = Ethernet2Header {
            source,
            destination,
            ether_type: types[0].into(),
        };
        bytes.extend(header.to_bytes());
        for ethertype in &types[1..] {
            let tag = SingleVlanHeader {
                vlan_id: VlanId::try_new(100).expect("12 bits"),
                ether_type: (*ethertype).into(),
                ..SingleVlanHeader::default()
            };
            bytes.extend(tag.to_bytes());
        }
        bytes
    }

    fn network(&self) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = Ipv4Header::new(
                    self.body.len() as u16,
                    64,
                    IpNumber(self.protocol),
                    source.octets(),
                    destination.octets(),
                )
                .expect("it fits");
                header.options = self.ip_options.as_slice().try_into().expect("whole words");
                // The options lengthen the header: the total is set anew.
                header.set_payload_len(self.body.len()).expect("it fits");
                if let Some(offset) = self.fragment {
                    header.dont_fragment = false;
                    header.more_fragments = true;
                    header.fragment_offset = IpFragOffset::try_new(offset).expect("13 bits");
                }
                header.header_checksum = header.calc_header_checksum();
                [header.to_bytes().as_slice(), &self.body].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut payload = self.body.clone();
                let mut next = self.protocol;
                for extension in self.extensions.iter().rev() {
                    payload = [extension.bytes(next), payload].concat();
                    next = extension.number();
                }
                let header = Ipv6Header {
                    payload_length: payload.len() as u16,
                    next_header: IpNumber(next),
                    hop_limit: 64,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv6Header::default()
                };
                [header.to_bytes().as_slice(), &payload].concat()
            }
            _ => unreachable!("asserted in ip()"),
        }
    }
}

/// A TCP segment with any flags.
pub fn tcp(
    source: SocketAddr,
    destination: SocketAddr,
    flags: u8,
    sequence: u32,
    acknowledged: u32,
    payload: &[u8],
) -> Packet {
    let mut header = TcpHeader::new(source.port(), destination.port(), sequence, 64_240);
    header.acknowledgment_number = acknowledged;
    header.fin = flags & flag::FIN != 0;
    header.syn = flags & flag::SYN != 0;
    header.rst = flags & flag::RST != 0;
    header.psh = flags & flag::PSH != 0;
    header.ack = flags & flag::ACK != 0;
    if header.syn {
        // Maximum segment size, as every stack sends it.
        header.set_options_raw(&[2, 4, 5, 0xb4]).expect("one word");
    }
    segment(header, source.ip(), destination.ip(), payload)
}

/// A TCP segment with this header, but for its checksum.
pub fn segment(
    mut header: TcpHeader,
    source: IpAddr,
    destination: IpAddr,
    payload: &[u8],
) -> Packet {
    header.checksum = match (source, destination) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            header.calc_checksum_ipv4_raw(a.octets(), b.octets(), payload)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            header.calc_checksum_ipv6_raw(a.octets(), b.octets(), payload)
        }
        _ => panic!("one family"),
    }
    .expect("it fits");
    let body = [header.to_bytes().as_slice(), payload].concat();
    Packet::ip(source, destination, TCP, body)
}

/// A UDP datagram.
pub fn udp(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Packet {
    let (from, to) = (source.port(), destination.port());
    let header = match (source.ip(), destination.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            UdpHeader::with_ipv4_checksum(from, to, &ipv4(a, b, payload.len()), payload)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let addresses = Ipv6Header {
                source: a.octets(),
                destination: b.octets(),
                ..Ipv6Header::default()
            };
            UdpHeader::with_ipv6_checksum(from, to, &addresses, payload)
        }
        _ => panic!("one family"),
    }
    .expect("it fits");
    let body = [header.to_bytes().as_slice(), payload].concat();
    Packet::ip(source.ip(), destination.ip(), UDP, body)
}

fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, payload: usize) -> Ipv4Header {
    let length = (UdpHeader::LEN + payload) as u16;
    Ipv4Header::new(
        length,
        64,
        IpNumber(UDP),
        source.octets(),
        destination.octets(),
    )
    .expect("it fits")
}

/// Whether the checksums of a packet's IPv4, TCP and UDP headers are right.
pub fn is_sound(bytes: &[u8]) -> bool {
    let Ok(sliced) = SlicedPacket::from_ethernet(bytes) else {
        return false;
    };
    match (sliced.net, sliced.transport) {
        (Some(NetSlice::Ipv4(ip)), Some(transport)) => {
            let ip = ip.header().to_header();
            let (a, b) = (ip.source, ip.destination);
            let right = match transport {
                TransportSlice::Tcp(tcp) => tcp
                    .calc_checksum_ipv4(a, b)
                    .is_ok_and(|sum| sum == tcp.checksum()),
                TransportSlice::Udp(udp) => udp
                    .to_header()
                    .calc_checksum_ipv4_raw(a, b, udp.payload())
                    .is_ok_and(|sum| udp.checksum() == 0 || sum == udp.checksum()),
                _ => false,
            };
            right && ip.calc_header_checksum() == ip.header_checksum
        }
        (Some(NetSlice::Ipv6(ip)), Some(transport)) => {
            let (a, b) = (ip.header().source(), ip.header().destination());
            match transport {
                TransportSlice::Tcp(tcp) => tcp
                    .calc_checksum_ipv6(a, b)
                    .is_ok_and(|sum| sum == tcp.checksum()),
                TransportSlice::Udp(udp) => udp
                    .to_header()
                    .calc_checksum_ipv6_raw(a, b, udp.payload())
                    .is_ok_and(|sum| sum == udp.checksum()),
                _ => false,
            }
        }
        _ => false,
    }
}

/// A connection's first segment.
pub fn syn(client: SocketAddr, to: SocketAddr, isn: u32) -> Packet {
    tcp(client, to, flag::SYN, isn, 0, &[])
}

/// A first segment that carries data (TCP fast open).
pub fn syn_with_data(client: SocketAddr, to: SocketAddr, isn: u32, payload: &[u8]) -> Packet {
    tcp(client, to, flag::SYN, isn, 0, payload)
}

/// The answer to the SYN with this initial sequence number.
pub fn syn_ack(from: SocketAddr, client: SocketAddr, isn: u32) -> Packet {
    let acknowledged = isn.wrapping_add(1);
    tcp(
        from,
        client,
        flag::SYN | flag::ACK,
        0x5eed,
        acknowledged,
        &[],
    )
}

/// The refusal of the SYN with this initial sequence number.
pub fn reset(from: SocketAddr, client: SocketAddr, isn: u32) -> Packet {
    let acknowledged = isn.wrapping_add(1);
    tcp(from, client, flag::RST | flag::ACK, 0, acknowledged, &[])
}

/// A segment of an established connection.
pub fn data(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Packet {
    tcp(from, to, flag::ACK | flag::PSH, 1, 1, payload)
}

/// An ICMP or ICMPv6 error of this type and code that quotes `about` from its network header on.
pub fn icmp_error(from: IpAddr, to: IpAddr, kind: u8, code: u8, about: &Packet) -> Packet {
    let mut body = vec![kind, code, 0, 0, 0, 0, 0, 0];
    body.extend(about.network());
    let protocol = if from.is_ipv4() { ICMP } else { ICMPV6 };
    Packet::ip(from, to, protocol, body)
}
