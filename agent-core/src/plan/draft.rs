//! A plan in progress: changes by phase, and the holder of each frontend, which is its only claimant.

use std::collections::BTreeSet;

use agent_common::service::{EndpointKey, FrontendKey, FrontendValue};

use super::{MapChange, Planner};
use crate::view::ClusterView;

/// A Service port's claim on a frontend.
pub(super) struct Claim {
    /// Id of the Service port.
    pub(super) id: u32,
    pub(super) key: FrontendKey,
    pub(super) value: FrontendValue,
    /// Present value, if this id holds the frontend.
    pub(super) stands: Option<FrontendValue>,
}

/// Changes by phase. Endpoints are put before frontends that need them, and deleted after.
#[derive(Default)]
pub(super) struct Draft {
    /// Deletions of endpoints from earlier plans, to make room.
    evicted: Vec<MapChange>,
    first: Vec<MapChange>,
    frontends: Vec<MapChange>,
    last: Vec<MapChange>,
    /// Changes that are tried again after everything that makes room, in this order.
    retries: Vec<MapChange>,
    /// Whether further puts are retries.
    pub(super) retrying: bool,
    /// Claims that are not decided yet.
    pub(super) claims: Vec<Claim>,
    /// Frontends in the map without a holder.
    pub(super) released: BTreeSet<FrontendKey>,
    /// Frontends outside the map with one claim less.
    pub(super) withdrawn: BTreeSet<FrontendKey>,
    /// Frontends that several Services claim in [`Draft::claims`].
    pub(super) twice: BTreeSet<FrontendKey>,
    /// Ids with a frontend that began or ceased to be contested.
    pub(super) disputed: BTreeSet<u32>,
    /// Endpoint entries that the plan frees.
    pub(super) freed_endpoints: u64,
    /// Source entries that the plan frees.
    pub(super) freed_sources: u64,
}

impl Draft {
    pub(super) fn push(&mut self, change: MapChange) {
        let phase = match change {
            MapChange::DeleteSource { .. } => {
                self.freed_sources += 1;
                &mut self.first
            }
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

    /// Deletes an endpoint of an earlier plan, before anything is put.
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
    /// Ends an id's hold of a frontend, or its claim.
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

    /// Gives every claimed frontend to its only claimant. All releases come first, because a
    /// frontend may move between Services in one batch.
    pub(super) fn settle_claims(&mut self, view: &ClusterView, draft: &mut Draft) {
        self.settle_all(draft);
        for key in draft.released.clone() {
            self.hand_over(view, key, draft);
        }
        for key in std::mem::take(&mut draft.withdrawn) {
            self.hand_over(view, key, draft);
        }
    }

    pub(super) fn settle_all(&mut self, draft: &mut Draft) {
        let claims = std::mem::take(&mut draft.claims);
        draft.twice = self.claimed_twice(&claims);
        for claim in claims {
            self.settle(claim, draft);
        }
    }

    fn settle(&mut self, claim: Claim, draft: &mut Draft) {
        let Claim { id, key, value, .. } = claim;
        let put = MapChange::PutFrontend { key, value };
        match self.owners.get(&key).copied() {
            Some(owner) if owner == id => {
                if claim.stands != Some(value) {
                    draft.push(put);
                }
            }
            Some(owner) if self.is_sentinel(id) && !self.is_sentinel(owner) => {
                self.contest(key, owner, draft);
                self.owners.insert(key, id);
                draft.push(put);
            }
            Some(owner) => {
                self.contest(key, id, draft);
                if !self.is_sentinel(owner) && self.claimant(owner) != self.claimant(id) {
                    self.void(key, draft);
                }
            }
            None if !self.is_sentinel(id)
                && (draft.twice.contains(&key) || self.has_rival(key, id)) =>
            {
                self.contest(key, id, draft);
            }
            None if self.shortage.is_blocked(id) => {
                if self.shortage.frontends.insert((key, id)) {
                    // It was never tried, so its place counts as free.
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
        if self.owners.contains_key(&key) || self.is_contested(&key) {
            return;
        }
        let waiting = self.contested.get(&key).and_then(BTreeSet::first).copied();
        let waiting = waiting.filter(|id| self.claimant(*id).is_some());
        if let Some(heir) = waiting.or_else(|| self.shortage.waiting_for(key)) {
            self.shortage.frontends.remove(&(key, heir));
            self.stop_waiting(heir, &key);
            draft.disputed.insert(heir);
            self.claim_again(view, heir, key, draft);
        }
    }

    /// Claims a frontend that the view still shows.
    pub(super) fn claim_again(
        &mut self,
        view: &ClusterView,
        id: u32,
        key: FrontendKey,
        draft: &mut Draft,
    ) {
        if let Some(value) = self.expected_frontend(view, id, &key) {
            let claim = Claim {
                id,
                key,
                value,
                stands: None,
            };
            self.settle(claim, draft);
        }
    }
}
