//! The planner with simulated kernel maps. The maps fail the test if a plan breaks a rule.

use std::collections::BTreeMap;
use std::time::Duration;

use pathproof_facts::cluster::Change;
use pathproof_facts::node_context::SourcePrefix;
use pathproof_facts::time::Mono;
use pathproof_facts::view::ClusterView;
use pathproof_wire::service::{
    EndpointKey, EndpointValue, ExpectedHandling, FrontendKey, FrontendValue, SourceClass,
    endpoint_flag,
};

use crate::{Installed, MapChange, Planner};

/// The maps as a kernel would have them, with limited room.
#[derive(Debug, Clone)]
pub(super) struct Maps {
    pub(super) frontends: BTreeMap<FrontendKey, FrontendValue>,
    pub(super) endpoints: BTreeMap<EndpointKey, EndpointValue>,
    pub(super) sources: BTreeMap<SourcePrefix, SourceClass>,
    /// Room for frontends, endpoints and sources.
    pub(super) room: [usize; 3],
}

pub(super) const UNBOUNDED: [usize; 3] = [usize::MAX; 3];

fn fits<K: Ord, V>(map: &BTreeMap<K, V>, key: &K, room: usize) -> bool {
    map.len() < room || map.contains_key(key)
}

impl Maps {
    pub(super) fn new(room: [usize; 3]) -> Self {
        Self {
            frontends: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            sources: BTreeMap::new(),
            room,
        }
    }

    /// Applies a change; returns false if there is no room.
    pub(super) fn apply(&mut self, change: &MapChange) -> bool {
        let [frontends, endpoints, sources] = self.room;
        match *change {
            MapChange::ResetCounts { .. } => {}
            MapChange::PutSource { prefix, class } => {
                if !fits(&self.sources, &prefix, sources) {
                    return false;
                }
                self.sources.insert(prefix, class);
            }
            MapChange::DeleteSource { prefix } => {
                assert!(self.sources.remove(&prefix).is_some(), "{change:?}");
            }
            MapChange::PutEndpoint { key, value } | MapChange::UpdateEndpoint { key, value } => {
                if !fits(&self.endpoints, &key, endpoints) {
                    return false;
                }
                assert_ne!(
                    self.endpoints.insert(key, value),
                    Some(value),
                    "change without effect: {change:?}"
                );
            }
            MapChange::PutFrontend { key, value } => {
                if !fits(&self.frontends, &key, frontends) {
                    return false;
                }
                assert_ne!(
                    self.frontends.insert(key, value),
                    Some(value),
                    "change without effect: {change:?}"
                );
            }
            MapChange::DeleteFrontend { key } => {
                assert!(self.frontends.remove(&key).is_some(), "{change:?}");
            }
            MapChange::RetireEndpoint { key, value } => {
                assert!(self.endpoints.insert(key, value).is_some(), "{change:?}");
            }
            MapChange::DeleteEndpoint { key } => {
                assert!(self.endpoints.remove(&key).is_some(), "{change:?}");
            }
        }
        true
    }

    /// Applies a plan, and returns the changes for which there was no room. The order is checked until the
    /// first such change, and not at all if the plan repairs an earlier one (`mends`).
    pub(super) fn run(&mut self, plan: &[MapChange], mends: bool) -> Vec<MapChange> {
        let mut failed = Vec::new();
        for change in plan {
            if !self.apply(change) {
                failed.push(*change);
            } else if failed.is_empty() && !mends {
                self.assert_order(change);
            }
        }
        if failed.is_empty() && !mends {
            self.assert_no_hole(plan);
        }
        failed
    }

    /// Checks that no entry that the plan deleted or retired is back in the maps. `DeleteEndpoint` is not
    /// checked: Service ids are reused, so its key may belong to another Service by now.
    fn assert_no_hole(&self, plan: &[MapChange]) {
        for change in plan {
            let stands = match change {
                MapChange::DeleteFrontend { key } => self.frontends.contains_key(key),
                MapChange::DeleteSource { prefix } => self.sources.contains_key(prefix),
                MapChange::RetireEndpoint { key, .. } => self.current().contains_key(key),
                _ => false,
            };
            assert!(!stands, "deleted and put again: {change:?} of {plan:?}");
        }
    }

    /// Checks that no frontend with expected forwarding is in the map while none of its endpoints is.
    pub(super) fn assert_order(&self, after: &MapChange) {
        for (key, value) in &self.frontends {
            let forward = !value.is_departed()
                && value
                    .owed
                    .iter()
                    .any(|owed| ExpectedHandling::from_byte(*owed).is_forward());
            let current = self.endpoints.iter().any(|(endpoint, value_of)| {
                endpoint.service == value.service && value_of.flags & endpoint_flag::LEFT == 0
            });
            assert!(
                !forward || current,
                "{key:?} has no endpoint after {after:?}"
            );
        }
    }

    pub(super) fn current(&self) -> BTreeMap<EndpointKey, EndpointValue> {
        let current = |value: &EndpointValue| value.flags & endpoint_flag::LEFT == 0;
        self.endpoints
            .iter()
            .filter(|(_, v)| current(v))
            .map(|(k, v)| (*k, *v))
            .collect()
    }

    pub(super) fn installed(&self) -> Installed {
        Installed {
            frontends: self.frontends.iter().map(|(k, v)| (*k, *v)).collect(),
            endpoints: self.endpoints.iter().map(|(k, v)| (*k, *v)).collect(),
            sources: self.sources.iter().map(|(k, v)| (*k, *v)).collect(),
        }
    }
}

/// View, planner and maps, wired as in the agent.
pub(super) struct World {
    pub(super) view: ClusterView,
    pub(super) planner: Planner,
    pub(super) maps: Maps,
    pub(super) now: Mono,
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            view: ClusterView::new(),
            planner: Planner::new(),
            maps: Maps::new(UNBOUNDED),
            now: Mono(1_000_000_000),
        }
    }

    pub(super) fn apply(&mut self, batch: Vec<Change>) -> Vec<MapChange> {
        let applied = self.view.apply(batch);
        let plan = self.planner.plan(&self.view, &applied, self.now);
        self.run(plan.clone());
        plan
    }

    pub(super) fn run(&mut self, mut plan: Vec<MapChange>) {
        for round in 0..1_000 {
            let failed = self.maps.run(&plan, round > 0);
            if failed.is_empty() {
                return;
            }
            plan = self.planner.report_full(&self.view, &failed, self.now);
        }
        panic!("the plans do not converge");
    }

    pub(super) fn expire(&mut self, after: Duration) -> Vec<MapChange> {
        self.now = self.now.plus(after);
        let plan = self.planner.expire(&self.view, self.now);
        self.run(plan.clone());
        plan
    }
}
