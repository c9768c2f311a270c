//! Selection of a source's budget by a keyed hash, which is the same in the kernel and in the tests. The
//! hash must spread neighbouring addresses for every key. Otherwise a flood from one address would use up
//! the budget of many others.

use crate::abi::MAX_BUDGETS;
use crate::service::Address;

/// Index of a source's budget. `seed` is `abi::SEED`.
///
/// The finalizer is that of MurmurHash3 (Austin Appleby, public domain). A product alone is not enough: an
/// input bit would affect only the bits above it, and with most seeds neighbouring addresses would share a
/// budget.
#[inline(always)]
pub fn slot(source: &Address, seed: u64) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    const BITS: u32 = MAX_BUDGETS.trailing_zeros();
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *source;
    let high = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
    let low = u64::from_ne_bytes([i, j, k, l, m, n, o, p]);
    let mut mixed = (high ^ seed).wrapping_mul(ODD) ^ low;
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed >> (u64::BITS - BITS)) as u32
}
