//! Spreads nodes over time without a random number: each node has its own place, the same after a
//! restart.

use std::time::Duration;

/// A node's place below `over`, by its name and what it is for.
pub(super) fn spread(node: &str, salt: u64, over: Duration) -> Duration {
    let over = u64::try_from(over.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(hash(node, salt) % over.max(1))
}

/// FNV-1a, and the last step of MurmurHash3: names of nodes often differ in their end alone.
fn hash(text: &str, salt: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ salt;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_spread_evenly() {
        for salt in [0, 1, 7] {
            let mut tenths = [0u32; 10];
            for number in 0..5_000 {
                let at = spread(
                    &format!("ip-10-0-{}-{}", number / 250, number % 250),
                    salt,
                    Duration::from_secs(10),
                );
                tenths[at.as_secs() as usize] += 1;
            }
            assert!(
                tenths.iter().all(|count| (400..600).contains(count)),
                "{tenths:?}"
            );
        }
    }
}
