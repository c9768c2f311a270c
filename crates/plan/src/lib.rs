//! Turns changes of the view into the fewest changes of the maps. Their order guarantees that a
//! frontend with expected forwarding is in the map only while one of its endpoints is.
//!
//! The planner stores only what cannot be derived: ids, the *holder* of each frontend (the id of its entry
//! in the map), removed endpoints, and entries without room. It has no second copy of the endpoints: the
//! facts before a change show which ones are in the map. It applies nothing itself: the caller applies its
//! plans, and reports entries without room ([`Planner::report_full`]).
//!
//! - A *retired* endpoint left its slice, and is still in the map, marked as removed.
//! - A *former* endpoint was deleted from the map after that, and is remembered.
//! - A *departed* address is that of a retired endpoint, watched as a frontend, because pods may still dial it.

pub mod expect;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use pathproof_facts::cluster::{ObjectName, Protocol};
use pathproof_facts::directory::{Directory, Missing, ServiceInfo};
use pathproof_facts::node_context::{NodeContext, SourcePrefix};
use pathproof_facts::time::Mono;
use pathproof_facts::view::{Applied, ClusterView, ServiceState};
use pathproof_wire::service::{
    Address, EndpointKey, EndpointValue, Family, FrontendKey, FrontendValue, Port, SourceClass,
    TCP, endpoint_flag,
};

use crate::expect::{Endpoint, Expectation, Frontend, PortExpectation, demand, expectation};

mod adopt;
mod beyond;
mod conflicts;
mod departed;
mod draft;
mod quotas;
mod registry;
mod retired;
mod shortage;
mod sources;

pub use adopt::Installed;
use beyond::Beyond;
pub use conflicts::FrontendConflict;
use departed::Departed;
use draft::{Draft, FrontendRequest};
use quotas::Quotas;
pub use quotas::Unjudged;
use registry::Registry;
use retired::FormerEndpoints;
use shortage::Shortage;
use sources::Sources;

/// Time for which a removed endpoint stays in the map, marked as removed. An id also *rests* for this time
/// before another Service port may get it. This is longer than connections take to fail and evidence to be
/// read.
pub const REST: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// Set the counts of a service id to zero, because another Service port gets it.
    ResetCounts {
        service: u32,
    },
    PutSource {
        prefix: SourcePrefix,
        class: SourceClass,
    },
    DeleteSource {
        prefix: SourcePrefix,
    },
    /// Put an endpoint, possibly one that was removed before.
    PutEndpoint {
        key: EndpointKey,
        value: EndpointValue,
    },
    /// Change the value of a current endpoint.
    UpdateEndpoint {
        key: EndpointKey,
        value: EndpointValue,
    },
    /// Put a frontend, or change its expected handling.
    PutFrontend {
        key: FrontendKey,
        value: FrontendValue,
    },
    DeleteFrontend {
        key: FrontendKey,
    },
    /// Mark an endpoint as removed from its slice: an update of its entry.
    RetireEndpoint {
        key: EndpointKey,
        /// Value with the flag `LEFT`.
        value: EndpointValue,
    },
    DeleteEndpoint {
        key: EndpointKey,
    },
}

/// Plans the changes of the maps. It stores ids, and the part of the maps that the view does not show.
#[derive(Debug, Default)]
pub struct Planner {
    node: NodeContext,
    registry: Registry,
    /// Holder of each frontend in the map.
    owners: HashMap<FrontendKey, u32>,
    /// Ids that request a frontend and do not hold it, because another Service requests it too.
    conflicts: BTreeMap<FrontendKey, BTreeSet<u32>>,
    /// When a frontend of these ids last began or ceased to be in conflict.
    conflict_changed: BTreeMap<u32, Mono>,
    /// TCP ports of the agent itself.
    own_ports: Vec<u16>,
    sources: Sources,
    /// Removed endpoints that are still in the map, marked, each with the time of its removal.
    retired: BTreeMap<EndpointKey, Mono>,
    /// Endpoints that were deleted from the map.
    former: FormerEndpoints,
    departed: Departed,
    shortage: Shortage,
    quotas: Quotas,
    beyond: Beyond,
}

impl Planner {
    /// A planner for new, empty maps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the Service whose connections are probes.
    pub fn with_sentinel(mut self, sentinel: Option<ObjectName>) -> Self {
        self.quotas.sentinel = sentinel.as_ref().map(|name| name.namespace.clone());
        self.node.sentinel = sentinel;
        self
    }

