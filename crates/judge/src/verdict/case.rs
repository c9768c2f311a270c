//! One family as input of the decision and the findings: its evidence, and values derived from it.

use pathproof_facts::cause::Cause;
use pathproof_facts::limits::Limits;
use pathproof_facts::time::Mono;
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::ledger::{FamilyLedger, Ledger, Track};

use super::Inputs;
use super::finding::{Evidence, Finding, Named, Rule};
use super::report::{FamilyVerdict, PathState, PathView};

/// Result of a rule: the cause, if any, and the evidence.
pub(super) type Grounds = (Option<Cause>, Evidence);

pub(super) struct Case<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) inputs: &'a Inputs,
    pub(super) family: Family,
    pub(super) evidence: &'a FamilyLedger,
    pub(super) now: Mono,
}

impl<'a> Case<'a> {
    /// Judges the family. The finding `blind` outranks all evidence.
    pub(super) fn verdict(&self, blind: Option<&Finding>) -> FamilyVerdict {
        let findings = blind.map_or_else(|| self.decide(), |blind| vec![blind.clone()]);
        // Findings are sorted by weight, and there is always at least one.
        let idle = || Finding::new(Rule::Idle, Evidence::Nothing);
        let finding = findings.first().cloned().unwrap_or_else(idle);
        let (probes_since, last_probe) = self.probe_failures();
        let evidence = self.evidence;
        let since = evidence.streak.as_ref().map(|streak| streak.since);
        FamilyVerdict {
            family: self.family,
            state: finding.rule.state(),
            cause: finding.cause,
            why: finding.rule.why(),
            finding,
            findings,
            last_proof: evidence.last_proof().max(self.last_pass()),
            last_failure: evidence.last_failure().max(last_probe),
            failing_since: since.into_iter().chain(probes_since).min(),
            paths: SourceClass::ALL.map(|path| self.path(path)).to_vec(),
            lanes: self.lanes(),
        }
    }

    /// All findings by weight: accusations first, then explanations. The reason for Unknown is a finding only
    /// if there is no other.
    fn decide(&self) -> Vec<Finding> {
        let finding_of = |(rule, (cause, evidence))| Finding {
            rule,
            family: Some(self.family),
            cause,
            evidence,
        };
        let accusations = self.accusations().chain(self.findings());
        let mut findings: Vec<Finding> = accusations.map(finding_of).collect();
        if findings.is_empty() {
            findings.push(finding_of(self.unknown()));
        }
        findings
    }

    pub(super) fn limits(&self) -> &'a Limits {
        &self.ledger.limits
    }

    pub(super) fn tracks(&self) -> impl Iterator<Item = &'a Track> + use<'a> {
        self.ledger.tracks(self.family)
    }

    /// The last success of a real connection and its path, if it is recent.
    pub(super) fn fresh_proof(&self) -> Option<(SourceClass, Mono)> {
        let proofs = SourceClass::ALL.into_iter().zip(self.evidence.proofs);
        let proven = proofs.filter_map(|(path, at)| Some((path, at?)));
        let last = proven.max_by_key(|(_, at)| *at);
        last.filter(|(_, at)| self.is_within_proof_age(*at))
    }

    pub(super) fn is_within_proof_age(&self, at: Mono) -> bool {
        self.now.since(at) <= self.limits().proof_age
    }

    /// Number of namespaces whose Services were used within the last hour.
    pub(super) fn namespaces_in_use(&self) -> usize {
        self.ledger.namespaces_in_use(self.family, self.now)
    }

    fn path(&self, path: SourceClass) -> PathView {
        let last_proof = self.evidence.proofs[path as usize];
        let last_failure = self.evidence.failures[path as usize];
        let fresh = |at: Option<Mono>| at.is_some_and(|at| self.is_within_proof_age(at));
        let state = if fresh(last_failure) && last_failure > last_proof {
            PathState::Failing
        } else if fresh(last_proof) {
            PathState::Proven
        } else {
            PathState::Quiet
        };
        PathView {
            path,
            state,
            last_proof,
            last_failure,
        }
    }
}

pub(super) fn named(tracks: &[&Track]) -> Named {
    Named::of(tracks.iter().map(|track| &*track.label))
}
