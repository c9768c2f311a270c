//! Limits: how many connections of a source are followed, and how many anomalies are reported. Updates that
//! are lost between CPUs make a limit slightly looser, never tighter.

use aya_ebpf::helpers::generated::bpf_jiffies64;
use pathproof_wire::evidence::Budget;
use pathproof_wire::service::Address;
use pathproof_wire::{abi, budget, gate};

use crate::maps::{BUDGETS, LIMITER, UDP_RATES};

/// Seed of the hash of sources: see `abi::SEED`.
#[unsafe(no_mangle)]
static SEED: u64 = 0;

/// Ticks per window as a power of two: see `abi::WINDOW_SHIFT`. The default is for 250 ticks a second.
#[unsafe(no_mangle)]
static WINDOW_SHIFT: u32 = 5;

/// See `abi::FOLLOW_ALL`.
#[unsafe(no_mangle)]
static FOLLOW_ALL: u32 = 0;

/// Number of the gate's current window. It is derived from the kernel's tick, because reading the clock
/// takes ten times as long.
#[inline(always)]
pub fn window() -> u32 {
    // SAFETY: a live word; volatile as in `seed`.
    let shift = unsafe { core::ptr::read_volatile(&raw const WINDOW_SHIFT) };
    // SAFETY: a helper without arguments.
    (unsafe { bpf_jiffies64() } >> (shift & 31)) as u32
}

/// Whether connections bypass the gate.
#[inline(always)]
pub fn follows_all() -> bool {
    // SAFETY: as in `window`.
    unsafe { core::ptr::read_volatile(&raw const FOLLOW_ALL) != 0 }
}

#[inline(always)]
pub fn number(isn: u32) -> u32 {
    gate::number(isn, seed())
}

/// Takes one connection from a source's budget.
#[inline(always)]
pub fn take_source(source: &Address, now: u64) -> bool {
    match BUDGETS.get_ptr_mut(slot(source)) {
        Some(budget) => take(
            budget,
            now >> abi::BUDGET_WINDOW_SHIFT,
            abi::BUDGET_PER_WINDOW,
        ),
        None => true,
    }
}

#[inline(always)]
fn slot(source: &Address) -> u32 {
    budget::slot(source, seed())
}

#[inline(always)]
fn seed() -> u64 {
    // SAFETY: a live word; volatile, since the loader replaces the value above.
    unsafe { core::ptr::read_volatile(&raw const SEED) }
}

/// Takes one datagram from the budgets: from the Service's first, then from the total one.
#[inline(always)]
pub fn take_datagram(service: u32, now: u64) -> bool {
    const { assert!((abi::UDP_RATES - 1).is_power_of_two()) };
    let window = now >> abi::BUDGET_WINDOW_SHIFT;
    let of = |slot, most| match UDP_RATES.get_ptr_mut(slot) {
        Some(budget) => take(budget, window, most),
        None => false,
    };
    of(1 + (service & (abi::UDP_RATES - 2)), abi::UDP_PER_SERVICE) && of(0, abi::UDP_PER_WINDOW)
}

/// Takes one report from this CPU's budget.
#[inline(always)]
pub fn take_report(now: u64) -> bool {
    let Some(budget) = LIMITER.get_ptr_mut(0) else {
        return false;
    };
    take(
        budget,
        now >> abi::CPU_REPORT_WINDOW_SHIFT,
        abi::CPU_REPORTS,
    )
}

#[inline(always)]
fn take(budget: *mut Budget, window: u64, most: u32) -> bool {
    // SAFETY: a map value's pointer is valid until the program ends; no integer is torn, since each field
    // is one aligned word.
    let budget = unsafe { &mut *budget };
    if budget.window != window {
        budget.window = window;
        budget.used = 0;
    }
    if budget.used >= most {
        return false;
    }
    budget.used += 1;
    true
}
