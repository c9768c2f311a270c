//! Entries for which a map had no room, and their retries.
//!
//! A full map is a counted loss of coverage and never changes a verdict. If an endpoint of a Service port
//! is missing, the port's frontends are removed too; otherwise connections to that endpoint would count as
//! misrouted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pathproof_facts::cluster::{ObjectName, Protocol};
use pathproof_facts::directory::Missing;
use pathproof_facts::time::Mono;
use pathproof_facts::view::ClusterView;
use pathproof_wire::service::{EndpointKey, EndpointValue, Family, FrontendKey};

use super::draft::Draft;
use super::{MapChange, Planner};
use crate::expect::PortExpectation;

/// Expected entries that are missing from the maps.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// Frontends with the id that requests each.
    pub(super) frontends: BTreeSet<(FrontendKey, u32)>,
    pub(super) endpoints: BTreeMap<EndpointKey, EndpointValue>,
    /// Service ports without an id.
    services: BTreeSet<ServiceKey>,
    pub(super) room: Room,
}

type ServiceKey = (ObjectName, Arc<str>, Protocol, Family);

/// Entries that were freed and are not in use again.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) frontends: u64,
    endpoints: u64,
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

    pub(super) fn forget_service(&mut self, name: &ObjectName, port: &PortExpectation) {
        if !self.services.is_empty() {
            self.services.remove(&service_key(name, port));
        }
    }

    /// Records that a Service port has no id.
    pub(super) fn want_service(&mut self, name: &ObjectName, port: &PortExpectation) {
        self.services.insert(service_key(name, port));
    }

    /// The first id that waits for room for this frontend and has all its endpoints.
    pub(super) fn waiting_for(&self, key: FrontendKey) -> Option<u32> {
        let waiting = self.frontends.range((key, 0)..=(key, u32::MAX));
        waiting.map(|(_, id)| *id).find(|id| !self.is_blocked(*id))
    }

    /// Whether endpoints of an id are missing, so that its frontends must not be in the map.
    pub(super) fn is_blocked(&self, id: u32) -> bool {
        let first = EndpointKey {
            service: id,
            ..EndpointKey::default()
        };
        let next = self.endpoints.range(first..).next();
        next.is_some_and(|(key, _)| key.service == id)
    }
}

fn service_key(name: &ObjectName, port: &PortExpectation) -> ServiceKey {
    let name = name.clone();
    (name, Arc::clone(&port.port), port.protocol, port.family)
}

impl Planner {
    /// Records changes that failed because their map was full, and returns the reaction: frontends
    /// with missing endpoints are withheld, and removed endpoints are deleted to make room. Apply
    /// it like a plan, and report its failures.
    pub fn report_full(
        &mut self,
        view: &ClusterView,
        failed: &[MapChange],
        now: Mono,
    ) -> Vec<MapChange> {
        let mut draft = Draft::at(now);
        for change in failed {
            match *change {
                MapChange::PutSource { prefix, .. } => self.sources.report_full(prefix),
                MapChange::PutEndpoint { key, value }
                | MapChange::UpdateEndpoint { key, value } => {
                    self.shortage.endpoints.insert(key, value);
                }
                // If the id still holds the frontend, it now waits for room.
                MapChange::PutFrontend { key, value }
                    if self.owners.get(&key) == Some(&value.service) =>
                {
                    self.owners.remove(&key);
                    self.shortage.frontends.insert((key, value.service));
                    self.stop_watching_all(&mut draft);
                }
                // Another Service got the frontend since, or the entry only watched a removed endpoint.
                MapChange::PutFrontend { key, .. } => {
                    self.departed.standing.remove(&key);
                }
                _ => {}
            }
        }
        self.withhold(&mut draft);
        for key in draft.released.clone() {
            self.hand_over(view, key, &mut draft);
        }
        if !self.shortage.endpoints.is_empty() {
            let oldest = self.oldest_retired(Mono(u64::MAX)).into_iter();
            for key in oldest.take(self.shortage.endpoints.len()) {
                self.take_retired(&key);
                draft.evict(key);
            }
        }
        self.use_room(view, &mut draft);
        draft.into_changes()
    }

    /// Withholds the frontends of ids with missing endpoints.
    fn withhold(&mut self, draft: &mut Draft) {
        self.owners.retain(|key, id| {
            let stays = !self.shortage.is_blocked(*id);
            if !stays {
                self.shortage.frontends.insert((*key, *id));
                draft.released.insert(*key);
            }
            stays
        });
    }

    /// Adds entries that did not fit to the plan again, as many as fit into the room that it frees.
    pub(super) fn use_room(&mut self, view: &ClusterView, draft: &mut Draft) {
        // Room that earlier plans freed is forgotten if nothing is missing. Room that this plan frees is
        // remembered even then: one of its puts may come before the delete that frees room, and fail.
        if self.missing() == Missing::default() {
            self.shortage.room = Room::default();
        }
        let room = &mut self.shortage.room;
        room.frontends += draft.released.len() as u64;
        room.endpoints += draft.freed_endpoints;
        draft.retrying = true;
        self.retry_services(view, draft);
        self.retry_endpoints(draft);
        self.retry_frontends(view, draft);
    }

    fn retry_services(&mut self, view: &ClusterView, draft: &mut Draft) {
        while self.registry.has_free()
            && let Some(key) = self.shortage.services.pop_first()
        {
            let Some(state) = view.state(&key.0) else {
                continue;
            };
            let expected = self.expected(&key.0, state);
            let mut ports = expected.ports.iter();
            if let Some(port) = ports.find(|port| service_key(&key.0, port) == key) {
                self.change_port(&key.0, None, port, draft);
            }
        }
        self.settle_all(draft);
    }

    fn retry_endpoints(&mut self, draft: &mut Draft) {
        while self.shortage.room.endpoints > 0
            && let Some((key, value)) = self.shortage.endpoints.pop_first()
        {
            self.shortage.room.endpoints -= 1;
            draft.push(MapChange::PutEndpoint { key, value });
        }
    }

    fn retry_frontends(&mut self, view: &ClusterView, draft: &mut Draft) {
        if self.shortage.room.frontends == 0 {
            return;
        }
        let mut waiting: Vec<_> = self.shortage.frontends.iter().copied().collect();
        waiting.retain(|(_, id)| !self.shortage.is_blocked(*id));
        for (key, id) in waiting {
            if self.shortage.room.frontends == 0 {
                break;
            }
            // A frontend that another Service holds needs no new entry.
            if !self.owners.contains_key(&key) {
                self.shortage.room.frontends -= 1;
            }
            self.shortage.frontends.remove(&(key, id));
            self.request_again(view, id, key, draft);
        }
    }
}
