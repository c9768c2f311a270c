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

    /// Plans the changes to the wanted prefixes. Deletions come first, so that their room can be used.
    /// Prefixes for which there was no room are tried again.
    pub(super) fn settle(&mut self, node: &NodeContext, draft: &mut Draft) {
        let wanted = node.sources();
        self.missing.clear();
        self.installed.retain(|prefix, _| {
            let stays = wanted.contains_key(prefix);
            if !stays {
                draft.push(MapChange::DeleteSource { prefix: *prefix });
            }
            stays
        });
        for (prefix, class) in wanted {
            if self.installed.insert(prefix, class) != Some(class) {
                draft.push(MapChange::PutSource { prefix, class });
            }
        }
    }

    /// Records that the map had no room for a prefix.
    pub(super) fn report_full(&mut self, prefix: SourcePrefix) {
        self.installed.remove(&prefix);
        self.missing.insert(prefix);
    }
}
