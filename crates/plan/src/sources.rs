//! Source prefixes, which identify connections of pods and of the node itself.
//!
//! The prefixes are derived from the Node alone, not from endpoints: anybody who can write a slice could
//! declare any address to be a pod's of this node. Pods outside the Node's ranges are recognised by their
//! device.

use std::collections::{BTreeMap, BTreeSet};

use pathproof_facts::node_context::{NodeContext, SourcePrefix};
use pathproof_wire::service::SourceClass;

use super::MapChange;
use super::draft::Draft;

/// The prefixes in the map.
#[derive(Debug, Default)]
pub(super) struct Sources {
    installed: BTreeMap<SourcePrefix, SourceClass>,
    pub(super) missing: BTreeSet<SourcePrefix>,
}

impl Sources {
    pub(super) fn adopt(&mut self, installed: Vec<(SourcePrefix, SourceClass)>) {
        self.installed = installed.into_iter().collect();
    }

    /// Plans the changes to the wanted prefixes.
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

    /// Records that the map had no room for a prefix.
    pub(super) fn report_full(&mut self, prefix: SourcePrefix) {
        self.installed.remove(&prefix);
        self.missing.insert(prefix);
    }

    /// Retries up to `room` prefixes that had no room.
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
}
