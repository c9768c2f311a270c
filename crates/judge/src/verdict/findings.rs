//! Explanations that accuse nobody: single Services in trouble, silent nodes, unconfirmed failures, and
//! successes. All are shown beside the decision, and none hides another. Findings about the sentinel's
//! lanes are in `lanes`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pathproof_facts::cause::{Cause, Failure};
use pathproof_facts::time::Mono;
use pathproof_wire::service::SourceClass;
use pathproof_witness::ledger::{LOST_NOTICED, Ledger, Streak, Track, WINDOW};

use super::case::{Case, Grounds, named};
use super::finding::{BrokenServices, Evidence, MissingCriterion, NAMED, Named, Rule};
use super::report::{SERVICES_SHOWN, ServiceTrouble};

type FindGrounds<C> = fn(&C) -> Option<Grounds>;

impl<'a> Case<'a> {
    /// All findings by weight. The first one gives the state if nothing accuses the node.
    pub(super) fn findings(&self) -> impl Iterator<Item = (Rule, Grounds)> {
        let rules: [(Rule, FindGrounds<Self>); 17] = [
            (Rule::DegradedServices, Self::degraded_services),
            (Rule::DegradedByData, Self::degraded_by_data),
            (Rule::DegradedAnswerNotDelivered, Self::degraded_unheard),
            (Rule::DegradedByPeers, Self::degraded_peers),
            (
                Rule::DegradedByLargeTransfers,
                Self::degraded_by_large_transfers,
            ),
            (Rule::DegradedContradicted, Self::degraded_contradicted),
            (Rule::DegradedFiltered, Self::degraded_filtered),
            (Rule::DegradedSecondaryPath, Self::degraded_secondary_path),
            (Rule::DegradedByLag, Self::degraded_by_lag),
            (Rule::SuspectByProbes, Self::suspect_by_probes),
            (Rule::SuspectByConnections, Self::suspect_by_connections),
            (Rule::SuspectByStale, Self::suspect_by_stale),
            (Rule::StartingPods, Self::starting_pods),
            (Rule::DegradedByNode, Self::degraded_by_node),
            (Rule::ProvenByConnection, Self::proven_by_connection),
            (Rule::ProvenByProbe, Self::proven_by_probe),
            (Rule::Starting, Self::starting),
        ];
        let found = rules.map(|(rule, find)| Some((rule, find(self)?)));
        found.into_iter().flatten()
    }

    /// The reason for Unknown, if there is no finding.
    pub(super) fn unknown(&self) -> (Rule, Grounds) {
        let rules: [(Rule, FindGrounds<Self>); 6] = [
            (Rule::EvidenceTooOld, Self::evidence_too_old),
            (Rule::SentinelAltered, Self::sentinel_altered),
            (Rule::DatapathChanged, Self::datapath_changed),
            (Rule::NeverWorked, Self::never_worked),
            (Rule::Inconclusive, Self::inconclusive),
            (Rule::NothingProven, Self::nothing_proven),
        ];
        let found = |(rule, find): &(Rule, FindGrounds<Self>)| Some((*rule, find(self)?));
        let idle = || (Rule::Idle, (None, self.off()));
        rules.iter().find_map(found).unwrap_or_else(idle)
    }

    /// Whether the family works apart from these Services: it is proven, and no run of failures may still
    /// accuse the node. A young run may, unless it has only confirmed Services and these are too few. Such a
    /// run does not matter, because it begins again after each success.
    fn gets_through(&self, confirmed: &[(&Track, Failure)]) -> bool {
        let is_confirmed =
            |label: &String| confirmed.iter().any(|(track, _)| *track.label == **label);
        let is_narrow = || {
            let lacking = self.missing_breadth(&self.groups());
            lacking.is_some_and(|missing| missing != MissingCriterion::Time)
                && self.failing().is_empty()
        };
        let may_accuse = |streak: &&Streak| {
            let young = self.now.since(streak.since) < self.limits().broken_after;
            young && !(streak.labels.iter().all(is_confirmed) && is_narrow())
        };
        let streak = self.evidence.streak.as_ref();
        let proven = self.fresh_proof().is_some() || self.fresh_pass().is_some();
        proven && streak.filter(may_accuse).is_none()
    }

