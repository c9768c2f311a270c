//! The fast path: decides by direct packet access whether a packet can be evidence. Nearly every packet
//! cannot, since it is neither SYN, RST or ICMP error, nor a datagram at a UDP Service's port. Such a
//! packet costs only these few loads.
//!
//! All offsets are constants, because the verifier rejects direct access after a header of computed length.
//! Uncommon packets take the slow path, which parses them in full.

use aya_ebpf::programs::TcContext;
use pathproof_wire::classify::Direction;
use pathproof_wire::evidence::Fault;
use pathproof_wire::gate::{Glance, Wanted};
use pathproof_wire::packet::{Bytes, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Link, tcp_flag};
use pathproof_wire::probe::{DATA_LEN, UDP_MAGIC};
use pathproof_wire::udp::Ports;

use crate::kernel::{count, may_be_followed, watched};
use crate::limits;
use crate::maps::{MARKS, UDP_PORTS};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Bytes of a UDP header.
const UDP_LEN: u16 = 8;
/// Bytes of a probe's datagram.
const PROBE_LEN: u16 = UDP_LEN + DATA_LEN as u16;
const ICMP: u8 = 1;
const ICMP_UNREACHABLE: u8 = 3;
const ICMPV6: u8 = 58;
const ICMPV6_UNREACHABLE: u8 = 1;
const VLAN: u16 = 0x8100;
const QINQ: u16 = 0x88a8;

/// A byte at a constant offset, if the linear part of the packet has it.
#[inline(always)]
fn byte(ctx: &TcContext, offset: usize) -> Option<u8> {
    let at = ctx.data() + offset;
    if at + 1 > ctx.data_end() {
        return None;
    }
    // SAFETY: `at` lies before `data_end`, as the verifier checks too.
    Some(unsafe { *(at as *const u8) })
}

/// Two bytes at a constant even offset, in memory order. Packets begin at even addresses (`NET_IP_ALIGN` is
/// 0 or 2), so this is one load.
#[inline(always)]
fn half(ctx: &TcContext, offset: usize) -> Option<u16> {
    let at = ctx.data() + offset;
    if at + 2 > ctx.data_end() {
        return None;
    }
    // SAFETY: as for `byte`; the address is even, see above.
    Some(unsafe { *(at as *const u16) })
}

/// The linear part of a packet, read at constant offsets without a helper.
pub struct Linear<'a>(pub &'a TcContext);

impl Linear<'_> {
    #[inline(always)]
    fn at<T: Copy>(&self, offset: usize) -> Option<T> {
        let at = self.0.data() + offset;
        if at + size_of::<T>() > self.0.data_end() {
            return None;
        }
        // SAFETY: `at` lies before `data_end`. It may be unaligned by Rust's rules behind an Ethernet
        // header of 14 bytes. The verifier accepts unaligned loads only on machines that allow them, and
        // the compiler for this target derives nothing from the type except the width of the load.
        Some(unsafe { *(at as *const T) })
    }
}

impl Bytes for Linear<'_> {
    #[inline(always)]
    fn length(&self) -> usize {
        self.0.len() as usize
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.at(offset)
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        self.at(offset)
    }
}

/// Possible kind of a packet, which selects the slow path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// No evidence.
    Nothing,
    /// Possible evidence of a connection.
    Tcp,
    /// A datagram at a port of a UDP Service.
    Udp,
    /// A datagram that leaves and begins like those of the sentinel's probes.
    Probe,
    /// The fast path cannot decide, so the slow paths do.
    Either,
}

impl Look {
    #[inline(always)]
    fn tcp(is: bool) -> Self {
        if is { Look::Tcp } else { Look::Nothing }
    }
}

/// Selects the slow path for a packet.
#[inline(always)]
pub fn look(ctx: &TcContext, direction: Direction, link: Link) -> Look {
    let decided = match link {
        Link::Ethernet => ethernet(ctx, direction),
        Link::None => bare(ctx, direction),
    };
    decided.unwrap_or(Look::Either)
}

