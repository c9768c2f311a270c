//! From what changed in the view to the fewest changes of the maps, in an order that never lets a
//! frontend stand that is owed forwarding while none of its endpoints does.
//!
//! The planner keeps what cannot be derived again: ids, who holds a frontend, endpoints that have
//! left, what found no place. It keeps no second copy of the endpoints: what stands in the map
//! follows from the facts before a change. It changes nothing itself; whoever applies its plans
//! reports what found no place ([`Planner::report_full`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use agent_common::abi;
use agent_common::service::{
    Address, EndpointKey, EndpointValue, FrontendKey, FrontendValue, Port, endpoint_flag,
};

use crate::cluster::{ObjectName, Protocol};
use crate::evidence::{Directory, ServiceInfo};
use crate::expect::{Expectation, NodeContext, PortExpectation, expectation};
use crate::time::Mono;
use crate::view::{Applied, ClusterView, ServiceState};

mod adopt;
mod change;
mod claims;
mod diff;
mod families;
mod registry;
mod retired;
mod shortage;
mod sources;

pub use adopt::Installed;
pub use change::{Conflict, MapChange, Missing};
use diff::{Claim, Draft, SortedEndpoints};
use registry::Registry;
use retired::Retired;
use shortage::Shortage;
use sources::Sources;

/// How long an endpoint that left stays in the map, marked, and an id rests before another
/// Service port may have it: longer than connections take to fail and evidence to be read.
pub const REST: Duration = Duration::from_secs(300);

/// Ids, and what stands in the maps as far as the view does not say it.
#[derive(Debug)]
pub struct Planner {
    node: NodeContext,
    registry: Registry,
    /// Who holds each frontend that stands in the map.
    owners: HashMap<FrontendKey, u32>,
    /// Ids that claim a frontend which another holds.
    contested: BTreeMap<FrontendKey, BTreeSet<u32>>,
    sources: Sources,
    retired: Retired,
    shortage: Shortage,
    not_followed: u64,
}

impl Default for Planner {
    fn default() -> Self {
        Self::new()
    }
}

impl Planner {
    /// For maps that are new and empty.
    pub fn new() -> Self {
        Self::with_ids(abi::MAX_SERVICES)
    }

    /// As [`Planner::new`], with fewer ids than the maps have: tests run out of them sooner.
    pub fn with_ids(ids: u32) -> Self {
        Self {
            node: NodeContext::default(),
            registry: Registry::new(ids),
            owners: HashMap::new(),
            contested: BTreeMap::new(),
            sources: Sources::default(),
            retired: Retired::default(),
            shortage: Shortage::default(),
            not_followed: 0,
        }
    }

    /// With the connections of this Service known as probes.
    pub fn with_sentinel(mut self, sentinel: Option<ObjectName>) -> Self {
        self.node.sentinel = sentinel;
        self
    }

    /// The changes that bring the maps from the view before a batch to the view after it.
    /// `applied` is what [`ClusterView::apply`] returned; every batch must come here, in order.
    pub fn plan(&mut self, view: &ClusterView, applied: &Applied, now: Mono) -> Vec<MapChange> {
        let after = self.context(view);
        let before = std::mem::replace(&mut self.node, after);
        let node_changed = before != self.node;
        let mut draft = Draft::default();
        for name in affected(view, applied, node_changed) {
            self.change_service(view, applied, &before, name, now, &mut draft);
        }
        self.sources.settle(&self.node, node_changed, &mut draft);
        self.settle_claims(view, &mut draft);
        self.use_room(view, &mut draft);
        draft.into_changes()
    }

    /// The changes that time alone brings: endpoints that left long ago are deleted, rested ids
    /// become free, and what found no place tries again.
    pub fn expire(&mut self, view: &ClusterView, now: Mono) -> Vec<MapChange> {
        let mut draft = Draft::default();
        while let Some(key) = self.retired.pop_due(now, REST) {
            draft.delete_endpoint(key);
        }
        self.registry.free_rested(now, REST);
        self.use_room(view, &mut draft);
        draft.into_changes()
    }

    /// When an endpoint left its slice, if it has and is still remembered.
    pub fn left_since(&self, service: u32, address: Address, port: Port) -> Option<Mono> {
        self.retired.since(&EndpointKey {
            service,
            address,
            port,
            padding: [0; 2],
        })
    }

    /// What found no place.
    pub fn missing(&self) -> Missing {
        self.shortage.missing(self.sources.missing())
    }

