//! Reads of kernel state while connections or probes are lost: the connection table, drop reasons,
//! and routes and neighbours between clients and this node's endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::cause::{Cause, Failure};
use pathproof_facts::limits::{
    BLOCKED_FOR, FAILURES_COUNT_FOR, FIRST_LOOKUPS, LOOKUP_INTERVAL, LOST_CLIENTS, NEIGHBOUR_ASKED,
};
use pathproof_facts::node_context::address;
use pathproof_facts::time::Mono;
use pathproof_wire::service::{FAMILIES, Family, SOURCE_CLASSES, SourceClass};
use pathproof_witness::conntrack::Table;
use pathproof_witness::coverage::Hooks;
use pathproof_witness::evidence::{
    Client, ENDPOINTS, ENDPOINTS_AT_ONCE, EndpointRoutes, EndpointsAsked, Lookup,
};
use pathproof_witness::ledger::Classes;
use serde::{Deserialize, Serialize};

use super::Judge;
use crate::effect::{Effect, Effects, ReadEffect};

/// Maximum number of endpoints of one namespace with a known device.
const OF_NAMESPACE: usize = 256;

/// This node's endpoints by namespace. Anybody who can edit a slice can list the pods of other namespaces, so an
/// endpoint belongs to each namespace that lists it.
pub(super) type EndpointsHere = BTreeSet<(Arc<str>, IpAddr)>;

/// Clients with lost connections, and since when the kernel has no path for them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Lookups {
    asked: Option<Mono>,
    /// Families in which a client was looked up.
    read: [bool; FAMILIES],
    clients: Vec<Client>,
    /// When the last of their lost connections arrived.
    lost: Mono,
    /// Why the kernel has no path, and since when, by family and class of clients.
    blocked: [[Option<(Cause, Mono)>; SOURCE_CLASSES]; FAMILIES],
}

impl Lookups {
    /// The obstacle of a family, and the classes of clients that it affects. An obstacle counts only after
    /// it lasted for some time, because a neighbour may need a moment to answer.
    pub(super) fn obstacle(&self, family: Family, now: Mono) -> Option<(Cause, Classes)> {
        let lasts = |(cause, since): &(Cause, Mono)| {
            let asked = match cause {
                Cause::NoNeighbour => NEIGHBOUR_ASKED,
                _ => BLOCKED_FOR,
            };
            now.since(*since) >= asked
        };
        let blocked = self.blocked[family as usize].map(|cause| cause.filter(lasts));
        let (cause, _) = blocked.into_iter().flatten().next()?;
        Some((cause, blocked.map(|cause| cause.is_some())))
    }

    fn are_blocked(&self) -> bool {
        self.blocked.iter().flatten().any(Option::is_some)
    }
}

impl Judge {
    /// After a loss: starts to read the kernel's drop reasons, unless they are already read or were read
    /// for long enough.
    pub(super) fn watch_drops(&mut self, effects: &mut Effects) {
        if self.drops.lose(self.now) {
            effects.push(Effect::Read(ReadEffect::WatchDrops(true)));
        }
    }

    /// Reads the connection table, unless the last read is more recent than `pause`.
    pub(super) fn follow_table(&self, pause: Duration, effects: &mut Effects) {
        let due = |at: Mono| self.now.since(at) >= pause;
        if self.ledger.sentinel.conntrack.read.is_none_or(due) {
            effects.push(Effect::Read(ReadEffect::Table));
        }
    }

    /// Records a read of the connection table. Judges at once if the table became full or stopped
    /// being full, because that changes the cause of losses.
    pub(super) fn read_table(&mut self, table: Option<Table>, effects: &mut Effects) {
        let conntrack = &mut self.ledger.sentinel.conntrack;
        let before = conntrack.is_full(self.now);
        conntrack.take(table, self.now);
        if conntrack.is_full(self.now) != before {
            self.judge_and_publish(effects);
        }
    }

    /// Looks up the paths of clients whose connections are lost while no connection of their class
    /// succeeds. After the last loss, these clients are looked up until their paths are open. Without
    /// losses, one served client is looked up for each class for which no lookup showed an open path yet.
    pub(super) fn look_up(&mut self, effects: &mut Effects) {
        let now = self.now;
        let due = |at: Mono| now.since(at) >= LOOKUP_INTERVAL;
        let rarely = |at: Mono| now.since(at) >= FIRST_LOOKUPS;
        if !self.lookups.asked.is_none_or(due) {
            return;
        }
        let (clients, lost) = self.lost_clients();
        let is_late = self.now.since(self.lookups.lost) > FAILURES_COUNT_FOR;
        let lookups = &mut self.lookups;
        if !clients.is_empty() {
            (lookups.clients, lookups.lost) = (clients, lost);
        } else if is_late || !lookups.are_blocked() {
            lookups.clients.clear();
            if lookups.are_blocked() {
                lookups.blocked = Default::default();
                self.note_obstacles();
            }
        }
        let mut clients = self.lookups.clients.clone();
        if clients.is_empty() && self.lookups.asked.is_none_or(rarely) {
            for ledger in Family::ALL.map(|family| self.ledger.family(family)) {
                let untried = |class: &SourceClass| !ledger.open_ways[*class as usize];
                let classes = [SourceClass::Pod, SourceClass::External];
                let last = classes.into_iter().filter(untried).filter_map(|class| {
                    let of_class = |client: &&Client| client.class == class;
                    ledger.served.iter().rev().find(of_class).cloned()
                });
                clients.extend(last);
            }
        }
        if !clients.is_empty() {
            self.lookups.asked = Some(self.now);
            effects.push(Effect::Read(ReadEffect::LookUp(clients)));
        }
    }

