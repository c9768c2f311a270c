//! The ledger of other nodes: which of them answer the connections that this node sends them.
//!
//! A node can translate and forward correctly while the network between the nodes loses everything: a
//! firewall drops the tunnel's packets, checksums are wrong, the CNI's agent is gone. Such connections leave
//! and are never answered. A single silent node may also be powered off, drained or cut off itself.
//!
//! Pure evidence: this module must not judge ([`crate::verdict`] does). It identifies nodes by the numbers
//! that the cluster view assigns ([`Change::Peers`](crate::cluster::Change::Peers)).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_common::evidence::{Pending, PendingKey, state};
use agent_common::service::{FAMILIES, Family, NEAR, SourceClass, frontend_flag};
use serde::{Deserialize, Serialize};

use crate::evidence::{Directory, ServiceInfo, ip_of};
use crate::time::Mono;

/// Maximum number of other nodes that are distinguished.
pub const PEERS: usize = 5_000;
/// TCP port at which the pod probe answers, the same for its Service and its pods.
pub const ECHO_PORT: u16 = 19257;
/// TCP port that the pod probe dials after a large transfer failed, the same for its Service and its pods.
pub const CUT_PORT: u16 = 19258;
/// Time without a further failed transfer after which large packets count as passing again. The pod probe
/// makes one transfer in three seconds.
const CUT_AGE: Duration = Duration::from_secs(15);
/// Maximum length of each list of a [`PeerSample`].
const LISTED: usize = 64;
/// Maximum number of silent nodes, and of Service ports and nodes of one [`Outage`], that are kept.
const KEPT: usize = 64;

/// Connections whose loss window ended since the previous sample, by the node they were sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSample {
    /// In the order of families and numbers.
    pub counts: Vec<PeerCount>,
    /// Unanswered connections of pods of this node, at most 64.
    pub silences: Vec<Silence>,
    /// Ids of Service ports whose endpoints on this node answered other pods of it, ascending.
    #[serde(default)]
    pub near: Vec<u32>,
    /// Ids of Service ports whose endpoints on this node did not answer other pods of it, ascending.
    #[serde(default)]
    pub near_silent: Vec<u32>,
    /// Connections to [`CUT_PORT`].
    #[serde(default)]
    pub cuts: Vec<Cut>,
}

/// A connection to [`CUT_PORT`]. If the client is the pod probe, a large transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    #[serde(with = "crate::names::FamilyName")]
    pub family: Family,
    /// Id of the Service port and family.
    pub service: u32,
    pub client: IpAddr,
}

/// Connections to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerCount {
    #[serde(with = "crate::names::FamilyName")]
    pub family: Family,
    /// Number of the node.
    pub peer: u16,
    /// Connections that were answered, accepted or not.
    pub answered: u32,
    /// Connections that were not.
    pub unanswered: u32,
}

/// A connection of a pod to another node's endpoint that stayed unanswered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    #[serde(with = "crate::names::FamilyName")]
    pub family: Family,
    /// Number of the node.
    pub peer: u16,
    /// Name of the node, once it is known.
    #[serde(default)]
    pub node: Option<Arc<str>>,
    /// Id of the Service port and family.
    pub service: u32,
}

impl PeerSample {
    /// Adds a connection whose loss window is over. UDP entries must not be added: their `note` is a time.
    pub fn add(&mut self, key: &PendingKey, pending: &Pending) {
        let has = |bits: u32| pending.state & bits != 0;
        let is_probe = pending.flags & frontend_flag::SENTINEL != 0;
        if is_probe || pending.is_direct() || has(state::ALIAS) {
            return;
        }
        let family = Family::ALL[usize::from(key.family == Family::V6 as u32)];
        let peer = pending.peer();
        if pending.frontend_port == CUT_PORT.to_be_bytes() && self.cuts.len() < LISTED {
            self.cuts.push(Cut {
                family,
                service: pending.service,
                client: ip_of(&pending.client),
            });
        }
        // An answer counts whatever else was seen of the connection; silence counts only where nothing
        // else explains it.
        let is_silent = has(state::FORWARDED) && !has(state::AMBIGUOUS | state::REJECTED);
        if has(state::ANSWERED) {
            self.answer(family, peer, pending);
        } else if is_silent {
            self.silence(family, peer, pending);
        }
    }

    fn answer(&mut self, family: Family, peer: u16, pending: &Pending) {
        match peer {
            0 => {}
            NEAR if is_of_pod(pending) => note(&mut self.near, pending.service),
            NEAR => {}
            _ => self.count(family, peer).answered += 1,
        }
    }

    fn silence(&mut self, family: Family, peer: u16, pending: &Pending) {
        match peer {
            0 => {}
            NEAR if is_of_pod(pending) => note(&mut self.near_silent, pending.service),
            NEAR => {}
            _ => {
                self.count(family, peer).unanswered += 1;
                if is_of_pod(pending) && self.silences.len() < LISTED {
                    self.silences.push(Silence {
                        family,
                        peer,
                        node: None,
                        service: pending.service,
                    });
                }
            }
        }
    }

    fn count(&mut self, family: Family, peer: u16) -> &mut PeerCount {
        let found = self.find(family, peer);
        let at = found.unwrap_or_else(|at| {
            let new = PeerCount {
                family,
                peer,
                answered: 0,
                unanswered: 0,
            };
            self.counts.insert(at, new);
            at
        });
        &mut self.counts[at]
    }

    fn find(&self, family: Family, peer: u16) -> Result<usize, usize> {
        let key = |count: &PeerCount| (count.family, count.peer);
        self.counts.binary_search_by_key(&(family, peer), key)
    }

