//! The last reported state of the cluster: facts by Service, changed in batches.
//!
//! The view stores facts and nothing derived from them, so that 100,000 endpoints are stored once.
//! Expectations are computed from a [`ServiceState`] where they are needed (`pathproof_plan::expect`). This
//! module must not decide anything about routing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::cluster::{Change, NodeFacts, ObjectName, ServiceFacts, SliceFacts};

/// A Service and its slices at one moment. Cheap to clone, because the facts are shared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceState {
    /// The Service; `None` if only slices are known so far (then there is no expectation).
    pub service: Option<Arc<ServiceFacts>>,
    /// Slices of the Service, sorted by name.
    pub slices: Vec<Arc<SliceFacts>>,
}

impl ServiceState {
    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }

    fn put_slice(&mut self, slice: Arc<SliceFacts>) -> bool {
        match self
            .slices
            .binary_search_by(|known| known.name.cmp(&slice.name))
        {
            Ok(at) if self.slices[at] == slice => false,
            Ok(at) => {
                self.slices[at] = slice;
                true
            }
            Err(at) => {
                // Reserve room for one slice only: most Services have one, and a vector that grows by
                // itself reserves room for four.
                self.slices.reserve_exact(1);
                self.slices.insert(at, slice);
                true
            }
        }
    }

    fn remove_slice(&mut self, name: &ObjectName) -> bool {
        match self.slices.binary_search_by(|known| known.name.cmp(name)) {
            Ok(at) => {
                self.slices.remove(at);
                true
            }
            Err(_) => false,
        }
    }
}

/// Changes that one batch made to the view. The state before it is here; the state after it is in the view.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// The changed Services, each in its state before the batch.
    pub before: BTreeMap<ObjectName, ServiceState>,
    /// Whether the batch completed the first delivery.
    pub synced: bool,
}

/// The part of the cluster that this node's routing depends on.
#[derive(Debug, Default)]
pub struct ClusterView {
    node: Option<Arc<NodeFacts>>,
    services: HashMap<ObjectName, ServiceState>,
    peers: BTreeMap<u16, Arc<str>>,
    synced: bool,
}

impl ClusterView {
    /// An empty view that is not synced.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a whole batch and returns its changes. A slice that moves to another Service must first be
    /// removed from the old one ([`Change::SliceGone`]).
    pub fn apply(&mut self, batch: Vec<Change>) -> Applied {
        let mut applied = Applied::default();
        for change in batch {
            match change {
                Change::Node(facts) => self.node = Some(facts),
                Change::NodeGone => self.node = None,
                Change::Service(facts) => self.put_service(facts, &mut applied),
                Change::ServiceGone(name) => {
                    self.change(name, &mut applied, |state| state.service.take().is_some())
                }
                Change::Slice(facts) => {
                    let owner = ObjectName {
                        namespace: Arc::clone(&facts.name.namespace),
                        name: Arc::clone(&facts.service),
                    };
                    self.change(owner, &mut applied, |state| state.put_slice(facts));
                }
                Change::SliceGone { slice, service } => {
                    let owner = ObjectName {
                        namespace: Arc::clone(&slice.namespace),
                        name: service,
                    };
                    self.change(owner, &mut applied, |state| state.remove_slice(&slice));
                }
                Change::Peers(names) => self.peers.extend(names),
                Change::Synced => {
                    applied.synced |= !self.synced;
                    self.synced = true;
                }
            }
        }
        self.forget_unchanged(&mut applied);
        applied
    }

    /// This node, if its object is known.
    pub fn node(&self) -> Option<&NodeFacts> {
        self.node.as_deref()
    }

    pub fn peer(&self, number: u16) -> Option<&Arc<str>> {
        self.peers.get(&number)
    }

    /// Whether the initial view was delivered completely.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// A Service with its slices, if either is known.
    pub fn state(&self, name: &ObjectName) -> Option<&ServiceState> {
        self.services.get(name)
    }

    pub fn states(&self) -> impl Iterator<Item = (&ObjectName, &ServiceState)> {
        self.services.iter()
    }

    /// Number of known Services, without those that have only slices.
    pub fn service_count(&self) -> usize {
        self.services
            .values()
            .filter(|state| state.service.is_some())
            .count()
    }

    fn put_service(&mut self, facts: Arc<ServiceFacts>, applied: &mut Applied) {
        self.change(facts.name.clone(), applied, |state| {
            if state.service.as_ref() == Some(&facts) {
                return false;
            }
            state.service = Some(facts);
            true
        });
    }

    /// Runs `edit` on the state of a Service, and keeps the previous state if `edit` changed it.
    fn change(
        &mut self,
        name: ObjectName,
        applied: &mut Applied,
        edit: impl FnOnce(&mut ServiceState) -> bool,
    ) {
        let state = self.services.entry(name.clone()).or_default();
        let before = (!applied.before.contains_key(&name)).then(|| state.clone());
        let changed = edit(state);
        if state.is_empty() {
            self.services.remove(&name);
        }
        if let (true, Some(before)) = (changed, before) {
            applied.before.insert(name, before);
        }
    }

    /// Drops Services that the batch changed and changed back.
    fn forget_unchanged(&self, applied: &mut Applied) {
        let nothing = ServiceState::default();
        applied
            .before
            .retain(|name, before| self.state(name).unwrap_or(&nothing) != before);
    }
}

#[cfg(test)]
mod tests;
