//! Which families have frontends at all: a family without any is not judged.

use agent_common::service::Family;

use super::Planner;

impl Planner {
    /// Whether a frontend of this family stands in the map.
    pub fn has_frontends(&self, family: Family) -> bool {
        self.owners
            .keys()
            .any(|key| Family::of(&key.address) == family)
    }
}
