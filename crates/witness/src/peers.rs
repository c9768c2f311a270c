//! The ledger of other nodes: which of them answer connections from this node.
//!
//! A node can translate and forward correctly while the network between the nodes loses everything: a
//! firewall drops the tunnel's packets, checksums are wrong, the CNI's agent is gone. Such connections
//! leave and are never answered. A single silent node may also be powered off, drained or isolated itself.
//!
//! If the route to another node is lost, connections to that node leave by the wrong device (`astray`).
//!
//! Pure evidence: this module must not judge (`pathproof_judge::verdict` does). It identifies nodes by the
//! numbers that the cluster view assigns ([`Change::Peers`](pathproof_facts::cluster::Change::Peers)).

mod astray;
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use astray::Devices;
pub use astray::{Astray, Range};
use pathproof_facts::directory::{Directory, ServiceInfo};
use pathproof_facts::limits::FAILURES_COUNT_FOR;
use pathproof_facts::time::Mono;
use pathproof_wire::service::{FAMILIES, Family};
pub use sample::{Departure, LargeTransferFailure, PeerCount, PeerSample, Silence};
use serde::{Deserialize, Serialize};

/// Maximum number of other nodes that are distinguished.
pub const PEERS: usize = 5_000;
/// TCP port of the pod probe's answers, for its Service and its pods.
pub const ECHO_PORT: u16 = 19257;
/// TCP port that the pod probe dials after a large transfer failed, for its Service and its pods.
pub const LARGE_TRANSFER_PORT: u16 = 19258;
/// After this long without a failed transfer, large packets count as passing again. The pod probe makes one
/// large transfer every 3 s.
const LARGE_TRANSFER_AGE: Duration = Duration::from_secs(15);
/// Maximum number of silent nodes, and of Service ports and nodes of one [`Outage`], that are kept.
const KEPT: usize = 64;

/// Other nodes, by family.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerLedger {
    families: [FamilyPeers; FAMILIES],
}

impl PeerLedger {
    /// Records one sample. Silences are ignored if `trusts_silence` is false, because answers may
    /// have passed unobserved.
    pub(crate) fn absorb(
        &mut self,
        sample: &PeerSample,
        at: Mono,
        (keep, trusts_silence): (Duration, bool),
        directory: &dyn Directory,
    ) {
        for family in &mut self.families {
            family.forget(at, keep);
        }
        for count in &sample.counts {
            let family = &mut self.families[count.family as usize];
            family.count(count, at);
            let device = sample.device(count.device);
            if let Some(device) = device.filter(|_| count.answered > 0) {
                family.devices.answer((count.peer, count.range), device);
            }
        }
        let info = |id: &u32| Some((*id, directory.service(*id)?));
        // If another endpoint of the same Service port on this node answers, the port is not silent here.
        let is_silent = |id: &&u32| !sample.near.contains(id);
        let near_silent = sample.near_silent.iter().filter(is_silent);
        for (id, info) in near_silent.filter_map(info) {
            self.families[info.family as usize].fall_silent_here(id, at);
        }
        for (id, info) in sample.near.iter().filter_map(info) {
            self.families[info.family as usize].answer_here(id);
        }
        let is_probes = |failure: &&LargeTransferFailure| {
            directory
                .service(failure.service)
                .is_some_and(|info| info.echo)
        };
        for failure in sample.large_transfer_failures.iter().filter(is_probes) {
            let unanswered = &mut self.families[failure.family as usize].large_transfers;
            let unanswered = unanswered.get_or_insert_with(|| Unanswered::new(at));
            unanswered.count(at);
        }
        if !trusts_silence {
            return self.forget_silence();
        }
        for departure in &sample.departures {
            let devices = &mut self.families[departure.family as usize].devices;
            devices.depart(departure, sample, directory, at);
        }
        for silence in &sample.silences {
            // The order within a sample is unknown: an answer of the same node has priority.
            let info = directory.service(silence.service);
            let counts = |info: &ServiceInfo| !info.sentinel && !info.udp;
            if !sample.has_answer_of(silence.family, silence.peer)
                && let Some(info) = info.filter(counts)
            {
                let is_outage = !sample.has_answer(silence.family);
                let family = &mut self.families[silence.family as usize];
                family.fall_silent(silence, &info, at, is_outage);
            }
        }
    }

    /// Forgets which nodes are silent, after a time of missing or partial observation.
    pub(crate) fn forget_silence(&mut self) {
        for family in &mut self.families {
            family.silent.clear();
            family.outage = None;
            family.silent_here.clear();
            family.devices.forget_astray(|_| true);
        }
    }

    pub fn family(&self, family: Family) -> &FamilyPeers {
        &self.families[family as usize]
    }

    /// Nodes that received connections, of both families.
    pub fn known(&self) -> BTreeMap<u16, Totals> {
        let mut known: BTreeMap<u16, Totals> = BTreeMap::new();
        for (peer, totals) in self.families.iter().flat_map(|family| &family.totals) {
            let sum = known.entry(*peer).or_default();
            sum.answered += totals.answered;
            sum.unanswered += totals.unanswered;
            sum.last_answer = sum.last_answer.max(totals.last_answer);
        }
        known
    }

    /// Connections of a family that went astray, by the device that they should have left by.
    pub fn astray(&self, family: Family) -> impl Iterator<Item = (&Arc<str>, &Astray)> {
        self.families[family as usize].devices.astray.iter()
    }

    /// Names of the nodes that are silent now, of both families.
    pub fn silent(&self) -> BTreeSet<&str> {
        let families = self.families.iter();
        let silent = families.flat_map(|family| family.silent.values());
        silent.map(|silent| &*silent.node).collect()
    }
}

