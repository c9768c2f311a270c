//! What the datapath's shape makes of the sentinel's probes: whether they take the way of users.

use agent_common::service::{FAMILIES, Family};

use super::{SentinelLedger, all_lanes, place};
use serde::{Deserialize, Serialize};

use crate::shape::{Shape, Told};
use crate::time::Mono;
use crate::trace::ProbePath;

/// What the datapath's shape makes of probes; the same as ever before it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bearing {
    /// Probes from outside the node do not take the way of real connections.
    aside: bool,
    /// They are translated by another proxy than pods' connections.
    mixed: bool,
    /// Whether programs of others stand at both of the sentinel's interfaces, as told last.
    pub(super) managed: Told,
    /// When lanes that were armed ceased to stand for users, by family.
    fell_silent: [Option<Mono>; FAMILIES],
}

impl SentinelLedger {
    /// The datapath's shape was read: what probes from outside the node stand for. Where they begin
    /// to stand for users they have to pass first: what failed before that says nothing.
    pub fn shape_seen(&mut self, shape: &Shape, now: Mono) {
        let bearing = Bearing {
            aside: !shape.probes_stand(),
            mixed: shape.is_mixed(),
            managed: shape.sentinel_managed,
            ..self.bearing
        };
        let before = std::mem::replace(&mut self.bearing, bearing);
        let outside = all_lanes().filter(|lane| lane.path != ProbePath::Host);
        match (before.aside, bearing.aside) {
            (true, false) => outside.for_each(|lane| self.lanes[place(lane)].disarm()),
            (false, true) => outside
                .filter(|lane| self.lanes[place(*lane)].armed)
                .for_each(|lane| self.bearing.fell_silent[lane.family as usize] = Some(now)),
            _ => {}
        }
    }

    /// Whether programs of others stand at both of the sentinel's interfaces, as told last.
    pub fn managed(&self) -> Told {
        self.bearing.managed
    }

    /// Whether probes of a path take the way of real connections. The node's own always do.
    pub(crate) fn stands(&self, path: ProbePath) -> bool {
        path == ProbePath::Host || !self.bearing.aside
    }

    /// Whether lanes from outside the node spoke for this family until lately: where they fall silent
    /// (their interfaces are made anew, and Cilium has yet to attach its programs), the node's own
    /// path, which accuses only where no other does, takes no turn of theirs.
    pub(crate) fn fell_silent(&self, family: Family, now: Mono) -> bool {
        let at = self.bearing.fell_silent[family as usize];
        at.is_some_and(|at| now.since(at) < self.limits.proof_age)
    }

    /// Whether probes from outside the node are translated by another proxy than pods' connections.
    pub(crate) fn is_mixed(&self) -> bool {
        self.bearing.mixed
    }
}
