//! Packets as they stand on the wire, for tests and benchmarks of the observer: made with
//! etherparse, so that a misreading of a header in `agent-common` cannot repeat itself here.
//!
//! Every builder gives a sound packet with right lengths and checksums; tests damage the bytes
//! afterwards. Nothing here may use `agent-common`: its own tests include this file.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    Ethernet2Header, IpAuthHeader, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader,
    Ipv6Header, Ipv6RawExtHeader, NetHeaders, PacketHeaders, SingleVlanHeader, TcpHeader,
    TransportHeader, UdpHeader, VlanId,
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
    /// Its number, and its bytes in front of a header with the number `next`.
    fn before(self, next: u8) -> (u8, Vec<u8>) {
        let next_header = IpNumber(next);
        let options = |units: u8| {
            let body = vec![0; 6 + usize::from(units) * 8];
            let header = Ipv6RawExtHeader::new_raw(next_header, &body).expect("sound length");
            header.to_bytes().to_vec()
        };
        match self {
            Self::HopByHop(units) => (0, options(units)),
            Self::Routing(units) => (43, options(units)),
            Self::Destination(units) => (60, options(units)),
            Self::Authentication(words) => {
                let value = vec![0; usize::from(words) * 4];
                let header = IpAuthHeader::new(next_header, 1, 1, &value).expect("sound length");
                (51, header.to_bytes().to_vec())
            }
            Self::Fragment(offset) => {
                let offset = IpFragOffset::try_new(offset).expect("13 bits");
                let header = Ipv6FragmentHeader::new(next_header, offset, true, 7);
                (44, header.to_bytes().to_vec())
            }
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
        [self.link(), self.network()].concat()
    }

    fn link(&self) -> Vec<u8> {
        let Some((source, destination)) = self.link else {
            return Vec::new();
        };
        let inner = match self.source {
            IpAddr::V4(_) => 0x0800,
            IpAddr::V6(_) => 0x86dd,
        };
        let types = [self.tags.as_slice(), &[inner]].concat();
        let header = Ethernet2Header {
            source,
            destination,
            ether_type: types[0].into(),
        };
        let mut bytes = header.to_bytes().to_vec();
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
                    let (number, bytes) = extension.before(next);
                    payload = [bytes, payload].concat();
                    next = number;
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
            _ => panic!("one family"),
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
pub fn segment(header: TcpHeader, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Packet {
    summed(TransportHeader::Tcp(header), source, destination, payload)
}

/// A UDP datagram.
pub fn udp(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Packet {
    let header = UdpHeader {
        source_port: source.port(),
        destination_port: destination.port(),
        length: (UdpHeader::LEN + payload.len()) as u16,
        checksum: 0,
    };
    let header = TransportHeader::Udp(header);
    summed(header, source.ip(), destination.ip(), payload)
}

/// With the right checksum.
fn summed(
    mut header: TransportHeader,
    source: IpAddr,
    destination: IpAddr,
    payload: &[u8],
) -> Packet {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let ip = Ipv4Header {
                source: source.octets(),
                destination: destination.octets(),
                ..Ipv4Header::default()
            };
            header.update_checksum_ipv4(&ip, payload).expect("it fits");
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ip = Ipv6Header {
                source: source.octets(),
                destination: destination.octets(),
                ..Ipv6Header::default()
            };
            header.update_checksum_ipv6(&ip, payload).expect("it fits");
        }
        _ => panic!("one family"),
    }
    let protocol = match header {
        TransportHeader::Tcp(_) => TCP,
        _ => UDP,
    };
    let mut body = Vec::new();
    header.write(&mut body).expect("a Vec takes all");
    body.extend(payload);
    Packet::ip(source, destination, protocol, body)
}

/// Whether the checksums of a packet's IPv4, TCP and UDP headers are right.
pub fn is_sound(bytes: &[u8]) -> bool {
    let Ok(headers) = PacketHeaders::from_ethernet_slice(bytes) else {
        return false;
    };
    let (payload, Some(sent)) = (headers.payload.slice(), headers.transport) else {
        return false;
    };
    let mut right = sent.clone();
    let unsummed = matches!(&sent, TransportHeader::Udp(udp) if udp.checksum == 0);
    match headers.net {
        Some(NetHeaders::Ipv4(ip, _)) => {
            right.update_checksum_ipv4(&ip, payload).is_ok()
                && (unsummed || right == sent)
                && ip.calc_header_checksum() == ip.header_checksum
        }
        Some(NetHeaders::Ipv6(ip, _)) => {
            right.update_checksum_ipv6(&ip, payload).is_ok() && right == sent
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
    let (flags, acknowledged) = (flag::SYN | flag::ACK, isn.wrapping_add(1));
    tcp(from, client, flags, 0x5eed, acknowledged, &[])
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
