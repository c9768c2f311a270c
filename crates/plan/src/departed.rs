//! Addresses of removed endpoints, which pods may still dial.
//!
//! If connections are translated at the socket, no hook sees which frontend a pod dialled. Late rules then
//! show only as connections of pods to a removed endpoint. So its address stays in the map of frontends for
//! some time, with the flag `DEPARTED`. (Its entry in the map of endpoints, with the flag `LEFT`, is in the
//! planner's `retired`.) Clients that dial a pod's address directly cannot be distinguished, so the ledger
//! reports such connections without accusing a node.

use std::collections::{BTreeMap, HashMap};

use pathproof_facts::cluster::{Protocol, SlicePort};
use pathproof_facts::view::ClusterView;
use pathproof_wire::service::{
    EndpointKey, ExpectedHandling, FAMILIES, Family, FrontendKey, FrontendKind, FrontendValue, TCP,
    UDP, frontend_flag,
};

use super::draft::Draft;
use super::{MapChange, Planner};
use crate::expect::{Frontend, frontend_key};

/// Maximum number of addresses in the map; further ones are not watched.
const WATCHED: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Departed {
    wanted: [bool; FAMILIES],
    pub(super) standing: BTreeMap<FrontendKey, EndpointKey>,
}

impl Departed {
    /// Stops watching the addresses for which `stays` is false. If a frontend took over an address, its
    /// entry stays in the map.
    fn let_go(
        &mut self,
        owners: &HashMap<FrontendKey, u32>,
        draft: &mut Draft,
        stays: impl Fn(&FrontendKey, &EndpointKey) -> bool,
    ) {
        self.standing.retain(|key, endpoint| {
            let is_taken = owners.contains_key(key) || draft.released.contains(key);
            let stays = !is_taken && stays(key, endpoint);
            if !is_taken && !stays {
                draft.released.insert(*key);
            }
            stays
        });
    }
}

impl Planner {
    /// Sets the families in which pods' connections are translated before the observer sees them.
    pub fn watch_sockets(&mut self, families: [bool; FAMILIES]) {
        self.departed.wanted = families;
    }

    /// Watches the addresses of removed endpoints while no Service has them as an endpoint.
    pub(super) fn watch_departed(&mut self, view: &ClusterView, draft: &mut Draft) {
        let wanted = self.departed.wanted;
        let left = self.retired.keys().filter(|key| {
            wanted[Family::of(&key.address) as usize] && !self.is_sentinel(key.service)
        });
        let mut found: BTreeMap<FrontendKey, EndpointKey> = left
            .filter_map(|key| Some((self.address_of(key)?, *key)))
            .filter(|(key, _)| !self.owners.contains_key(key))
            .collect();
        if !found.is_empty() {
            forget_current(view, &mut found);
        }
        // If two Services lost the endpoint at different times, watch it for the one that still remembers it.
        (self.departed).let_go(&self.owners, draft, |key, at| found.get(key) == Some(at));
        if !self.shortage.frontends.is_empty() {
            return;
        }
        for (key, endpoint) in found {
            let room = self.departed.standing.len() < WATCHED;
            if room && !self.departed.standing.contains_key(&key) {
                self.departed.standing.insert(key, endpoint);
                let value = value(key, endpoint.service);
                draft.push(MapChange::PutFrontend { key, value });
            }
        }
    }

    /// Stops watching addresses whose endpoint came back or is forgotten.
    pub(super) fn forget_departed(&mut self, draft: &mut Draft) {
        let retired = &self.retired;
        (self.departed).let_go(&self.owners, draft, |_, at| retired.contains_key(at));
    }

    /// Stops watching the address of a current endpoint.
    pub(super) fn stop_watching(&mut self, endpoint: &EndpointKey, draft: &mut Draft) {
        if !self.departed.standing.is_empty()
            && let Some(address) = self.address_of(endpoint)
            && self.departed.standing.contains_key(&address)
        {
            (self.departed).let_go(&self.owners, draft, |key, _| *key != address);
        }
    }

    /// Stops watching all addresses, because frontends need the room.
    pub(super) fn stop_watching_all(&mut self, draft: &mut Draft) {
        (self.departed).let_go(&self.owners, draft, |_, _| false);
    }

    /// Address and port of an endpoint, as direct clients dial it.
    fn address_of(&self, endpoint: &EndpointKey) -> Option<FrontendKey> {
        let slot = self.registry.slot(endpoint.service)?;
        let protocol = number(slot.protocol);
        Some(frontend_key(endpoint.address, endpoint.port, protocol))
    }
}

fn value(key: FrontendKey, service: u32) -> FrontendValue {
    use ExpectedHandling::{Forward, Nothing};
    let watched = Frontend {
        key,
        kind: FrontendKind::ExternalIp,
        handling: [Forward, Nothing, Nothing],
        flags: frontend_flag::DEPARTED,
    };
    watched.value(service)
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Udp => UDP,
        _ => TCP,
    }
}

/// Removes addresses that some Service may send connections to. Terminating endpoints do not count: their
/// Service has removed them already, and other Services will soon.
fn forget_current(view: &ClusterView, found: &mut BTreeMap<FrontendKey, EndpointKey>) {
    for slice in view.states().flat_map(|(_, state)| &state.slices) {
        let followed = |port: &&SlicePort| port.protocol != Protocol::Sctp;
        for port in slice.ports.iter().filter(followed) {
            let (number, protocol) = (port.port.to_be_bytes(), number(port.protocol));
            for endpoint in slice.endpoints.iter().filter(|one| one.ready) {
                found.remove(&frontend_key(endpoint.address, number, protocol));
            }
        }
    }
}