    /// The changes of the maps for a batch of changes of the view. `applied` is the result of
    /// [`ClusterView::apply`]; every batch must be planned, in order.
    pub fn plan(&mut self, view: &ClusterView, applied: &Applied, now: Mono) -> Vec<MapChange> {
        let after = self.context(view);
        let node_before = std::mem::replace(&mut self.node, after);
        let node_changed = node_before != self.node;
        for name in affected(view, applied, node_changed) {
            let demand = view.state(name).and_then(|state| demand(state, &self.node));
            self.quotas.note(name, demand);
        }
        let mut draft = Draft::at(now);
        let nothing = ServiceState::default();
        for (name, was_followed) in self.quotas.settle() {
            let state = view.state(&name).unwrap_or(&nothing);
            let before = match was_followed {
                true => expectation(applied.before.get(&name).unwrap_or(state), &node_before),
                false => Expectation::default(),
            };
            let after = self.expected(&name, state);
            if before != after {
                self.change_service(&name, &before, &after, now, &mut draft);
            }
        }
        if node_changed {
            self.sources.settle(&self.node, &mut draft);
        }
        self.reserve_own_ports(&node_before, &mut draft);
        self.add_conflicts_beyond(view, &mut draft);
        self.settle_requests(view, &mut draft);
        self.evict_retired(now, &mut draft);
        self.forget_departed(&mut draft);
        self.use_room(view, &mut draft);
        self.note_conflict_changes(&mut draft, now);
        draft.into_changes()
    }

    /// The changes due to time alone: old removed endpoints are deleted, rested ids become free,
    /// entries without room are tried again, and addresses of removed endpoints are watched.
    pub fn expire(&mut self, view: &ClusterView, now: Mono) -> Vec<MapChange> {
        let mut draft = Draft::at(now);
        let retired = self.retired.iter();
        let rested = retired.filter(|(_, since)| now.since(**since) >= REST);
        let rested: Vec<EndpointKey> = rested.map(|(key, _)| *key).collect();
        for key in rested {
            self.take_retired(&key);
            draft.push(MapChange::DeleteEndpoint { key });
        }
        self.registry.free_rested(now, REST);
        self.watch_departed(view, &mut draft);
        self.use_room(view, &mut draft);
        draft.into_changes()
    }

    /// When an endpoint left its slice, if it is still in the map.
    pub fn left_since(&self, service: u32, address: Address, port: Port) -> Option<Mono> {
        let key = EndpointKey {
            service,
            address,
            port,
            padding: [0; 2],
        };
        self.retired.get(&key).copied()
    }

    /// When an endpoint of any Service left its slice, if it was deleted from the map since. Conntrack may still
    /// remember connections to it.
    pub fn former_left_since(&self, address: Address, port: Port) -> Option<Mono> {
        self.former.left(address, port)
    }

    pub fn missing(&self) -> Missing {
        self.shortage.missing(self.sources.missing.len() as u64)
    }

    pub fn unjudged(&self) -> Unjudged {
        self.quotas.unjudged()
    }

    /// Sentences about Services that are not judged, one for each of the first namespaces.
    pub fn quota_problems(&self) -> Vec<String> {
        self.quotas.problems()
    }

    pub fn frontend_count(&self) -> usize {
        self.owners.len()
    }

    pub fn endpoint_count(&self) -> u64 {
        self.registry
            .endpoint_count()
            .saturating_sub(self.shortage.endpoints.len() as u64)
    }

    /// Whether a TCP frontend of this family is in the map; UDP is judged separately.
    pub fn has_frontends(&self, family: Family) -> bool {
        let mut keys = self.owners.keys();
        keys.any(|key| key.protocol == TCP && Family::of(&key.address) == family)
    }

    fn context(&self, view: &ClusterView) -> NodeContext {
        NodeContext::of(view.node()).with_sentinel(self.node.sentinel.clone())
    }

    /// Expectation for a Service; empty for one that is not followed.
    fn expected(&self, name: &ObjectName, state: &ServiceState) -> Expectation {
        match self.quotas.follows(name) {
            true => expectation(state, &self.node),
            false => Expectation::default(),
        }
    }

    fn change_service(
        &mut self,
        name: &ObjectName,
        before: &Expectation,
        after: &Expectation,
        now: Mono,
        draft: &mut Draft,
    ) {
        for port in &after.ports {
            self.change_port(name, find(before, port), port, draft);
        }
        for was in &before.ports {
            match (find(after, was), self.registry.active(name, was)) {
                (None, _) => self.drop_port(name, was, now, draft),
                (Some(is), Some(id)) => {
                    let gone = was.endpoints.iter();
                    for endpoint in gone.filter(|one| find_endpoint(&is.endpoints, one).is_none()) {
                        self.retire(endpoint.key(id), endpoint.value(), now, draft);
                    }
                }
                (Some(_), None) => {}
            }
        }
    }

