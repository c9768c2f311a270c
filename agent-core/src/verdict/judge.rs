//! The rules, in the order of severity. Each one is a function from evidence to a finding.
//! Those that read the sentinel's lanes are in `lanes`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use agent_common::service::{Family, SourceClass};

use super::finding::{BrokenServices, Evidence, Finding, NAMED, Named, Rule};
use super::report::{FamilyVerdict, PathState, PathView, SERVICES_SHOWN, ServiceTrouble};
use super::{BootState, Inputs};
use crate::cause::{Cause, Failure};
use crate::ledger::{
    FamilyLedger, LOST_NOTICED, Lacking, Ledger, StaleConnection, Streak, Track, WINDOW,
};
use crate::time::Mono;

/// Everything a rule looks at.
pub(super) struct Case<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) inputs: &'a Inputs,
    pub(super) family: Family,
    pub(super) evidence: &'a FamilyLedger,
    pub(super) now: Mono,
}

/// Judges one family. `blind` outranks all evidence.
pub(super) fn family(
    ledger: &Ledger,
    inputs: &Inputs,
    family: Family,
    blind: Option<&Finding>,
    now: Mono,
) -> FamilyVerdict {
    let evidence = ledger.family(family);
    let case = Case {
        ledger,
        inputs,
        family,
        evidence,
        now,
    };
    let finding = blind.cloned().unwrap_or_else(|| case.judge());
    let probes = case.probe_failures();
    let since = evidence.streak.as_ref().map(|streak| streak.since);
    FamilyVerdict {
        family,
        state: finding.rule.state(),
        cause: finding.cause,
        why: finding.rule.why(),
        by_sentinel: finding.is_by_sentinel(),
        finding,
        last_proof: evidence.last_proof().max(case.last_pass()),
        last_failure: evidence.last_failure().max(probes.map(|(_, last)| last)),
        failing_since: since
            .into_iter()
            .chain(probes.map(|(since, _)| since))
            .min(),
        paths: SourceClass::ALL.map(|path| case.path(path)).to_vec(),
        lanes: case.lanes(),
    }
}

impl<'a> Case<'a> {
    /// The first rule that finds something. Probes name a cause best, so they come first in their
    /// state.
    fn judge(&self) -> Finding {
        let rules: [fn(&Self) -> Option<Finding>; 22] = [
            Self::broken_by_probes,
            Self::broken_by_connections,
            Self::stale_by_connections,
            Self::stale_by_probes,
            Self::degraded_services,
            Self::degraded_unheard,
            Self::degraded_by_probes,
            Self::degraded_aside,
            Self::degraded_by_lag,
            Self::suspect_by_probes,
            Self::suspect_by_connections,
            Self::suspect_by_stale,
            Self::proven_by_connection,
            Self::proven_by_probe,
            Self::starting,
            Self::evidence_too_old,
            Self::sentinel_altered,
            Self::datapath_changed,
            Self::never_worked,
            Self::inconclusive,
            Self::nothing_proven,
            Self::idle,
        ];
        let found = rules.iter().find_map(|rule| rule(self));
        let finding = found.unwrap_or(Finding::new(Rule::Idle, Evidence::Nothing));
        Finding {
            family: Some(self.family),
            ..finding
        }
    }

    /// Every Service with new connections failed, and nothing got through meanwhile. It holds
    /// until something does, or until the evidence is too old.
    pub(super) fn broken_by_connections(&self) -> Option<Finding> {
        let streak = self.evidence.streak.as_ref()?;
        let young = self.is_within_proof_age(streak.last);
        // "Nothing got through" is known up to the last look, not up to now.
        let lacking = streak.lacking(self.ledger.seen(self.now), self.ledger.limits());
        (young && lacking.is_none()).then(|| failing(Rule::BrokenByConnections, streak, None))
    }

    /// New connections of pods still go to an endpoint that left long ago.
    fn stale_by_connections(&self) -> Option<Finding> {
        let limits = self.ledger.limits();
        let age = limits.stale_age(self.inputs.usual_lag);
        let mut connections = 0;
        let mut tracks: Vec<&Track> = Vec::new();
        let mut oldest: Option<&StaleConnection> = None;
        for track in self.tracks() {
            let before = connections;
            for seen in track.stale_pods(age, limits.stale_fresh, self.now) {
                connections += 1;
                // Among equals the later one.
                if oldest.is_none_or(|oldest| seen.age >= oldest.age) {
                    oldest = Some(seen);
                }
            }
            if connections > before {
                tracks.push(track);
            }
        }
        if connections < limits.stale_connections {
            return None;
        }
        let oldest = oldest?;
        let evidence = Evidence::LeftEndpoint {
            services: named(&tracks),
            age: oldest.age,
            destination: oldest.destination,
        };
        let rule = Rule::StaleByConnections;
        Some(Finding::caused(rule, Cause::Stale, evidence))
    }

