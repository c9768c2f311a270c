//! A plan while it is made: changes by phase, and claims to frontends not settled yet.

use std::collections::BTreeSet;

use agent_common::service::{EndpointKey, EndpointValue, FrontendKey, FrontendValue, SourceClass};

use super::MapChange;
use crate::expect::{Endpoint, SourcePrefix};

/// Endpoints in order of address and port.
pub(super) struct SortedEndpoints<'a>(pub(super) &'a [Endpoint]);

impl SortedEndpoints<'_> {
    fn find(&self, endpoint: &Endpoint) -> Option<&Endpoint> {
        let key = (endpoint.address, endpoint.port);
        self.0
            .binary_search_by_key(&key, |e| (e.address, e.port))
            .ok()
            .map(|at| &self.0[at])
    }

    /// Whether the endpoint is among them.
    pub(super) fn has(&self, endpoint: &Endpoint) -> bool {
        self.find(endpoint).is_some()
    }

    /// Whether the endpoint is among them and as local as there.
    pub(super) fn has_same(&self, endpoint: &Endpoint) -> bool {
        self.find(endpoint) == Some(endpoint)
    }
}

/// A Service port's wish for a frontend.
pub(super) struct Claim {
    /// Whose.
    pub(super) id: u32,
    /// The frontend.
    pub(super) key: FrontendKey,
    /// As it should stand.
    pub(super) value: FrontendValue,
    /// As it stands, if this id holds it.
    pub(super) stands: Option<FrontendValue>,
}

/// Changes by phase. Endpoints come before frontends that need them, and go after.
#[derive(Default)]
pub(super) struct Draft {
    first: Vec<MapChange>,
    frontends: Vec<MapChange>,
    last: Vec<MapChange>,
    /// What tries again, after everything that makes room.
    retries: Vec<MapChange>,
    retrying: bool,
    claims: Vec<Claim>,
    released: BTreeSet<FrontendKey>,
    /// Places that the plan makes free.
    pub(super) freed_endpoints: u64,
    /// As above.
    pub(super) freed_sources: u64,
}

impl Draft {
    fn put(&mut self, change: MapChange) {
        let phase = if self.retrying {
            &mut self.retries
        } else {
            &mut self.first
        };
        phase.push(change);
    }

    /// From here on puts come after all that the plan deletes, in the order they are made.
    pub(super) fn begin_retries(&mut self) {
        self.retrying = true;
    }

    pub(super) fn reset(&mut self, service: u32) {
        self.put(MapChange::ResetCounts { service });
    }

    pub(super) fn put_source(&mut self, prefix: SourcePrefix, class: SourceClass) {
        self.put(MapChange::PutSource { prefix, class });
    }

    pub(super) fn delete_source(&mut self, prefix: SourcePrefix) {
        self.freed_sources += 1;
        self.first.push(MapChange::DeleteSource { prefix });
    }

    pub(super) fn put_endpoint(&mut self, key: EndpointKey, value: EndpointValue) {
        self.put(MapChange::PutEndpoint { key, value });
    }

    pub(super) fn put_frontend(&mut self, key: FrontendKey, value: FrontendValue) {
        let change = MapChange::PutFrontend { key, value };
        if self.retrying {
            self.retries.push(change);
        } else {
            self.released.remove(&key);
            self.frontends.push(change);
        }
    }

    pub(super) fn retire_endpoint(&mut self, key: EndpointKey, value: EndpointValue) {
        self.last.push(MapChange::RetireEndpoint { key, value });
    }

    pub(super) fn delete_endpoint(&mut self, key: EndpointKey) {
        self.freed_endpoints += 1;
        self.last.push(MapChange::DeleteEndpoint { key });
    }

    pub(super) fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// Notes that nobody holds a frontend any more which stands in the map.
    pub(super) fn release(&mut self, key: FrontendKey) {
        self.released.insert(key);
    }

    pub(super) fn take_claims(&mut self) -> Vec<Claim> {
        std::mem::take(&mut self.claims)
    }

    pub(super) fn released(&self) -> Vec<FrontendKey> {
        self.released.iter().copied().collect()
    }

    /// Frontends that the plan deletes.
    pub(super) fn freed_frontends(&self) -> u64 {
        self.released.len() as u64
    }

    /// The plan, in order.
    pub(super) fn into_changes(self) -> Vec<MapChange> {
        let mut changes = self.first;
        changes.reserve_exact(self.frontends.len() + self.released.len() + self.last.len());
        changes.extend(self.frontends);
        changes.extend(
            self.released
                .into_iter()
                .map(|key| MapChange::DeleteFrontend { key }),
        );
        changes.extend(self.last);
        changes.extend(self.retries);
        changes
    }
}
