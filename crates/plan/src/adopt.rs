//! Adopts the pinned maps of an earlier agent: ids are derived from the frontends in the map, and
//! only differences are changed.

use std::collections::{HashMap, HashSet};

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::node_context::{NodeContext, SourcePrefix};
use pathproof_facts::time::Mono;
use pathproof_facts::view::{ClusterView, ServiceState};
use pathproof_wire::service::{
    EndpointKey, EndpointValue, FrontendKey, FrontendValue, SourceClass, endpoint_flag,
};

use super::draft::{Draft, FrontendRequest};
use super::{MapChange, Planner};
use crate::expect::{PortExpectation, demand, expectation};

/// Content of the maps.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    pub frontends: Vec<(FrontendKey, FrontendValue)>,
    pub endpoints: Vec<(EndpointKey, EndpointValue)>,
    pub sources: Vec<(SourcePrefix, SourceClass)>,
}

impl Planner {
    /// Adopts maps with their content, and returns the changes that make them match the view. A new planner
    /// begins with it instead of [`Planner::plan`]. The view must be complete, because entries that it does not
    /// have are deleted or marked as removed.
    pub fn adopt(
        &mut self,
        view: &ClusterView,
        mut installed: Installed,
        now: Mono,
    ) -> Vec<MapChange> {
        let mut draft = Draft::at(now);
        self.node = self.context(view);
        installed.endpoints.sort_unstable_by_key(|(key, _)| *key);
        let (watched, frontends): (HashMap<_, _>, HashMap<FrontendKey, FrontendValue>) =
            (installed.frontends.iter().copied()).partition(|(_, value)| value.is_departed());
        let mut states: Vec<(&ObjectName, &ServiceState)> = view.states().collect();
        states.sort_unstable_by_key(|(name, _)| *name);
        self.share_out(&states, &frontends);
        if !frontends.is_empty() {
            for (name, state) in &states {
                for port in self.expected(name, state).ports {
                    self.adopt_id(name, &port, &frontends);
                }
            }
        }
        let used = frontends.values().map(|value| value.service);
        let used = used.chain(installed.endpoints.iter().map(|(key, _)| key.service));
        self.registry.finish_adoption(used, now);
        let mut kept = HashSet::new();
        for (name, state) in states {
            let expected = self.expected(name, state);
            for port in &expected.ports {
                kept.extend(self.adopt_port(name, port, &installed, &frontends, now, &mut draft));
            }
        }
        // Entries without an expectation are deleted.
        let standing = frontends.keys().chain(watched.keys()).copied();
        let unowned = standing.filter(|key| !self.owners.contains_key(key));
        draft.released.extend(unowned);
        for (key, _) in installed.endpoints {
            if !kept.contains(&key.service) {
                draft.push(MapChange::DeleteEndpoint { key });
            }
        }
        self.sources.adopt(installed.sources);
        self.sources.settle(&self.node, &mut draft);
        self.reserve_own_ports(&NodeContext::default(), &mut draft);
        self.add_conflicts_beyond(view, &mut draft);
        self.settle_requests(view, &mut draft);
        self.use_room(view, &mut draft);
        self.note_conflict_changes(&mut draft, now);
        draft.into_changes()
    }

    /// Decides which Services are followed; if not all fit, those of the earlier agent come first.
    fn share_out(
        &mut self,
        states: &[(&ObjectName, &ServiceState)],
        installed: &HashMap<FrontendKey, FrontendValue>,
    ) {
        for (name, state) in states {
            self.quotas.note(name, demand(state, &self.node));
        }
        if self.quotas.is_short() {
            for (name, state) in states {
                self.quotas.keep(name, || {
                    let expected = expectation(state, &self.node);
                    let mut frontends = expected.ports.iter().flat_map(|port| &port.frontends);
                    frontends.any(|frontend| installed.contains_key(&frontend.key))
                });
            }
        }
        self.quotas.settle();
    }

    /// Keeps the id that the earlier agent gave to a Service port. The id is taken from the first of the
    /// port's frontends in the map whose id is still free. The port then owns all its frontends that the map
    /// has under this id.
    ///
    /// A frontend whose kind differs in the map (external IP instead of cluster IP) is skipped. It belonged
    /// to another Service.
    fn adopt_id(
        &mut self,
        name: &ObjectName,
        port: &PortExpectation,
        installed: &HashMap<FrontendKey, FrontendValue>,
    ) {
        let standing = port.frontends.iter().filter_map(|frontend| {
            let value = installed.get(&frontend.key)?;
            (value.kind == frontend.kind as u8).then_some((frontend.key, value.service))
        });
        let mut adopted = None;
        for (key, id) in standing {
            if adopted.is_none() && self.registry.adopt(id, name, port) {
                adopted = Some(id);
            }
            if adopted == Some(id) {
                self.owners.insert(key, id);
            }
        }
    }

    fn adopt_port(
        &mut self,
        name: &ObjectName,
        port: &PortExpectation,
        installed: &Installed,
        frontends: &HashMap<FrontendKey, FrontendValue>,
        now: Mono,
        draft: &mut Draft,
    ) -> Option<u32> {
        let Some(id) = self.registry.active(name, port) else {
            self.change_port(name, None, port, draft);
            return None;
        };
        let all = &installed.endpoints;
        let from = all.partition_point(|(key, _)| key.service < id);
        let standing = &all[from..all.partition_point(|(key, _)| key.service <= id)];
        for endpoint in &port.endpoints {
            let (key, value) = (endpoint.key(id), endpoint.value());
            let stands = standing.binary_search_by_key(&key, |(key, _)| *key);
            if stands.ok().is_none_or(|at| standing[at].1 != value) {
                draft.push(MapChange::PutEndpoint { key, value });
            }
        }
        self.registry.set_endpoints(id, port, now);
        for (key, value) in standing {
            let expected = port
                .endpoints
                .binary_search_by_key(&(key.address, key.port), |e| (e.address, e.port));
            match expected {
                Ok(_) => {}
                // The endpoint's removal counts from now, because its time is unknown.
                Err(_) if value.flags & endpoint_flag::LEFT != 0 => {
                    self.retired.insert(*key, now);
                }
                Err(_) => self.retire(*key, *value, now, draft),
            }
        }
        for frontend in &port.frontends {
            draft.requests.push(FrontendRequest {
                id,
                key: frontend.key,
                value: frontend.value(id),
                present: frontends.get(&frontend.key).copied(),
            });
        }
        Some(id)
    }
}
