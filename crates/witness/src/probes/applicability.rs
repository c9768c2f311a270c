//! Whether probes represent real connections. They do not if the datapath handles them differently, or if
//! another Service uses their frontend.

use pathproof_facts::cause::ProbeCause;
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Lane, LaneConflict, ProbePath};
use pathproof_wire::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use super::{ProbeOutcome, SentinelLedger, all_lanes, place};
use crate::topology::{DatapathTopology, Tristate};

/// Effect of the datapath's topology on probes; the default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeApplicability {
    /// The datapath handles probes from outside the node differently from real connections.
    #[serde(rename = "aside")]
    is_secondary: bool,
    /// Probes and connections of pods are translated by different proxies.
    pub mixed: bool,
    /// Connections of pods may get through unobserved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pods_unseen: bool,
    /// Whether other programs are attached at both of the sentinel's interfaces, as last read.
    pub managed: Tristate,
    /// When armed lanes stopped representing real connections, by family.
    #[serde(rename = "fell_silent")]
    inapplicable_since: [Option<Mono>; FAMILIES],
}

impl SentinelLedger {
    /// Records the datapath's topology. Lanes that begin to represent real connections must pass
    /// first: their earlier failures are no evidence.
    pub fn topology_seen(&mut self, topology: &DatapathTopology, now: Mono) {
        let applicability = ProbeApplicability {
            is_secondary: !topology.has_applicable_probes(),
            mixed: topology.is_mixed(),
            pods_unseen: topology.hides_pods(),
            managed: topology.sentinel_managed,
            ..self.applicability
        };
        let before = std::mem::replace(&mut self.applicability, applicability);
        let outside = all_lanes().filter(|lane| lane.path != ProbePath::Host);
        match (before.is_secondary, applicability.is_secondary) {
            (true, false) => outside.for_each(|lane| self.lanes[place(lane)].disarm()),
            (false, true) => outside
                .filter(|lane| self.lanes[place(*lane)].armed)
                .for_each(|lane| {
                    self.applicability.inapplicable_since[lane.family as usize] = Some(now)
                }),
            _ => {}
        }
    }

    /// Records all lanes whose frontends other Services use now.
    pub fn set_conflicts(&mut self, conflicts: Vec<LaneConflict>, now: Mono) {
        for LaneConflict { lane, loops, .. } in &conflicts {
            let ledger = &mut self.lanes[place(*lane)];
            let begins = !std::mem::replace(&mut ledger.in_conflict, true);
            if begins || *loops {
                ledger.run = None;
            }
            if begins && ledger.armed && lane.path != ProbePath::Host {
                self.applicability.inapplicable_since[lane.family as usize] = Some(now);
            }
        }
        self.conflicts = conflicts;
    }

    fn conflict(&self, lane: Lane) -> Option<&LaneConflict> {
        self.conflicts.iter().find(|conflict| conflict.lane == lane)
    }

    /// The Service that also uses the frontend of this lane.
    pub fn conflicting_service(&self, lane: Lane) -> Option<&ObjectName> {
        self.conflict(lane).map(|conflict| &conflict.service)
    }

    /// Whether a probe is void because another Service uses its frontend. After such a conflict ends, probes
    /// stay void until one passes, because the proxy updates its rules with a delay.
    ///
    /// A conflict only adds rules, so these failures are never void: forwarding is off, or the connection
    /// table is full. A probe to a cluster IP that leaves untranslated is not void either, unless the other
    /// Service's rules leave its destination unchanged ([`LaneConflict::loops`]).
    pub(super) fn voids_by_conflict(&mut self, lane: Lane, outcome: ProbeOutcome) -> bool {
        let conflict = self.conflict(lane);
        let (has_conflict, loops) = (
            conflict.is_some(),
            conflict.is_some_and(|conflict| conflict.loops),
        );
        let ledger = &mut self.lanes[place(lane)];
        let passed = matches!(outcome, ProbeOutcome::Passed { .. });
        ledger.in_conflict &= has_conflict || !passed;
        let to_cluster_ip = matches!(lane.path, ProbePath::Pod | ProbePath::OffCluster);
        let is_certain = match outcome {
            ProbeOutcome::Failed(ProbeCause::Leaked) => to_cluster_ip && !loops,
            ProbeOutcome::Failed(ProbeCause::ForwardingOff | ProbeCause::ConntrackFull) => true,
            _ => false,
        };
        ledger.in_conflict && !is_certain
    }

    /// Whether probes of a lane represent real connections. A lane in conflict does so only while it has a
    /// run of failures. That run contains only failures that the conflict does not explain.
    pub fn is_applicable(&self, lane: Lane) -> bool {
        let ledger = self.lane(lane);
        self.represents_real_traffic(lane.path) && (!ledger.in_conflict || ledger.run.is_some())
    }

    /// Whether the datapath handles probes of a path like real connections. For the host path it always does.
    pub fn represents_real_traffic(&self, path: ProbePath) -> bool {
        path == ProbePath::Host || !self.applicability.is_secondary
    }

    /// Whether lanes from outside the node represented this family until recently. They stop doing so when
    /// another Service begins to use their frontends, or while their interfaces are recreated and Cilium has
    /// not attached its programs yet. The host path accuses only if no other lane can, and must not replace
    /// the others in that time.
    pub fn is_recently_inapplicable(&self, family: Family, now: Mono) -> bool {
        let since = self.applicability.inapplicable_since[family as usize];
        since.is_some_and(|since| now.since(since) < self.limits.proof_age)
    }
}
