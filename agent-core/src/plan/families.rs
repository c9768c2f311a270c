//! Which families have frontends at all: a family without any is not judged.

use agent_common::service::{Family, TCP};

use super::Planner;

impl Planner {
    /// Whether a TCP frontend of this family stands in the map: datagrams are judged apart.
    pub fn has_frontends(&self, family: Family) -> bool {
        self.owners
            .keys()
            .any(|key| key.protocol == TCP && Family::of(&key.address) == family)
    }
}
