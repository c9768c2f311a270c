//! Packets for tests and benchmarks of the observer. They are built with etherparse, so that a header that
//! `pathproof-wire` misreads is not misbuilt here in the same way.
//!
//! Every builder returns a valid packet with correct lengths and checksums; tests damage the bytes
//! afterwards. This file must not use `pathproof-wire`, whose own tests include this file.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    IpAuthHeader, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header,
    Ipv6RawExtHeader, NetHeaders, NetSlice, SlicedPacket, TcpHeader, TransportHeader,
    TransportSlice, UdpHeader,
};

/// EtherType of an 802.1Q tag.
pub const VLAN: u16 = 0x8100;
/// EtherType of an 802.1ad outer tag.
pub const QINQ: u16 = 0x88a8;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// TCP flags, as bits of the header's byte at offset 13.
pub mod flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
}

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
    /// Protocol number of this extension header, and its bytes, which announce `next_header` as the next one.
    fn before(self, next_header: IpNumber) -> (u8, Vec<u8>) {
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

/// The 16 bytes that represent an address in maps.
pub fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A packet whose headers can be changed until [`bytes`](Self::bytes).
#[derive(Clone, Debug)]
pub struct Packet {
    link: Option<Hardware>,
    tags: Vec<u16>,
    net: NetHeaders,
    extensions: Vec<Extension>,
    body: Vec<u8>,
}

impl Packet {
    /// Any protocol over IP. Both addresses have the same family.
    pub fn ip(source: IpAddr, destination: IpAddr, protocol: u8, body: Vec<u8>) -> Self {
        let protocol = IpNumber(protocol);
        let net = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (source, destination) = (source.octets(), destination.octets());
                let header = Ipv4Header::new(0, 64, protocol, source, destination);
                NetHeaders::Ipv4(header.expect("it fits"), Default::default())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header {
                    next_header: protocol,
                    hop_limit: 64,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv6Header::default()
                };
                NetHeaders::Ipv6(header, Default::default())
            }
            _ => panic!("one family"),
        };
        Self {
            link: Some(([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])),
            tags: Vec::new(),
            net,
            extensions: Vec::new(),
            body,
        }
    }

    /// Removes the link-layer header, as on a tun or WireGuard device.
    pub fn without_link(mut self) -> Self {
        self.link = None;
        self
    }

    /// Sets the hardware addresses.
    pub fn between(mut self, link: Hardware) -> Self {
        self.link = Some(link);
        self
    }

    /// Adds a VLAN tag of this EtherType inside the existing ones.
    pub fn tagged(mut self, ethertype: u16) -> Self {
        self.tags.push(ethertype);
        self
    }

    /// Sets this many words of IPv4 options (no operation).
    pub fn ip_options(mut self, words: u8) -> Self {
        if let NetHeaders::Ipv4(header, _) = &mut self.net {
            let options = vec![1; usize::from(words) * 4];
            header.options = options.as_slice().try_into().expect("whole words");
        }
        self
    }

    /// Makes it an IPv4 fragment at this offset in units of 8 bytes, with more to follow. The body stays.
    pub fn fragment(mut self, offset: u16) -> Self {
        if let NetHeaders::Ipv4(header, _) = &mut self.net {
            header.dont_fragment = false;
            header.more_fragments = true;
            header.fragment_offset = IpFragOffset::try_new(offset).expect("13 bits");
        }
        self
    }

    /// Adds an IPv6 extension header behind the existing ones.
    pub fn extension(mut self, extension: Extension) -> Self {
        self.extensions.push(extension);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        [self.link(), self.network()].concat()
    }

    fn link(&self) -> Vec<u8> {
        /// Priority and VLAN number of each tag.
        const NUMBER: &[u8] = &[0, 100];
        let Some((source, destination)) = self.link else {
            return Vec::new();
        };
        let inner = match self.net {
            NetHeaders::Ipv6(..) => 0x86dd,
            _ => 0x0800,
        };
        let types = self.tags.iter().chain([&inner]);
        let types: Vec<[u8; 2]> = types.map(|ethertype| ethertype.to_be_bytes()).collect();
        [destination.as_slice(), &source, &types.join(NUMBER)].concat()
    }

    fn network(&self) -> Vec<u8> {
        let mut payload = self.body.clone();
        let header = match self.net.clone() {
            NetHeaders::Ipv4(mut header, _) => {
                header.set_payload_len(payload.len()).expect("it fits");
                header.header_checksum = header.calc_header_checksum();
                header.to_bytes().to_vec()
            }
            NetHeaders::Ipv6(mut header, _) => {
                for extension in self.extensions.iter().rev() {
                    let (number, bytes) = extension.before(header.next_header);
                    payload.splice(..0, bytes);
                    header.next_header = IpNumber(number);
                }
                header.set_payload_length(payload.len()).expect("it fits");
                header.to_bytes().to_vec()
            }
            NetHeaders::Arp(_) => unreachable!("nothing makes one"),
        };
        [header, payload].concat()
    }
}

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
        // Set the maximum segment size option, which every stack sends.
        header.set_options_raw(&[2, 4, 5, 0xb4]).expect("one word");
    }
    segment(header, source.ip(), destination.ip(), payload)
}

