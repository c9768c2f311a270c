//! Sentences about an accusation: its rule, the innocent explanations that the rule excludes, and the criterion
//! that keeps failed connections from accusing the node. Nothing is decided here.

use pathproof_facts::cause::{Cause, ProbeCause};
use pathproof_facts::limits::Limits;

use super::{Words, texts};
use crate::verdict::finding::{
    ConcurrentFailures, Evidence, FailedLane, Finding, MissingCriterion, Rule, Scope,
};

/// The rule by which a family takes the node out: a sentence from docs/behaviour.md, with the
/// numbers. Other findings name what is missing in their reason.
pub fn rule(finding: &Finding, limits: &Limits) -> Option<String> {
    let name = match finding.rule {
        Rule::BrokenByProbes if finding.cause == Some(Cause::ConntrackFull) => "table_full",
        rule => rule.name(),
    };
    let text = texts::all("rule", name).next()?;
    Some(texts::with_limits(text, limits))
}

/// Eliminated explanations, as a sentence without a period; `None` if the finding does not accuse the node.
pub fn eliminated(finding: &Finding) -> Option<String> {
    let is_full = |lane: &FailedLane| lane.cause == ProbeCause::ConntrackFull;
    let name = match (finding.rule, &finding.evidence) {
        (Rule::BrokenByTwoScopes, Evidence::Probes { beside, .. }) => {
            return beside.as_ref().map(beside_probes);
        }
        (Rule::BrokenByProbes, Evidence::Probes { lanes, .. }) if lanes.iter().any(is_full) => {
            "table_full"
        }
        (rule, _) => rule.name(),
    };
    texts::all("eliminated", name).next().map(str::to_owned)
}

/// Explanations that probes and connections eliminate together.
fn beside_probes(beside: &ConcurrentFailures) -> String {
    let policy_for = |scope: &Scope| texts::one("policy", scope.name());
    let policies: Vec<&str> = beside.clients.iter().map(policy_for).collect();
    format!(
        "a filter on the sentinel's addresses, because real connections failed too; {} and the backends, because \
         the sentinel's probes failed since the same moment",
        policies.join(", ")
    )
}

impl Words<'_> {
    pub(super) fn lacking(&self, lacking: MissingCriterion) -> String {
        texts::with_limits(texts::one("lacking", lacking.name()), self.limits)
    }
}
