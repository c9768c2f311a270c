//! Gathered evidence, from which the verdict is derived.
//!
//! Only methods of [`Ledger`] and of its parts change it. Memory is bounded: per family a few timestamps and
//! one run of failures, and at most [`SERVICES_TRACKED`] Services with failures.
//!
//! The kernel and the expectations decide which connections failed or are proven. A connection that was
//! legitimately dropped or rejected never appears here as a failure.

mod absorb;
mod answers;
mod data;
mod endpoint_devices;
mod external_failures;
mod family;
mod obstacle;
mod routes;
mod seen_working;
mod service;
mod source_ports;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub use absorb::LOST_NOTICED;
use answers::AnswerForwarding;
pub use data::DataLoss;
pub use endpoint_devices::EndpointDevices;
pub(crate) use external_failures::ExternalServiceFailures;
pub use family::{FamilyLedger, Streak, commonest};
pub use obstacle::{Classes, OUTSIDE, READ_WITHIN, Reading};
use pathproof_facts::cause::{Cause, Failure};
use pathproof_facts::limits::{IN_USE_FOR, Limits};
use pathproof_facts::time::Mono;
use pathproof_wire::service::{FAMILIES, Family, SourceClass};
pub use seen_working::{FailingService, ServicesSeenWorking};
use serde::{Deserialize, Serialize};
pub use service::{StaleConnection, Track, WINDOW};

use crate::evidence::{EndpointRoutes, ObserverHealth, ProgrammingSeen};
use crate::peers::PeerLedger;
use crate::probes::{SentinelLedger, SentinelMemory};

/// Maximum number of failing Services that are tracked individually.
pub const SERVICES_TRACKED: usize = 4_096;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Limits that it was created with, which the verdict uses too.
    pub limits: Limits,
    families: [FamilyLedger; FAMILIES],
    pub tracks: BTreeMap<u32, Track>,
    /// Services that worked for pods.
    pub worked: ServicesSeenWorking,
    /// Services that worked for clients outside the node.
    pub worked_outside: ServicesSeenWorking,
    /// Services whose connections of the node itself leaked, while nobody else used their family.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub leaked_from_host: ServicesSeenWorking,
    /// Services that fail for clients outside.
    #[serde(rename = "outside")]
    pub external_failures: ExternalServiceFailures,
    /// Devices that lead to this node's endpoints.
    pub endpoint_devices: EndpointDevices,
    /// Whether the datapath follows changes of endpoints; `None` if the sentinel is turned off.
    pub programming: Option<ProgrammingSeen>,
    pub observer: ObserverHealth,
    /// When the last sample was taken.
    pub sampled: Option<Mono>,
    /// When this ledger was restored from memory.
    pub restored: Option<Mono>,
    /// Time of the last sample, restored or not. Every success before it would have been observed.
    seen: Option<Mono>,
    /// Connections to other nodes.
    pub peers: PeerLedger,
    /// Results of probes, separate from all of the above.
    pub sentinel: SentinelLedger,
}

/// The part of a ledger that outlives the agent: proofs and runs of failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerMemory {
    families: [FamilyLedger; FAMILIES],
    /// When the last sample was taken.
    sampled: Option<Mono>,
    sentinel: SentinelMemory,
    /// Services that worked for pods, and for clients outside.
    worked: [ServicesSeenWorking; 2],
    endpoint_devices: EndpointDevices,
}

impl Ledger {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            sentinel: SentinelLedger::new(limits),
            ..Self::default()
        }
    }

    /// Continues where the previous agent stopped, in the same boot of the node.
    ///
    /// `observed` means that the programs stayed in the kernel and their maps were found again. Otherwise a
    /// proof may have been missed, so no run of failures continues.
    ///
    /// After more than an hour without a sample, the sentinel's lanes and forwarded answers are forgotten.
    /// The node may have been rebuilt, so both must work again before their failures count.
    pub fn restore(limits: Limits, memory: LedgerMemory, observed: bool, now: Mono) -> Self {
        let long_ago = |at: Mono| now.since(at) > IN_USE_FOR;
        let mut families = memory.families;
        let (remembered, worked) = match memory.sampled.is_some_and(long_ago) {
            true => {
                for family in &mut families {
                    family.answers = AnswerForwarding::default();
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
            endpoint_devices: memory.endpoint_devices,
            sentinel: SentinelLedger::restore(limits, remembered),
            ..Self::default()
        };
        // An earlier agent remembered endpoints with an empty name where it had seen no device lead to them.
        ledger.endpoint_devices.lose_uplinks(&BTreeSet::from([""]));
        // The source of the cluster view counts as unreachable until it has delivered the view to this agent.
        ledger.sentinel.source_away(now);
        match memory.sampled {
            Some(sampled) if observed => ledger.close_gap(sampled, now),
            _ => ledger.end_failures(),
        }
        ledger
    }

    /// Number of namespaces whose Services were used within the last hour, by pods of this node or from
    /// outside.
    pub fn namespaces_in_use(&self, family: Family, now: Mono) -> usize {
        let pods = self.worked.namespaces_used(family, now);
        let outside = self.worked_outside.namespaces_used(family, now);
        pods.union(&outside).count()
    }

    /// Records that lookups for a served client of this class showed that packets pass.
    pub fn show_ways(&mut self, family: Family, class: SourceClass) {
        self.families[family as usize].open_ways[class as usize] = true;
    }

    /// Records by which devices endpoints of this node are reached, and what is gone. Endpoints whose routes
    /// are missing now stay known.
    pub fn learn_routes(&mut self, read: &EndpointRoutes, uplinks: &BTreeSet<&str>) {
        let missed = self.families.iter();
        let missed: Vec<IpAddr> = missed.flat_map(|family| family.routes.missed()).collect();
        let devices = &mut self.endpoint_devices;
        let left = read.left.iter().filter(|left| !missed.contains(left));
        devices.forget(&left.copied().collect::<Vec<_>>());
        devices.lose(&read.gone);
        devices.learn(&read.routes, uplinks);
    }

    /// State to store for [`Ledger::restore`].
    pub fn memory(&self) -> LedgerMemory {
        LedgerMemory {
            families: self.families.clone(),
            sampled: self.sampled.or(self.seen),
            sentinel: self.sentinel.memory(),
            worked: [self.worked.clone(), self.worked_outside.clone()],
            endpoint_devices: self.endpoint_devices.clone(),
        }
    }

    /// Records a reading of obstacles that keep clients from being served.
    pub fn obstacle(&mut self, family: Family, reading: Reading, now: Mono) {
        self.families[family as usize].obstacle.read(reading, now);
    }

    pub fn family(&self, family: Family) -> &FamilyLedger {
        &self.families[family as usize]
    }

    pub fn tracks(&self, family: Family) -> impl Iterator<Item = &Track> {
        let tracks = self.tracks.values();
        tracks.filter(move |track| track.family == family)
    }

    /// Cause of failures of this kind. For lost connections this is a full connection table, if the kernel
    /// drops packets because of one.
    pub fn cause(&self, failure: Failure, now: Mono) -> Cause {
        match failure {
            Failure::Lost if self.sentinel.conntrack.is_full(now) => Cause::ConntrackFull,
            other => Cause::of(other),
        }
    }

    /// Time until which any success would have been observed.
    pub fn seen(&self, now: Mono) -> Mono {
        self.seen.map_or(Mono(0), |seen| seen.min(now))
    }
}

#[cfg(test)]
mod tests;