/// Connections to one node since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub answered: u64,
    pub unanswered: u64,
    pub last_answer: Option<Mono>,
}

/// The part of a [`PeerLedger`] for one family.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FamilyPeers {
    /// For display. Not recorded: it would be too large for each part of a recording.
    #[serde(skip)]
    totals: BTreeMap<u16, Totals>,
    /// Nodes that answered at some time: only these can become silent.
    worked: BTreeSet<u16>,
    /// Nodes without an answer since their first unanswered connection.
    pub silent: BTreeMap<u16, SilentNode>,
    pub outage: Option<Outage>,
    /// Service ports whose endpoints on this node do not answer either, with the time of the last silence.
    /// Their backends are at fault, or a policy blocks them, so they show nothing about other nodes.
    silent_here: BTreeMap<u32, Mono>,
    /// Large transfers of the pod probe that failed.
    #[serde(rename = "cut")]
    pub large_transfers: Option<Unanswered>,
    /// Devices by which other nodes are reached.
    devices: Devices,
}

/// Successive connections without an answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Unanswered {
    pub since: Mono,
    pub last: Mono,
    pub connections: u32,
    /// `namespace/name` of the Services that were dialled, by the id of the port.
    pub services: BTreeMap<u32, String>,
    /// Whether the pod probe's Service is among them. Its backends accept every connection.
    pub is_probed: bool,
}

impl Unanswered {
    fn new(at: Mono) -> Self {
        Self {
            since: at,
            last: at,
            ..Self::default()
        }
    }

    fn count(&mut self, at: Mono) {
        self.last = at;
        self.connections = self.connections.saturating_add(1);
    }

    fn add(&mut self, id: u32, info: &ServiceInfo, at: Mono) {
        self.count(at);
        self.is_probed |= info.echo;
        if self.services.len() < KEPT {
            self.services.insert(id, info.name.to_string());
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SilentNode {
    pub node: Arc<str>,
    pub unanswered: Unanswered,
}

/// A period in which no other node answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outage {
    pub unanswered: Unanswered,
    pub nodes: BTreeSet<Arc<str>>,
    /// Whether an endpoint of this node answered for one of these Service ports, in a later sample
    /// than the first silence.
    pub near_answers: bool,
}

impl FamilyPeers {
    fn forget(&mut self, at: Mono, keep: Duration) {
        let is_old = |last: Mono| at.since(last) > keep;
        self.silent
            .retain(|_, silent| !is_old(silent.unanswered.last));
        self.silent_here.retain(|_, last| !is_old(*last));
        self.outage.take_if(|outage| is_old(outage.unanswered.last));
        self.large_transfers
            .take_if(|failed| at.since(failed.last) > LARGE_TRANSFER_AGE);
        self.devices
            .forget_astray(|last| at.since(last) > FAILURES_COUNT_FOR);
    }

    fn count(&mut self, count: &PeerCount, at: Mono) {
        if self.totals.len() >= PEERS && !self.totals.contains_key(&count.peer) {
            return;
        }
        let totals = self.totals.entry(count.peer).or_default();
        totals.answered += u64::from(count.answered);
        totals.unanswered += u64::from(count.unanswered);
        if count.answered > 0 {
            totals.last_answer = Some(at);
            self.worked.insert(count.peer);
            self.silent.remove(&count.peer);
            self.outage = None;
        }
    }

    fn answer_here(&mut self, service: u32) {
        self.silent_here.remove(&service);
        if let Some(outage) = &mut self.outage {
            outage.near_answers |= outage.unanswered.services.contains_key(&service);
        }
    }

    /// Records that a Service port's endpoints on this node do not answer. So its backends may be at fault
    /// rather than the network: nodes that seemed silent, and an outage, are forgotten if connections to
    /// this port were part of the evidence.
    fn fall_silent_here(&mut self, service: u32, at: Mono) {
        let is_dialled = |unanswered: &Unanswered| unanswered.services.contains_key(&service);
        self.silent
            .retain(|_, silent| !is_dialled(&silent.unanswered));
        self.outage.take_if(|outage| is_dialled(&outage.unanswered));
        if self.silent_here.len() < KEPT || self.silent_here.contains_key(&service) {
            self.silent_here.insert(service, at);
        }
    }

    /// Records an unanswered connection; `is_outage` means that no other node answered in the same sample.
    fn fall_silent(&mut self, silence: &Silence, info: &ServiceInfo, at: Mono, is_outage: bool) {
        let is_own = self.silent_here.contains_key(&silence.service);
        if is_own || !self.worked.contains(&silence.peer) {
            return;
        }
        let unnamed = || Arc::from(format!("node number {}", silence.peer));
        let node = silence.node.clone().unwrap_or_else(unnamed);
        if self.silent.len() < KEPT || self.silent.contains_key(&silence.peer) {
            let silent = self.silent.entry(silence.peer);
            let silent = silent.or_insert_with(|| SilentNode {
                node: Arc::clone(&node),
                unanswered: Unanswered::new(at),
            });
            silent.unanswered.add(silence.service, info, at);
        }
        if !is_outage {
            return;
        }
        let outage = self.outage.get_or_insert_with(|| Outage {
            unanswered: Unanswered::new(at),
            nodes: BTreeSet::new(),
            near_answers: false,
        });
        outage.unanswered.add(silence.service, info, at);
        if outage.nodes.len() < KEPT {
            outage.nodes.insert(node);
        }
    }
}

#[cfg(test)]
mod tests;
