//! The rules, in the order of severity. Each one is a function from evidence to a finding.

use std::cmp::Reverse;

use agent_common::service::{Family, SourceClass};

use super::report::{FamilyVerdict, PathState, PathView, SERVICES_SHOWN, ServiceTrouble};
use super::{Inputs, lane_words, words};
use crate::cause::Failure;
use crate::cause::{Cause, State, Why};
use crate::ledger::{FamilyLedger, LOST_NOTICED, Ledger, Track, WINDOW};
use crate::time::Mono;

/// What a rule found.
pub(super) struct Finding {
    pub(super) state: State,
    pub(super) cause: Option<Cause>,
    pub(super) why: Option<Why>,
    pub(super) reason: String,
    /// It rests on probes alone.
    pub(super) by_sentinel: bool,
}

impl Finding {
    pub(super) fn caused(state: State, cause: Cause, reason: String) -> Self {
        Self {
            state,
            cause: Some(cause),
            why: None,
            reason,
            by_sentinel: false,
        }
    }

    fn plain(state: State, reason: String) -> Self {
        Self {
            state,
            cause: None,
            why: None,
            reason,
            by_sentinel: false,
        }
    }

    fn unknown(why: Why, reason: String) -> Self {
        Self {
            state: State::Unknown,
            cause: None,
            why: Some(why),
            reason,
            by_sentinel: false,
        }
    }
}

/// Everything a rule looks at.
pub(super) struct Case<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) inputs: &'a Inputs,
    pub(super) family: Family,
    pub(super) evidence: &'a FamilyLedger,
    pub(super) now: Mono,
}

/// Judges one family. `unknown` outranks all evidence.
pub(super) fn family(
    ledger: &Ledger,
    inputs: &Inputs,
    family: Family,
    unknown: Option<Why>,
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
    let finding = match unknown {
        Some(why) => Finding::unknown(why, words::blind(why, ledger, now)),
        None => case.judge(),
    };
    let probes = case.probe_failures();
    let since = evidence.streak.as_ref().map(|streak| streak.since);
    FamilyVerdict {
        family,
        state: finding.state,
        cause: finding.cause,
        why: finding.why,
        reason: finding.reason,
        last_proof: evidence.last_proof().max(case.last_pass()),
        last_failure: evidence.last_failure().max(probes.map(|(_, last)| last)),
        failing_since: since
            .into_iter()
            .chain(probes.map(|(since, _)| since))
            .min(),
        paths: SourceClass::ALL.map(|path| case.path(path)).to_vec(),
        by_sentinel: finding.by_sentinel,
        lanes: case.lanes(),
    }
}

impl<'a> Case<'a> {
    fn judge(&self) -> Finding {
        self.broken()
            .or_else(|| self.stale())
            .or_else(|| self.stale_by_probes())
            .or_else(|| self.degraded())
            .or_else(|| self.degraded_by_probes())
            .or_else(|| self.degraded_by_lag())
            .or_else(|| self.suspect_by_probes())
            .or_else(|| self.suspect())
            .or_else(|| self.proven())
            .or_else(|| self.starting())
            .unwrap_or_else(|| self.nothing_known())
    }

    /// Probes name the cause best; that real connections say it too is no less worth knowing.
    fn broken(&self) -> Option<Finding> {
        let real = self.broken_by_connections();
        match self.broken_by_probes() {
            Some(mut probes) => {
                probes.by_sentinel = real.is_none();
                Some(probes)
            }
            None => real,
        }
    }

    /// Every Service with new connections failed, and nothing got through meanwhile. It holds
    /// until something does, or until the evidence is too old.
    fn broken_by_connections(&self) -> Option<Finding> {
        let streak = self.evidence.streak.as_ref()?;
        let limits = self.ledger.limits();
        if !self.is_within_proof_age(streak.last) {
            return None;
        }
        // "Nothing got through" is known up to the last look, not up to now.
        match streak.lacking(self.ledger.seen(self.now), limits) {
            None => Some(Finding::caused(
                State::Broken,
                Cause::of(streak.commonest()),
                words::broken(self, streak),
            )),
            Some(_) => None,
        }
    }

