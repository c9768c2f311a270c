//! eBPF programs of pathproof: the observer in both directions of the node's interfaces, the sentinel's
//! programs at its devices, and the program that steers connections to the agent's port.
//!
//! The observer never changes, drops or redirects a user's packet: it returns `TCX_NEXT`, which is
//! `TC_ACT_UNSPEC` for clsact. The sentinel answers and drops its probes. Parsing and classification are in
//! `pathproof-wire`. This crate has the hooks, the maps and the kernel's implementation of `World`.
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

/// The verifier rejects any program that can reach a panic, so this never runs.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// `bpf_ktime_get_ns` and `bpf_fib_lookup` are only available to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
