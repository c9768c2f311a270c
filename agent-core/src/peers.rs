//! Other nodes, by what became of the connections that this node sent to their endpoints.
//!
//! The datapath may translate and send on as it should, and the network between the nodes swallow
//! everything: a firewall that drops the tunnel's packets, a wrong checksum, an agent of the CNI that
//! is gone. Such a connection leaves, and no answer comes. One node that stays silent accuses itself
//! alone: it may be powered off, drained or cut off. This node is accused only where none of the nodes
//! that pods dial answers, and endpoints of this node do, for one of the same Services.
//!
//! Pure evidence: it must not judge ([`crate::verdict`] does), and knows nodes by the numbers that the
//! planner gave them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_common::evidence::{Pending, PendingKey, state};
use agent_common::service::{FAMILIES, Family, NEAR, SourceClass, frontend_flag};
use serde::{Deserialize, Serialize};

use crate::evidence::{Directory, ServiceInfo, ip_of};
use crate::time::Mono;

/// Nodes that are told apart, beside this one.
pub const PEERS: usize = 5_000;
/// Port of the pod probe's Service, and of its pods, to which connections are made and answered.
pub const ECHO_PORT: u16 = 19257;
/// Port of that Service, and of its pods, that is dialled after a large transfer did not get through.
pub const CUT_PORT: u16 = 19258;
/// Without a further cut transfer the network carries large packets again: the pod probe makes one in
/// three seconds.
const CUT_AGE: Duration = Duration::from_secs(15);
/// Unanswered connections of one look that are told one by one, and Services that answered.
const SILENCES: usize = 64;
/// Silent nodes that are followed, and clients and Services of a run.
const FOLLOWED: usize = 64;

/// Connections whose loss window ended since the look before, by the node that they were sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSample {
    /// In order.
    pub counts: Vec<PeerCount>,
    /// Connections of pods of this node that stayed unanswered, as many as are kept of a look.
    pub silences: Vec<Silence>,
    /// Service ports whose endpoints on this node answered other pods of it, in order, as many as are
    /// kept.
    #[serde(default)]
    pub near: Vec<u32>,
    /// The same of those whose endpoints on this node did not answer them.
    #[serde(default)]
    pub near_silent: Vec<u32>,
    /// Connections to [`CUT_PORT`], as many as are kept: each says that a large transfer of the pod probe was
    /// cut, if the client is the pod probe.
    #[serde(default)]
    pub cuts: Vec<Cut>,
}

/// A connection to [`CUT_PORT`].
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
    /// Its name, once it is known.
    #[serde(default)]
    pub node: Option<Arc<str>>,
    /// Id of the Service port and family.
    pub service: u32,
    pub client: IpAddr,
}

impl PeerSample {
    /// Takes a connection whose loss window is over.
    pub fn add(&mut self, key: &PendingKey, pending: &Pending) {
        let passed_over = state::ALIAS | state::AMBIGUOUS | state::REJECTED;
        let is_probe = pending.flags & frontend_flag::SENTINEL != 0;
        if pending.state & state::FORWARDED == 0 || pending.state & passed_over != 0 || is_probe {
            return;
        }
        let family = Family::ALL[usize::from(key.family == Family::V6 as u32)];
        if pending.frontend_port == CUT_PORT.to_be_bytes() && self.cuts.len() < SILENCES {
            self.cuts.push(Cut {
                family,
                service: pending.service,
                client: ip_of(&pending.client),
            });
        }
        let peer = u16::try_from(pending.note).unwrap_or_default();
        let is_pod = pending.class == SourceClass::Pod as u8;
        let is_answered = pending.state & state::ANSWERED != 0;
        match (peer, is_answered) {
            (0, _) => return,
            (NEAR, true) if is_pod => return note(&mut self.near, pending.service),
            (NEAR, false) if is_pod => return note(&mut self.near_silent, pending.service),
            (NEAR, _) => return,
            (_, true) => return self.count(family, peer).answered += 1,
            (_, false) => self.count(family, peer).unanswered += 1,
        }
        if is_pod && self.silences.len() < SILENCES {
            self.silences.push(Silence {
                family,
                peer,
                node: None,
                service: pending.service,
                client: ip_of(&pending.client),
            });
        }
    }

