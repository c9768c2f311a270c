//! A plan in progress: changes by phase, and which Service gets each requested frontend. A Service gets a
//! frontend only if no other one requests it ([`conflicts`](super::conflicts)).

use std::collections::BTreeSet;

use pathproof_facts::time::Mono;
use pathproof_facts::view::ClusterView;
use pathproof_wire::service::{EndpointKey, FrontendKey, FrontendValue};

use super::{MapChange, Planner};

pub(super) struct FrontendRequest {
    /// Id of the Service port.
    pub(super) id: u32,
    pub(super) key: FrontendKey,
    pub(super) value: FrontendValue,
    /// Present value, if this id holds the frontend.
    pub(super) present: Option<FrontendValue>,
}

/// Changes by phase. Endpoints are put before the frontends that need them, and deleted after these
/// frontends.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) now: Mono,
    /// Deletions of endpoints that earlier plans removed, to make room.
    evicted: Vec<MapChange>,
    first: Vec<MapChange>,
    frontends: Vec<MapChange>,
    last: Vec<MapChange>,
    /// Changes that are tried again, in this order, after all changes that make room.
    retries: Vec<MapChange>,
    /// Whether further puts are retries.
    pub(super) retrying: bool,
    /// Requests that are not decided yet.
    pub(super) requests: Vec<FrontendRequest>,
    /// Frontends in the map without a holder.
    pub(super) released: BTreeSet<FrontendKey>,
    /// Frontends that are not in the map, and that a Service has ceased to request.
    pub(super) withdrawn: BTreeSet<FrontendKey>,
    /// Frontends that several Services request in [`Draft::requests`].
    pub(super) twice: BTreeSet<FrontendKey>,
    /// Ids with a frontend that began or ceased to be in conflict.
    pub(super) conflict_changed: BTreeSet<u32>,
    /// Endpoint entries that the plan frees.
    pub(super) freed_endpoints: u64,
}

impl Draft {
    pub(super) fn at(now: Mono) -> Self {
        Self {
            now,
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, change: MapChange) {
        let phase = match change {
            MapChange::DeleteEndpoint { .. } => {
                self.freed_endpoints += 1;
                &mut self.last
            }
            MapChange::RetireEndpoint { .. } => &mut self.last,
            _ if self.retrying => &mut self.retries,
            MapChange::PutFrontend { key, .. } => {
                self.released.remove(&key);
                &mut self.frontends
            }
            _ => &mut self.first,
        };
        phase.push(change);
    }

    /// Deletes an endpoint that an earlier plan removed, before anything is put.
    pub(super) fn evict(&mut self, key: EndpointKey) {
        self.freed_endpoints += 1;
        self.evicted.push(MapChange::DeleteEndpoint { key });
    }

    pub(super) fn into_changes(self) -> Vec<MapChange> {
        let mut changes = self.first;
        let others = self.frontends.len() + self.released.len() + self.last.len();
        changes.reserve_exact(others + self.evicted.len());
        changes.splice(0..0, self.evicted);
        changes.extend(self.frontends);
        let released = self.released.into_iter();
        changes.extend(released.map(|key| MapChange::DeleteFrontend { key }));
        changes.extend(self.last);
        changes.extend(self.retries);
        changes
    }
}

impl Planner {
    /// Ends an id's hold of a frontend, or its request.
    pub(super) fn release(&mut self, id: u32, key: FrontendKey, draft: &mut Draft) {
        self.shortage.frontends.remove(&(key, id));
        let waited = self.stop_waiting(id, &key);
        if self.owners.get(&key) == Some(&id) {
            self.owners.remove(&key);
            draft.released.insert(key);
        } else if waited {
            draft.withdrawn.insert(key);
        }
    }

    /// Gives each requested frontend to the only Service that requests it. It runs after all releases of a
    /// batch, because a frontend may move between Services in one batch.
    pub(super) fn settle_requests(&mut self, view: &ClusterView, draft: &mut Draft) {
        self.settle_all(draft);
        let withdrawn = std::mem::take(&mut draft.withdrawn);
        for key in draft.released.clone().into_iter().chain(withdrawn) {
            self.hand_over(view, key, draft);
        }
    }

    pub(super) fn settle_all(&mut self, draft: &mut Draft) {
        let requests = std::mem::take(&mut draft.requests);
        draft.twice = self.requested_twice(&requests);
        for request in requests {
            self.settle(request, draft);
        }
    }

    fn settle(&mut self, request: FrontendRequest, draft: &mut Draft) {
        let FrontendRequest { id, key, value, .. } = request;
        let put = MapChange::PutFrontend { key, value };
        match self.owners.get(&key).copied() {
            Some(owner) if owner == id => {
                if request.present != Some(value) {
                    draft.push(put);
                }
            }
            Some(owner) if self.is_sentinel(id) && !self.is_sentinel(owner) => {
                self.add_conflict(key, owner, draft);
                self.owners.insert(key, id);
                draft.push(put);
            }
            Some(owner) => {
                self.add_conflict(key, id, draft);
                if !self.is_sentinel(owner) && self.service_of(owner) != self.service_of(id) {
                    self.void(key, draft);
                }
            }
            None if !self.is_sentinel(id)
                && (draft.twice.contains(&key) || self.is_wanted_by_another(key, id)) =>
            {
                self.add_conflict(key, id, draft);
            }
            None if self.shortage.is_blocked(id) => {
                if self.shortage.frontends.insert((key, id)) {
                    // The frontend is withheld because endpoints are missing. The map may have room for it, so
                    // count one free entry, by which it is retried once the endpoints are there.
                    self.shortage.room.frontends += 1;
                }
            }
            None => {
                self.shortage.frontends.remove(&(key, id));
                self.stop_waiting(id, &key);
                self.owners.insert(key, id);
                draft.push(put);
            }
        }
    }

    /// Gives a frontend without a holder to the Service that waits for it or for room, if there is
    /// only one. If the frontend is in the map, its entry is replaced, so that it is never missing.
    pub(super) fn hand_over(&mut self, view: &ClusterView, key: FrontendKey, draft: &mut Draft) {
        if self.owners.contains_key(&key) || self.has_conflict(&key) {
            return;
        }
        let waiting = self.conflicts.get(&key).and_then(BTreeSet::first).copied();
        let waiting = waiting.filter(|id| self.service_of(*id).is_some());
        if let Some(heir) = waiting.or_else(|| self.shortage.waiting_for(key)) {
            self.shortage.frontends.remove(&(key, heir));
            self.stop_waiting(heir, &key);
            draft.conflict_changed.insert(heir);
            self.request_again(view, heir, key, draft);
        }
    }

    /// Requests a frontend again, if the view still has it.
    pub(super) fn request_again(
        &mut self,
        view: &ClusterView,
        id: u32,
        key: FrontendKey,
        draft: &mut Draft,
    ) {
        if let Some(value) = self.expected_frontend(view, id, &key) {
            let request = FrontendRequest {
                id,
                key,
                value,
                present: None,
            };
            self.settle(request, draft);
        }
    }
}
