//! What is answered, and what makes the answer lenient.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::brake::{Count, Held};
use crate::effect;
use crate::node::Judge;
use crate::switches::AuditBy;

/// The current answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    pub healthz: AnswerReport,
    pub livez: AnswerReport,
    /// What makes the node audit; it never answers 503 for the datapath then.
    #[serde(default)]
    pub audit: Option<AuditBy>,
    /// Why a 503 is held back because of other nodes.
    #[serde(default)]
    pub held: Option<Held>,
    /// Services, as `namespace/name`, that fail on this node for clients outside, though the node works:
    /// 503 at their health check node ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken_services: Vec<String>,
}

impl From<&effect::Answers> for Answers {
    fn from(answers: &effect::Answers) -> Self {
        let broken = answers.broken_services.iter();
        let broken: BTreeSet<String> = broken.map(|(name, _)| name.to_string()).collect();
        Self {
            healthz: AnswerReport::from(&answers.healthz),
            livez: AnswerReport::from(&answers.livez),
            audit: answers.audit,
            held: answers.held,
            broken_services: broken.into_iter().collect(),
        }
    }
}

impl Answers {
    /// Why 200 is answered where the datapath asks for 503, in words.
    pub fn lenience(&self) -> Option<String> {
        let lenient = |answer: &AnswerReport| answer.would_fail && answer.status == 200;
        if ![self.healthz, self.livez].iter().any(lenient) {
            return None;
        }
        let audit = self.audit.map(|by| by.to_string());
        audit.or_else(|| self.held.map(|held| held.to_string()))
    }
}

/// The count of the cluster's nodes that fail, as this node knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetSeen {
    /// The most nodes that may be out of service, in percent; nothing where the brake is off.
    pub limit: Option<u32>,
    /// The last count; nothing where nobody counts.
    pub count: Option<Count>,
    /// When the last count came; nothing where that was long before this agent.
    pub counted: Option<jiff::Timestamp>,
    /// Annotations that were ignored, and why.
    pub ignored: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerReport {
    /// 200 or 503.
    pub status: u16,
    /// Whether the datapath is answered as healthy.
    pub healthy: bool,
    /// It would be 503 if audit or the fleet brake did not hold it back.
    pub would_fail: bool,
}

impl From<&Answer> for AnswerReport {
    fn from(answer: &Answer) -> Self {
        Self {
            status: answer.status,
            healthy: answer.healthy,
            would_fail: answer.would_fail,
        }
    }
}

impl FleetSeen {
    /// As this node knows it now.
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