    /// Single Services are broken while the family is proven.
    fn degraded_services(&self) -> Option<Grounds> {
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
            last_success: self.evidence.last_proof().filter(|at| {
                let since = broken.iter().map(|(track, _)| track.since).min();
                since.is_some_and(|since| *at > since)
            }),
        };
        Some((Some(self.ledger.cause(*first, self.now)), evidence))
    }

    /// Answers do not reach their clients while the family is proven.
    fn degraded_unheard(&self) -> Option<Grounds> {
        let recent = |at: Mono| self.now.since(at) <= WINDOW;
        let not_delivered = self.evidence.answers_not_delivered.iter();
        let clients = not_delivered.filter(|(_, at)| recent(*at)).count();
        if clients < self.ledger.limits.unheard_sources || !self.gets_through(&self.confirmed()) {
            return None;
        }
        let asked_again = |track: &&Track| {
            track.failures[Failure::AnswerNotDelivered as usize] > 0 && recent(track.last)
        };
        let tracks: Vec<&Track> = self.tracks().filter(asked_again).collect();
        let services = named(&tracks);
        let evidence = Evidence::AnswerNotDelivered { services, clients };
        Some((Some(Cause::AnswerNotDelivered), evidence))
    }

    /// Connections failed, and none has been proven since.
    fn suspect_by_connections(&self) -> Option<Grounds> {
        let limits = &self.ledger.limits;
        // Single failures between proofs do not affect the node's state.
        let lasts =
            |since: Option<Mono>| since.is_none_or(|at| self.now.since(at) >= limits.suspect_after);
        let counts = |streak: &&Streak| {
            self.now.since(streak.last) <= WINDOW
                && (lasts(Some(streak.since)) || lasts(self.evidence.last_proof()))
        };
        let streak = self.evidence.streak.as_ref().filter(counts)?;
        let groups = self.groups();
        let lacking = self.missing_breadth(&groups);
        let lacking = Some(lacking.unwrap_or(MissingCriterion::Time));
        if lacking != Some(MissingCriterion::New)
            && let Some(found) = self.failed_connections(&groups, lacking)
        {
            return Some(found);
        }
        let evidence = Evidence::Connections {
            services: Named::of(streak.labels.iter()),
            since: streak.since,
            lacking,
            clients: Vec::new(),
            failures: 0,
            last_success: self.evidence.last_proof(),
        };
        Some((
            Some(self.ledger.cause(streak.commonest(), self.now)),
            evidence,
        ))
    }

    /// Connections went to endpoints that left, and none has been proven since.
    fn suspect_by_stale(&self) -> Option<Grounds> {
        let limits = &self.ledger.limits;
        let after_proof =
            |at: &Mono| self.now.since(*at) <= WINDOW && Some(*at) > self.evidence.last_proof();
        let stale = |track: &&Track| track.last_stale(limits).as_ref().is_some_and(after_proof);
        let tracks: Vec<&Track> = self.tracks().filter(stale).collect();
        let evidence = Evidence::Connections {
            services: named(&tracks),
            since: tracks.iter().map(|track| track.since).min()?,
            lacking: None,
            clients: Vec::new(),
            failures: 0,
            last_success: self.evidence.last_proof(),
        };
        Some((Some(Cause::Stale), evidence))
    }

    /// A real connection succeeded, after the last probe that passed.
    fn proven_by_connection(&self) -> Option<Grounds> {
        let (path, at) = self.fresh_proof()?;
        let later = self.fresh_pass().is_none_or(|(_, passed)| passed < at);
        later.then_some((None, Evidence::Connection { path, at }))
    }

    fn is_booting(&self) -> bool {
        self.now.since(self.inputs.booted) < self.ledger.limits.boot_deadline
    }

    fn starting(&self) -> Option<Grounds> {
        let at = self.inputs.booted;
        let never = self.never_worked_lane();
        (self.lacks_proof() && self.is_booting()).then_some((None, Evidence::Boot { at, never }))
    }

    /// The node is booting, and no pod's connection has succeeded. A passing probe does not end this, because
    /// the sentinel needs no pod network.
    fn starting_pods(&self) -> Option<Grounds> {
        let at = self.inputs.booted;
        let expected = self.inputs.pods_expected[self.family as usize];
        let proven = self.evidence.proofs[SourceClass::Pod as usize].is_some();
        (expected && !proven && self.is_booting())
            .then_some((None, Evidence::Boot { at, never: None }))
    }

    /// The Node reports that its pods have no network. This rule applies only after a probe or a connection
    /// succeeded. Degraded means 200, so without that success it would end a 503 that only a success may end.
    /// The rule does not apply during boot, while the pod network is still being set up.
    fn degraded_by_node(&self) -> Option<Grounds> {
        let said = self.inputs.network.clone()?;
        self.proven_by_connection()
            .or_else(|| self.proven_by_probe())?;
        (!self.is_booting()).then_some((Some(Cause::Cni), Evidence::Network { said }))
    }

    fn evidence_too_old(&self) -> Option<Grounds> {
        let failed = self.evidence.streak.is_some() || self.had_failing_lane();
        failed.then_some((None, Evidence::Nothing))
    }

    fn sentinel_altered(&self) -> Option<Grounds> {
        let said = Some(self.ledger.sentinel.view.altered.clone()?);
        Some((None, Evidence::Sentinel { said }))
    }

    fn datapath_changed(&self) -> Option<Grounds> {
        let owners = self.ledger.sentinel.changed_hands(self.family)?;
        Some((None, Evidence::Owners { owners }))
    }

    fn inconclusive(&self) -> Option<Grounds> {
        let arrivals = || self.has_arrivals().then_some(Evidence::Nothing);
        Some((None, self.void_lane().or_else(arrivals)?))
    }

    fn nothing_proven(&self) -> Option<Grounds> {
        self.lacks_proof().then(|| (None, self.off()))
    }

    /// Reason why nothing is probed although it should be.
    fn off(&self) -> Evidence {
        let said = self.ledger.sentinel.view.off.clone();
        Evidence::Sentinel { said }
    }

    /// Whether new connections arrived recently, after the last proven one.
    fn has_arrivals(&self) -> bool {
        // An arrival just after a proof does not count: the next sample may still contain the proven
        // connection's arrival.
        let last_proof = self.evidence.last_proof();
        let arrival = self
            .evidence
            .arrival
            .filter(|at| self.is_within_proof_age(*at));
        arrival.is_some_and(|at| last_proof.is_none_or(|proof| at.since(proof) > LOST_NOTICED))
    }

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
}

fn weight(track: &Track) -> u64 {
    track.failures.iter().sum()
}

/// Services in trouble in both families, and how many were omitted. Confirmed ones come first, then those
/// with most failures.
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
    }
}