    fn count(&mut self, family: Family, peer: u16) -> &mut PeerCount {
        let key = |count: &PeerCount| (count.family, count.peer);
        let found = self.counts.binary_search_by_key(&(family, peer), key);
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

    /// Whether nothing was sent anywhere.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.cuts.is_empty()
    }
}

/// Notes a Service port once, if there is room.
fn note(services: &mut Vec<u32>, service: u32) {
    if let Err(at) = services.binary_search(&service)
        && services.len() < SILENCES
    {
        services.insert(at, service);
    }
}

/// What is known of other nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerLedger {
    families: [FamilyPeers; FAMILIES],
}

impl PeerLedger {
    /// Takes in what one look brought.
    pub(crate) fn absorb(
        &mut self,
        sample: &PeerSample,
        at: Mono,
        keep: Duration,
        directory: &dyn Directory,
    ) {
        for family in &mut self.families {
            family.forget(at, keep);
        }
        for count in &sample.counts {
            self.families[count.family as usize].count(count, at);
        }
        let cuts = sample.cuts.iter();
        let is_probes = |cut: &&Cut| directory.service(cut.service).is_some_and(|info| info.echo);
        for cut in cuts.filter(is_probes) {
            let cut_since = &mut self.families[cut.family as usize].cut;
            let spell = cut_since.get_or_insert_with(|| Spell::new(at));
            spell.connections = spell.connections.saturating_add(1);
            spell.last = at;
        }
        let answered = |silence: &&Silence| {
            let key = (silence.family, silence.peer);
            let of = |count: &PeerCount| (count.family, count.peer);
            let found = sample.counts.binary_search_by_key(&key, of);
            found.is_ok_and(|place| sample.counts[place].answered > 0)
        };
        let any_answered = |family: Family| {
            let mut counts = sample.counts.iter();
            counts.any(|count| count.family == family && count.answered > 0)
        };
        let near = |id: &u32| directory.service(*id);
        for info in sample.near_silent.iter().filter_map(near) {
            self.families[info.family as usize].fall_silent_here(info.name.to_string(), at);
        }
        for info in sample.near.iter().filter_map(near) {
            let family = &mut self.families[info.family as usize];
            if let Some(run) = &mut family.run {
                run.answer_near(&info.name.to_string());
            }
        }
        // In what order they were sent is not known: in doubt for the network.
        for silence in sample.silences.iter().filter(|silence| !answered(silence)) {
            let info = directory.service(silence.service);
            if let Some(info) = info.filter(|info| !info.sentinel && !info.udp) {
                let family = &mut self.families[silence.family as usize];
                family.fall_silent(silence, &info, at, any_answered(silence.family));
            }
        }
    }

    pub(crate) fn family(&self, family: Family) -> &FamilyPeers {
        &self.families[family as usize]
    }

    /// Nodes that connections were sent to, of either family.
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

    /// Names of the nodes that are silent now, of either family.
    pub fn silent(&self) -> BTreeSet<&str> {
        let quiet = self
            .families
            .iter()
            .flat_map(|family| family.silent.values());
        quiet.map(|quiet| &*quiet.node).collect()
    }
}

/// What became of all connections to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub answered: u64,
    pub unanswered: u64,
    pub last_answer: Option<Mono>,
}

/// See [`PeerLedger`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FamilyPeers {
    /// For display: too much for every part of a recording.
    #[serde(skip)]
    totals: BTreeMap<u16, Totals>,
    /// Nodes that answered before: only these can fall silent.
    worked: BTreeSet<u16>,
    /// Nodes that have not answered since.
    pub(crate) silent: BTreeMap<u16, Quiet>,
    /// Unanswered connections to nodes that had answered, since any of those last did.
    pub(crate) run: Option<Run>,
    /// Services whose endpoints on this node do not answer either, and when that was seen: their silence
    /// elsewhere is their own.
    #[serde(default)]
    silent_here: BTreeMap<String, Mono>,
    /// Large transfers of the pod probe that were cut, one after another.
    #[serde(default)]
    pub(crate) cut: Option<Spell>,
}