    /// Something gets through. While nothing does, a run of failures may yet become Broken.
    fn gets_through(&self) -> bool {
        let young = |since: Mono| self.now.since(since) < self.ledger.limits().broken_after;
        let streak = self.evidence.streak.as_ref();
        self.is_proven() && !streak.is_some_and(|streak| young(streak.since))
    }

    /// Single Services are broken while the family is proven.
    fn degraded_services(&self) -> Option<Finding> {
        let broken = self.confirmed();
        let (_, first) = broken.first().filter(|_| self.gets_through())?;
        let mut by_cause: BTreeMap<Cause, Vec<&Track>> = BTreeMap::new();
        for (track, failure) in broken.iter().take(NAMED) {
            by_cause.entry(Cause::of(*failure)).or_default().push(track);
        }
        let alike = |(cause, tracks): (Cause, Vec<&Track>)| BrokenServices {
            cause,
            services: named(&tracks),
            failures: tracks.iter().flat_map(|track| track.failures).sum(),
        };
        let evidence = Evidence::Services {
            broken: by_cause.into_iter().map(alike).collect(),
            more: broken.len().saturating_sub(NAMED),
        };
        let rule = Rule::DegradedServices;
        Some(Finding::caused(rule, Cause::of(*first), evidence))
    }

    /// Answers do not reach their clients while the family is proven.
    fn degraded_unheard(&self) -> Option<Finding> {
        let recent = |at: Mono| self.now.since(at) <= WINDOW;
        let unheard = self.evidence.unheard.iter();
        let clients = unheard.filter(|(_, at)| recent(*at)).count();
        if clients < self.ledger.limits().unheard_sources || !self.gets_through() {
            return None;
        }
        let asked_again =
            |track: &&Track| track.failures[Failure::Unheard.index()] > 0 && recent(track.last);
        let tracks: Vec<&Track> = self.tracks().filter(asked_again).collect();
        let services = named(&tracks);
        let evidence = Evidence::Unheard { services, clients };
        let rule = Rule::DegradedUnheard;
        Some(Finding::caused(rule, Cause::Unheard, evidence))
    }

    /// Failures with nothing proven after them, and no more to be said.
    fn suspect_by_connections(&self) -> Option<Finding> {
        let recent = |streak: &&Streak| self.now.since(streak.last) <= WINDOW;
        let streak = self.evidence.streak.as_ref().filter(recent)?;
        let lacking = streak.lacking(self.ledger.seen(self.now), self.ledger.limits());
        let lacking = lacking.or(Some(Lacking::Time));
        Some(failing(Rule::SuspectByConnections, streak, lacking))
    }

    /// The same of connections to endpoints that left.
    fn suspect_by_stale(&self) -> Option<Finding> {
        let limits = self.ledger.limits();
        let after_proof =
            |at: &Mono| self.now.since(*at) <= WINDOW && Some(*at) > self.evidence.last_proof();
        let stale = |track: &&Track| track.last_stale(limits).as_ref().is_some_and(after_proof);
        let tracks: Vec<&Track> = self.tracks().filter(stale).collect();
        let evidence = Evidence::Connections {
            services: named(&tracks),
            since: tracks.iter().map(|track| track.since).min()?,
            lacking: None,
        };
        let rule = Rule::SuspectByStale;
        Some(Finding::caused(rule, Cause::Stale, evidence))
    }

    /// A real connection got through, after the last probe that did.
    fn proven_by_connection(&self) -> Option<Finding> {
        let (path, at) = self.fresh_proof()?;
        let later = self.fresh_pass().is_none_or(|(_, passed)| passed < at);
        let evidence = Evidence::Connection { path, at };
        later.then(|| Finding::new(Rule::ProvenByConnection, evidence))
    }

    fn starting(&self) -> Option<Finding> {
        let BootState {
            sentinel_exists,
            booted: at,
        } = self.inputs.boot;
        let early = self.now.since(at) < self.ledger.limits().boot_deadline;
        let never = self.never_worked_lane();
        (sentinel_exists && !self.ever_proven() && early)
            .then(|| Finding::new(Rule::Starting, Evidence::Boot { at, never }))
    }

    fn evidence_too_old(&self) -> Option<Finding> {
        (self.evidence.streak.is_some() || self.had_failing_lane())
            .then(|| Finding::new(Rule::EvidenceTooOld, Evidence::Nothing))
    }

    fn sentinel_altered(&self) -> Option<Finding> {
        let said = Some(self.ledger.sentinel().view().altered.clone()?);
        Some(Finding::new(
            Rule::SentinelAltered,
            Evidence::Sentinel { said },
        ))
    }

    fn datapath_changed(&self) -> Option<Finding> {
        let owners = self.ledger.sentinel().changed_hands(self.family)?;
        Some(Finding::new(
            Rule::DatapathChanged,
            Evidence::Owners { owners },
        ))
    }

