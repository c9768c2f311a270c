//! Atomic operations on words of map values. Kernels have had compare-and-swap since 5.12
//! (`-Ctarget-cpu=v3`), but `core::sync::atomic` of the BPF target only has loads and stores. So this
//! module uses the compiler's intrinsics.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};

/// Adds one. `word` must point into a live map value.
#[inline(always)]
pub fn add_one(word: *mut u32) {
    // SAFETY: the caller's word is live, aligned and shared with atomic operations alone.
    unsafe { atomic_xadd::<u32, u32, { AtomicOrdering::Relaxed }>(word, 1) };
}

/// Adds `n`. `word` must point into a live map value.
#[inline(always)]
pub fn add(word: *mut u64, n: u64) {
    // SAFETY: as for `add_one`.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, n) };
}

/// Sets `word` to `to` if it is `from`. Returns whether it did. `word` must point into a live map value.
#[inline(always)]
pub fn swap(word: *mut u32, from: u32, to: u32) -> bool {
    // SAFETY: as for `add_one`.
    let (was, _) = unsafe {
        atomic_cxchg::<u32, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, from, to)
    };
    was == from
}
