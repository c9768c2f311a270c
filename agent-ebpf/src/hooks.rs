//! The hooks: one thin program for each direction and kind of device. Whatever comes out of
//! looking, the packet is passed on, always.

use agent_common::classify::{Direction, World, observe};
use agent_common::packet::{Link, parse, parse_plain};
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;

use crate::kernel::{Kernel, Skb};
use crate::maps::SCRATCH;
use crate::peek::{self, Linear};

/// `TCX_NEXT`, and `TC_ACT_UNSPEC` to clsact: the next program decides, and after the last one the
/// kernel. `TC_ACT_OK` here would skip whatever is attached behind (microsoft/retina issue 252).
pub const PASS: i32 = -1;

/// A hook and its slow path. The slow path is a function of its own, so that the registers it needs
/// are saved, and its stack is made, for those packets alone that take it.
macro_rules! hook {
    ($(#[$doc:meta])* $hook:ident, $slow:ident, $direction:expr, $link:expr) => {
        $(#[$doc])*
        #[classifier]
        pub fn $hook(ctx: TcContext) -> i32 {
            if peek::may_be_evidence(&ctx, $link) {
                return $slow(ctx.skb.skb);
            }
            PASS
        }

        #[inline(never)]
        fn $slow(skb: *mut __sk_buff) -> i32 {
            look(&TcContext::new(skb), $direction, $link);
            PASS
        }
    };
}

hook!(
    /// See `abi::program::INGRESS`.
    pathproof_ingress, slow_ingress, Direction::Ingress, Link::Ethernet
);
hook!(
    /// See `abi::program::EGRESS`.
    pathproof_egress, slow_egress, Direction::Egress, Link::Ethernet
);
hook!(
    /// See `abi::program::INGRESS_L3`.
    pathproof_ingress_l3, slow_ingress_l3, Direction::Ingress, Link::None
);
hook!(
    /// See `abi::program::EGRESS_L3`.
    pathproof_egress_l3, slow_egress_l3, Direction::Egress, Link::None
);

/// See `abi::program::EMPTY`.
#[classifier]
pub fn pathproof_empty(_: TcContext) -> i32 {
    PASS
}

#[inline(always)]
fn look(ctx: &TcContext, direction: Direction, link: Link) {
    let kernel = Kernel::new(ctx);
    // The parsed packet lies in a map: the stack of 512 bytes has no room for it.
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: a per-CPU map value; classifiers do not nest on one CPU.
    let keep = |segment| unsafe {
        scratch.write(segment);
        &*scratch
    };
    let segment = match parse_plain(&Linear(ctx), link) {
        Some(segment) => keep(segment),
        None => match parse(&Skb(ctx), link) {
            Ok(Some(segment)) => keep(segment),
            Ok(None) => return,
            Err(fault) => return kernel.fault(fault),
        },
    };
    observe(&kernel, direction, segment);
}
