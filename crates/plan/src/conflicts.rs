//! Frontends that more than one Service requests, mostly by external IPs, which anybody with write access
//! to one namespace may choose. The proxy decides which Service gets the connections. So such a frontend is
//! in no map, and is no evidence for any of them. Two parties are special: the sentinel keeps its
//! frontends, because each of its probes is followed; and the node itself requests the agent's ports.

use std::collections::BTreeSet;

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::node_context::NodeContext;
use pathproof_facts::time::Mono;
use pathproof_wire::service::{Family, FrontendKey, TCP};

use super::draft::{Draft, FrontendRequest};
use super::{Planner, REST};
use crate::expect::frontend_key;

/// Placeholder id of the node: no Service port gets it.
const NODE: u32 = u32::MAX;

/// A frontend and two Services that use it; `None` is the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendConflict<'a> {
    pub frontend: &'a FrontendKey,
    pub parties: [Option<&'a ObjectName>; 2],
}

impl Planner {
    /// Sets the TCP ports at which the agent listens on every address of the node.
    pub fn with_own_ports(mut self, ports: &[u16]) -> Self {
        self.own_ports = ports.to_vec();
        self
    }

    /// Every frontend in conflict once, with its holder first and the others by name.
    pub fn conflicts(&self) -> impl Iterator<Item = FrontendConflict<'_>> {
        self.conflicts.iter().filter_map(|(frontend, waiting)| {
            let holder = self.owners.get(frontend).or(waiting.get(&NODE));
            let mut all = holder
                .into_iter()
                .chain(waiting)
                .map(|id| self.service_beyond(frontend, *id).or(self.service_of(*id)));
            let first = all.next()?;
            let second = all.find(|other| *other != first)?;
            let mut parties = [first, second];
            if !self.owners.contains_key(frontend) {
                parties.sort();
            }
            Some(FrontendConflict { frontend, parties })
        })
    }

    /// Whether this Service lacks a frontend of this family because others request it too. If the Service
    /// holds a frontend that others request, that does not count.
    pub fn is_contested(&self, service: &ObjectName, family: Family) -> bool {
        let mut conflicts = self.conflicts.iter();
        conflicts.any(|(frontend, waiting)| {
            let mut waiting = waiting.iter().map(|id| self.service_of(*id));
            Family::of(&frontend.address) == family && waiting.any(|other| other == Some(service))
        })
    }

    /// The Service of an id; `None` for the node.
    pub(super) fn service_of(&self, id: u32) -> Option<&ObjectName> {
        Some(&self.registry.slot(id)?.name)
    }

    pub(super) fn is_sentinel(&self, id: u32) -> bool {
        self.node.sentinel.is_some() && self.service_of(id) == self.node.sentinel.as_ref()
    }

    /// Ids that request a frontend and do not hold it.
    fn waiting(&self, key: FrontendKey) -> impl Iterator<Item = u32> {
        let conflicts = self.conflicts.get(&key).into_iter().flatten().copied();
        let short = self.shortage.frontends.range((key, 0)..=(key, u32::MAX));
        conflicts.chain(short.map(|(_, id)| *id))
    }

    /// Whether another Service requests this frontend, which has no holder.
    pub(super) fn is_wanted_by_another(&self, key: FrontendKey, id: u32) -> bool {
        let service = self.service_of(id);
        self.waiting(key)
            .any(|other| self.service_of(other) != service)
    }

    /// Whether several Services request this frontend, which has no holder.
    pub(super) fn has_conflict(&self, key: &FrontendKey) -> bool {
        let mut waiting = self.waiting(*key);
        waiting
            .next()
            .is_some_and(|first| self.is_wanted_by_another(*key, first))
    }

    /// Frontends that two Services begin to request in one batch. Neither Service may get such a frontend,
    /// even for a moment.
    pub(super) fn requested_twice(&self, requests: &[FrontendRequest]) -> BTreeSet<FrontendKey> {
        let mut all: Vec<(FrontendKey, u32)> = requests
            .iter()
            .map(|request| (request.key, request.id))
            .collect();
        all.sort_unstable();
        let differ = |pair: &&[(FrontendKey, u32)]| {
            let [(one, id), (other, next)] = pair else {
                return false;
            };
            one == other && self.service_of(*id) != self.service_of(*next)
        };
        let twice = all.windows(2).filter(differ);
        twice.filter_map(|pair| Some(pair.first()?.0)).collect()
    }

    /// Records that an id requests a frontend and does not get it.
    pub(super) fn add_conflict(&mut self, key: FrontendKey, id: u32, draft: &mut Draft) {
        self.conflicts.entry(key).or_default().insert(id);
        draft.conflict_changed.insert(id);
        // Services that waited for room are in conflict too, except the sentinel.
        let short = self.shortage.frontends.range((key, 0)..=(key, u32::MAX));
        let short = short.map(|(_, id)| *id);
        let short: Vec<u32> = short.filter(|other| !self.is_sentinel(*other)).collect();
        for other in short {
            self.shortage.frontends.remove(&(key, other));
            self.conflicts.entry(key).or_default().insert(other);
        }
    }

    /// Takes a frontend from its holder, because another Service requests it.
    pub(super) fn void(&mut self, key: FrontendKey, draft: &mut Draft) {
        if let Some(owner) = self.owners.remove(&key) {
            self.add_conflict(key, owner, draft);
            draft.released.insert(key);
        }
    }

    /// Removes an id from those in conflict over a frontend. Returns whether it was one of them.
    pub(super) fn stop_waiting(&mut self, id: u32, key: &FrontendKey) -> bool {
        let Some(waiting) = self.conflicts.get_mut(key) else {
            return false;
        };
        let waited = waiting.remove(&id);
        if waiting.is_empty() {
            self.conflicts.remove(key);
        }
        waited
    }

    /// Moves the node's requests for the agent's ports from the addresses of `before` to the present ones.
    pub(super) fn reserve_own_ports(&mut self, before: &NodeContext, draft: &mut Draft) {
        if before.addresses == self.node.addresses {
            return;
        }
        for key in self.own(before) {
            self.release(NODE, key, draft);
        }
        for key in self.own(&self.node) {
            self.add_conflict(key, NODE, draft);
            self.void(key, draft);
        }
    }

    fn own(&self, node: &NodeContext) -> Vec<FrontendKey> {
        let at = |address| {
            let ports = self.own_ports.iter();
            ports.map(move |port| frontend_key(address, port.to_be_bytes(), TCP))
        };
        node.addresses.iter().copied().flat_map(at).collect()
    }

    /// Records when conflicts of these ids began or ended: connections under way at that time prove
    /// nothing.
    pub(super) fn note_conflict_changes(&mut self, draft: &mut Draft, now: Mono) {
        self.conflict_changed.retain(|_, at| now.since(*at) < REST);
        for id in std::mem::take(&mut draft.conflict_changed) {
            self.conflict_changed.insert(id, now);
        }
    }
}
