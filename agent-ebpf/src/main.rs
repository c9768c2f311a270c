//! pathproof's observer: programs at both directions of a node's interfaces; its sentinel's
//! programs, at its own devices alone; and the one that gives it its port.
//!
//! The observer looks and never touches: whatever is seen, the packet goes on (`TCX_NEXT`, which is
//! `TC_ACT_UNSPEC` to clsact). The sentinel answers and drops its own probes. Parsing and classification are `agent-common`'s; here are the hooks,
//! the maps and the kernel's side of `World`.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "see atomic.rs")]

mod atomic;
mod dropped;
mod hooks;
mod kernel;
mod limits;
mod maps;
mod peek;
mod sentinel;
mod steer;

/// The verifier refuses any program from which a panic could be reached, so this is never run.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// `bpf_ktime_get_ns` and `bpf_fib_lookup` are open to GPL-compatible programs alone.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