    fn inconclusive(&self) -> Option<Finding> {
        let evidence = match self.void_lane() {
            Some(void) => void,
            None if self.has_arrivals() => Evidence::Nothing,
            None => return None,
        };
        Some(Finding::new(Rule::Inconclusive, evidence))
    }

    fn nothing_proven(&self) -> Option<Finding> {
        (self.inputs.boot.sentinel_exists && !self.ever_proven())
            .then(|| Finding::new(Rule::NothingProven, self.off()))
    }

    fn idle(&self) -> Option<Finding> {
        Some(Finding::new(Rule::Idle, self.off()))
    }

    /// Why nothing is probed, where something should be.
    fn off(&self) -> Evidence {
        let said = self.ledger.sentinel().view().off.clone();
        Evidence::Sentinel { said }
    }

    /// New connections came lately, after the last that was proven.
    fn has_arrivals(&self) -> bool {
        // The arrival of the connection that was proven last is counted with the look after it.
        let late = |at: Mono, proof: Mono| at.since(proof) > LOST_NOTICED;
        let last_proof = self.evidence.last_proof();
        self.evidence.arrival.is_some_and(|at| {
            self.is_within_proof_age(at) && last_proof.is_none_or(|proof| late(at, proof))
        })
    }

    fn ever_proven(&self) -> bool {
        self.evidence.last_proof().is_some() || self.last_pass().is_some()
    }

    /// Services whose trouble is confirmed, most failures first.
    fn confirmed(&self) -> Vec<(&'a Track, Failure)> {
        let limits = self.ledger.limits();
        let confirmed = |track: &'a Track| {
            track
                .confirmed(self.now, limits)
                .map(|failure| (track, failure))
        };
        let mut found: Vec<_> = self.tracks().filter_map(confirmed).collect();
        found.sort_by_key(|(track, _)| (Reverse(weight(track)), track.label.clone()));
        found
    }

    pub(super) fn tracks(&self) -> impl Iterator<Item = &'a Track> + use<'a> {
        self.ledger.tracks(self.family)
    }

    /// Something got through, lately.
    pub(super) fn is_proven(&self) -> bool {
        self.fresh_proof().is_some() || self.fresh_pass().is_some()
    }

    /// The last proof and its path, if it is young enough.
    fn fresh_proof(&self) -> Option<(SourceClass, Mono)> {
        let proofs = SourceClass::ALL.into_iter().zip(self.evidence.proofs);
        let proven = proofs.filter_map(|(path, at)| at.map(|at| (path, at)));
        proven
            .max_by_key(|(_, at)| *at)
            .filter(|(_, at)| self.is_within_proof_age(*at))
    }

    pub(super) fn is_within_proof_age(&self, at: Mono) -> bool {
        self.now.since(at) <= self.ledger.limits().proof_age
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

fn failing(rule: Rule, streak: &Streak, lacking: Option<Lacking>) -> Finding {
    let evidence = Evidence::Connections {
        services: Named::of(streak.services.keys()),
        since: streak.since,
        lacking,
    };
    Finding::caused(rule, Cause::of(streak.commonest()), evidence)
}

fn named(tracks: &[&Track]) -> Named {
    Named::of(tracks.iter().map(|track| &*track.label))
}

fn weight(track: &Track) -> u64 {
    track.failures.iter().sum()
}

/// Services in trouble of both families, confirmed and most failing first, and how many more.
pub(super) fn troubles(ledger: &Ledger, now: Mono) -> (Vec<ServiceTrouble>, u32) {
    let limits = ledger.limits();
    let mut tracks: Vec<(Option<Failure>, &Track)> = Family::ALL
        .into_iter()
        .flat_map(|family| ledger.tracks(family))
        .filter(|track| track.is_trouble(now, limits))
        .map(|track| (track.confirmed(now, limits), track))
        .collect();
    tracks.sort_by_key(|(confirmed, track)| {
        (
            confirmed.is_none(),
            Reverse(weight(track)),
            track.label.clone(),
            track.family,
        )
    });
    let omitted = tracks.len().saturating_sub(SERVICES_SHOWN);
    let shown = tracks.into_iter().take(SERVICES_SHOWN);
    let shown = shown
        .map(|(confirmed, track)| trouble(confirmed, track))
        .collect();
    (shown, u32::try_from(omitted).unwrap_or(u32::MAX))
}

fn trouble(confirmed: Option<Failure>, track: &Track) -> ServiceTrouble {
    let failures = Failure::ALL
        .into_iter()
        .zip(track.failures)
        .filter(|(_, n)| *n > 0);
    ServiceTrouble {
        service: track.label.to_string(),
        family: track.family,
        confirmed: confirmed.is_some(),
        cause: Cause::of(confirmed.unwrap_or_else(|| track.commonest())),
        failures: failures.collect(),
        since: track.since,
        last_failure: track.last,
        last_proof: track.last_proof,
        endpoints: track.endpoints,
        example: track.example.map(|example| example.to_string()),
    }
}
