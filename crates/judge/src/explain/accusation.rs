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
    let name = match (finding.rule, &finding.evidence) {
        (Rule::BrokenByProbes, _) if finding.cause == Some(Cause::ConntrackFull) => "table_full",
        (Rule::BrokenByProbes, Evidence::Probes { lanes, .. })
            if lanes.iter().all(|lane| !lane.clear) =>
        {
            "beside_connections"
        }
        (rule, _) => rule.name(),
    };
    let text = texts::all("rule", name).next()?;
    Some(texts::with_limits(text, limits))
}

/// Eliminated explanations, as a sentence without a period; `None` if the finding does not accuse the node.
pub fn eliminated(finding: &Finding) -> Option<String> {
    let is_full = |lane: &FailedLane| lane.cause == ProbeCause::ConntrackFull;
    let name = match (finding.rule, &finding.evidence) {
        (Rule::BrokenByTwoScopes, Evidence::Probes { beside, .. }) => {
            return Some(beside_probes(beside.as_ref()));
        }
        (Rule::BrokenByProbes, Evidence::Probes { lanes, .. }) if lanes.iter().any(is_full) => {
            "table_full"
        }
        (rule, _) => rule.name(),
    };
    texts::all("eliminated", name).next().map(str::to_owned)
}

/// Explanations that probes and connections eliminate together.
fn beside_probes(beside: Option<&ConcurrentFailures>) -> String {
    let clients = beside.map_or(&[][..], |failures| &failures.clients);
    let policy_for = |scope: &Scope| texts::one("policy", scope.name());
    let mut policies: Vec<&str> = clients.iter().map(policy_for).collect();
    if policies.is_empty() {
        policies.push("a NetworkPolicy");
    }
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
