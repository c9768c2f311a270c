//! Endpoints that left, as addresses that pods may still dial.
//!
//! Where sockets are translated a pod's connection has an endpoint's address before any hook sees it. Rules
//! that are late show there alone: pods go on dialling an endpoint that left. So its address stands in the
//! map of frontends for a while, flagged `DEPARTED`. Whoever dials pods by their own addresses looks the
//! same; the ledger names such connections and accuses no node.

use std::collections::BTreeMap;

use agent_common::service::{
    EndpointKey, FAMILIES, Family, FrontendKey, FrontendKind, FrontendValue, Owed, TCP, UDP,
    frontend_flag,
};

use super::draft::Draft;
use super::{MapChange, Planner};
use crate::cluster::Protocol;
use crate::time::Mono;
use crate::view::ClusterView;

/// Addresses that stand in the map at a time; further ones are not watched.
const WATCHED: usize = 1_024;

/// Endpoints that left and whose addresses are watched.
#[derive(Debug, Default)]
pub(super) struct Departed {
    wanted: [bool; FAMILIES],
    standing: BTreeMap<FrontendKey, EndpointKey>,
    /// Those that left before were looked at.
    looked: Option<Mono>,
}

impl Departed {
    /// The map had no room for it.
    pub(super) fn found_no_place(&mut self, key: &FrontendKey) {
        self.standing.remove(key);
    }
}

impl Planner {
    /// Sets the families in which pods' connections are translated before they can be seen.
    pub fn watch_sockets(&mut self, families: [bool; FAMILIES]) {
        if self.departed.wanted != families {
            self.departed.wanted = families;
            self.departed.looked = None;
        }
    }

    /// Watches the addresses of endpoints that left since the last time, unless they are endpoints of
    /// another Service.
    pub(super) fn watch_departed(&mut self, view: &ClusterView, now: Mono, draft: &mut Draft) {
        let looked = self.departed.looked.replace(now);
        let is_new = |left: &Mono| looked.is_none_or(|looked| *left >= looked);
        let left = self.retired.iter().filter(|(_, left)| is_new(left));
        let mut found: BTreeMap<FrontendKey, EndpointKey> = left
            .filter(|(key, _)| self.departed.wanted[Family::of(&key.address) as usize])
            .filter_map(|(key, _)| Some((self.address_of(key)?, *key)))
            .collect();
        if found.is_empty() || !self.shortage.frontends.is_empty() {
            return;
        }
        forget_current(view, &mut found);
        for (key, endpoint) in found {
            let full = self.departed.standing.len() >= WATCHED;
            if full || self.owners.contains_key(&key) || self.departed.standing.contains_key(&key) {
                continue;
            }
            self.departed.standing.insert(key, endpoint);
            let value = FrontendValue {
                service: endpoint.service,
                kind: FrontendKind::ExternalIp as u8,
                flags: frontend_flag::DEPARTED,
                owed: [Owed::Forward, Owed::Nothing, Owed::Nothing].map(|owed| owed as u8),
                padding: [0; 3],
            };
            draft.push(MapChange::PutFrontend { key, value });
        }
    }

    /// Watches no address any more whose endpoint came back, or is forgotten.
    pub(super) fn forget_departed(&mut self, draft: &mut Draft) {
        let (retired, owners) = (&self.retired, &self.owners);
        let wanted = self.departed.wanted;
        self.departed.standing.retain(|key, endpoint| {
            let wanted = wanted[Family::of(&key.address) as usize];
            let stays = wanted && retired.contains_key(endpoint) && !owners.contains_key(key);
            if !stays && !owners.contains_key(key) {
                draft.released.insert(*key);
            }
            stays
        });
    }

    /// The address is a current endpoint's from now on.
    pub(super) fn stop_watching(&mut self, endpoint: &EndpointKey, draft: &mut Draft) {
        if self.departed.standing.is_empty() {
            return;
        }
        if let Some(key) = self.address_of(endpoint)
            && self.departed.standing.remove(&key).is_some()
            && !self.owners.contains_key(&key)
        {
            draft.released.insert(key);
        }
    }

    /// Frontends lack the room that these take.
    pub(super) fn stop_watching_all(&mut self, draft: &mut Draft) {
        let standing = std::mem::take(&mut self.departed.standing).into_keys();
        let own = standing.filter(|key| !self.owners.contains_key(key));
        draft.released.extend(own);
    }

    /// What is dialled to reach an endpoint by its own address.
    fn address_of(&self, endpoint: &EndpointKey) -> Option<FrontendKey> {
        let slot = self.registry.slot(endpoint.service)?;
        Some(FrontendKey {
            address: endpoint.address,
            port: endpoint.port,
            protocol: number(slot.protocol),
            padding: 0,
        })
    }
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Udp => UDP,
        _ => TCP,
    }
}

/// Takes out addresses that another Service may send connections to.
fn forget_current(view: &ClusterView, found: &mut BTreeMap<FrontendKey, EndpointKey>) {
    for slice in view.states().flat_map(|(_, state)| &state.slices) {
        for port in slice
            .ports
            .iter()
            .filter(|of| of.protocol != Protocol::Sctp)
        {
            let current = slice
                .endpoints
                .iter()
                .filter(|one| one.ready || one.serving);
            for endpoint in current {
                found.remove(&FrontendKey {
                    address: endpoint.address,
                    port: port.port.to_be_bytes(),
                    protocol: number(port.protocol),
                    padding: 0,
                });
            }
        }
    }
}
