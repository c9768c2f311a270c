//! Keeps the datapath's shape up to date: read when interfaces change, with every look at the
//! sentinel's devices (so that it is as fresh as what may accuse the node), and every half minute.

use std::time::Duration;

use agent_common::service::{FAMILIES, Family};

use super::agent::Agent;
use crate::datapath::devices::Interfaces;
use crate::datapath::shape::Seen;
use crate::sentinel::devices::Role;
use crate::sentinel::owners::owners;
use agent_core::owners::DatapathOwners;
use agent_core::shape::Shape;
use agent_core::time::Mono;

/// It is read at least this often.
const LOOK: Duration = Duration::from_secs(30);

/// What the shape is made of, and what it was made into.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    interfaces: Interfaces,
    looked: Option<Mono>,
    pub(super) shape: Shape,
}

impl Agent {
    /// Interfaces came, went or changed.
    pub(super) fn see(&mut self, interfaces: Interfaces, now: Mono) {
        self.surroundings.interfaces = interfaces;
        self.look_at_shape(owners(), now);
    }

    /// Every few seconds.
    pub(super) fn check_shape(&mut self, now: Mono) {
        let due = |at: Mono| now.since(at) >= LOOK;
        if self.surroundings.looked.is_none_or(due) {
            self.look_at_shape(owners(), now);
        }
    }

    /// Reads the shape, and tells the ledger what follows from it.
    pub(super) fn look_at_shape(&mut self, owners: [DatapathOwners; FAMILIES], now: Mono) {
        let Some(observer) = &self.observer else {
            return;
        };
        let sentinel = self.probing.as_ref();
        let ends = [Role::ClientNear, Role::ServerNear];
        let ends = sentinel.map(|probing| ends.map(|role| probing.device_name(role)));
        let around = &mut self.surroundings;
        let seen = Seen {
            interfaces: &around.interfaces,
            sentinel: ends.as_ref().map_or(&[], |ends| ends),
            owners,
        };
        let managed = self.ledger.sentinel().managed();
        let shape = Shape::after(managed, &observer.shape(&seen));
        around.looked = Some(now);
        let ledger = self.ledger.sentinel_mut();
        ledger.shape_seen(&shape, now);
        for (family, owners) in Family::ALL.into_iter().zip(owners) {
            ledger.owner_seen(family, shape.owners_with(owners), now);
        }
        if shape != around.shape {
            tracing::info!(notes = %shape.notes.join("; "), "the datapath's shape changed");
            around.shape = shape;
        }
    }
}
