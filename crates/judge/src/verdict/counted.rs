//! Families that count for the answer. A 503 removes the node for all users, including those of a family
//! that works. So a family that nobody uses must not cause one: its accusations become findings.
//!
//! The agent may not have seen a family's users, because it started within the last hour or was not running.
//! Such a family does not count while another one has known users: a 503 would cut them off. An unseen user
//! loses at most one connection: the failed attempt is also a use, and the family counts from then on. If
//! hooks may miss connections, every family counts.

use pathproof_facts::limits::IN_USE_FOR;
use pathproof_facts::time::Mono;
use pathproof_witness::ledger::Ledger;
use serde::{Deserialize, Serialize};

use super::Inputs;
use super::finding::{Evidence, Finding, Rule, Uncounted};
use super::report::FamilyVerdict;

/// Families that count for the answer: `--families`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedFamilies {
    /// All families, but only if every one of them is at fault.
    Any,
    /// Families that were used within the last hour; all families if none was.
    #[default]
    Used,
    /// All families of the node.
    All,
}

/// Turns the accusations of families that do not count into findings.
pub(super) fn set_aside(
    families: &mut [FamilyVerdict],
    ledger: &Ledger,
    inputs: &Inputs,
    now: Mono,
) {
    // A failing family is in use if it was before its first failure: nobody dials a node that was taken out.
    let is_used = |family: &FamilyVerdict| {
        let until = family.failing_since.unwrap_or(now);
        let used = ledger.family(family.family).used;
        used.is_some_and(|at| until.since(at) <= IN_USE_FOR)
    };
    let works = |family: &FamilyVerdict| !family.state.fails();
    // A family without any success may serve nobody.
    let serves = |family: &FamilyVerdict| works(family) && family.last_proof.is_some();
    let (any_used, any_serves) = (families.iter().any(is_used), families.iter().any(serves));
    for judged in families.iter_mut().filter(|judged| !works(judged)) {
        let because = match inputs.counted {
            CountedFamilies::Any if any_serves => Uncounted::OtherWorks,
            CountedFamilies::Used if any_used && !is_used(judged) && !inputs.clients_unseen => {
                Uncounted::Unused(ledger.family(judged.family).used)
            }
            _ => continue,
        };
        let findings = judged.findings.iter_mut();
        findings
            .filter(|finding| finding.rule.state().fails())
            .for_each(|finding| *finding = uncounted(finding, because));
        judged.finding = uncounted(&judged.finding, because);
        judged.state = judged.finding.rule.state();
    }
}

fn uncounted(finding: &Finding, because: Uncounted) -> Finding {
    Finding {
        rule: Rule::DegradedUncounted,
        family: finding.family,
        cause: finding.cause,
        evidence: Evidence::Uncounted {
            finding: Box::new(finding.clone()),
            because,
        },
    }
}
