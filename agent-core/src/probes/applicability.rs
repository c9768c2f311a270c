//! Whether probes represent real connections: not if they take another way, and not if another
//! Service claims their frontend.

use agent_common::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use super::{ProbeOutcome, SentinelLedger, all_lanes, place};
use crate::cause::ProbeCause;
use crate::cluster::ObjectName;
use crate::expect::sentinel::Contest;
use crate::time::Mono;
use crate::topology::{DatapathTopology, Tristate};
use crate::trace::{Lane, ProbePath};

/// Effect of the datapath's topology on probes; the default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeApplicability {
    /// Probes from outside the node do not take the way of real connections.
    aside: bool,
    /// Another proxy translates them than pods' connections.
    pub(crate) mixed: bool,
    /// Connections of pods may get through unobserved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pods_unseen: bool,
    /// Whether other programs are attached at both of the sentinel's interfaces, as last read.
    pub(crate) managed: Tristate,
    /// When armed lanes stopped representing real connections, by family.
    #[serde(rename = "fell_silent")]
    inapplicable_since: [Option<Mono>; FAMILIES],
}

impl SentinelLedger {
    /// Records the datapath's topology. Lanes that begin to represent real connections must pass
    /// first: their earlier failures are no evidence.
    pub fn topology_seen(&mut self, topology: &DatapathTopology, now: Mono) {
        let applicability = ProbeApplicability {
            aside: !topology.has_applicable_probes(),
            mixed: topology.is_mixed(),
            pods_unseen: topology.hides_pods(),
            managed: topology.sentinel_managed,
            ..self.applicability
        };
        let before = std::mem::replace(&mut self.applicability, applicability);
        let outside = all_lanes().filter(|lane| lane.path != ProbePath::Host);
        match (before.aside, applicability.aside) {
            (true, false) => outside.for_each(|lane| self.lanes[place(lane)].disarm()),
            (false, true) => outside
                .filter(|lane| self.lanes[place(*lane)].armed)
                .for_each(|lane| {
                    self.applicability.inapplicable_since[lane.family as usize] = Some(now)
                }),
            _ => {}
        }
    }

    /// Records all lanes whose frontends other Services claim now.
    pub fn contested(&mut self, contested: Vec<Contest>, now: Mono) {
        for Contest { lane, loops, .. } in &contested {
            let ledger = &mut self.lanes[place(*lane)];
            let begins = !std::mem::replace(&mut ledger.claimed, true);
            if begins || *loops {
                ledger.run = None;
            }
            if begins && ledger.armed && lane.path != ProbePath::Host {
                self.applicability.inapplicable_since[lane.family as usize] = Some(now);
            }
        }
        self.contested = contested;
    }

    fn contest(&self, lane: Lane) -> Option<&Contest> {
        self.contested.iter().find(|of| of.lane == lane)
    }

    /// The Service that claims the frontend of this lane.
    pub(crate) fn rival(&self, lane: Lane) -> Option<&ObjectName> {
        self.contest(lane).map(|of| &of.rival)
    }

    /// Whether a probe is void because another Service claims its frontend. A lane that is no
    /// longer claimed must pass first, because the rules follow with a delay. A claim only adds
    /// rules, so it does not explain a probe to a cluster IP that leaves untranslated. Nor does it
    /// turn off forwarding or fill the connection table.
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

    /// Whether probes of a lane represent real connections. A claimed lane does only by its run,
    /// which then holds nothing but probes that left untranslated.
    pub(crate) fn is_applicable(&self, lane: Lane) -> bool {
        let ledger = self.lane(lane);
        self.represents_real_traffic(lane.path) && (!ledger.claimed || ledger.run.is_some())
    }

    /// Whether probes of a path take the way of real connections. The host path always does.
    pub(crate) fn represents_real_traffic(&self, path: ProbePath) -> bool {
        path == ProbePath::Host || !self.applicability.aside
    }

    /// Whether lanes from outside the node represented this family until recently. They stop while
    /// their interfaces are made again and Cilium has yet to attach its programs. The host path
    /// accuses only if no other lane does, and must not replace them in that time.
    pub(crate) fn is_recently_inapplicable(&self, family: Family, now: Mono) -> bool {
        let since = self.applicability.inapplicable_since[family as usize];
        since.is_some_and(|since| now.since(since) < self.limits.proof_age)
    }
}
