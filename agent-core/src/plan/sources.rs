//! Source prefixes: where a connection may come from so that it is a pod's or the node's own.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use agent_common::service::{Address, SourceClass};

use super::MapChange;
use super::draft::Draft;
use crate::expect::{NodeContext, SourcePrefix};
use crate::view::ServiceState;

/// The prefixes that stand in the map, and the pods of this node that Services show.
#[derive(Debug, Default)]
pub(super) struct Sources {
    installed: BTreeMap<SourcePrefix, SourceClass>,
    missing: BTreeSet<SourcePrefix>,
    /// Addresses of endpoints on this node, by how many slice entries have them.
    pods: HashMap<Address, u32>,
    pods_changed: bool,
}

impl Sources {
    /// Follows a Service's endpoints on this node.
    pub(super) fn follow(&mut self, before: &ServiceState, after: &ServiceState) {
        if std::ptr::eq(before, after) {
            return;
        }
        for address in local_addresses(after) {
            let count = self.pods.entry(address).or_insert(0);
            self.pods_changed |= *count == 0;
            *count += 1;
        }
        for address in local_addresses(before) {
            let Some(count) = self.pods.get_mut(&address) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.pods.remove(&address);
                self.pods_changed = true;
            }
        }
    }

    /// Takes over what stands in the map of an earlier agent.
    pub(super) fn adopt(&mut self, installed: Vec<(SourcePrefix, SourceClass)>) {
        self.installed = installed.into_iter().collect();
    }

    /// Brings the map to what is wanted now.
    pub(super) fn settle(&mut self, node: &NodeContext, node_changed: bool, draft: &mut Draft) {
        if !node_changed && !std::mem::take(&mut self.pods_changed) {
            return;
        }
        self.pods_changed = false;
        let wanted = self.wanted(node);
        for (&prefix, &class) in &wanted {
            if self.installed.get(&prefix) != Some(&class) && !self.missing.contains(&prefix) {
                self.installed.insert(prefix, class);
                draft.push(MapChange::PutSource { prefix, class });
            }
        }
        self.missing.retain(|prefix| wanted.contains_key(prefix));
        self.installed.retain(|prefix, _| {
            let stays = wanted.contains_key(prefix);
            if !stays {
                draft.push(MapChange::DeleteSource { prefix: *prefix });
            }
            stays
        });
    }

    fn wanted(&self, node: &NodeContext) -> BTreeMap<SourcePrefix, SourceClass> {
        let mut wanted = node.sources();
        let pods = self.pods.keys();
        let outside = pods.filter(|address| node.needs_own_source(address));
        wanted.extend(outside.map(|address| (SourcePrefix::host(*address), SourceClass::Pod)));
        wanted
    }

    /// Notes that a prefix found no place.
    pub(super) fn report_full(&mut self, prefix: SourcePrefix) {
        self.installed.remove(&prefix);
        self.missing.insert(prefix);
    }

    /// Tries up to `room` of those that found no place again.
    pub(super) fn use_room(&mut self, node: &NodeContext, room: &mut u64, draft: &mut Draft) {
        if *room == 0 || self.missing.is_empty() {
            return;
        }
        let wanted = self.wanted(node);
        while *room > 0
            && let Some(prefix) = self.missing.pop_first()
        {
            if let Some(class) = wanted.get(&prefix).copied() {
                self.installed.insert(prefix, class);
                draft.push(MapChange::PutSource { prefix, class });
                *room -= 1;
            }
        }
    }

    pub(super) fn missing(&self) -> u64 {
        self.missing.len() as u64
    }
}

fn local_addresses(state: &ServiceState) -> impl Iterator<Item = Address> {
    let endpoints = state.slices.iter().flat_map(|slice| &slice.endpoints);
    let local = endpoints.filter(|endpoint| endpoint.local);
    local.map(|endpoint| endpoint.address)
}
