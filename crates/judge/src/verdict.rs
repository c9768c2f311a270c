//! The judgement: a pure function of the evidence, the other inputs, and the time. It changes nothing,
//! and the same inputs always give the same verdict.
//!
//! `decision` is the only module that can take the node out of service; `counted` may overrule it for one
//! family. Both read `witnesses` and `lanes`. `findings` adds explanations, and [`report`] is the result.
//! Sentences (`explain`), statuses (`answer`) and flapping (`damping`) are decided elsewhere.

mod case;
mod counted;
mod data;
mod decision;
pub mod finding;
mod findings;
mod lanes;
mod peers;
mod programming;
pub mod report;
mod rule;
mod views;
mod witnesses;

#[cfg(test)]
mod tests;

use std::time::Duration;

use case::Case;
pub use counted::CountedFamilies;
pub use finding::{Evidence, Finding, Rule};
use pathproof_facts::time::Mono;
use pathproof_wire::service::{FAMILIES, Family};
use pathproof_witness::ledger::Ledger;
pub use report::{
    CoverageReport, FamilyVerdict, LaneState, LaneView, LastVerdict, PathState, PathView,
    ServiceTrouble, StageDelays, Verdict,
};

use crate::eligibility::Eligibility;

/// Inputs of the verdict apart from the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// From the Node object. Only `answer` uses it; the verdict carries it along.
    pub eligibility: Eligibility,
    /// Whether all objects that existed at the start have been delivered.
    pub view_synced: bool,
    /// Families that have a frontend on this node, by [`Family`].
    pub families: [bool; FAMILIES],
    /// Whether a sentinel exists. If so, something should be proven soon after boot.
    pub sentinel_exists: bool,
    /// When the node booted: zero on `CLOCK_MONOTONIC`.
    pub booted: Mono,
    /// Families in which this node's pod probe is expected to connect after boot.
    pub pods_expected: [bool; FAMILIES],
    /// Reason that the Node's conditions give for a missing pod network.
    pub network: Option<Box<str>>,
    /// Interfaces with a default route.
    pub uplinks: Vec<String>,
    /// Usual lag of this node's datapath behind the API, if it is known.
    pub usual_lag: Option<Duration>,
    /// Families that count for the answer.
    pub counted: CountedFamilies,
    /// Whether hooks may miss connections of pods or of clients outside.
    pub clients_unseen: bool,
}

/// Judges the node as of `now`, with the limits of the ledger.
pub fn verdict(ledger: &Ledger, inputs: &Inputs, now: Mono) -> Verdict {
    let blind = blind(ledger, inputs, now);
    let judged = |family| {
        let evidence = ledger.family(family);
        let case = Case {
            ledger,
            inputs,
            family,
            evidence,
            now,
        };
        case.verdict(blind.as_ref())
    };
    let mut families: Vec<FamilyVerdict> = judged_families(ledger, inputs).map(judged).collect();
    counted::set_aside(&mut families, ledger, inputs, now);
    let finding = blind.unwrap_or_else(|| worst(&families));
    let (services, services_omitted) = findings::troubles(ledger, now);
    Verdict {
        at: now,
        state: finding.rule.state(),
        since: now,
        cause: finding.cause,
        why: finding.rule.why(),
        finding,
        limits: ledger.limits,
        eligibility: inputs.eligibility.clone(),
        families,
        services,
        services_omitted,
        coverage: coverage(ledger),
        conntrack: ledger.sentinel.conntrack,
        drops: Default::default(),
    }
}

/// The finding that prevents any judgement. It outranks all evidence.
fn blind(ledger: &Ledger, inputs: &Inputs, now: Mono) -> Option<Finding> {
    let since = ledger.sampled.or(ledger.restored);
    if since.is_none_or(|since| now.since(since) > ledger.limits.sample_gap) {
        let at = ledger.sampled;
        return Some(Finding::new(Rule::NotSampled, Evidence::Read { at }));
    }
    let observer = &ledger.observer;
    if ledger.sampled.is_some() && observer.attached == 0 {
        let loss = observer.reasons.first().cloned();
        return Some(Finding::new(Rule::ObserverBlind, Evidence::Unseen { loss }));
    }
    // A restarted agent judges by its stored evidence, even without an API server.
    let unsynced = !inputs.view_synced && ledger.restored.is_none();
    unsynced.then(|| Finding::new(Rule::ViewNotSynced, Evidence::Nothing))
}

/// Families with frontends, or with a sentinel that worked. Before the view is synced, also families that
/// were judged before a restart.
fn judged_families(ledger: &Ledger, inputs: &Inputs) -> impl Iterator<Item = Family> {
    Family::ALL.into_iter().filter(|family| {
        inputs.families[*family as usize]
            || (ledger.sentinel.view.exists && ledger.sentinel.is_armed(*family))
            || (!inputs.view_synced && ledger.family(*family).is_known())
    })
}

/// The node's finding: that of the worst family, or of the first if they are equally bad.
fn worst(families: &[FamilyVerdict]) -> Finding {
    let worst = families.iter().rev().max_by_key(|family| family.state);
    let nothing = || Finding::new(Rule::NothingExpected, Evidence::Nothing);
    worst.map_or_else(nothing, |family| family.finding.clone())
}

fn coverage(ledger: &Ledger) -> CoverageReport {
    let observer = &ledger.observer;
    CoverageReport {
        attached: observer.attached,
        wanted: observer.wanted,
        sampled: ledger.sampled,
        lost_suspended: observer.lost_suspended,
        misrouted_suspended: observer.misrouted_suspended,
        losses: observer.reasons.clone(),
    }
}
