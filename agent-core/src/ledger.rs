//! Evidence, gathered: what the [verdict](super::verdict) is read from.
//!
//! [`Ledger::absorb`] is the only thing that changes it, apart from the sentinel's part. Memory is
//! bounded: per family a few times and one run of failures, and at most [`SERVICES_TRACKED`]
//! Services that have failures. Services that work leave no trace here.
//!
//! The kernel and the expectations decide before who fails and who is proven: a connection that was
//! owed nothing never arrives here as a failure.

mod absorb;
mod answers;
mod data;
mod family;
mod obstacle;
mod outside;
mod routes;
mod seen_working;
mod service;
mod source_ports;

use std::collections::BTreeMap;

use agent_common::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::cause::{Cause, FAILURES, Failure};
use crate::evidence::{ObserverHealth, ProgrammingSeen};
use crate::limits::{FORGOTTEN, Limits};
use crate::peers::PeerLedger;
use crate::probes::{SentinelLedger, SentinelMemory};
use crate::time::Mono;
pub(crate) use absorb::LOST_NOTICED;
use answers::Answers;
pub(crate) use data::DataLoss;
pub(crate) use family::{FamilyLedger, Streak, commonest};
pub(crate) use obstacle::{Classes, OUTSIDE, READ_WITHIN, Reading};
pub(crate) use outside::OutsidePaths;
pub(crate) use seen_working::{FailingService, ServicesSeenWorking};
pub(crate) use service::{StaleConnection, Track, WINDOW};

/// Services with failures that are followed one by one; more are counted.
pub const SERVICES_TRACKED: usize = 4_096;

/// All evidence so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// The numbers it was made with; the verdict uses the same.
    pub(crate) limits: Limits,
    families: [FamilyLedger; FAMILIES],
    pub(crate) tracks: BTreeMap<u32, Track>,
    /// Services that worked for pods.
    #[serde(default)]
    pub(crate) worked: ServicesSeenWorking,
    /// The same for clients outside the node.
    #[serde(default)]
    pub(crate) worked_outside: ServicesSeenWorking,
    /// Services whose clients outside are not served.
    #[serde(default)]
    pub(crate) outside: OutsidePaths,
    /// Number of times that a failing Service found no place.
    pub(crate) untracked: u64,
    /// Failures that were suspended, by [`Failure`].
    #[serde(default)]
    pub(crate) unjudged: [u64; FAILURES],
    /// Whether the datapath follows changes of endpoints; nothing in recordings that do not have it.
    #[serde(default)]
    pub(crate) programming: Option<ProgrammingSeen>,
    pub(crate) observer: ObserverHealth,
    /// When the last sample was taken.
    pub(crate) sampled: Option<Mono>,
    /// When this ledger was made from a remembered one.
    pub(crate) restored: Option<Mono>,
    /// Until when nothing was missed: the last sample, also that of a remembered ledger.
    seen: Option<Mono>,
    /// Connections to other nodes.
    #[serde(default)]
    pub peers: PeerLedger,
    /// Results of probes, apart from all of the above.
    pub sentinel: SentinelLedger,
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
    /// Services that worked for pods, and for clients outside.
    #[serde(default)]
    worked: [ServicesSeenWorking; 2],
}

impl Ledger {
    /// An empty one.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            sentinel: SentinelLedger::new(limits),
            ..Self::default()
        }
    }

    /// One that continues where the agent before stopped, in the same boot of the node.
    ///
    /// `observed` says that the programs stayed in the kernel and their maps were found
    /// again. Without that a proof may have been missed, and no run of failures continues.
    ///
    /// Lanes of the sentinel and answers are forgotten after more than an hour without a sample: the node may
    /// have been made anew meanwhile, and has to work first.
    pub fn restore(limits: Limits, memory: LedgerMemory, observed: bool, now: Mono) -> Self {
        let long_ago = |at: Mono| now.since(at) > FORGOTTEN;
        let mut families = memory.families;
        let (remembered, worked) = match memory.sampled.is_some_and(long_ago) {
            true => {
                for family in &mut families {
                    family.answers = Answers::default();
                }
                Default::default()
            }
            false => (memory.sentinel, memory.worked),
        };
        let [worked, worked_outside] = worked;
        let mut ledger = Self {
            limits,
            families,
            restored: Some(now),
            seen: memory.sampled,
            worked,
            worked_outside,
            sentinel: SentinelLedger::restore(limits, remembered),
            ..Self::default()
        };
        // Until the view was delivered to this agent, its source is away.
        ledger.sentinel.source_away(now);
        match memory.sampled {
            Some(sampled) if observed => ledger.close_gap(sampled, now),
            _ => ledger.end_failures(),
        }
        ledger
    }

    /// Number of namespaces of which Services were used within the last hour, by pods of this node or from outside.
    pub(crate) fn namespaces_in_use(&self, family: Family, now: Mono) -> usize {
        let pods = self.worked.namespaces_used(family, now);
        let outside = self.worked_outside.namespaces_used(family, now);
        pods.union(&outside).count()
    }

    /// Lookups for a client that was served show an open way.
    pub(crate) fn show_ways(&mut self, family: Family) {
        self.families[family as usize].shows_ways = true;
    }

    /// State to store for [`Ledger::restore`].
    pub fn memory(&self) -> LedgerMemory {
        LedgerMemory {
            families: self.families.clone(),
            sampled: self.sampled.or(self.seen),
            sentinel: self.sentinel.memory(),
            worked: [self.worked.clone(), self.worked_outside.clone()],
        }
    }

    /// Takes a reading of what keeps clients outside from being served.
    pub(crate) fn obstacle(&mut self, family: Family, reading: Reading, now: Mono) {
        self.families[family as usize].obstacle.read(reading, now);
    }

    pub(crate) fn family(&self, family: Family) -> &FamilyLedger {
        &self.families[family as usize]
    }

    pub(crate) fn tracks(&self, family: Family) -> impl Iterator<Item = &Track> {
        let tracks = self.tracks.values();
        tracks.filter(move |track| track.family == family)
    }

    /// The cause of failures of this kind: what is lost while the kernel drops connections for want of
    /// room is lost for that.
    pub(crate) fn cause(&self, failure: Failure, now: Mono) -> Cause {
        match failure {
            Failure::Lost if self.sentinel.conntrack.is_full(now) => Cause::ConntrackFull,
            other => Cause::of(other),
        }
    }

    /// Until when "nothing got through" is known.
    pub(crate) fn seen(&self, now: Mono) -> Mono {
        self.seen.map_or(Mono(0), |seen| seen.min(now))
    }
}

#[cfg(test)]
mod tests;
