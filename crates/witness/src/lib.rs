//! Evidence since the agent started: connections of users, probes of the sentinel and of the pod probe, and
//! what the observer misses.
//!
//! This crate must not judge the node (`pathproof-judge` does), and must not use files, sockets or a clock.

pub mod conntrack;
pub mod coverage;
pub mod drops;
pub mod evidence;
pub mod ledger;
pub mod peers;
pub mod probes;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod topology;

/// Whether recordings and the state file leave a value out, because it is read as the default.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Appends an entry to a list of the latest ones, which has each once and at most `kept` in all.
fn keep_latest<T: PartialEq>(latest: &mut Vec<T>, new: T, kept: usize) {
    latest.retain(|known| *known != new);
    if latest.len() >= kept {
        latest.remove(0);
    }
    latest.push(new);
}
