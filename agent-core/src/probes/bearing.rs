//! Whether probes stand for users: not where they take another way than real connections do, and not
//! where another Service claims what they dial.

use agent_common::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use super::{ProbeOutcome, SentinelLedger, all_lanes, place};
use crate::cause::ProbeCause;
use crate::cluster::ObjectName;
use crate::expect::sentinel::Contest;
use crate::shape::{Shape, Told};
use crate::time::Mono;
use crate::trace::{Lane, ProbePath};

/// Effect of the datapath's shape on probes; none before it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bearing {
    /// Probes from outside the node do not take the way of real connections.
    aside: bool,
    /// They are translated by another proxy than pods' connections.
    pub(crate) mixed: bool,
    /// Connections of pods may get through unseen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pods_unseen: bool,
    /// Whether programs of others stand at both of the sentinel's interfaces, as told last.
    pub(crate) managed: Told,
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
            pods_unseen: shape.hides_pods(),
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

    /// Other Services claim the frontends of these lanes now, and of no others.
    pub fn contested(&mut self, contested: Vec<Contest>, now: Mono) {
        for Contest { lane, loops, .. } in &contested {
            let ledger = &mut self.lanes[place(*lane)];
            let begins = !std::mem::replace(&mut ledger.claimed, true);
            if begins || *loops {
                ledger.run = None;
            }
            if begins && ledger.armed && lane.path != ProbePath::Host {
                self.bearing.fell_silent[lane.family as usize] = Some(now);
            }
        }
        self.contested = contested;
    }

    fn contest(&self, lane: Lane) -> Option<&Contest> {
        self.contested.iter().find(|of| of.lane == lane)
    }

    /// The Service that claims what this lane dials, if one does.
    pub(crate) fn rival(&self, lane: Lane) -> Option<&ObjectName> {
        self.contest(lane).map(|of| &of.rival)
    }

    /// Whether a probe says nothing since another Service claims what it dialled. A lane that no other
    /// claims any more has to pass first: the rules follow the change in their own time. A claim only
    /// adds rules: that a cluster IP leaves untranslated is for want of any, whoever claims it. Nor does
    /// it keep the kernel from forwarding, or fill the table of connections.
    pub(super) fn voids_by_claim(&mut self, lane: Lane, outcome: ProbeOutcome) -> bool {
        let contest = self.contest(lane);
        let (is_contested, loops) = (contest.is_some(), contest.is_some_and(|of| of.loops));
        let ledger = &mut self.lanes[place(lane)];
        let passed = matches!(outcome, ProbeOutcome::Passed { .. });
        ledger.claimed &= is_contested || !passed;
        let to_cluster_ip = matches!(lane.path, ProbePath::Pod | ProbePath::OffCluster);
        let is_certain = match outcome {
            ProbeOutcome::Failed(ProbeCause::Leaked) => to_cluster_ip && !loops,
            ProbeOutcome::Failed(ProbeCause::ForwardingOff | ProbeCause::ConntrackFull) => true,
            _ => false,
        };
        ledger.claimed && !is_certain
    }

    /// Whether probes of a lane say anything of real connections: those of the node's own path always
    /// take their way. Of a lane that others claim only those that leave untranslated are in its run.
    pub(crate) fn stands(&self, lane: Lane) -> bool {
        let ledger = self.lane(lane);
        self.takes_the_way(lane.path) && (!ledger.claimed || ledger.run.is_some())
    }

    /// Whether probes of a path take the way of real connections. The node's own always do.
    pub(crate) fn takes_the_way(&self, path: ProbePath) -> bool {
        path == ProbePath::Host || !self.bearing.aside
    }

    /// Whether lanes from outside the node spoke for this family until lately: where they fall silent
    /// (their interfaces are made anew, and Cilium has yet to attach its programs), the node's own
    /// path, which accuses only where no other does, takes no turn of theirs.
    pub(crate) fn fell_silent(&self, family: Family, now: Mono) -> bool {
        let at = self.bearing.fell_silent[family as usize];
        at.is_some_and(|at| now.since(at) < self.limits.proof_age)
    }
}
