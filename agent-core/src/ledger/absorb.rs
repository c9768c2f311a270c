//! Absorbing a sample into the ledger: proofs first, then what failed after them.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry as Place;
use std::time::Duration;

use agent_common::abi::LOSS_WINDOW_NS;
use agent_common::evidence::Outcome;
use agent_common::service::{FAMILIES, Family, SourceClass};

use super::family::Entry;
use super::{Ledger, SERVICES_TRACKED, Track};
use crate::cause::Failure;
use crate::cluster::ObjectName;
use crate::evidence::{CountDelta, Directory, Sample, ServiceInfo, Sighting};
use crate::limits::{DIALLED_AFTER, DISPUTED, KEPT};
use crate::peers::PeerSample;
use crate::time::Mono;

/// A lost connection is noticed this long after its arrival at the latest, the look included.
pub(crate) const LOST_NOTICED: Duration = Duration::from_nanos(LOSS_WINDOW_NS + 500_000_000);

impl Ledger {
    /// Takes in what one look at the kernel brought.
    pub fn absorb(&mut self, sample: &Sample, directory: &dyn Directory) {
        let before = self.sampled;
        let at = before.map_or(sample.at, |before| sample.at.max(before));
        self.observer = sample.observer.clone();
        self.sampled = Some(at);
        self.seen = Some(at);
        self.tracks.retain(|_, track| at.since(track.last) <= KEPT);
        self.outside.forget(at, directory);
        if sample.observer.attached == 0 {
            // Unseen connections may have been proven: no run of failures holds.
            self.outside.excuse();
            return self.end_streaks();
        }
        let sample_gap = self.limits.sample_gap;
        let gap = before.is_none_or(|before| at.since(before) > sample_gap);
        if let Some(before) = before {
            self.close_gap(before, at);
        }
        let mut look = Look {
            at,
            // After a gap the ring buffer holds old failures: they do not make a run any older.
            floor: if gap { at } else { at.minus(sample_gap) },
            before,
            proven: [false; FAMILIES],
            proven_outside: BTreeSet::new(),
        };
        // A Service of real connections: those of the sentinel are probes, and strangers that dial it.
        let real = |id| directory.service(id).filter(|info| !info.sentinel);
        let counts = sample.counts.iter();
        let counts = counts.filter_map(|delta| Some((delta, real(delta.service)?)));
        let counts: Vec<Counted<'_>> = counts.collect();
        self.absorb_answers(sample, &counts, real, at);
        self.absorb_proofs(sample, &counts, &mut look);
        for (_, info) in counts.iter().filter(|(_, info)| info.endpoints == 0) {
            self.worked.lack_endpoints(info, at);
            self.worked_outside.lack_endpoints(info, at);
            self.families[info.family as usize].excuse(info);
        }
        for (family, _) in self
            .families
            .iter_mut()
            .zip(sample.unanswered)
            .filter(|(_, n)| *n > 0)
        {
            family.leave_unanswered(at);
        }
        for (delta, info) in &counts {
            self.absorb_failures(delta, info, &look);
        }
        for sighting in &sample.anomalies {
            // An old view does not change which endpoints are on this node.
            let counts = sighting.misdelivered || !self.is_suspended(sighting.failure);
            if counts && let Some(info) = real(sighting.service) {
                self.absorb_sighting(sighting, &info, &look);
            }
        }
    }

    /// Takes in connections to other nodes. Must follow [`Ledger::absorb`] of the same sample.
    pub fn absorb_peers(&mut self, peers: &PeerSample, directory: &dyn Directory) {
        if let Some(at) = self.sampled {
            // While everything cannot be seen, an answer may have passed unseen.
            let trusts_silence = self.observer.attached > 0 && !self.is_suspended(Failure::Lost);
            let limits = (self.limits.proof_age, trusts_silence);
            self.peers.absorb(peers, at, limits, directory);
        }
    }