/// Decides about a datagram whose UDP header is at the constant offset `at`, behind two addresses of
/// `apart` bytes each. Most datagrams have no port of a UDP Service, and the gate stops most of those that
/// do.
#[inline(always)]
fn datagram(ctx: &TcContext, direction: Direction, at: usize, apart: usize) -> Option<Look> {
    let length = half(ctx, at + 4)?;
    let linear = Linear(ctx);
    if matches!(direction, Direction::Egress)
        && length == PROBE_LEN.to_be()
        && linear.at::<[u8; 8]>(at + 8) == Some(UDP_MAGIC)
    {
        return Some(Look::Probe);
    }
    let known = UDP_PORTS.get(0)?;
    let destination = half(ctx, at + 2)?;
    let source = half(ctx, at)?;
    let (from, to) = (
        known.has(source.to_ne_bytes()),
        known.has(destination.to_ne_bytes()),
    );
    if !from && !to {
        return Some(Look::Nothing);
    }
    // Some devices store the payload separately from the headers.
    let beginning = match linear.at::<u32>(at + 8) {
        Some(beginning) => beginning,
        None => ctx.load(at + 8).unwrap_or(0),
    };
    let length = u32::from(length);
    let marked = (u32::from(from) * FROM) | (u32::from(to) * TO);
    let out = match direction {
        Direction::Ingress => 0,
        Direction::Egress => OUT,
    };
    let wanted = gate(
        linear.at(at - apart - 4)?,
        linear.at(at - 4)?,
        linear.at(at)?,
        beginning,
        length | marked | out,
    );
    Some(if wanted { Look::Udp } else { Look::Nothing })
}

/// Flags in the last argument of [`gate`], above the length of the datagram.
const FROM: u32 = 1 << 16;
const TO: u32 = 1 << 17;
const OUT: u32 = 1 << 18;

/// Whether to read a datagram. It is a separate function with only numbers as arguments, so that a program
/// contains it once.
#[inline(never)]
fn gate(source: u32, destination: u32, ports: u32, beginning: u32, rest: u32) -> bool {
    let Some(marks) = MARKS.get_ptr_mut(0) else {
        return false;
    };
    let length = u16::from_be(rest as u16);
    let at = Glance {
        source,
        destination,
        ports,
        beginning,
        payload: u32::from(length.wrapping_sub(UDP_LEN)),
    };
    let ports = Ports {
        from: rest & FROM != 0,
        to: rest & TO != 0,
    };
    let direction = u32::from(rest & OUT != 0);
    // SAFETY: a map value's pointer; each field is one aligned word.
    let marks = unsafe { &mut *marks };
    match marks.wants(limits::window() as u16, &at, ports, direction) {
        Wanted::No => false,
        Wanted::Yes => true,
        Wanted::OverRate => {
            count(Fault::UdpOverRate);
            false
        }
    }
}

#[inline(always)]
fn bare(ctx: &TcContext, direction: Direction) -> Option<Look> {
    // Check 20 bytes, the shortest IP header. The compiler would turn a check of the first byte alone into
    // "begin is not below end", from which the verifier learns nothing.
    byte(ctx, 19)?;
    match byte(ctx, 0)? >> 4 {
        4 => ipv4::<0>(ctx, direction),
        6 => ipv6::<0>(ctx, direction),
        _ => Some(Look::Nothing),
    }
}

/// Length of Ethernet, IPv4 and TCP without options: most packets are at least as long.
const COMMON: usize = 14 + 20 + 20;

#[inline(always)]
fn ethernet(ctx: &TcContext, direction: Direction) -> Option<Look> {
    let data = ctx.data();
    if data + COMMON > ctx.data_end() {
        return short(ctx, direction);
    }
    // One bounds check serves every read of the commonest packet.
    // SAFETY: both lie within the bytes checked above; the header begins at an even address.
    let (ethertype, fragment) =
        unsafe { (*((data + 12) as *const u16), *((data + 20) as *const u16)) };
    // SAFETY: as above.
    let at = |offset: usize| unsafe { *((data + offset) as *const u8) };
    if ethertype == ETHERTYPE_IPV6.to_be() && at(20) == TCP {
        let flags = byte(ctx, 67)?;
        return Some(match flags & (tcp_flag::SYN | tcp_flag::RST) {
            0 if flags & tcp_flag::PSH == 0 => Look::Nothing,
            0 => self::data(Linear(ctx).at(58)?, Linear(ctx).at(62)?),
            _ => handshake(flags, Linear(ctx).at(62)?),
        });
    }
    if ethertype != ETHERTYPE_IPV4.to_be() || at(23) != TCP {
        return short(ctx, direction);
    }
    let plain = at(14) == 0x45 && fragment & 0x1fff_u16.to_be() == 0;
    if !plain {
        return Some(Look::Tcp);
    }
    let flags = at(47);
    // SAFETY: within the bytes checked above; as `Linear::at` for its alignment.
    let word = |offset: usize| unsafe { *((data + offset) as *const u32) };
    Some(match flags & (tcp_flag::SYN | tcp_flag::RST) {
        0 if flags & tcp_flag::PSH == 0 => Look::Nothing,
        0 => self::data(word(38), word(42)),
        _ => handshake(flags, word(42)),
    })
}

