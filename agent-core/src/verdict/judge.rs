//! The rules, in the order of severity. Each one is a function from evidence to a finding.
//! Those that read the sentinel's lanes are in `lanes`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use agent_common::service::{Family, SourceClass};

use super::Inputs;
use super::finding::{BrokenServices, Evidence, Finding, NAMED, Named, Rule};
use super::report::{FamilyVerdict, PathState, PathView, SERVICES_SHOWN, ServiceTrouble};
use crate::cause::{Cause, Failure};
use crate::ledger::{
    FamilyLedger, LOST_NOTICED, Lacking, Ledger, Scope, StaleConnection, Streak, Track, WINDOW,
};
use crate::time::Mono;

/// Result of a rule: the cause, if there is one, and the evidence.
pub(super) type Found = (Option<Cause>, Evidence);
type Find<C> = fn(&C) -> Option<Found>;

/// Everything a rule looks at.
pub(super) struct Case<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) inputs: &'a Inputs,
    pub(super) family: Family,
    pub(super) evidence: &'a FamilyLedger,
    pub(super) now: Mono,
}

impl<'a> Case<'a> {
    /// Judges the family. `blind` outranks all evidence.
    pub(super) fn verdict(&self, blind: Option<&Finding>) -> FamilyVerdict {
        let evidence = self.evidence;
        let finding = blind.cloned().unwrap_or_else(|| self.judge());
        let (probes_since, last_probe) = self.probe_failures();
        let since = evidence.streak.as_ref().map(|streak| streak.since);
        FamilyVerdict {
            family: self.family,
            state: finding.rule.state(),
            cause: finding.cause,
            why: finding.rule.why(),
            by_sentinel: finding.is_by_sentinel(),
            finding,
            last_proof: evidence.last_proof().max(self.last_pass()),
            last_failure: evidence.last_failure().max(last_probe),
            failing_since: since.into_iter().chain(probes_since).min(),
            paths: SourceClass::ALL.map(|path| self.path(path)).to_vec(),
            lanes: self.lanes(),
        }
    }

    /// The first rule that finds something. Probes name a cause best, so they come first in their
    /// state.
    fn judge(&self) -> Finding {
        let rules: [(Rule, Find<Self>); 27] = [
            (Rule::BrokenByProbes, Self::broken_by_probes),
            (Rule::BrokenByConnections, Self::broken_by_connections),
            (Rule::BrokenByObstacle, Self::broken_by_obstacle),
            (Rule::StaleByConnections, Self::stale_by_connections),
            (Rule::StaleByProbes, Self::stale_by_probes),
            (Rule::DegradedServices, Self::degraded_services),
            (Rule::DegradedUnheard, Self::degraded_unheard),
            (Rule::DegradedByPeers, Self::degraded_peers),
            (Rule::DegradedByCuts, Self::degraded_cuts),
            (Rule::DegradedContradicted, Self::degraded_contradicted),
            (Rule::DegradedFiltered, Self::degraded_filtered),
            (Rule::DegradedAside, Self::degraded_aside),
            (Rule::DegradedByLag, Self::degraded_by_lag),
            (Rule::SuspectByProbes, Self::suspect_by_probes),
            (Rule::SuspectByConnections, Self::suspect_by_connections),
            (Rule::SuspectByStale, Self::suspect_by_stale),
            (Rule::StartingPods, Self::starting_pods),
            (Rule::DegradedByNode, Self::degraded_by_node),
            (Rule::ProvenByConnection, Self::proven_by_connection),
            (Rule::ProvenByProbe, Self::proven_by_probe),
            (Rule::Starting, Self::starting),
            (Rule::EvidenceTooOld, Self::evidence_too_old),
            (Rule::SentinelAltered, Self::sentinel_altered),
            (Rule::DatapathChanged, Self::datapath_changed),
            (Rule::NeverWorked, Self::never_worked),
            (Rule::Inconclusive, Self::inconclusive),
            (Rule::NothingProven, Self::nothing_proven),
        ];
        let found = |(rule, find): &(Rule, Find<Self>)| Some((*rule, find(self)?));
        let (rule, (cause, evidence)) =
            (rules.iter().find_map(found)).unwrap_or_else(|| (Rule::Idle, (None, self.off())));
        Finding {
            rule,
            family: Some(self.family),
            cause,
            evidence,
        }
    }

