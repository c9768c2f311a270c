//! What found no place in a map, and how it tries again.
//!
//! A full map is a loss of coverage that is counted, never a verdict: a Service port of which an
//! endpoint is missing has its frontends taken out too, or connections to that endpoint would
//! look misrouted.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use agent_common::service::{EndpointKey, EndpointValue, Family, FrontendKey};

use super::diff::{Claim, Draft};
use super::{MapChange, Missing, Planner};
use crate::cluster::{ObjectName, Protocol};
use crate::expect::{PortExpectation, expectation};
use crate::view::ClusterView;

/// What is expected and does not stand in the maps.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// Frontends, each with the id that claims it.
    pub(super) frontends: BTreeSet<(FrontendKey, u32)>,
    /// Endpoints.
    pub(super) endpoints: BTreeMap<EndpointKey, EndpointValue>,
    /// Service ports that got no id.
    services: BTreeSet<(ObjectName, Arc<str>, Protocol, Family)>,
    room: Room,
}

/// Places that became free and were not used again.
#[derive(Debug, Default)]
struct Room {
    frontends: u64,
    endpoints: u64,
    sources: u64,
}

impl Shortage {
    pub(super) fn missing(&self, sources: u64) -> Missing {
        Missing {
            frontends: self.frontends.len() as u64,
            endpoints: self.endpoints.len() as u64,
            sources,
            services: self.services.len() as u64,
        }
    }

    /// Forgets that a Service port got no id.
    pub(super) fn forget_service(&mut self, name: &ObjectName, port: &PortExpectation) {
        if !self.services.is_empty() {
            self.services.remove(&service_key(name, port));
        }
    }

    /// Notes that a Service port got no id.
    pub(super) fn want_service(&mut self, name: &ObjectName, port: &PortExpectation) {
        self.services.insert(service_key(name, port));
    }

    pub(super) fn remove_frontend(&mut self, key: &FrontendKey, id: u32) {
        self.frontends.remove(&(*key, id));
    }

    /// Whether the endpoint was among the missing.
    pub(super) fn remove_endpoint(&mut self, key: &EndpointKey) -> bool {
        self.endpoints.remove(key).is_some()
    }

    /// Changes the value of a missing endpoint; false where it is not missing.
    pub(super) fn amend_endpoint(&mut self, key: EndpointKey, value: EndpointValue) -> bool {
        match self.endpoints.get_mut(&key) {
            Some(known) => {
                *known = value;
                true
            }
            None => false,
        }
    }

    /// Whether endpoints of an id are missing, so that its frontends must not stand.
    pub(super) fn is_blocked(&self, id: u32) -> bool {
        self.endpoints.range(endpoints_of(id)).next().is_some()
    }

    fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.endpoints.is_empty() && self.services.is_empty()
    }
}

fn service_key(
    name: &ObjectName,
    port: &PortExpectation,
) -> (ObjectName, Arc<str>, Protocol, Family) {
    let name = name.clone();
    (name, Arc::clone(&port.port), port.protocol, port.family)
}

fn endpoints_of(id: u32) -> RangeInclusive<EndpointKey> {
    let first = EndpointKey {
        service: id,
        ..EndpointKey::default()
    };
    let last = EndpointKey {
        service: id,
        address: [0xff; 16],
        port: [0xff; 2],
        padding: [0xff; 2],
    };
    first..=last
}

impl Planner {
    /// Takes note of changes that were not made because their map was full, and returns what to do
    /// about it: frontends whose endpoints are missing are withheld, endpoints that left make
    /// room. Apply that like a plan, and report what fails of it.
    pub fn report_full(&mut self, view: &ClusterView, failed: &[MapChange]) -> Vec<MapChange> {
        let mut draft = Draft::default();
        let mut short = BTreeSet::new();
        for change in failed {
            match *change {
                MapChange::PutSource { prefix, .. } => self.sources.report_full(prefix),
                MapChange::PutEndpoint { key, value } => {
                    self.shortage.endpoints.insert(key, value);
                    short.insert(key.service);
                }
                MapChange::PutFrontend { key, value } => {
                    if self.owners.get(&key) == Some(&value.service) {
                        self.owners.remove(&key);
                    }
                    self.shortage.frontends.insert((key, value.service));
                }
                _ => {}
            }
        }
        for id in short {
            self.withhold(view, id, &mut draft);
        }
        for key in draft.released() {
            self.hand_over(view, key, &mut draft);
        }
        for _ in 0..self.shortage.endpoints.len() {
            let Some(key) = self.retired.pop_oldest() else {
                break;
            };
            draft.delete_endpoint(key);
        }
        self.use_room(view, &mut draft);
        draft.into_changes()
    }