    /// A gap in observation ends a run of failures, unless it had already been confirmed: then it
    /// is the last sound verdict, and a proof would have been counted by the kernel all the same.
    pub(super) fn close_gap(&mut self, before: Mono, at: Mono) {
        if at.since(before) <= self.limits.sample_gap {
            return;
        }
        self.peers.forget_silence();
        let scopes = Family::ALL.map(|family| self.scope(family, before));
        for (family, scope) in self.families.iter_mut().zip(scopes) {
            let streak = &mut family.streak;
            streak.take_if(|streak| streak.lacking(before, &self.limits, scope).is_some());
            family.obstructed.lose_sight(&self.limits);
        }
    }

    pub(super) fn end_streaks(&mut self) {
        for family in &mut self.families {
            family.streak = None;
            family.answers.forget_lost(Mono(u64::MAX));
            family.obstructed.lose_sight(&self.limits);
        }
    }

    /// Answers before proofs: while answers come in and none goes on, a SYN that leaves for an endpoint is no
    /// proof. Only those of Services whose SYNs leave tell that answers are forwarded: what the node itself
    /// answers needs no forwarding (endpoints that are the node, a DNS cache that has a Service's address).
    /// While connections may get through unseen no answer counts as lost, and those that were count for as
    /// long as a proof does.
    fn absorb_answers(
        &mut self,
        sample: &Sample,
        counts: &[Counted<'_>],
        real: impl Fn(u32) -> Option<ServiceInfo>,
        at: Mono,
    ) {
        let old = at.minus(self.limits.proof_age);
        for (delta, info) in counts.iter().filter(|(_, info)| !info.on_host) {
            let answered = delta.counts[Outcome::Answered as usize] > 0;
            let leaves = delta.counts[Outcome::Proven as usize] > 0
                || match delta.class {
                    SourceClass::Pod => self.worked.has_lately(info, old),
                    SourceClass::External => self.worked_outside.has_lately(info, old),
                    SourceClass::Host => false,
                };
            if answered && leaves {
                let ledger = &mut self.families[info.family as usize];
                ledger.answers.go_on(delta.class, at);
            }
        }
        if self.is_suspended(Failure::Lost) {
            let families = self.families.iter_mut();
            return families.for_each(|of| of.answers.forget_lost(old));
        }
        for sighting in sample.anomalies.iter().filter(|of| of.answer_lost) {
            if let Some(info) = real(sighting.service).filter(|info| !is_disputed(info, at)) {
                let ledger = &mut self.families[info.family as usize];
                ledger.lose_answer(sighting.class, sighting.arrived);
            }
        }
    }

    /// Proofs first: they end runs of failures.
    fn absorb_proofs(&mut self, sample: &Sample, counts: &[Counted<'_>], look: &mut Look) {
        look.proven = Family::ALL.map(|family| {
            let ledger = &mut self.families[family as usize];
            let known = ledger.last_proof();
            for class in SourceClass::ALL {
                if ledger.answers.is_stuck(class) {
                    continue;
                }
                if let Some(at) = sample.last_proofs[family as usize][class as usize] {
                    ledger.prove(class, at);
                }
            }
            ledger.last_proof() > known
        });
        for (delta, info) in counts {
            let ledger = &mut self.families[info.family as usize];
            if delta.counts[Outcome::Arrived as usize] > 0 {
                ledger.arrival = Some(look.at);
            }
            if delta.counts[Outcome::Proven as usize] == 0 || ledger.answers.is_stuck(delta.class) {
                continue;
            }
            // Counted, but its time was read a moment too early.
            if ledger.proofs[delta.class as usize] <= look.before {
                ledger.prove(delta.class, look.at);
            }
            look.proven[info.family as usize] = true;
            match delta.class {
                SourceClass::Pod => self.worked.note(info, look.at),
                SourceClass::External => {
                    self.worked_outside.note(info, look.at);
                    self.outside.prove((delta.service, info));
                    (look.proven_outside).insert((info.name.clone(), info.family));
                }
                SourceClass::Host => {}
            }
            if let Some(track) = self.tracks.get_mut(&delta.service) {
                track.prove(look.at);
            }
        }
    }

    fn absorb_failures(&mut self, delta: &CountDelta, info: &ServiceInfo, look: &Look) {
        if is_disputed(info, look.at) {
            return;
        }
        let mut failures = self.failures_of(delta);
        if failures.is_empty() {
            return;
        }
        let family = &self.families[info.family as usize];
        let is_stuck = family.answers.is_stuck(delta.class);
        let proven = delta.counts[Outcome::Proven as usize] > 0 && !is_stuck;
        if let Some(track) = self.track(delta.service, info, look.at) {
            for (failure, n) in &failures {
                track.count(*failure, *n, look.at);
            }
            if proven {
                // The order of proof and failure is unknown: in doubt for the datapath.
                track.prove(look.at);
            }
        }
        if delta.class == SourceClass::External && !proven && self.worked_outside.has(info, look.at)
        {
            let certain = |of: &Failure| matches!(of, Failure::Leaked | Failure::Misrouted);
            let failed = failures.iter().filter(|(of, _)| certain(of));
            let n = failed.fold(0_u32, |sum, (_, n)| sum.saturating_add(*n));
            if n > 0 {
                let path = (delta.service, info);
                self.outside.fail(path, (n, None), look.at, &self.limits);
            }
        }
        // One to an endpoint that left counts by its age, in sightings; an unheard one did get through.
        failures.retain(|(failure, _)| !matches!(failure, Failure::Stale | Failure::Unheard));
        let family = &mut self.families[info.family as usize];
        if delta.class == SourceClass::External && self.worked_outside.has(info, look.at) {
            let refused = failures.iter().find(|(of, _)| *of == Failure::Refused);
            refused.inspect(|(_, n)| family.refuse(*n, look.at, &self.limits));
            // They arrived a loss window before the look, and a proof may have come after them.
            let earliest = look.at.minus(LOST_NOTICED);
            let all = failures.iter().map(|(_, n)| *n);
            let n = all.fold(0, u32::saturating_add);
            if n > 0 && family.proofs[SourceClass::External as usize] < Some(earliest) {
                family.obstructed.fail(n, look.at);
            }
        }
        if !failures.is_empty() {
            family.fail(delta.class, look.at);
        }
        // They arrived a loss window before the look. Beside a proof since then the order is not known;
        // sightings tell it.
        let noticed = look.at.minus(LOST_NOTICED);
        let proven = look.proven[info.family as usize] || family.last_proof() >= Some(noticed);
        if proven || failures.is_empty() {
            return;
        }
        let leaked = failures.iter().any(|(of, _)| *of == Failure::Leaked);
        let accuses = self.accuses(delta.class, info, leaked, look.at);
        let entry = Entry {
            since: look.at,
            last: look.at,
            arrived: noticed,
            class: delta.class,
            client: None,
            failures: &failures,
            misdelivered: None,
            accuses,
            info,
        };
        self.families[info.family as usize].run(&entry, self.limits.proof_age);
    }

    fn absorb_sighting(&mut self, sighting: &Sighting, info: &ServiceInfo, look: &Look) {
        if is_disputed(info, look.at) {
            return;
        }
        let at = sighting.at.min(look.at);
        // The client may have the pod's address from elsewhere: that accuses nobody.
        if sighting.is_direct() {
            if sighting.age() >= Some(DIALLED_AFTER)
                && let Some(track) = self.track(sighting.service, info, at)
            {
                track.count(Failure::Stale, 1, at);
                track.dial(sighting, at);
            }
            return;
        }
        if let Some(track) = self.track(sighting.service, info, at) {
            track.sight(sighting, at);
        }
        let left_grace = self.limits.left_grace;
        let family = &mut self.families[info.family as usize];
        match sighting.failure {
            Failure::Unheard => return family.unhear(sighting.client, at),
            Failure::Stale if sighting.age().is_none_or(|age| age <= left_grace) => return,
            _ => family.fail(sighting.class, at),
        }
        // It was given up only now.
        let began = sighting.arrived;
        if matches!(sighting.failure, Failure::Stale | Failure::Refused)
            && sighting.class == SourceClass::External
            // After a gap the ring holds what may have healed since.
            && at >= look.floor
            // Which of the two came first is not known.
            && !look.proven_outside.contains(&(info.name.clone(), info.family))
            && self.worked_outside.has(info, look.at)
        {
            let (path, client) = ((sighting.service, info), Some(sighting.client));
            self.outside.fail(path, (1, client), at, &self.limits);
        }
        if sighting.failure == Failure::Stale || family.last_proof() >= Some(began) {
            return;
        }
        let leaked = sighting.failure == Failure::Leaked;
        let accuses = self.accuses(sighting.class, info, leaked, look.at);
        let entry = Entry {
            since: began.max(look.floor).min(look.at),
            last: at.max(look.floor),
            arrived: began,
            class: sighting.class,
            client: Some(sighting.client),
            failures: &[(sighting.failure, 1)],
            misdelivered: sighting.misdelivered_endpoint(),
            accuses,
            info,
        };
        self.families[info.family as usize].run(&entry, self.limits.proof_age);
    }

    /// Whether a failure accuses the node: of a pod, to a Service that worked for pods before. Where
    /// nothing ever worked, neither probes nor real connections, the proxy may never have written a
    /// rule: then what leaves untranslated accuses too, which no policy does. Where pods' connections may get
    /// through unseen nobody knows that nothing worked.
    fn accuses(&self, class: SourceClass, info: &ServiceInfo, leaked: bool, at: Mono) -> bool {
        let family = info.family;
        let worked = || !self.worked.is_empty(family) || !self.worked_outside.is_empty(family);
        let unseen = self.sentinel.bearing.pods_unseen;
        let never = || !unseen && !worked() && !self.sentinel.is_armed(family);
        class == SourceClass::Pod && (self.worked.has(info, at) || (leaked && never()))
    }

    /// The track of a failing Service, made where there is room.
    fn track(&mut self, id: u32, info: &ServiceInfo, at: Mono) -> Option<&mut Track> {
        let full = self.tracks.len() >= SERVICES_TRACKED;
        let track = match self.tracks.entry(id) {
            Place::Vacant(_) if full => {
                self.untracked = self.untracked.saturating_add(1);
                return None;
            }
            place => place.or_insert_with(|| Track::begin(info, at)),
        };
        if !track.is(info) {
            *track = Track::begin(info, at);
        }
        track.endpoints = info.endpoints;
        Some(track)
    }

    /// Failures that are judged; the others are counted alone.
    fn failures_of(&mut self, delta: &CountDelta) -> Vec<(Failure, u32)> {
        let of = |outcome: Outcome| delta.counts[outcome as usize];
        let failures = [
            (Failure::Refused, of(Outcome::Refused)),
            (Failure::Leaked, of(Outcome::Leaked)),
            (Failure::Misrouted, of(Outcome::Misrouted)),
            (Failure::Stale, of(Outcome::Stale)),
            (Failure::Unheard, of(Outcome::Unheard)),
            (Failure::Lost, delta.lost),
        ];
        let mut judged = Vec::new();
        for (failure, n) in failures.into_iter().filter(|(_, n)| *n > 0) {
            if self.is_suspended(failure) {
                let unjudged = &mut self.unjudged[failure as usize];
                *unjudged = unjudged.saturating_add(u64::from(n));
            } else {
                judged.push((failure, n));
            }
        }
        judged
    }

    fn is_suspended(&self, failure: Failure) -> bool {
        match failure {
            Failure::Lost => self.observer.lost_suspended,
            Failure::Misrouted | Failure::Stale => self.observer.misrouted_suspended,
            Failure::Refused => self.observer.refused_suspended,
            Failure::Leaked | Failure::Unheard => false,
        }
    }
}

/// Whether another Service began or ceased to claim a frontend of this one a moment ago: connections
/// may have gone to either.
fn is_disputed(info: &ServiceInfo, now: Mono) -> bool {
    info.disputed.is_some_and(|at| now.since(at) <= DISPUTED)
}

/// A count delta and the Service that it belongs to.
type Counted<'a> = (&'a CountDelta, ServiceInfo);

/// When a look was taken.
struct Look {
    at: Mono,
    /// No failure of this look makes a run older than this.
    floor: Mono,
    /// The look before.
    before: Option<Mono>,
    /// Families with a proof in this look.
    proven: [bool; FAMILIES],
    /// Services with a proof of a client outside in this look.
    proven_outside: BTreeSet<(ObjectName, Family)>,
}