    /// Every Service with new connections failed, and nothing got through meanwhile. It holds
    /// until something does, or until the evidence is too old.
    pub(super) fn broken_by_connections(&self) -> Option<Found> {
        let streak = self.evidence.streak.as_ref()?;
        let young = self.is_within_proof_age(streak.last);
        // "Nothing got through" is known up to the last look, not up to now.
        let lacking = self.lacking(streak);
        (young && lacking.is_none()).then(|| self.failing_connections(streak, None))
    }

    /// An obstacle was read from the kernel, and connections from outside fail.
    fn broken_by_obstacle(&self) -> Option<Found> {
        let (cause, run) = self.evidence.obstructed.accuses(&self.ledger.limits)?;
        let evidence = Evidence::Obstacle {
            failures: run.failures,
            since: run.first,
        };
        Some((Some(cause), evidence))
    }

    /// Condition that a run of failures lacks to accuse the node.
    fn lacking(&self, streak: &Streak) -> Option<Lacking> {
        let seen = self.ledger.seen(self.now);
        streak.lacking(seen, &self.ledger.limits, self.scope(streak))
    }

    fn scope(&self, streak: &Streak) -> Scope {
        Scope {
            referee_passes: self.passes_since(streak.since),
            referee_claimed: self.is_referee_claimed(),
            referee_aside: self.is_referee_aside(),
            refereed: self.last_refereed(),
            ..self.ledger.scope(self.family, self.now)
        }
    }

    /// New connections of pods still go to an endpoint that left long ago.
    fn stale_by_connections(&self) -> Option<Found> {
        let limits = &self.ledger.limits;
        let age = limits.stale_age(self.inputs.usual_lag);
        let counts = |seen: &&StaleConnection| {
            seen.age >= age && self.now.since(seen.at) <= limits.stale_fresh
        };
        // Once connections of the Service get through, a repair is believed after a moment.
        let is_repaired = |track: &Track| {
            let last = track.stale_pods().iter().map(|seen| seen.at).max();
            last.is_some_and(|last| {
                self.now.since(last) > limits.stale_quiet && track.last_proof >= Some(last)
            })
        };
        let stale = |track: &&Track| {
            track.stale_pods().iter().any(|seen| counts(&seen)) && !is_repaired(track)
        };
        let tracks: Vec<&Track> = self.tracks().filter(stale).collect();
        let connections = tracks.iter().flat_map(|track| track.stale_pods());
        let connections = connections.filter(counts);
        if connections.clone().count() < limits.stale_connections || self.is_narrow(&tracks) {
            return None;
        }
        // Among equals the later one.
        let oldest = connections.max_by_key(|seen| seen.age)?;
        let evidence = Evidence::LeftEndpoint {
            services: named(&tracks),
            age: oldest.age,
            destination: oldest.destination,
        };
        Some((Some(Cause::Stale), evidence))
    }

    /// All of one namespace, while pods of this node use Services of others: whose pods keep dialling
    /// an endpoint that left is that namespace's trouble.
    fn is_narrow(&self, tracks: &[&Track]) -> bool {
        let namespaces: BTreeSet<&str> = tracks.iter().map(|track| track.namespace()).collect();
        // A Service that never worked is not among those in use, and accuses all the same.
        let others = &self.ledger.worked;
        let others = others.namespaces_beside(&namespaces, self.family, self.now);
        let used = namespaces.len() + others;
        namespaces.len() < self.ledger.limits.broken_namespaces.min(used)
    }

    /// Something gets through. While nothing does, a run of failures may yet become Broken, unless
    /// it is that of few Services whose trouble is confirmed: they fail again after each proof.
    fn gets_through(&self, confirmed: &[(&Track, Failure)]) -> bool {
        let is_confirmed = |label: &String| confirmed.iter().any(|(of, _)| *of.label == **label);
        let is_theirs = |streak: &Streak| streak.services.keys().all(is_confirmed);
        let is_narrow = |streak: &Streak| {
            let lacking = streak.lacking_breadth(&self.ledger.limits, self.scope(streak));
            lacking.is_some() && self.failing().is_empty()
        };
        let may_become = |streak: &&Streak| {
            let young = self.now.since(streak.since) < self.ledger.limits.broken_after;
            young && !(is_theirs(streak) && is_narrow(streak))
        };
        let streak = self.evidence.streak.as_ref();
        let proven = self.fresh_proof().is_some() || self.fresh_pass().is_some();
        proven && streak.filter(may_become).is_none()
    }

