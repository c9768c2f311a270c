//! Evidence, gathered: what the [verdict](super::verdict) is read from.
//!
//! [`Ledger::absorb`] is the only thing that changes it, apart from the sentinel's part. Memory is bounded: per family a few times
//! and one run of failures, and at most [`SERVICES_TRACKED`] Services that have failures. Services
//! that work leave no trace here.
//!
//! Who fails and who is proven is decided before, by the kernel and by the expectations: nothing
//! that was owed nothing arrives here as a failure.

mod absorb;
mod family;
mod service;
mod streak;
mod window;

use std::collections::BTreeMap;

use agent_common::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::evidence::ObserverHealth;
use crate::limits::Limits;
use crate::probes::{SentinelLedger, SentinelMemory};
use crate::time::Mono;
pub(crate) use absorb::LOST_NOTICED;
pub(crate) use family::FamilyLedger;
pub(crate) use service::{StaleConnection, Track};
pub use streak::Lacking;
pub(crate) use streak::Streak;
pub(crate) use window::WINDOW;

/// Services with failures that are followed one by one; more are counted.
pub const SERVICES_TRACKED: usize = 4_096;

/// All evidence so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ledger {
    limits: Limits,
    families: [FamilyLedger; FAMILIES],
    tracks: BTreeMap<u32, Track>,
    untracked: u64,
    observer: ObserverHealth,
    /// When the last sample was taken.
    sampled: Option<Mono>,
    /// When this ledger was made from a remembered one.
    restored: Option<Mono>,
    /// Until when nothing was missed: the last sample, also that of a remembered ledger.
    seen: Option<Mono>,
    /// What probes brought, apart from all of the above.
    sentinel: SentinelLedger,
}

/// The part of a ledger that outlives the agent: proofs and runs of failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerMemory {
    families: [FamilyLedger; FAMILIES],
    /// When the last sample was taken.
    sampled: Option<Mono>,
    /// Agents before the sentinel wrote none.
    #[serde(default)]
    sentinel: SentinelMemory,
}

impl Ledger {
    /// An empty one.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            families: Default::default(),
            tracks: BTreeMap::new(),
            untracked: 0,
            observer: ObserverHealth::default(),
            sampled: None,
            restored: None,
            seen: None,
            sentinel: SentinelLedger::new(limits),
        }
    }

    /// One that continues where the agent before stopped, in the same boot of the node.
    ///
    /// `observed_meanwhile` says that the programs stayed in the kernel and their maps were found
    /// again. Without that a proof may have been missed, and no run of failures continues.
    pub fn restore(
        limits: Limits,
        memory: LedgerMemory,
        observed_meanwhile: bool,
        now: Mono,
    ) -> Self {
        let mut ledger = Self::new(limits);
        ledger.families = memory.families;
        ledger.sentinel = SentinelLedger::restore(limits, memory.sentinel);
        // Until the view was delivered to this agent, its source is away.
        ledger.sentinel.source_away(now);
        ledger.restored = Some(now);
        ledger.seen = memory.sampled;
        match memory.sampled {
            Some(sampled) if observed_meanwhile => ledger.close_gap(sampled, now),
            _ => ledger.end_streaks(),
        }
        ledger
    }

    /// What to write down for [`Ledger::restore`].
    pub fn memory(&self) -> LedgerMemory {
        LedgerMemory {
            families: self.families.clone(),
            sampled: self.sampled.or(self.seen),
            sentinel: self.sentinel.memory(),
        }
    }

    /// What probes brought.
    pub fn sentinel(&self) -> &SentinelLedger {
        &self.sentinel
    }

    /// For what only the sentinel brings: probes, its view, its devices, the datapath's owners.
    pub fn sentinel_mut(&mut self) -> &mut SentinelLedger {
        &mut self.sentinel
    }
}

/// What the judgement reads.
impl Ledger {
    /// The numbers it was made with; the verdict uses the same.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn family(&self, family: Family) -> &FamilyLedger {
        &self.families[family as usize]
    }

    pub(crate) fn tracks(&self, family: Family) -> impl Iterator<Item = &Track> {
        self.tracks
            .values()
            .filter(move |track| track.family == family)
    }

    pub(crate) fn untracked(&self) -> u64 {
        self.untracked
    }

    pub(crate) fn observer(&self) -> &ObserverHealth {
        &self.observer
    }

    pub(crate) fn sampled(&self) -> Option<Mono> {
        self.sampled
    }

    /// Until when "nothing got through" is known.
    pub(crate) fn seen(&self, now: Mono) -> Mono {
        self.seen.map_or(Mono(0), |seen| seen.min(now))
    }

    pub(crate) fn restored(&self) -> Option<Mono> {
        self.restored
    }
}

#[cfg(test)]
mod tests;
