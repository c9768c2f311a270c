//! The hooks: one thin program per direction and kind of device. Every packet is passed on, except
//! untranslated packets of this agent's probes at an uplink, which are identified by their token or socket.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use pathproof_wire::classify::{Direction, World as _, observe};
use pathproof_wire::packet::{Link, parse, parse_plain, udp as udp_packet};
use pathproof_wire::service::device_flag;
use pathproof_wire::udp::{self, Ports};

use crate::kernel::{Kernel, Skb, count};
use crate::maps::{SCRATCH, UDP_PORTS};
use crate::peek::{self, Linear, Look};
use crate::sentinel;

/// `TCX_NEXT`, which is `TC_ACT_UNSPEC` for clsact: the next program decides, and after the last one the
/// kernel. `TC_ACT_OK` would skip all programs behind this one (microsoft/retina issue 252).
pub const PASS: i32 = -1;

/// A hook with its slow paths for TCP and UDP. Each slow path parses and classifies the packet, and is a
/// separate function, so that only packets on it pay for saved registers and a stack. The functions are
/// called one after the other and not nested, because their stacks together exceed 512 bytes.
macro_rules! hook {
    ($(#[$doc:meta])* $hook:ident, $tcp:ident, $udp:ident, $segment:ident, $datagram:ident, $direction:expr, $link:expr) => {
        $(#[$doc])*
        #[classifier]
        pub fn $hook(ctx: TcContext) -> i32 {
            let skb = ctx.skb.skb;
            let look = peek::look(&ctx, $direction, $link);
            if matches!(look, Look::Tcp | Look::Either) && $tcp(skb) {
                return $segment(skb);
            }
            if matches!($direction, Direction::Egress)
                && matches!(look, Look::Tcp | Look::Probe)
                && ends_here(skb)
            {
                return sentinel::DROP;
            }
            if matches!(look, Look::Udp | Look::Probe | Look::Either) && $udp(skb) {
                return $datagram(skb);
            }
            PASS
        }

        #[inline(never)]
        fn $tcp(skb: *mut __sk_buff) -> bool {
            read_segment(&TcContext::new(skb), $link)
        }

        #[inline(never)]
        fn $udp(skb: *mut __sk_buff) -> bool {
            read_datagram(&TcContext::new(skb), $link)
        }
    };
}

hook!(
    /// See `abi::program::INGRESS`.
    pathproof_ingress, tcp_ingress, udp_ingress, segment_in, datagram_in, Direction::Ingress, Link::Ethernet
);
hook!(
    /// See `abi::program::EGRESS`.
    pathproof_egress, tcp_egress, udp_egress, segment_out, datagram_out, Direction::Egress, Link::Ethernet
);
hook!(
    /// See `abi::program::INGRESS_L3`.
    pathproof_ingress_l3, tcp_ingress_l3, udp_ingress_l3, segment_in, datagram_in, Direction::Ingress, Link::None
);
hook!(
    /// See `abi::program::EGRESS_L3`.
    pathproof_egress_l3, tcp_egress_l3, udp_egress_l3, segment_out, datagram_out, Direction::Egress, Link::None
);

/// See `abi::program::EMPTY`.
#[classifier]
pub fn pathproof_empty(_: TcContext) -> i32 {
    PASS
}

/// See `abi::program::GLANCE`.
#[classifier]
pub fn pathproof_glance(ctx: TcContext) -> i32 {
    const TCP_FLAGS: usize = 14 + 20 + 13;
    let flags = ctx.data() + TCP_FLAGS;
    if flags < ctx.data_end() {
        // SAFETY: the byte ends before the packet's data does. The read is volatile, or the compiler would
        // remove it.
        unsafe { core::ptr::read_volatile(flags as *const u8) };
    }
    PASS
}

/// Stores the packet in the scratch map if it is evidence of a connection.
#[inline(always)]
fn read_segment(ctx: &TcContext, link: Link) -> bool {
    // The parsed packet is stored in a map, because the stack of 512 bytes has no room for it.
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: a per-CPU map value; classifiers do not nest on one CPU.
    let keep = |segment| unsafe { scratch.write(segment) };
    match parse_plain(&Linear(ctx), link) {
        Some(segment) => keep(segment),
        None => match parse(&Skb(ctx), link) {
            Ok(Some(segment)) => keep(segment),
            Ok(None) => return false,
            Err(fault) => {
                count(fault);
                return false;
            }
        },
    }
    true
}

/// Shared by both kinds of devices, since it starts after their headers.
#[inline(never)]
fn segment_in(skb: *mut __sk_buff) -> i32 {
    look_at_segment(&TcContext::new(skb), Direction::Ingress);
    PASS
}

/// See [`segment_in`].
#[inline(never)]
fn segment_out(skb: *mut __sk_buff) -> i32 {
    let ctx = TcContext::new(skb);
    let is_stray = look_at_segment(&ctx, Direction::Egress)
        && (sentinel::is_of_own_socket(&ctx) || ends_here(skb));
    match is_stray {
        true => sentinel::DROP,
        false => PASS,
    }
}

#[inline(always)]
fn look_at_segment(ctx: &TcContext, direction: Direction) -> bool {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return false;
    };
    let kernel: Kernel<'_, false> = Kernel::new(ctx);
    // SAFETY: written a moment ago on this CPU, by `read_segment`.
    observe(&kernel, direction, unsafe { &*scratch })
}

/// Whether this is an untranslated packet of the agent's probes that leaves by an uplink: a SYN, a
/// datagram, or the RST that closes a probe. Connection tracking has already seen that RST, so it can be
/// dropped.
#[inline(never)]
fn ends_here(skb: *mut __sk_buff) -> bool {
    let ctx = TcContext::new(skb);
    let kernel: Kernel<'_, false> = Kernel::new(&ctx);
    kernel.device_flags() & device_flag::UPLINK != 0 && sentinel::is_stray(&ctx, &kernel)
}

/// Stores the datagram in the scratch map if one of its ports belongs to a UDP Service.
#[inline(always)]
fn read_datagram(ctx: &TcContext, link: Link) -> bool {
    let (Some(scratch), Some(known)) = (SCRATCH.get_ptr_mut(0), UDP_PORTS.get(0)) else {
        return false;
    };
    let (mut segment, payload_at) = match udp_packet::parse(&Skb(ctx), link) {
        Ok(Some(found)) => found,
        Ok(None) => return false,
        Err(fault) => {
            count(fault);
            return false;
        }
    };
    let to = known.has(segment.destination_port);
    if to {
        match udp_packet::payload_hash(&Skb(ctx), payload_at, segment.payload) {
            Some(hash) => segment.isn = hash,
            None => return false,
        }
    }
    let from = known.has(segment.source_port);
    // SAFETY: as in `read_segment`.
    unsafe { scratch.write(segment) };
    from || to
}

/// Shared by both kinds of devices, since it starts after their headers.
#[inline(never)]
fn datagram_in(skb: *mut __sk_buff) -> i32 {
    look_at_datagram(&TcContext::new(skb), Direction::Ingress);
    PASS
}

/// See [`datagram_in`].
#[inline(never)]
fn datagram_out(skb: *mut __sk_buff) -> i32 {
    look_at_datagram(&TcContext::new(skb), Direction::Egress);
    PASS
}

#[inline(always)]
fn look_at_datagram(ctx: &TcContext, direction: Direction) {
    let (Some(scratch), Some(known)) = (SCRATCH.get_ptr_mut(0), UDP_PORTS.get(0)) else {
        return;
    };
    // SAFETY: written a moment ago on this CPU, by `read_datagram`.
    let segment = unsafe { &*scratch };
    let ports = Ports {
        from: known.has(segment.source_port),
        to: known.has(segment.destination_port),
    };
    let kernel: Kernel<'_, true> = Kernel::new(ctx);
    udp::observe(&kernel, direction, segment, ports);
}
