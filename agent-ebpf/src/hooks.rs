//! The hooks: one thin program for each direction and kind of device. Whatever comes out of
//! looking, the packet is passed on, always.

use agent_common::classify::{Direction, World, observe};
use agent_common::packet::{Link, parse};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;

use crate::kernel::{Kernel, Skb};
use crate::maps::SCRATCH;
use crate::peek;

/// `TCX_NEXT`, and `TC_ACT_UNSPEC` to clsact: the next program decides, and after the last one the
/// kernel. `TC_ACT_OK` here would skip whatever is attached behind (microsoft/retina issue 252).
const PASS: i32 = -1;

/// See `abi::program::INGRESS`.
#[classifier]
pub fn pathproof_ingress(ctx: TcContext) -> i32 {
    look(&ctx, Direction::Ingress, Link::Ethernet);
    PASS
}

/// See `abi::program::EGRESS`.
#[classifier]
pub fn pathproof_egress(ctx: TcContext) -> i32 {
    look(&ctx, Direction::Egress, Link::Ethernet);
    PASS
}

/// See `abi::program::INGRESS_L3`.
#[classifier]
pub fn pathproof_ingress_l3(ctx: TcContext) -> i32 {
    look(&ctx, Direction::Ingress, Link::None);
    PASS
}

/// See `abi::program::EGRESS_L3`.
#[classifier]
pub fn pathproof_egress_l3(ctx: TcContext) -> i32 {
    look(&ctx, Direction::Egress, Link::None);
    PASS
}

/// See `abi::program::EMPTY`.
#[classifier]
pub fn pathproof_empty(_: TcContext) -> i32 {
    PASS
}

#[inline(always)]
fn look(ctx: &TcContext, direction: Direction, link: Link) {
    if !peek::may_be_evidence(ctx, link) {
        return;
    }
    let kernel = Kernel::new(ctx);
    // The parsed packet lies in a map: the stack of 512 bytes has no room for it.
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return;
    };
    match parse(&Skb(ctx), link) {
        Ok(Some(segment)) => {
            // SAFETY: a per-CPU map value; classifiers do not nest on one CPU.
            let segment = unsafe {
                scratch.write(segment);
                &*scratch
            };
            observe(&kernel, direction, segment);
        }
        Ok(None) => {}
        Err(fault) => kernel.fault(fault),
    }
}
