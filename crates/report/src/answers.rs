//! The current answers, and what holds back a 503.

use std::collections::BTreeSet;

use pathproof_facts::fleet_report::Count;
use pathproof_facts::switches::AuditBy;
use pathproof_judge::answer::Answer;
use pathproof_judge::brake::BrakeReason;
use pathproof_node::{Judge, effect};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswersReport {
    pub healthz: AnswerReport,
    pub livez: AnswerReport,
    /// The setting that puts the node in audit mode, in which the datapath never causes a 503.
    pub audit: Option<AuditBy>,
    /// Why the fleet brake holds back a 503: of a failing or leaving node, or of failing Services.
    pub held: Option<BrakeReason>,
    /// Services (`namespace/name`) that fail on this node for clients outside while the node itself
    /// works. Their health check node ports answer 503, unless audit mode or the fleet brake prevents it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken_services: Vec<String>,
    /// Health check node ports that answer 503 because their owner, kube-proxy or Cilium, does not answer
    /// 200; a phrase each. The owner is not in audit mode, and no brake applies to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_by_owner: Vec<String>,
    /// Number of such ports that the list leaves out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_by_owner_omitted: Option<u64>,
}

impl From<&effect::Answers> for AnswersReport {
    fn from(answers: &effect::Answers) -> Self {
        let of = |answer: &Answer| AnswerReport {
            status: answer.status,
            healthy: answer.healthy,
            would_fail: answer.would_fail,
        };
        let broken = answers.broken_services.iter();
        let broken: BTreeSet<String> = broken.map(|(name, _)| name.to_string()).collect();
        Self {
            healthz: of(&answers.healthz),
            livez: of(&answers.livez),
            audit: answers.audit,
            held: (answers.held.or(answers.leaving_held)).or(answers.services_held),
            broken_services: broken.into_iter().collect(),
            refused_by_owner: Vec::new(),
            refused_by_owner_omitted: None,
        }
    }
}

impl AnswersReport {
    /// Why a node with a failing datapath answers 200, in a sentence.
    pub fn lenience(&self) -> Option<String> {
        let lenient = |answer: &AnswerReport| answer.would_fail && answer.status == 200;
        if ![self.healthz, self.livez].iter().any(lenient) {
            return None;
        }
        let audit = self.audit.map(|by| by.to_string());
        audit.or_else(|| self.held.map(|held| held.to_string()))
    }
}

/// Count of the cluster's failing nodes, as this node received it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetSeen {
    /// Maximum share of nodes that may be out of service, in percent; `None` if the brake is off.
    pub limit: Option<u32>,
    /// The last count; `None` if no rotator counts.
    pub count: Option<Count>,
    /// When the last count arrived; `None` if long before this agent started.
    pub counted: Option<jiff::Timestamp>,
    /// Annotations that were ignored, and why.
    pub ignored: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerReport {
    /// 200 or 503.
    pub status: u16,
    pub healthy: bool,
    /// Whether the status would be 503 without audit mode and the fleet brake.
    pub would_fail: bool,
}

impl FleetSeen {
    /// The count that the judge has now.
    pub fn of(judge: &Judge) -> Self {
        let counted = judge.brake.counted();
        let came = counted.and_then(|(_, came)| came);
        let ignored = judge.facts.sentinel.fleet_error.iter();
        Self {
            limit: judge.settings.fleet_brake,
            count: counted.map(|(count, _)| count),
            counted: came.map(|at| judge.anchor.wall_of(at).timestamp()),
            ignored: ignored.chain(&judge.switches.ignored).cloned().collect(),
        }
    }
}