    /// Frontends claimed by more than one Service, each with its holder and every claimant.
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict<'_>> {
        self.contested.iter().flat_map(move |(frontend, waiting)| {
            let holder = self
                .owners
                .get(frontend)
                .and_then(|id| self.registry.slot(*id));
            waiting.iter().filter_map(move |id| {
                let claimant = &self.registry.slot(*id)?.name;
                Some(Conflict {
                    frontend: *frontend,
                    holder: &holder?.name,
                    claimant,
                })
            })
        })
    }

    /// How many frontends stand in the map.
    pub fn frontend_count(&self) -> usize {
        self.owners.len()
    }

    /// How many current endpoints stand in the map.
    pub fn endpoint_count(&self) -> u64 {
        self.registry
            .endpoint_count()
            .saturating_sub(self.shortage.endpoints.len() as u64)
    }

    /// How many endpoints that left are still in the map.
    pub fn retired_count(&self) -> usize {
        self.retired.len()
    }

    /// How many Service ports are of other protocols than TCP and UDP and so not followed.
    pub fn not_followed(&self) -> u64 {
        self.not_followed
    }

    /// This node as the view has it now.
    fn context(&self, view: &ClusterView) -> NodeContext {
        NodeContext::of(view.node()).with_sentinel(self.node.sentinel.clone())
    }

    fn change_service(
        &mut self,
        view: &ClusterView,
        applied: &Applied,
        node_before: &NodeContext,
        name: &ObjectName,
        now: Mono,
        draft: &mut Draft,
    ) {
        let nothing = ServiceState::default();
        let after_state = view.state(name).unwrap_or(&nothing);
        let before_state = applied.before.get(name).unwrap_or(after_state);
        self.sources.follow(before_state, after_state);
        let before = expectation(before_state, node_before);
        let after = expectation(after_state, &self.node);
        if before == after {
            return;
        }
        self.not_followed = (self.not_followed + u64::from(after.not_followed))
            .saturating_sub(u64::from(before.not_followed));
        for port in &after.ports {
            let was = find(&before, port);
            self.change_port(name, was, port, draft);
        }
        for port in before
            .ports
            .iter()
            .filter(|port| find(&after, port).is_none())
        {
            self.drop_port(name, port, now, draft);
        }
        self.retire_gone(name, &before, &after, now, draft);
    }

    /// A port that is expected now, and perhaps was before.
    fn change_port(
        &mut self,
        name: &ObjectName,
        before: Option<&PortExpectation>,
        after: &PortExpectation,
        draft: &mut Draft,
    ) {
        // Without an id so far, nothing of it stands in the maps.
        let standing = self.registry.active(name, after);
        let Some(id) = standing.or_else(|| self.acquire(name, after, draft)) else {
            return;
        };
        let before = if standing.is_some() { before } else { None };
        let endpoints = before.map_or(&[][..], |port| &port.endpoints);
        for endpoint in &after.endpoints {
            if !SortedEndpoints(endpoints).has_same(endpoint) {
                self.put_endpoint(endpoint.key(id), endpoint.value(), draft);
            }
        }
        self.registry.set_endpoints(id, after.endpoints.len());
        let frontends = before.map_or(&[][..], |port| &port.frontends);
        for frontend in frontends {
            if after
                .frontends
                .binary_search_by_key(&frontend.key, |f| f.key)
                .is_err()
            {
                self.release(id, frontend.key, draft);
            }
        }
        for frontend in &after.frontends {
            let stands = frontends
                .binary_search_by_key(&frontend.key, |f| f.key)
                .ok()
                .map(|at| frontends[at].value(id));
            draft.claim(Claim {
                id,
                key: frontend.key,
                value: frontend.value(id),
                stands,
            });
        }
    }

    /// A port that is expected no more.
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

    /// Endpoints that left ports which are still expected.
    fn retire_gone(
        &mut self,
        name: &ObjectName,
        before: &Expectation,
        after: &Expectation,
        now: Mono,
        draft: &mut Draft,
    ) {
        for was in &before.ports {
            let (Some(is), Some(id)) = (find(after, was), self.registry.active(name, was)) else {
                continue;
            };
            for endpoint in &was.endpoints {
                if !SortedEndpoints(&is.endpoints).has(endpoint) {
                    self.retire(endpoint.key(id), endpoint.value(), now, draft);
                }
            }
        }
    }

    fn acquire(
        &mut self,
        name: &ObjectName,
        port: &PortExpectation,
        draft: &mut Draft,
    ) -> Option<u32> {
        match self.registry.acquire(name, port) {
            Some(acquired) => {
                self.shortage.forget_service(name, port);
                if acquired.dirty {
                    draft.reset(acquired.id);
                }
                Some(acquired.id)
            }
            None => {
                self.shortage.want_service(name, port);
                None
            }
        }
    }

    fn put_endpoint(&mut self, key: EndpointKey, value: EndpointValue, draft: &mut Draft) {
        self.retired.remove(&key);
        if !self.shortage.amend_endpoint(key, value) {
            draft.put_endpoint(key, value);
        }
    }

    fn retire(&mut self, key: EndpointKey, mut value: EndpointValue, now: Mono, draft: &mut Draft) {
        if self.shortage.remove_endpoint(&key) {
            return;
        }
        value.flags |= endpoint_flag::LEFT;
        self.retired.insert(key, now);
        draft.retire_endpoint(key, value);
    }

    /// What a service id stands for, as the view has it now.
    fn expected_port(&self, view: &ClusterView, id: u32) -> Option<PortExpectation> {
        let slot = self.registry.slot(id)?;
        let mut expected = expectation(view.state(&slot.name)?, &self.node);
        let at = expected.ports.iter().position(|port| slot.is_of(port))?;
        Some(expected.ports.swap_remove(at))
    }

    fn expected_frontend(
        &self,
        view: &ClusterView,
        id: u32,
        key: &FrontendKey,
    ) -> Option<FrontendValue> {
        let port = self.expected_port(view, id)?;
        let at = port.frontends.binary_search_by_key(key, |f| f.key).ok()?;
        Some(port.frontends[at].value(id))
    }
}

impl Directory for Planner {
    fn service(&self, id: u32) -> Option<ServiceInfo> {
        let slot = self.registry.slot(id)?;
        Some(ServiceInfo {
            name: slot.name.clone(),
            port: slot.port.clone(),
            family: slot.family,
            endpoints: self.registry.endpoints(id),
            udp: slot.protocol == Protocol::Udp,
            dns: slot.dns,
            sentinel: self.node.sentinel.as_ref() == Some(&slot.name),
        })
    }
}

/// The Services whose expectation may differ, in the order of their names.
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

#[cfg(test)]
mod tests;