    /// The latest clients with lost connections, and the arrival of the last of these connections.
    fn lost_clients(&self) -> (Vec<Client>, Mono) {
        let mut clients: Vec<Client> = Vec::new();
        let mut last = Mono(0);
        for lost in &self.failed_connections {
            let family = self.ledger.family(family_of(&lost.client));
            let served = family.forwarded[lost.class as usize];
            let counts = lost.failure == Failure::Lost
                && lost.class != SourceClass::Host
                && self.now.since(lost.at) <= self.ledger.limits.proof_age
                && served.is_none_or(|at| at < lost.arrived);
            let client = Client {
                address: lost.client,
                class: lost.class,
                device: lost.device,
            };
            if counts && clients.len() < LOST_CLIENTS && !clients.contains(&client) {
                last = last.max(lost.arrived);
                clients.push(client);
            }
        }
        (clients, last)
    }

    pub(super) fn read_lookups(&mut self, lookups: &[Lookup], effects: &mut Effects) {
        for lookup in lookups {
            self.lookups.read[family_of(&lookup.client.address) as usize] = true;
        }
        if self.lookups.clients.is_empty() {
            let open = lookups
                .iter()
                .filter(|lookup| lookup.cause.is_none() && lookup.open > 0);
            open.for_each(|lookup| {
                let family = family_of(&lookup.client.address);
                self.ledger.show_ways(family, lookup.client.class);
            });
            return;
        }
        for family in Family::ALL {
            for class in [SourceClass::Pod, SourceClass::External] {
                let cause = self.blocked(lookups, family, class);
                let since = &mut self.lookups.blocked[family as usize][class as usize];
                *since = cause.map(|cause| match *since {
                    Some((_, since)) => (cause, since),
                    None => (cause, self.now),
                });
            }
        }
        self.note_obstacles();
        self.judge_and_publish(effects);
    }

    /// Replaces the hooks and forgets endpoints behind new uplinks. If interfaces changed, requests at once
    /// which pods' devices are gone, because enough connections to a deleted pod could count before the next
    /// check.
    pub(super) fn follow_hooks(&mut self, hooks: Hooks, effects: &mut Effects) {
        if hooks == self.coverage.hooks {
            return;
        }
        self.coverage.hooks = hooks;
        let uplinks = self.coverage.hooks.uplinks().collect();
        self.ledger.endpoint_devices.lose_uplinks(&uplinks);
        let devices = self.ledger.endpoint_devices.own();
        if !devices.is_empty() {
            effects.push(Effect::Read(ReadEffect::Routes(EndpointsAsked {
                devices,
                ..EndpointsAsked::default()
            })));
        }
    }

    /// Looks up the devices of this node's endpoints; `None` if the view is not complete. Only endpoints without
    /// a known device are looked up, in turn, and as many for each namespace: one namespace may list any number
    /// of addresses.
    pub(super) fn follow_routes(
        &self,
        all: Option<&EndpointsHere>,
        turn: usize,
        effects: &mut Effects,
    ) {
        let known = self.ledger.endpoint_devices.known();
        let mut asked = EndpointsAsked {
            devices: self.ledger.endpoint_devices.own(),
            ..EndpointsAsked::default()
        };
        if let Some(all) = all {
            let mut left: BTreeSet<IpAddr> = known.iter().map(|route| route.endpoint).collect();
            for (_, endpoint) in all {
                left.remove(endpoint);
            }
            asked.left = left.into_iter().collect();
            let known: BTreeSet<IpAddr> = known.iter().map(|route| route.endpoint).collect();
            asked.endpoints = in_turn(all, &known, turn);
        }
        let is_first = !self.ledger.endpoint_devices.is_read();
        if is_first || asked != EndpointsAsked::default() {
            effects.push(Effect::Read(ReadEffect::Routes(asked)));
        }
    }