    /// New connections of pods still go to an endpoint that left long ago.
    fn stale(&self) -> Option<Finding> {
        let limits = self.ledger.limits();
        let age = limits.stale_age(self.inputs.usual_lag);
        let mut connections = 0;
        let mut tracks: Vec<&Track> = Vec::new();
        for track in self.tracks() {
            let seen = track.stale_pods(age, limits.stale_fresh, self.now).count();
            connections += seen;
            if seen > 0 {
                tracks.push(track);
            }
        }
        if connections < limits.stale_connections {
            return None;
        }
        let reason = words::stale(self, &tracks, age);
        Some(Finding::caused(State::Stale, Cause::Stale, reason))
    }

    /// Single Services are broken, or answers are not heard, while the family is proven.
    fn degraded(&self) -> Option<Finding> {
        if !self.is_proven() {
            return None;
        }
        // While nothing gets through at all, a run of failures may yet become Broken.
        let young = |since: Mono| self.now.since(since) < self.ledger.limits().broken_after;
        if self
            .evidence
            .streak
            .as_ref()
            .is_some_and(|streak| young(streak.since))
        {
            return None;
        }
        let broken = self.confirmed();
        if let Some((_, failure)) = broken.first() {
            let cause = Cause::of(*failure);
            return Some(Finding::caused(
                State::Degraded,
                cause,
                words::degraded(self, &broken),
            ));
        }
        let recent = |at: &Mono| self.now.since(*at) <= WINDOW;
        let deaf = self
            .evidence
            .unheard
            .iter()
            .filter(|(_, at)| recent(at))
            .count();
        if deaf < self.ledger.limits().unheard_sources {
            return None;
        }
        let reason = words::unheard(self, deaf);
        Some(Finding::caused(State::Degraded, Cause::Unheard, reason))
    }

    /// Failures with nothing proven after them, and no more to be said.
    fn suspect(&self) -> Option<Finding> {
        if let Some(streak) = &self.evidence.streak
            && self.now.since(streak.last) <= WINDOW
        {
            let cause = Cause::of(streak.commonest());
            return Some(Finding::caused(
                State::Suspect,
                cause,
                words::suspect(self, streak),
            ));
        }
        let limits = self.ledger.limits();
        let after_proof =
            |at: &Mono| self.now.since(*at) <= WINDOW && Some(*at) > self.evidence.last_proof();
        let stale = |track: &&Track| track.last_stale(limits).as_ref().is_some_and(after_proof);
        let tracks: Vec<&Track> = self.tracks().filter(stale).collect();
        if tracks.is_empty() {
            return None;
        }
        let reason = words::suspect_stale(self, &tracks);
        Some(Finding::caused(State::Suspect, Cause::Stale, reason))
    }

    fn proven(&self) -> Option<Finding> {
        let reason = match (self.fresh_proof(), self.fresh_pass()) {
            (Some((path, at)), pass) if pass.is_none_or(|(_, passed)| passed < at) => {
                words::proven(self, path, at)
            }
            (_, Some((lane, at))) => lane_words::proven(self, lane, at),
            _ => return None,
        };
        Some(Finding::plain(State::Proven, reason))
    }

    fn starting(&self) -> Option<Finding> {
        let boot = self.inputs.boot;
        let proven = self.ever_proven();
        let early = self.now.since(boot.booted) < self.ledger.limits().boot_deadline;
        (boot.sentinel_exists && !proven && early)
            .then(|| Finding::plain(State::Starting, words::starting(self)))
    }

    fn nothing_known(&self) -> Finding {
        let why = self.why();
        Finding::unknown(why, words::nothing_known(self, why))
    }

    fn why(&self) -> Why {
        let sentinel = self.ledger.sentinel();
        let exists = self.inputs.boot.sentinel_exists;
        if self.evidence.streak.is_some() || self.had_failing_lane() {
            Why::EvidenceTooOld
        } else if sentinel.view().altered.is_some() {
            Why::SentinelAltered
        } else if sentinel.changed_hands(self.family).is_some() {
            Why::DatapathChanged
        } else if self.never_worked().is_some() && exists {
            Why::NothingProven
        } else if self.has_arrivals() || self.void_lane().is_some() {
            Why::Inconclusive
        } else if exists && !self.ever_proven() {
            Why::NothingProven
        } else {
            Why::Idle
        }
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
