//! What connections, the sentinel's probes and the pod probe have shown since the agent started.
//!
//! It must not use files, sockets or a clock: `now` is always an argument.

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
