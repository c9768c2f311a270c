//! Taking over maps that an earlier agent left pinned: ids are told from the frontends that stand,
//! and only what differs is changed.

use std::collections::{HashMap, HashSet};

use agent_common::service::{
    EndpointKey, EndpointValue, FrontendKey, FrontendValue, SourceClass, endpoint_flag,
};

use super::diff::{Claim, Draft};
use super::{MapChange, Planner};
use crate::cluster::ObjectName;
use crate::expect::{Expectation, PortExpectation, SourcePrefix, expectation};
use crate::time::Mono;
use crate::view::{ClusterView, ServiceState};

/// What stands in the maps.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    /// FRONTENDS.
    pub frontends: Vec<(FrontendKey, FrontendValue)>,
    /// ENDPOINTS.
    pub endpoints: Vec<(EndpointKey, EndpointValue)>,
    /// SOURCES.
    pub sources: Vec<(SourcePrefix, SourceClass)>,
}

impl Planner {
    /// Takes over maps as they stand, and returns the changes that bring them to the view: the
    /// first plan of a restarted agent, instead of [`Planner::plan`]. The view should be synced:
    /// what it does not know is taken out.
    pub fn adopt(
        &mut self,
        view: &ClusterView,
        mut installed: Installed,
        now: Mono,
    ) -> Vec<MapChange> {
        let mut draft = Draft::default();
        self.node = self.context(view);
        installed.endpoints.sort_unstable_by_key(|(key, _)| *key);
        let frontends: HashMap<FrontendKey, FrontendValue> =
            installed.frontends.iter().copied().collect();
        let mut names: Vec<&ObjectName> = view.states().map(|(name, _)| name).collect();
        names.sort_unstable();
        if !frontends.is_empty() {
            self.adopt_ids(view, &names, &frontends);
        }
        let used = frontends.values().map(|value| value.service);
        let used = used.chain(installed.endpoints.iter().map(|(key, _)| key.service));
        self.registry.finish_adoption(used, now);
        if !frontends.is_empty() {
            self.adopt_owners(view, &names, &frontends);
        }
        let mut kept = HashSet::new();
        for name in names {
            let Some(state) = view.state(name) else {
                continue;
            };
            self.sources.follow(&ServiceState::default(), state);
            let expected = expectation(state, &self.node);
            self.not_followed += u64::from(expected.not_followed);
            for port in &expected.ports {
                kept.extend(self.adopt_port(name, port, &installed, &frontends, now, &mut draft));
            }
        }
        self.discard(&installed, &frontends, &kept, &mut draft);
        self.sources.adopt(installed.sources);
        self.sources.settle(&self.node, true, &mut draft);
        self.settle_claims(view, &mut draft);
        self.use_room(view, &mut draft);
        draft.into_changes()
    }

    /// Gives each Service port the id that one of its frontends stands under.
    fn adopt_ids(
        &mut self,
        view: &ClusterView,
        names: &[&ObjectName],
        frontends: &HashMap<FrontendKey, FrontendValue>,
    ) {
        self.each_port(view, names, |planner, name, port| {
            let standing = port.frontends.iter().filter_map(|f| frontends.get(&f.key));
            for value in standing {
                if planner.registry.adopt(value.service, name, port) {
                    break;
                }
            }
        });
    }

    /// Leaves every frontend with the id it stands under, if that still claims it.
    fn adopt_owners(
        &mut self,
        view: &ClusterView,
        names: &[&ObjectName],
        frontends: &HashMap<FrontendKey, FrontendValue>,
    ) {
        self.each_port(view, names, |planner, name, port| {
            let Some(id) = planner.registry.active(name, port) else {
                return;
            };
            for frontend in &port.frontends {
                if frontends
                    .get(&frontend.key)
                    .is_some_and(|value| value.service == id)
                {
                    planner.owners.insert(frontend.key, id);
                }
            }
        });
    }

    fn each_port(
        &mut self,
        view: &ClusterView,
        names: &[&ObjectName],
        mut act: impl FnMut(&mut Self, &ObjectName, &PortExpectation),
    ) {
        for name in names {
            let Expectation { ports, .. } = match view.state(name) {
                Some(state) => expectation(state, &self.node),
                None => continue,
            };
            for port in &ports {
                act(self, name, port);
            }
        }
    }

    /// Plans what differs for one Service port; returns its id.
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
        let standing = endpoints_of(&installed.endpoints, id);
        for endpoint in &port.endpoints {
            let (key, value) = (endpoint.key(id), endpoint.value());
            let stands = standing.binary_search_by_key(&key, |(key, _)| *key);
            if stands.ok().is_none_or(|at| standing[at].1 != value) {
                draft.put_endpoint(key, value);
            }
        }
        self.registry.set_endpoints(id, port.endpoints.len());
        for (key, value) in standing {
            let expected = port
                .endpoints
                .binary_search_by_key(&(key.address, key.port), |e| (e.address, e.port));
            match expected {
                Ok(_) => {}
                // When it left is not known any more; it counts from now.
                Err(_) if value.flags & endpoint_flag::LEFT != 0 => self.retired.insert(*key, now),
                Err(_) => self.retire(*key, *value, now, draft),
            }
        }
        for frontend in &port.frontends {
            let stands = frontends.get(&frontend.key).copied();
            let value = frontend.value(id);
            draft.claim(Claim {
                id,
                key: frontend.key,
                value,
                stands,
            });
        }
        Some(id)
    }

    /// Takes out what belongs to nothing that is expected.
    fn discard(
        &mut self,
        installed: &Installed,
        frontends: &HashMap<FrontendKey, FrontendValue>,
        kept: &HashSet<u32>,
        draft: &mut Draft,
    ) {
        for key in frontends
            .keys()
            .filter(|key| !self.owners.contains_key(*key))
        {
            draft.release(*key);
        }
        for (key, _) in &installed.endpoints {
            if !kept.contains(&key.service) {
                draft.delete_endpoint(*key);
            }
        }
    }
}

fn endpoints_of(
    sorted: &[(EndpointKey, EndpointValue)],
    id: u32,
) -> &[(EndpointKey, EndpointValue)] {
    let from = sorted.partition_point(|(key, _)| key.service < id);
    let to = sorted.partition_point(|(key, _)| key.service <= id);
    &sorted[from..to]
}
