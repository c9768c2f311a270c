//! Connections to other nodes, as a sample reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use pathproof_wire::evidence::{Pending, PendingKey, state};
use pathproof_wire::service::{Family, NEAR, SourceClass, frontend_flag};
use serde::{Deserialize, Serialize};

use super::LARGE_TRANSFER_PORT;
use crate::evidence::ip_of;

/// Maximum length of each list of a [`PeerSample`].
pub(super) const LISTED: usize = 64;

/// Connections whose loss window ended since the previous sample, by destination node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSample {
    /// Sorted by family, number, range and device.
    pub counts: Vec<PeerCount>,
    /// Unanswered connections of all classes, grouped by common properties; at most 64 for each device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub departures: Vec<Departure>,
    /// Names of devices by index, as far as known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<u32, Arc<str>>,
    /// Unanswered connections of pods of this node, at most 64.
    pub silences: Vec<Silence>,
    /// Ids of Service ports with an endpoint on this node that answered another pod of this node, ascending.
    pub near: Vec<u32>,
    /// Ids of Service ports with an endpoint on this node that did not answer another pod of this node,
    /// ascending.
    pub near_silent: Vec<u32>,
    /// Connections to [`LARGE_TRANSFER_PORT`].
    #[serde(rename = "cuts")]
    pub large_transfer_failures: Vec<LargeTransferFailure>,
}

/// A connection to [`LARGE_TRANSFER_PORT`]. If the client is the pod probe, a large transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargeTransferFailure {
    pub family: Family,
    /// Id of the Service port and family.
    pub service: u32,
    pub client: IpAddr,
}

/// Connections to one range of a node's addresses that left by one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerCount {
    pub family: Family,
    /// Number of the node.
    pub peer: u16,
    /// The endpoints' range ([`range_of`](pathproof_wire::evidence::range_of)).
    pub range: u32,
    /// Index of the device by which their SYNs last left; 0 if unknown.
    pub device: u32,
    /// Connections that were answered, accepted or not.
    pub answered: u32,
    pub unanswered: u32,
}

/// A connection of a pod to another node's endpoint that stayed unanswered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    pub family: Family,
    pub peer: u16,
    /// Name of the node, once it is known.
    pub node: Option<Arc<str>>,
    /// Id of the Service port and family.
    pub service: u32,
}

/// Connections to another node's endpoints that stayed unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    pub family: Family,
    pub peer: u16,
    /// The endpoints' range.
    pub range: u32,
    /// Index of the device by which their SYNs last left.
    pub device: u32,
    /// Id of the Service port and family.
    pub service: u32,
    pub connections: u32,
}

impl PeerSample {
    /// Adds a connection whose loss window is over. UDP entries must not be added: their `note` contains a
    /// time instead of a peer.
    pub fn add(&mut self, key: &PendingKey, pending: &Pending) {
        let has = |bits: u32| pending.state & bits != 0;
        let is_probe = pending.flags & frontend_flag::SENTINEL != 0;
        if is_probe || pending.is_direct() || has(state::ALIAS) {
            return;
        }
        let family = Family::ALL[usize::from(key.family == Family::V6 as u32)];
        if pending.frontend_port == LARGE_TRANSFER_PORT.to_be_bytes()
            && self.large_transfer_failures.len() < LISTED
        {
            self.large_transfer_failures.push(LargeTransferFailure {
                family,
                service: pending.service,
                client: ip_of(&pending.client),
            });
        }
        // An answer counts whatever else was observed of the connection; silence counts only
        // without another explanation.
        let is_silent = has(state::FORWARDED) && !has(state::AMBIGUOUS | state::REJECTED);
        let is_answered = has(state::ANSWERED);
        match pending.peer() {
            _ if !is_answered && !is_silent => {}
            0 => {}
            NEAR if !is_of_pod(pending) => {}
            NEAR if is_answered => note(&mut self.near, pending.service),
            NEAR => note(&mut self.near_silent, pending.service),
            _ if is_answered => self.count(family, pending).answered += 1,
            peer => self.silence(family, peer, pending),
        }
    }

    fn silence(&mut self, family: Family, peer: u16, pending: &Pending) {
        self.count(family, pending).unanswered += 1;
        self.depart(family, pending);
        if is_of_pod(pending) && self.silences.len() < LISTED {
            self.silences.push(Silence {
                family,
                peer,
                node: None,
                service: pending.service,
            });
        }
    }

    fn depart(&mut self, family: Family, pending: &Pending) {
        let new = Departure {
            family,
            peer: pending.peer(),
            range: pending.range,
            device: pending.left_by,
            service: pending.service,
            connections: 0,
        };
        let is_same = |departure: &&mut Departure| {
            Departure {
                connections: 0,
                ..**departure
            } == new
        };
        if let Some(known) = self.departures.iter_mut().find(is_same) {
            known.connections += 1;
            return;
        }
        let departures = self.departures.iter();
        let by_device = departures
            .filter(|departure| departure.device == new.device)
            .count();
        if by_device < LISTED {
            self.departures.push(Departure {
                connections: 1,
                ..new
            });
        }
    }

    /// Names the devices of all connections.
    pub fn name_devices(&mut self, name: impl Fn(u32) -> Option<Arc<str>>) {
        let counted = self.counts.iter().map(|count| count.device);
        let departed = self.departures.iter().map(|departure| departure.device);
        let devices: BTreeSet<u32> = counted
            .chain(departed)
            .filter(|device| *device != 0)
            .collect();
        let named = devices.into_iter();
        self.devices = named
            .filter_map(|device| Some((device, name(device)?)))
            .collect();
    }

    pub(super) fn device(&self, index: u32) -> Option<&Arc<str>> {
        self.devices.get(&index)
    }

    fn count(&mut self, family: Family, pending: &Pending) -> &mut PeerCount {
        let (peer, range, device) = (pending.peer(), pending.range, pending.left_by);
        let key = |count: &PeerCount| (count.family, count.peer, count.range, count.device);
        let sought = (family, peer, range, device);
        let found = self.counts.binary_search_by_key(&sought, key);
        let at = found.unwrap_or_else(|at| {
            let new = PeerCount {
                family,
                peer,
                range,
                device,
                answered: 0,
                unanswered: 0,
            };
            self.counts.insert(at, new);
            at
        });
        &mut self.counts[at]
    }

    pub(super) fn has_answer_of(&self, family: Family, peer: u16) -> bool {
        let key = |count: &PeerCount| (count.family, count.peer);
        let from = self
            .counts
            .partition_point(|count| key(count) < (family, peer));
        let counts = self.counts[from..].iter();
        let mut counts = counts.take_while(|count| key(count) == (family, peer));
        counts.any(|count| count.answered > 0)
    }

    pub(super) fn has_answer(&self, family: Family) -> bool {
        let mut counts = self.counts.iter();
        counts.any(|count| count.family == family && count.answered > 0)
    }

    /// Ids of all Service ports in the sample.
    pub fn services(&self) -> impl Iterator<Item = u32> {
        let near = self.near.iter().chain(&self.near_silent).copied();
        let silences = self.silences.iter().map(|silence| silence.service);
        let departures = self.departures.iter().map(|departure| departure.service);
        near.chain(silences).chain(departures).chain(
            self.large_transfer_failures
                .iter()
                .map(|failure| failure.service),
        )
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn is_of_pod(pending: &Pending) -> bool {
    pending.class == SourceClass::Pod as u8
}

/// Adds a Service port, once and if there is room.
fn note(services: &mut Vec<u32>, service: u32) {
    if let Err(at) = services.binary_search(&service)
        && services.len() < LISTED
    {
        services.insert(at, service);
    }
}