/// A segment with PSH. Both numbers are in network byte order.
#[inline(always)]
fn data(sequence: u32, acknowledged: u32) -> Look {
    // SAFETY: each place is an aligned word.
    let watched = unsafe { &*watched() };
    let is_watched = |number: u32| watched.has(u32::from_be(number).wrapping_sub(1));
    Look::tcp(is_watched(sequence) || is_watched(acknowledged))
}

/// A segment with SYN or RST. A SYN-ACK whose connection is not followed is no evidence, and costs no more
/// than this. `acknowledged` is in network byte order.
#[inline(always)]
fn handshake(flags: u8, acknowledged: u32) -> Look {
    const SYN_ACK: u8 = tcp_flag::SYN | tcp_flag::ACK;
    let is_answer = flags & (SYN_ACK | tcp_flag::RST) == SYN_ACK;
    Look::tcp(!is_answer || may_be_followed(u32::from_be(acknowledged).wrapping_sub(1)))
}

/// All other packets after an Ethernet header.
#[inline(always)]
fn short(ctx: &TcContext, direction: Direction) -> Option<Look> {
    let low = byte(ctx, 13)?;
    let high = byte(ctx, 12)?;
    match u16::from_be_bytes([high, low]) {
        ETHERTYPE_IPV4 => ipv4::<14>(ctx, direction),
        ETHERTYPE_IPV6 => ipv6::<14>(ctx, direction),
        VLAN | QINQ => Some(Look::Either),
        _ => Some(Look::Nothing),
    }
}

#[inline(always)]
fn ipv4<const AT: usize>(ctx: &TcContext, direction: Direction) -> Option<Look> {
    // The last byte is read first, so that one bounds check serves all reads. Packets that are too short
    // for TCP fail it and take the slow path.
    let flags = byte(ctx, AT + 33)?;
    match byte(ctx, AT + 9)? {
        TCP => {
            let handshake = flags & (tcp_flag::SYN | tcp_flag::RST) != 0;
            let options = byte(ctx, AT)? != 0x45;
            let later_fragment = half(ctx, AT + 6)? & 0x1fff_u16.to_be() != 0;
            if flags & tcp_flag::PSH == 0 || handshake || options || later_fragment {
                return Some(Look::tcp(handshake || options || later_fragment));
            }
            Some(data(Linear(ctx).at(AT + 24)?, Linear(ctx).at(AT + 28)?))
        }
        // With IP options the ICMP type is at another offset, so the slow path decides.
        ICMP => Some(Look::tcp(
            byte(ctx, AT)? != 0x45 || byte(ctx, AT + 20)? == ICMP_UNREACHABLE,
        )),
        UDP if byte(ctx, AT)? != 0x45 => Some(Look::Udp),
        // A later fragment has no ports.
        UDP if half(ctx, AT + 6)? & 0x1fff_u16.to_be() != 0 => Some(Look::Nothing),
        UDP => datagram(ctx, direction, AT + 20, 4),
        _ => Some(Look::Nothing),
    }
}

#[inline(always)]
fn ipv6<const AT: usize>(ctx: &TcContext, direction: Direction) -> Option<Look> {
    match byte(ctx, AT + 6)? {
        TCP => {
            let flags = byte(ctx, AT + 53)?;
            if flags & (tcp_flag::SYN | tcp_flag::RST) != 0 || flags & tcp_flag::PSH == 0 {
                return Some(Look::tcp(flags & (tcp_flag::SYN | tcp_flag::RST) != 0));
            }
            Some(data(Linear(ctx).at(AT + 44)?, Linear(ctx).at(AT + 48)?))
        }
        UDP => datagram(ctx, direction, AT + 40, 16),
        ICMPV6 => Some(Look::tcp(byte(ctx, AT + 40)? == ICMPV6_UNREACHABLE)),
        0 | 43 | 44 | 51 | 60 => Some(Look::Either),
        _ => Some(Look::Nothing),
    }
}