    /// Takes out the frontends of an id whose endpoints do not all stand.
    fn withhold(&mut self, view: &ClusterView, id: u32, draft: &mut Draft) {
        let Some(port) = self.expected_port(view, id) else {
            return;
        };
        for frontend in &port.frontends {
            if self.owners.get(&frontend.key) == Some(&id) {
                self.owners.remove(&frontend.key);
                self.shortage.frontends.insert((frontend.key, id));
                draft.release(frontend.key);
            }
        }
    }

    /// Lets what found no place try again in places that became free.
    pub(super) fn use_room(&mut self, view: &ClusterView, draft: &mut Draft) {
        self.account_room(draft);
        draft.begin_retries();
        let room = self.shortage.room.sources;
        self.shortage.room.sources = self.sources.use_room(&self.node, room, draft);
        self.retry_services(view, draft);
        self.retry_endpoints(view, draft);
        self.retry_frontends(view, draft);
    }

    fn account_room(&mut self, draft: &Draft) {
        // A put that fails may have come before a delete of the same plan, so the room of one
        // plan is kept until the next even while nothing is missing.
        if self.shortage.is_empty() && self.sources.missing() == 0 {
            self.shortage.room = Room::default();
        }
        self.shortage.room.frontends += draft.freed_frontends();
        self.shortage.room.endpoints += draft.freed_endpoints;
        self.shortage.room.sources += draft.freed_sources;
    }

    fn retry_services(&mut self, view: &ClusterView, draft: &mut Draft) {
        while self.registry.has_free()
            && let Some((name, port, protocol, family)) = self.shortage.services.pop_first()
        {
            let Some(state) = view.state(&name) else {
                continue;
            };
            let expected = expectation(state, &self.node);
            let again = expected.ports.iter().find(|other| {
                other.port == port && other.protocol == protocol && other.family == family
            });
            if let Some(again) = again {
                self.change_port(&name, None, again, draft);
            }
        }
        for claim in draft.take_claims() {
            self.settle(claim, draft);
        }
    }

    fn retry_endpoints(&mut self, view: &ClusterView, draft: &mut Draft) {
        let mut tried = BTreeSet::new();
        while self.shortage.room.endpoints > 0
            && let Some((key, value)) = self.shortage.endpoints.pop_first()
        {
            self.shortage.room.endpoints -= 1;
            draft.put_endpoint(key, value);
            tried.insert(key.service);
        }
        for id in tried {
            if !self.shortage.is_blocked(id) {
                self.readmit(view, id, draft);
            }
        }
    }

    /// Claims the withheld frontends of an id whose endpoints all stand again.
    fn readmit(&mut self, view: &ClusterView, id: u32, draft: &mut Draft) {
        let Some(port) = self.expected_port(view, id) else {
            return;
        };
        for frontend in &port.frontends {
            if self.shortage.frontends.remove(&(frontend.key, id)) {
                let value = frontend.value(id);
                self.settle(
                    Claim {
                        id,
                        key: frontend.key,
                        value,
                        stands: None,
                    },
                    draft,
                );
            }
        }
    }

    fn retry_frontends(&mut self, view: &ClusterView, draft: &mut Draft) {
        if self.shortage.room.frontends == 0 || self.shortage.frontends.is_empty() {
            return;
        }
        let waiting: Vec<(FrontendKey, u32)> = self
            .shortage
            .frontends
            .iter()
            .filter(|(_, id)| !self.shortage.is_blocked(*id))
            .copied()
            .collect();
        for (key, id) in waiting {
            if self.shortage.room.frontends == 0 {
                break;
            }
            self.shortage.room.frontends -= 1;
            self.shortage.frontends.remove(&(key, id));
            if let Some(value) = self.expected_frontend(view, id, &key) {
                self.settle(
                    Claim {
                        id,
                        key,
                        value,
                        stands: None,
                    },
                    draft,
                );
            }
        }
    }
}