    /// Selects endpoints for lookups of clients' paths. Namespaces take turns, since one of them may list any
    /// number of addresses. Only endpoints to which a pod's device led are selected: an address outside is
    /// reachable by the uplink even if all pods are cut off.
    pub(super) fn to_look_up<'a>(
        &self,
        family: Family,
        listed: impl Iterator<Item = (&'a Arc<str>, IpAddr)>,
    ) -> Vec<(IpAddr, Vec<&'a str>)> {
        let devices = &self.ledger.endpoint_devices;
        let known: BTreeSet<IpAddr> = devices.known().iter().map(|route| route.endpoint).collect();
        let counts = |endpoint: &IpAddr| {
            family_of(endpoint) == family && (!devices.is_read() || known.contains(endpoint))
        };
        let listed: BTreeSet<(&Arc<str>, IpAddr)> =
            listed.filter(|(_, endpoint)| counts(endpoint)).collect();
        let mut turns: BTreeMap<&str, usize> = BTreeMap::new();
        let mut endpoints: BTreeMap<IpAddr, (usize, Vec<&str>)> = BTreeMap::new();
        for (namespace, endpoint) in listed {
            let turn = turns.entry(namespace).or_default();
            let (first, namespaces) = endpoints.entry(endpoint).or_insert((*turn, Vec::new()));
            *first = (*first).min(*turn);
            namespaces.push(namespace);
            *turn += 1;
        }
        let mut endpoints: Vec<_> = endpoints.into_iter().collect();
        endpoints.sort_by_key(|(_, (turn, _))| *turn);
        let some = endpoints.into_iter().take(ENDPOINTS);
        some.map(|(endpoint, (_, namespaces))| (endpoint, namespaces))
            .collect()
    }

    /// Whether a reading of routes changes nothing.
    pub(super) fn knows_routes(&self, read: &EndpointRoutes) -> bool {
        self.ledger.endpoint_devices.is_read() && *read == EndpointRoutes::default()
    }

    pub(super) fn read_routes(&mut self, read: &EndpointRoutes) {
        let uplinks = self.coverage.hooks.uplinks().collect();
        self.ledger.learn_routes(read, &uplinks);
    }

    /// Whether an obstacle that a former agent found still counts, because this agent has done no lookup
    /// yet.
    pub(super) fn waits_for_lookups(&self, family: Family) -> bool {
        let is_young = self.now.since(self.anchor.mono) <= FAILURES_COUNT_FOR;
        let known = self.ledger.family(family).obstacle.is_looked_up();
        known && !self.lookups.read[family as usize] && is_young
    }

    /// Why no client of this class has a path to an endpoint of this node. A blocked path counts only for a
    /// client that was served before through the same interface: the kernel has no path for forged sources,
    /// nor for unknown clients to which an operator gave no route. An open path counts for any client.
    fn blocked(&self, lookups: &[Lookup], family: Family, class: SourceClass) -> Option<Cause> {
        let ledger = self.ledger.family(family);
        let namespaces = self.ledger.namespaces_in_use(family, self.now).min(2);
        let is_blocked = |lookup: &Lookup| lookup.is_blocked(namespaces);
        let counts = |lookup: &&Lookup| {
            let is_of_class =
                lookup.client.class == class && family_of(&lookup.client.address) == family;
            is_of_class && (ledger.served.contains(&lookup.client) || !is_blocked(lookup))
        };
        let counting: Vec<&Lookup> = lookups.iter().filter(counts).collect();
        let cause = counting
            .first()
            .filter(|_| ledger.open_ways[class as usize])?
            .cause;
        let all = counting.into_iter().all(is_blocked);
        cause.filter(|_| all)
    }
}

/// At most [`ENDPOINTS_AT_ONCE`] of the endpoints that are not known, others with each turn.
fn in_turn(all: &EndpointsHere, known: &BTreeSet<IpAddr>, turn: usize) -> Vec<IpAddr> {
    let mut unknown: BTreeMap<&str, Vec<IpAddr>> = BTreeMap::new();
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for (namespace, endpoint) in all {
        match known.contains(endpoint) {
            true => *found.entry(namespace).or_default() += 1,
            false => unknown.entry(namespace).or_default().push(*endpoint),
        }
    }
    let has_room = |namespace: &str| {
        found
            .get(namespace)
            .is_none_or(|found| *found < OF_NAMESPACE)
    };
    unknown.retain(|namespace, _| has_room(namespace));
    let namespaces = unknown.len().max(1);
    let at_once = namespaces.min(ENDPOINTS_AT_ONCE);
    let quota = ENDPOINTS_AT_ONCE / at_once;
    // Places count on over all turns: a namespace that has to wait skips none of its endpoints.
    let start = turn.wrapping_mul(at_once);
    let of_namespace = |(endpoints, place): (&Vec<IpAddr>, usize)| {
        let round = place / namespaces;
        let first = round.wrapping_mul(quota) % endpoints.len().max(1);
        let in_turn = endpoints.iter().cycle().skip(first);
        let in_turn = in_turn.take(quota.min(endpoints.len())).copied();
        in_turn.collect::<Vec<_>>()
    };
    let in_turn = unknown.values().cycle().skip(start % namespaces);
    let in_turn = in_turn.take(at_once).zip(start..);
    in_turn.flat_map(of_namespace).collect()
}

fn family_of(client: &IpAddr) -> Family {
    Family::of(&address(client))
}