    /// Single Services are broken while the family is proven.
    fn degraded_services(&self) -> Option<Found> {
        let broken = self.confirmed();
        let (_, first) = broken.first().filter(|_| self.gets_through(&broken))?;
        let mut by_cause: BTreeMap<Cause, Vec<&Track>> = BTreeMap::new();
        for (track, failure) in broken.iter().take(NAMED) {
            let cause = self.ledger.cause(*failure, self.now);
            by_cause.entry(cause).or_default().push(track);
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
        Some((Some(self.ledger.cause(*first, self.now)), evidence))
    }

    /// Answers do not reach their clients while the family is proven.
    fn degraded_unheard(&self) -> Option<Found> {
        let recent = |at: Mono| self.now.since(at) <= WINDOW;
        let unheard = self.evidence.unheard.iter();
        let clients = unheard.filter(|(_, at)| recent(*at)).count();
        if clients < self.ledger.limits.unheard_sources || !self.gets_through(&self.confirmed()) {
            return None;
        }
        let asked_again =
            |track: &&Track| track.failures[Failure::Unheard as usize] > 0 && recent(track.last);
        let tracks: Vec<&Track> = self.tracks().filter(asked_again).collect();
        let services = named(&tracks);
        let evidence = Evidence::Unheard { services, clients };
        Some((Some(Cause::Unheard), evidence))
    }

    /// Failures with nothing proven after them, and no more to be said.
    fn suspect_by_connections(&self) -> Option<Found> {
        let limits = &self.ledger.limits;
        // Single failures between proofs are no state of the node.
        let lasts =
            |since: Option<Mono>| since.is_none_or(|at| self.now.since(at) >= limits.suspect_after);
        let counts = |streak: &&Streak| {
            self.now.since(streak.last) <= WINDOW
                && (lasts(Some(streak.since)) || lasts(self.evidence.last_proof()))
        };
        let streak = self.evidence.streak.as_ref().filter(counts)?;
        let lacking = self.lacking(streak);
        let lacking = lacking.or(Some(Lacking::Time));
        Some(self.failing_connections(streak, lacking))
    }

    fn failing_connections(&self, streak: &Streak, lacking: Option<Lacking>) -> Found {
        let evidence = Evidence::Connections {
            services: Named::of(streak.services.keys()),
            since: streak.since,
            lacking,
        };
        (
            Some(self.ledger.cause(streak.commonest(), self.now)),
            evidence,
        )
    }

    /// The same of connections to endpoints that left.
    fn suspect_by_stale(&self) -> Option<Found> {
        let limits = &self.ledger.limits;
        let after_proof =
            |at: &Mono| self.now.since(*at) <= WINDOW && Some(*at) > self.evidence.last_proof();
        let stale = |track: &&Track| track.last_stale(limits).as_ref().is_some_and(after_proof);
        let tracks: Vec<&Track> = self.tracks().filter(stale).collect();
        let evidence = Evidence::Connections {
            services: named(&tracks),
            since: tracks.iter().map(|track| track.since).min()?,
            lacking: None,
        };
        Some((Some(Cause::Stale), evidence))
    }

    /// A real connection got through, after the last probe that did.
    fn proven_by_connection(&self) -> Option<Found> {
        let (path, at) = self.fresh_proof()?;
        let later = self.fresh_pass().is_none_or(|(_, passed)| passed < at);
        later.then_some((None, Evidence::Connection { path, at }))
    }

    fn is_booting(&self) -> bool {
        self.now.since(self.inputs.booted) < self.ledger.limits.boot_deadline
    }

    fn starting(&self) -> Option<Found> {
        let at = self.inputs.booted;
        let never = self.never_worked_lane();
        (self.lacks_proof() && self.is_booting()).then_some((None, Evidence::Boot { at, never }))
    }

    /// The sentinel proves the node's rules before there is a network for pods.
    fn starting_pods(&self) -> Option<Found> {
        let at = self.inputs.booted;
        let expected = self.inputs.pods_expected[self.family as usize];
        let proven = self.evidence.proofs[SourceClass::Pod as usize].is_some();
        (expected && !proven && self.is_booting())
            .then_some((None, Evidence::Boot { at, never: None }))
    }

    /// While the node boots, the network for its pods is being made. It takes the place of Proven alone:
    /// the Node's word ends no 503 that only a proof ends.
    fn degraded_by_node(&self) -> Option<Found> {
        let said = self.inputs.network.clone()?;
        (self.proven_by_connection()).or_else(|| self.proven_by_probe())?;
        (!self.is_booting()).then_some((Some(Cause::Cni), Evidence::Network { said }))
    }

    fn evidence_too_old(&self) -> Option<Found> {
        let failed = self.evidence.streak.is_some() || self.had_failing_lane();
        failed.then_some((None, Evidence::Nothing))
    }

    fn sentinel_altered(&self) -> Option<Found> {
        let said = Some(self.ledger.sentinel.view.altered.clone()?);
        Some((None, Evidence::Sentinel { said }))
    }

    fn datapath_changed(&self) -> Option<Found> {
        let owners = self.ledger.sentinel.changed_hands(self.family)?;
        Some((None, Evidence::Owners { owners }))
    }

    fn inconclusive(&self) -> Option<Found> {
        let arrivals = || self.has_arrivals().then_some(Evidence::Nothing);
        Some((None, self.void_lane().or_else(arrivals)?))
    }

    fn nothing_proven(&self) -> Option<Found> {
        self.lacks_proof().then(|| (None, self.off()))
    }

    /// Reason why nothing is probed although something should be.
    fn off(&self) -> Evidence {
        let said = self.ledger.sentinel.view.off.clone();
        Evidence::Sentinel { said }
    }

    /// New connections came lately, after the last that was proven.
    fn has_arrivals(&self) -> bool {
        // The arrival of the connection that was proven last is counted with the look after it.
        let last_proof = self.evidence.last_proof();
        let arrival = self
            .evidence
            .arrival
            .filter(|at| self.is_within_proof_age(*at));
        arrival.is_some_and(|at| last_proof.is_none_or(|proof| at.since(proof) > LOST_NOTICED))
    }

    /// There is a sentinel, and nothing was ever proven.
    fn lacks_proof(&self) -> bool {
        let proven = self.evidence.last_proof().is_some() || self.last_pass().is_some();
        self.inputs.sentinel_exists && !proven
    }

    /// Services whose trouble is confirmed, most failures first.
    fn confirmed(&self) -> Vec<(&'a Track, Failure)> {
        let limits = &self.ledger.limits;
        let confirmed = |track: &'a Track| Some((track, track.confirmed(self.now, limits)?));
        let mut found: Vec<_> = self.tracks().filter_map(confirmed).collect();
        found.sort_by_key(|(track, _)| (Reverse(weight(track)), track.label.clone()));
        found
    }

    fn tracks(&self) -> impl Iterator<Item = &'a Track> + use<'a> {
        self.ledger.tracks(self.family)
    }

    /// The last proof and its path, if it is young enough.
    fn fresh_proof(&self) -> Option<(SourceClass, Mono)> {
        let proofs = SourceClass::ALL.into_iter().zip(self.evidence.proofs);
        let proven = proofs.filter_map(|(path, at)| Some((path, at?)));
        let last = proven.max_by_key(|(_, at)| *at);
        last.filter(|(_, at)| self.is_within_proof_age(*at))
    }

    pub(super) fn is_within_proof_age(&self, at: Mono) -> bool {
        self.now.since(at) <= self.ledger.limits.proof_age
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

fn named(tracks: &[&Track]) -> Named {
    Named::of(tracks.iter().map(|track| &*track.label))
}

fn weight(track: &Track) -> u64 {
    track.failures.iter().sum()
}

/// Services in trouble of both families, confirmed and most failing first, and how many more.
pub(super) fn troubles(ledger: &Ledger, now: Mono) -> (Vec<ServiceTrouble>, u32) {
    let limits = &ledger.limits;
    let mut tracks: Vec<(Option<Failure>, &Track)> = (ledger.tracks.values())
        .filter(|track| track.is_trouble(now, limits))
        .map(|track| (track.confirmed(now, limits), track))
        .collect();
    tracks.sort_by_key(|(confirmed, track)| {
        let most = Reverse(weight(track));
        (confirmed.is_none(), most, track.label.clone(), track.family)
    });
    let omitted = tracks.len().saturating_sub(SERVICES_SHOWN);
    let shown = tracks.into_iter().take(SERVICES_SHOWN);
    let cause = |failure| ledger.cause(failure, now);
    let shown = shown.map(|(confirmed, track)| {
        let failure = confirmed.unwrap_or_else(|| track.commonest());
        trouble(confirmed.is_some(), cause(failure), track)
    });
    (shown.collect(), u32::try_from(omitted).unwrap_or(u32::MAX))
}

fn trouble(confirmed: bool, cause: Cause, track: &Track) -> ServiceTrouble {
    let failures = Failure::ALL.into_iter().zip(track.failures);
    ServiceTrouble {
        service: track.label.to_string(),
        family: track.family,
        confirmed,
        cause,
        failures: failures.filter(|(_, n)| *n > 0).collect(),
        since: track.since,
        last_failure: track.last,
        last_proof: track.last_proof,
        endpoints: track.endpoints,
        example: track.example.map(|example| example.to_string()),
    }
}
