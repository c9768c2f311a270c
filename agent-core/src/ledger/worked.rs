//! Services that worked for this node's pods: only these accuse the node when they stop. One that was
//! never seen to work may be new, or denied.
//!
//! Not kept over a restart of the agent: 10,000 Services would be written again and again. A run of
//! failures that is remembered knows which of its Services accuse.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};

use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

use crate::evidence::ServiceInfo;
use crate::limits::FORGOTTEN;
use crate::time::Mono;

/// By the ids of evidence, of which there are as many as the kernel's maps hold. Names are hashes,
/// since a large node knows 10,000 of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Worked(BTreeMap<u32, Known>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    /// Of name and port: ids are used again.
    service: u64,
    namespace: u64,
    last: Mono,
}

impl Worked {
    /// A connection of a pod to that Service was proven.
    pub(crate) fn note(&mut self, id: u32, info: &ServiceInfo, at: Mono) {
        self.0.insert(id, Known::of(info, at));
    }

    /// Whether none ever was, of any Service.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one ever was.
    pub(crate) fn has(&self, id: u32, info: &ServiceInfo) -> bool {
        let known = self.0.get(&id);
        known.is_some_and(|known| *known == Known::of(info, known.last))
    }

    /// Number of namespaces of which this node's pods used Services in the last hour.
    pub(crate) fn namespaces(&self, now: Mono) -> usize {
        let in_use = |known: &&Known| now.since(known.last) <= FORGOTTEN;
        let namespaces = self.0.values().filter(in_use).map(|known| known.namespace);
        namespaces.collect::<BTreeSet<u64>>().len()
    }
}

impl Known {
    fn of(info: &ServiceInfo, last: Mono) -> Self {
        let mut hasher = FnvHasher::default();
        info.name.namespace.hash(&mut hasher);
        let namespace = hasher.finish();
        (&info.name.name, &info.port).hash(&mut hasher);
        Self {
            service: hasher.finish(),
            namespace,
            last,
        }
    }
}