/// A TCP segment with this header and the correct checksum.
pub fn segment(header: TcpHeader, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Packet {
    summed(TransportHeader::Tcp(header), source, destination, payload)
}

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

/// A packet with this header and the correct checksum.
fn summed(
    mut header: TransportHeader,
    source: IpAddr,
    destination: IpAddr,
    payload: &[u8],
) -> Packet {
    let protocol = match header {
        TransportHeader::Tcp(_) => IpNumber::TCP,
        _ => IpNumber::UDP,
    };
    let mut packet = Packet::ip(source, destination, protocol.0, Vec::new());
    assert!(sum(&mut header, &packet.net, payload), "it fits");
    header.write(&mut packet.body).expect("a Vec takes all");
    packet.body.extend(payload);
    packet
}

/// Sets the checksum. Returns whether the payload fits.
fn sum(header: &mut TransportHeader, net: &NetHeaders, payload: &[u8]) -> bool {
    match net {
        NetHeaders::Ipv4(ip, _) => header.update_checksum_ipv4(ip, payload).is_ok(),
        NetHeaders::Ipv6(ip, _) => header.update_checksum_ipv6(ip, payload).is_ok(),
        NetHeaders::Arp(_) => false,
    }
}

/// Whether the checksums of a packet's IPv4, TCP and UDP headers are correct. TCP's is computed over the
/// bytes, because etherparse's header lacks the reserved bits.
pub fn is_sound(bytes: &[u8]) -> bool {
    let Ok(sliced) = SlicedPacket::from_ethernet(bytes) else {
        return false;
    };
    let (Some(net), Some(transport)) = (sliced.net, sliced.transport) else {
        return false;
    };
    let (sent, right) = match (&net, &transport) {
        (NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            (tcp.checksum(), tcp.calc_checksum_ipv4(from, to))
        }
        (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            (tcp.checksum(), tcp.calc_checksum_ipv6(from, to))
        }
        // A datagram over IPv4 may have no checksum.
        (NetSlice::Ipv4(_), TransportSlice::Udp(udp)) if udp.checksum() == 0 => (0, Ok(0)),
        (NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
            let (header, ip) = (udp.to_header(), ip.header().to_header());
            let right = header.calc_checksum_ipv4(&ip, udp.payload());
            (header.checksum, right)
        }
        (NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) => {
            let (header, ip) = (udp.to_header(), ip.header().to_header());
            let right = header.calc_checksum_ipv6(&ip, udp.payload());
            (header.checksum, right)
        }
        _ => return false,
    };
    if let NetSlice::Ipv4(ip) = &net
        && ip.header().to_header().calc_header_checksum() != ip.header().header_checksum()
    {
        return false;
    }
    // Zero has two representations in ones' complement.
    right.is_ok_and(|right| right % 0xffff == sent % 0xffff)
}

pub fn syn(client: SocketAddr, to: SocketAddr, isn: u32) -> Packet {
    tcp(client, to, flag::SYN, isn, 0, &[])
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

/// An ICMP or ICMPv6 error of this type and code. It quotes `about` from its network header on.
pub fn icmp_error(from: IpAddr, to: IpAddr, kind: u8, code: u8, about: &Packet) -> Packet {
    let mut body = vec![kind, code, 0, 0, 0, 0, 0, 0];
    body.extend(about.network());
    let protocol = if from.is_ipv4() { ICMP } else { ICMPV6 };
    Packet::ip(from, to, protocol, body)
}
