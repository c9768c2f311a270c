//! Probes, topologies and ledgers for the tests of all crates.

pub mod topologies;
pub mod traces;

use pathproof_facts::directory::ServiceInfo;
use pathproof_facts::time::Mono;

use crate::ledger::Ledger;

impl Ledger {
    /// Records that connections of pods, or of clients outside, to a Service succeeded long ago.
    pub fn seen_working(&mut self, info: &ServiceInfo, outside: bool) {
        let worked = match outside {
            true => &mut self.worked_outside,
            false => &mut self.worked,
        };
        worked.succeed(info, 5, Mono(0));
    }
}
