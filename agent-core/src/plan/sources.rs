//! Source prefixes: where a connection may come from so that it is a pod's or the node's own.
//!
//! They follow from the Node alone. An endpoint that names this node proves nothing: whoever may write a
//! slice would make any address a pod's. Pods beyond the ranges are known by their device.

use std::collections::{BTreeMap, BTreeSet};

use agent_common::service::SourceClass;

use super::MapChange;
use super::draft::Draft;
use crate::expect::{NodeContext, SourcePrefix};

/// The prefixes that stand in the map.
#[derive(Debug, Default)]
pub(super) struct Sources {
    installed: BTreeMap<SourcePrefix, SourceClass>,
    missing: BTreeSet<SourcePrefix>,
}

impl Sources {
    /// Takes over what stands in the map of an earlier agent.
    pub(super) fn adopt(&mut self, installed: Vec<(SourcePrefix, SourceClass)>) {
        self.installed = installed.into_iter().collect();
    }

    /// Brings the map to what is wanted now.
    pub(super) fn settle(&mut self, node: &NodeContext, draft: &mut Draft) {
        let wanted = node.sources();
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
        let wanted = node.sources();
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
