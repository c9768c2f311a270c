//! Connections to other nodes that leave by another device than earlier connections to the same range.
//!
//! If the route of the overlay is gone, its packets leave by the default route: translated, not encapsulated,
//! and never answered. The usual device of a range is learned from answers. If a route moves for good, the
//! first answer over the new device shows that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pathproof_facts::directory::Directory;
use pathproof_facts::time::Mono;
use serde::{Deserialize, Serialize};

use super::{Departure, KEPT, PeerSample};

/// Maximum number of ranges whose device is remembered.
const RANGES: usize = 8_192;

/// Number of a node, and a range of addresses on it ([`range_of`](pathproof_wire::evidence::range_of)).
pub type Range = (u16, u32);

/// Devices by which the ranges of one family were reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Devices {
    /// Ranges by the device over which the latest connection to them was answered.
    usual: BTreeMap<Arc<str>, BTreeSet<Range>>,
    /// Unanswered connections that should have left by the device in the key.
    pub(super) astray: BTreeMap<Arc<str>, Astray>,
}

/// Unanswered connections that left by another device than the usual one, since the last answer
/// over the usual one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Astray {
    pub since: Mono,
    pub last: Mono,
    pub connections: u32,
    /// Devices by which they left, at most 64.
    pub by: BTreeSet<Arc<str>>,
    /// Ranges that they were sent to, at most 64.
    pub ranges: BTreeSet<Range>,
    /// `namespace/name` of the Services that were dialled, by the id of the port; at most 64.
    pub services: BTreeMap<u32, String>,
}

impl Astray {
    fn new(at: Mono) -> Self {
        Self {
            since: at,
            last: at,
            ..Self::default()
        }
    }

    /// Number of distinct nodes that they were sent to.
    pub fn peers(&self) -> usize {
        let peers: BTreeSet<u16> = self.ranges.iter().map(|(peer, _)| *peer).collect();
        peers.len()
    }

    fn add(&mut self, departure: &Departure, device: &Arc<str>, name: String, at: Mono) {
        self.last = at;
        self.connections = self.connections.saturating_add(departure.connections);
        if self.by.len() < KEPT {
            self.by.insert(Arc::clone(device));
        }
        if self.ranges.len() < KEPT {
            self.ranges.insert((departure.peer, departure.range));
        }
        if self.services.len() < KEPT {
            self.services.insert(departure.service, name);
        }
    }
}

impl Devices {
    pub(super) fn forget_astray(&mut self, is_old: impl Fn(Mono) -> bool) {
        self.astray.retain(|_, astray| !is_old(astray.last));
    }

    fn usual_of(&self, range: Range) -> Option<Arc<str>> {
        let mut usual = self.usual.iter();
        let found = usual.find(|(_, ranges)| ranges.contains(&range));
        found.map(|(device, _)| Arc::clone(device))
    }

    /// Records that a connection to this range was answered over this device.
    pub(super) fn answer(&mut self, range: Range, device: &Arc<str>) {
        self.astray.remove(device);
        let usual = self.usual_of(range);
        if usual.as_ref() == Some(device) {
            return;
        }
        if let Some(usual) = usual {
            if let Some(ranges) = self.usual.get_mut(&usual) {
                ranges.remove(&range);
            }
            // The route has moved to this device, and others may have moved with it. So connections that left
            // by this device did not go astray.
            let moved = |astray: &mut Astray| astray.by.contains(device);
            if self.astray.get_mut(&usual).is_some_and(moved) {
                self.astray.remove(&usual);
            }
        }
        self.usual.retain(|_, ranges| !ranges.is_empty());
        let known: usize = self.usual.values().map(BTreeSet::len).sum();
        if known < RANGES {
            let ranges = self.usual.entry(Arc::clone(device)).or_default();
            ranges.insert(range);
        }
    }

    /// Records an unanswered connection. Call it after the answers of the same sample: the order
    /// within a sample is unknown, and an answer has priority.
    pub(super) fn depart(
        &mut self,
        departure: &Departure,
        sample: &PeerSample,
        directory: &dyn Directory,
        at: Mono,
    ) {
        let usual = self.usual_of((departure.peer, departure.range));
        let (Some(usual), Some(device)) = (usual, sample.device(departure.device)) else {
            return;
        };
        if *device == usual {
            return;
        }
        let info = directory.service(departure.service);
        let Some(info) = info.filter(|info| !info.sentinel && !info.udp) else {
            return;
        };
        let answers = sample.counts.iter().any(|count| {
            count.family == departure.family
                && count.answered > 0
                && sample.device(count.device) == Some(&usual)
        });
        if answers {
            return;
        }
        let astray = self.astray.entry(usual);
        let astray = astray.or_insert_with(|| Astray::new(at));
        astray.add(departure, device, info.name.to_string(), at);
    }
}