    /// Plans a port that is expected now, and perhaps was before.
    fn change_port(
        &mut self,
        name: &ObjectName,
        before: Option<&PortExpectation>,
        after: &PortExpectation,
        draft: &mut Draft,
    ) {
        // Without an id, nothing of the port is in the maps.
        let standing = self.registry.active(name, after);
        let Some(id) = standing.or_else(|| self.acquire(name, after, draft)) else {
            return;
        };
        let before = if standing.is_some() { before } else { None };
        let endpoints = before.map_or(&[][..], |port| &port.endpoints);
        for endpoint in &after.endpoints {
            let known = find_endpoint(endpoints, endpoint);
            if known != Some(endpoint) {
                self.put_endpoint(id, endpoint, known.is_some(), draft);
            }
        }
        self.registry.set_endpoints(id, after, draft.now);
        let frontends = before.map_or(&[][..], |port| &port.frontends);
        for frontend in frontends {
            if find_frontend(&after.frontends, &frontend.key).is_none() {
                self.release(id, frontend.key, draft);
            }
        }
        for frontend in &after.frontends {
            let present = find_frontend(frontends, &frontend.key);
            if present.is_none() {
                self.registry.renew(id, draft.now);
            }
            draft.requests.push(FrontendRequest {
                id,
                key: frontend.key,
                value: frontend.value(id),
                present: present.map(|present| present.value(id)),
            });
        }
    }

    fn drop_port(
        &mut self,
        name: &ObjectName,
        port: &PortExpectation,
        now: Mono,
        draft: &mut Draft,
    ) {
        self.shortage.forget_service(name, port);
        let Some(id) = self.registry.active(name, port) else {
            return;
        };
        for frontend in &port.frontends {
            self.release(id, frontend.key, draft);
        }
        for endpoint in &port.endpoints {
            self.retire(endpoint.key(id), endpoint.value(), now, draft);
        }
        self.registry.rest(id, now);
    }

    fn acquire(
        &mut self,
        name: &ObjectName,
        port: &PortExpectation,
        draft: &mut Draft,
    ) -> Option<u32> {
        let Some((id, dirty)) = self.registry.acquire(name, port) else {
            self.shortage.want_service(name, port);
            return None;
        };
        self.shortage.forget_service(name, port);
        if dirty {
            self.forget_retired(id, draft);
            draft.push(MapChange::ResetCounts { service: id });
        }
        Some(id)
    }

    fn put_endpoint(&mut self, id: u32, endpoint: &Endpoint, is_known: bool, draft: &mut Draft) {
        let (key, value) = (endpoint.key(id), endpoint.value());
        self.retired.remove(&key);
        self.stop_watching(&key, draft);
        match self.shortage.endpoints.get_mut(&key) {
            Some(missing) => *missing = value,
            None if is_known => draft.push(MapChange::UpdateEndpoint { key, value }),
            None => draft.push(MapChange::PutEndpoint { key, value }),
        }
    }

    fn retire(&mut self, key: EndpointKey, mut value: EndpointValue, now: Mono, draft: &mut Draft) {
        if self.shortage.endpoints.remove(&key).is_some() {
            return;
        }
        value.flags |= endpoint_flag::LEFT;
        self.retired.insert(key, now);
        draft.push(MapChange::RetireEndpoint { key, value });
    }

    fn expected_frontend(
        &self,
        view: &ClusterView,
        id: u32,
        key: &FrontendKey,
    ) -> Option<FrontendValue> {
        let slot = self.registry.slot(id)?;
        let expected = self.expected(&slot.name, view.state(&slot.name)?);
        let port = expected.ports.iter().find(|port| slot.is_of(port))?;
        Some(find_frontend(&port.frontends, key)?.value(id))
    }
}

impl Directory for Planner {
    fn service(&self, id: u32) -> Option<ServiceInfo> {
        let slot = self.registry.slot(id)?;
        Some(ServiceInfo {
            name: slot.name.clone(),
            port: slot.port.clone(),
            family: slot.family,
            endpoints: slot.endpoints,
            udp: slot.protocol == Protocol::Udp,
            dns: slot.dns,
            sentinel: self.node.sentinel.as_ref() == Some(&slot.name),
            echo: self.node.is_echo(&slot.name),
            on_host: slot.on_host,
            conflict_changed: self.conflict_changed.get(&id).copied(),
            since: Some(slot.since),
        })
    }
}

/// The Services whose expectation may have changed, by name.
fn affected<'a>(
    view: &'a ClusterView,
    applied: &'a Applied,
    node_changed: bool,
) -> Vec<&'a ObjectName> {
    let mut names: Vec<&ObjectName> = applied.before.keys().collect();
    if node_changed {
        names.extend(view.states().map(|(name, _)| name));
        names.sort_unstable();
        names.dedup();
    }
    names
}

fn find<'a>(expectation: &'a Expectation, port: &PortExpectation) -> Option<&'a PortExpectation> {
    expectation.ports.iter().find(|other| {
        other.port == port.port && other.protocol == port.protocol && other.family == port.family
    })
}

fn find_frontend<'a>(sorted: &'a [Frontend], key: &FrontendKey) -> Option<&'a Frontend> {
    let at = sorted.binary_search_by_key(key, |frontend| frontend.key);
    at.ok().map(|at| &sorted[at])
}

fn find_endpoint<'a>(sorted: &'a [Endpoint], endpoint: &Endpoint) -> Option<&'a Endpoint> {
    let key = |endpoint: &Endpoint| (endpoint.address, endpoint.port);
    let at = sorted.binary_search_by_key(&key(endpoint), key);
    at.ok().map(|at| &sorted[at])
}

#[cfg(test)]
pub(crate) mod tests;