/// Connections that stayed unanswered, one after another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spell {
    pub(crate) since: Mono,
    pub(crate) last: Mono,
    pub(crate) connections: u32,
    /// `namespace/name` of the Services that were dialled.
    pub(crate) services: BTreeSet<String>,
    /// The pod probe is one of them: no backend is to blame.
    pub(crate) is_probed: bool,
}

impl Spell {
    fn new(at: Mono) -> Self {
        Self {
            since: at,
            last: at,
            connections: 0,
            services: BTreeSet::new(),
            is_probed: false,
        }
    }

    fn add(&mut self, info: &ServiceInfo, at: Mono) {
        self.last = at;
        self.connections = self.connections.saturating_add(1);
        self.is_probed |= info.echo;
        add(&mut self.services, info.name.to_string());
    }
}

/// A node that does not answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Quiet {
    pub(crate) node: Arc<str>,
    pub(crate) spell: Spell,
}

/// A time in which no other node answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) spell: Spell,
    pub(crate) nodes: BTreeSet<Arc<str>>,
    /// Whether endpoints of this node answered for one of these Services, in a later look than the
    /// one that found it silent elsewhere.
    pub(crate) is_near_sound: bool,
    /// Pods of this node that dialled.
    pub(crate) clients: BTreeSet<IpAddr>,
}

impl Run {
    fn answer_near(&mut self, service: &str) {
        self.is_near_sound |= self.spell.services.contains(service);
    }
}

impl FamilyPeers {
    fn forget(&mut self, at: Mono, keep: Duration) {
        self.silent
            .retain(|_, quiet| at.since(quiet.spell.last) <= keep);
        self.silent_here.retain(|_, seen| at.since(*seen) <= keep);
        self.cut.take_if(|cut| at.since(cut.last) > CUT_AGE);
        self.run.take_if(|run| at.since(run.spell.last) > keep);
    }

    fn count(&mut self, count: &PeerCount, at: Mono) {
        let is_answered = count.answered > 0;
        if self.totals.len() >= PEERS && !self.totals.contains_key(&count.peer) {
            return;
        }
        let totals = self.totals.entry(count.peer).or_default();
        totals.answered += u64::from(count.answered);
        totals.unanswered += u64::from(count.unanswered);
        if is_answered {
            totals.last_answer = Some(at);
            self.worked.insert(count.peer);
            self.silent.remove(&count.peer);
            self.run = None;
        }
    }

    fn fall_silent_here(&mut self, service: String, at: Mono) {
        for quiet in self.silent.values_mut() {
            quiet.spell.services.remove(&service);
        }
        if let Some(run) = &mut self.run {
            run.spell.services.remove(&service);
        }
        if self.silent_here.len() < FOLLOWED || self.silent_here.contains_key(&service) {
            self.silent_here.insert(service, at);
        }
    }

    /// A connection stayed unanswered. Where another node answered in the same look, it begins no run.
    fn fall_silent(&mut self, silence: &Silence, info: &ServiceInfo, at: Mono, answered: bool) {
        let is_own = self.silent_here.contains_key(&info.name.to_string());
        if is_own || !self.worked.contains(&silence.peer) {
            return;
        }
        let unnamed = || Arc::from(format!("node number {}", silence.peer));
        let node = silence.node.clone().unwrap_or_else(unnamed);
        if self.silent.len() < FOLLOWED || self.silent.contains_key(&silence.peer) {
            let quiet = self.silent.entry(silence.peer).or_insert_with(|| Quiet {
                node: Arc::clone(&node),
                spell: Spell::new(at),
            });
            quiet.spell.add(info, at);
        }
        if answered {
            return;
        }
        let run = self.run.get_or_insert_with(|| Run {
            spell: Spell::new(at),
            nodes: BTreeSet::new(),
            is_near_sound: false,
            clients: BTreeSet::new(),
        });
        run.spell.add(info, at);
        add(&mut run.nodes, node);
        add(&mut run.clients, silence.client);
    }
}

fn add<T: Ord>(set: &mut BTreeSet<T>, item: T) {
    if set.len() < FOLLOWED {
        set.insert(item);
    }
}

#[cfg(test)]
mod tests;
