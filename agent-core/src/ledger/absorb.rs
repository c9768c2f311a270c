//! How a sample changes the ledger: proofs first, then what failed after them.

use std::collections::btree_map::Entry as Place;
use std::time::Duration;

use agent_common::abi::LOSS_WINDOW_NS;
use agent_common::evidence::Outcome;
use agent_common::service::{FAMILIES, Family, SourceClass};

use super::service::label;
use super::streak::Entry;
use super::{Ledger, SERVICES_TRACKED, Track};
use crate::cause::{FAILURES, Failure};
use crate::evidence::{CountDelta, Directory, Sample, ServiceInfo, Sighting};
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
        self.tracks.retain(|_, track| !track.is_over(at));
        if sample.observer.attached == 0 {
            // What was not seen may have been proven: no run of failures holds.
            self.end_streaks();
            return;
        }
        let gap = before.is_none_or(|before| at.since(before) > self.limits.sample_gap);
        if let Some(before) = before {
            self.close_gap(before, at);
        }
        let look = Look {
            at,
            // After a gap the ring buffer holds old failures: they do not make a run any older.
            floor: if gap {
                at
            } else {
                at.minus(self.limits.sample_gap)
            },
            before,
        };
        let proven = self.absorb_proofs(sample, directory, &look);
        for delta in &sample.counts {
            if let Some(info) = real(directory, delta.service) {
                self.absorb_failures(delta, &info, &look, proven[info.family as usize]);
            }
        }
        for sighting in &sample.anomalies {
            if !self.is_suspended(sighting.failure)
                && let Some(info) = real(directory, sighting.service)
            {
                self.absorb_sighting(sighting, &info, &look);
            }
        }
    }

    /// A gap in observation ends a run of failures, unless it had already been confirmed: then it
    /// is the last sound verdict, and a proof would have been counted by the kernel all the same.
    pub(super) fn close_gap(&mut self, before: Mono, at: Mono) {
        if at.since(before) <= self.limits.sample_gap {
            return;
        }
        for family in &mut self.families {
            family
                .streak
                .take_if(|streak| streak.lacking(before, &self.limits).is_some());
        }
    }

    pub(super) fn end_streaks(&mut self) {
        self.families
            .iter_mut()
            .for_each(|family| family.streak = None);
    }

    /// Proofs first: they end runs of failures. Returns the families with a proof in this look.
    fn absorb_proofs(
        &mut self,
        sample: &Sample,
        directory: &dyn Directory,
        look: &Look,
    ) -> [bool; FAMILIES] {
        let mut proven = [false; FAMILIES];
        for family in Family::ALL {
            let ledger = &mut self.families[family as usize];
            let known = ledger.last_proof();
            for class in SourceClass::ALL {
                if let Some(at) = sample.last_proofs[family as usize][class as usize] {
                    ledger.prove(class, at);
                }
            }
            proven[family as usize] = ledger.last_proof() > known;
        }
        for delta in &sample.counts {
            let arrived = delta.counts[Outcome::Arrived as usize] > 0;
            let got_through = delta.counts[Outcome::Proven as usize] > 0;
            let Some(info) = real(directory, delta.service) else {
                continue;
            };
            let ledger = &mut self.families[info.family as usize];
            if arrived {
                ledger.arrival = Some(look.at);
            }
            if !got_through {
                continue;
            }
            // Counted, but its time was read a moment too early.
            if ledger.proofs[delta.class as usize] <= look.before {
                ledger.prove(delta.class, look.at);
            }
            proven[info.family as usize] = true;
            if let Some(track) = self.tracks.get_mut(&delta.service) {
                track.prove(look.at);
            }
        }
        proven
    }

    fn absorb_failures(
        &mut self,
        delta: &CountDelta,
        info: &ServiceInfo<'_>,
        look: &Look,
        proven: bool,
    ) {
        let failures = self.failures_of(delta);
        if failures.iter().all(|(_, n)| *n == 0) {
            return;
        }
        let got_through = delta.counts[Outcome::Proven as usize] > 0;
        if let Some(track) = self.track(delta.service, info, look.at) {
            for (failure, n) in failures.iter().filter(|(_, n)| *n > 0) {
                track.count(*failure, *n, look.at);
            }
            if got_through {
                // Which came first is not known: in doubt for the datapath.
                track.prove(look.at);
            }
        }
        let family = &mut self.families[info.family as usize];
        let last_proof = family.last_proof();
        let after_proof = |(failure, n): &(Failure, u32)| {
            *n > 0
                && match failure {
                    Failure::Lost => last_proof < Some(look.at.minus(LOST_NOTICED)),
                    Failure::Refused | Failure::Leaked | Failure::Misrouted => true,
                    Failure::Stale | Failure::Unheard => false,
                }
        };
        if failures
            .iter()
            .any(|(failure, n)| *n > 0 && is_in_the_way(*failure))
        {
            family.fail(delta.class, look.at);
        }
        // Beside a proof in the same look the order is not known; sightings tell it.
        let accusing: Vec<_> = failures.into_iter().filter(after_proof).collect();
        if proven || accusing.is_empty() {
            return;
        }
        let entry = Entry {
            since: look.at,
            last: look.at,
            arrived: earliest(&accusing, look),
            class: delta.class,
            client: None,
            failures: &accusing,
            label: &label(info),
            object: &info.name.to_string(),
            endpoints: info.endpoints,
        };
        family.run(&entry, self.limits.proof_age);
    }

    fn absorb_sighting(&mut self, sighting: &Sighting, info: &ServiceInfo<'_>, look: &Look) {
        let at = sighting.at.min(look.at);
        if let Some(track) = self.track(sighting.service, info, at) {
            track.sight(sighting, at);
        }
        let left_grace = self.limits.left_grace;
        let family = &mut self.families[info.family as usize];
        match sighting.failure {
            Failure::Unheard => return family.unhear(sighting.client, at),
            Failure::Stale => {
                let age = sighting.left_since.map(|left| sighting.arrived.since(left));
                if age.is_some_and(|age| age > left_grace) {
                    family.fail(sighting.class, at);
                }
                return;
            }
            Failure::Refused | Failure::Leaked | Failure::Misrouted | Failure::Lost => {}
        }
        family.fail(sighting.class, at);
        // A lost connection failed when it arrived, not when it was given up.
        let began = if sighting.failure == Failure::Lost {
            sighting.arrived
        } else {
            at
        };
        if family.last_proof().is_some_and(|proof| proof >= began) {
            return;
        }
        let entry = Entry {
            since: began.max(look.floor).min(look.at),
            last: at.max(look.floor),
            arrived: began,
            class: sighting.class,
            client: Some(sighting.client),
            failures: &[(sighting.failure, 1)],
            label: &label(info),
            object: &info.name.to_string(),
            endpoints: info.endpoints,
        };
        family.run(&entry, self.limits.proof_age);
    }

    /// The track of a failing Service, made where there is room.
    fn track(&mut self, id: u32, info: &ServiceInfo<'_>, at: Mono) -> Option<&mut Track> {
        let full = self.tracks.len() >= SERVICES_TRACKED;
        match self.tracks.entry(id) {
            Place::Occupied(entry) => {
                let track = entry.into_mut();
                if !track.is(info) {
                    *track = Track::begin(info, at);
                }
                track.endpoints = info.endpoints;
                Some(track)
            }
            Place::Vacant(_) if full => {
                self.untracked = self.untracked.saturating_add(1);
                None
            }
            Place::Vacant(entry) => Some(entry.insert(Track::begin(info, at))),
        }
    }

    fn failures_of(&self, delta: &CountDelta) -> [(Failure, u32); FAILURES] {
        let of = |outcome: Outcome| delta.counts[outcome as usize];
        [
            (Failure::Refused, of(Outcome::Refused)),
            (Failure::Leaked, of(Outcome::Leaked)),
            (Failure::Misrouted, of(Outcome::Misrouted)),
            (Failure::Stale, of(Outcome::Stale)),
            (Failure::Unheard, of(Outcome::Unheard)),
            (Failure::Lost, delta.lost),
        ]
        .map(|(failure, n)| (failure, if self.is_suspended(failure) { 0 } else { n }))
    }

    fn is_suspended(&self, failure: Failure) -> bool {
        match failure {
            Failure::Lost => self.observer.lost_suspended,
            Failure::Misrouted | Failure::Stale => self.observer.misrouted_suspended,
            Failure::Refused | Failure::Leaked | Failure::Unheard => false,
        }
    }
}

/// When the last of counted failures arrived at the earliest: lost ones did long before the look,
/// all others since the look before it.
fn earliest(failures: &[(Failure, u32)], look: &Look) -> Mono {
    let noticed = look.at.minus(LOST_NOTICED);
    if failures
        .iter()
        .any(|(failure, _)| *failure != Failure::Lost)
    {
        look.before.unwrap_or(noticed)
    } else {
        noticed
    }
}

/// A Service of real connections: those of the sentinel are probes, and strangers that dial it.
fn real(directory: &dyn Directory, id: u32) -> Option<ServiceInfo<'_>> {
    directory.service(id).filter(|info| !info.sentinel)
}

/// When a look was taken.
struct Look {
    at: Mono,
    /// No failure of this look makes a run older than this.
    floor: Mono,
    /// The look before.
    before: Option<Mono>,
}

/// Whether a failure keeps a connection from getting through for certain. One to an endpoint that
/// left counts by its age, in sightings; an unheard one did get through.
fn is_in_the_way(failure: Failure) -> bool {
    !matches!(failure, Failure::Stale | Failure::Unheard)
}
