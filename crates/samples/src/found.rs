//! Findings of sample reports.

use pathproof_facts::cause::Cause;
use pathproof_judge::verdict::Verdict;
use pathproof_judge::verdict::finding::{Evidence, Finding, Rule};
use pathproof_wire::service::{Family, SourceClass};

use super::ago;

pub(super) fn of(family: Family, cause: Option<Cause>, rule: Rule, evidence: Evidence) -> Finding {
    Finding {
        rule,
        family: Some(family),
        cause,
        evidence,
    }
}

pub(super) fn connected(family: Family, ms: u64) -> Finding {
    let (path, at) = (SourceClass::Pod, ago(ms));
    let evidence = Evidence::Connection { path, at };
    of(family, None, Rule::ProvenByConnection, evidence)
}

/// Gives a family and the node this one finding.
pub fn set_finding(verdict: &mut Verdict, index: usize, finding: Finding) {
    let family = &mut verdict.families[index];
    (family.state, family.cause) = (finding.rule.state(), finding.cause);
    (family.why, family.finding) = (finding.rule.why(), finding.clone());
    family.findings = vec![finding.clone()];
    (verdict.state, verdict.cause) = (finding.rule.state(), finding.cause);
    (verdict.why, verdict.finding) = (finding.rule.why(), finding);
}