    /// Whether this sample has an answer of a node.
    fn has_answer_of(&self, family: Family, peer: u16) -> bool {
        let found = self.find(family, peer);
        found.is_ok_and(|at| self.counts[at].answered > 0)
    }

    /// Whether this sample has an answer of any node.
    fn has_answer(&self, family: Family) -> bool {
        let mut counts = self.counts.iter();
        counts.any(|count| count.family == family && count.answered > 0)
    }

    /// Ids of all Service ports that it names.
    pub(crate) fn services(&self) -> impl Iterator<Item = u32> {
        let near = self.near.iter().chain(&self.near_silent).copied();
        let silences = self.silences.iter().map(|silence| silence.service);
        near.chain(silences)
            .chain(self.cuts.iter().map(|cut| cut.service))
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn is_of_pod(pending: &Pending) -> bool {
    pending.class == SourceClass::Pod as u8
}

/// Adds a Service port once, if there is room.
fn note(services: &mut Vec<u32>, service: u32) {
    if let Err(at) = services.binary_search(&service)
        && services.len() < LISTED
    {
        services.insert(at, service);
    }
}

/// Other nodes, by family.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerLedger {
    families: [FamilyPeers; FAMILIES],
}

impl PeerLedger {
    /// Takes in one sample. Silences are left out if `trusts_silence` is false: answers may have passed
    /// unseen.
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
            self.families[count.family as usize].count(count, at);
        }
        let info = |id: &u32| Some((*id, directory.service(*id)?));
        // Another endpoint of the same Service port answers: the port is not silent here.
        let is_silent = |id: &&u32| !sample.near.contains(id);
        let near_silent = sample.near_silent.iter().filter(is_silent);
        for (id, info) in near_silent.filter_map(info) {
            self.families[info.family as usize].fall_silent_here(id, at);
        }
        for (id, info) in sample.near.iter().filter_map(info) {
            self.families[info.family as usize].answer_here(id);
        }
        let is_probes = |cut: &&Cut| directory.service(cut.service).is_some_and(|info| info.echo);
        for cut in sample.cuts.iter().filter(is_probes) {
            let unanswered = &mut self.families[cut.family as usize].cut;
            let unanswered = unanswered.get_or_insert_with(|| Unanswered::new(at));
            unanswered.count(at);
        }
        if !trusts_silence {
            return self.forget_silence();
        }
        for silence in &sample.silences {
            // The order within a sample is not known: an answer of the same node wins.
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

    /// Forgets which nodes are silent: for a while nothing was seen, or not everything.
    pub(crate) fn forget_silence(&mut self) {
        for family in &mut self.families {
            family.silent.clear();
            family.outage = None;
            family.silent_here.clear();
        }
    }

    pub(crate) fn family(&self, family: Family) -> &FamilyPeers {
        &self.families[family as usize]
    }

    /// Nodes that connections were sent to, of both families.
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
pub(crate) struct FamilyPeers {
    /// For display. Left out of recordings: it would be too much for each part of one.
    #[serde(skip)]
    totals: BTreeMap<u16, Totals>,
    /// Nodes that answered at some time: no other node can become silent.
    worked: BTreeSet<u16>,
    /// Nodes without an answer since their first unanswered connection.
    pub(crate) silent: BTreeMap<u16, SilentNode>,
    pub(crate) outage: Option<Outage>,
    /// Service ports whose endpoints on this node do not answer either, with the time of the last silence:
    /// the backends are at fault, or a policy denies them.
    #[serde(default)]
    silent_here: BTreeMap<u32, Mono>,
    /// Large transfers of the pod probe that failed.
    #[serde(default)]
    pub(crate) cut: Option<Unanswered>,
}

/// Successive connections without an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Unanswered {
    pub(crate) since: Mono,
    pub(crate) last: Mono,
    pub(crate) connections: u32,
    /// `namespace/name` of the Services that were dialled, by the id of the port.
    pub(crate) services: BTreeMap<u32, String>,
    /// Whether the pod probe is among them, whose backends accept every connection.
    pub(crate) is_probed: bool,
}

impl Unanswered {
    fn new(at: Mono) -> Self {
        Self {
            since: at,
            last: at,
            connections: 0,
            services: BTreeMap::new(),
            is_probed: false,
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

/// A node that does not answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SilentNode {
    pub(crate) node: Arc<str>,
    pub(crate) unanswered: Unanswered,
}

/// A time in which no other node answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outage {
    pub(crate) unanswered: Unanswered,
    pub(crate) nodes: BTreeSet<Arc<str>>,
    /// Whether an endpoint of this node answered for one of these Service ports, in a later sample than the
    /// first silence.
    pub(crate) near_answers: bool,
}

impl FamilyPeers {
    fn forget(&mut self, at: Mono, keep: Duration) {
        let is_old = |last: Mono| at.since(last) > keep;
        self.silent
            .retain(|_, silent| !is_old(silent.unanswered.last));
        self.silent_here.retain(|_, last| !is_old(*last));
        self.outage.take_if(|outage| is_old(outage.unanswered.last));
        self.cut.take_if(|cut| at.since(cut.last) > CUT_AGE);
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

    /// Removes everything that rests on this Service port.
    fn fall_silent_here(&mut self, service: u32, at: Mono) {
        let is_dialled = |of: &Unanswered| of.services.contains_key(&service);
        self.silent
            .retain(|_, silent| !is_dialled(&silent.unanswered));
        self.outage.take_if(|outage| is_dialled(&outage.unanswered));
        if self.silent_here.len() < KEPT || self.silent_here.contains_key(&service) {
            self.silent_here.insert(service, at);
        }
    }

    /// A connection stayed unanswered; `is_outage` if no other node answered in the same sample.
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
