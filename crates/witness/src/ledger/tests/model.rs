//! The recount: the rules of `absorb.rs` about proofs and failures, written again without regard to cost.

use pathproof_facts::limits::{Limits, TRACK_KEPT_FOR};

use super::*;

/// A failure in a run.
#[derive(Clone, Debug)]
struct Noted {
    since: Mono,
    last: Mono,
    failures: Vec<(Failure, u32)>,
    service: u32,
}

/// Everything that counts, as lists.
pub(super) struct Model {
    limits: Limits,
    before: Option<Mono>,
    proofs: [[Option<Mono>; 3]; FAMILIES],
    failures: [[Option<Mono>; 3]; FAMILIES],
    arrivals: [Option<Mono>; FAMILIES],
    runs: [Vec<Noted>; FAMILIES],
    /// All failures of Services that were counted.
    counted: BTreeMap<u32, Vec<(Mono, Failure, u32)>>,
    /// When a Service was last reported or counted as failing.
    heard: BTreeMap<u32, Mono>,
}

impl Model {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            before: None,
            proofs: Default::default(),
            failures: Default::default(),
            arrivals: Default::default(),
            runs: Default::default(),
            counted: BTreeMap::new(),
            heard: BTreeMap::new(),
        }
    }

    pub(super) fn absorb(&mut self, sample: &Sample, names: &Names) {
        let before = self.before.replace(sample.at);
        if sample.observer.attached == 0 {
            self.runs = Default::default();
            return;
        }
        let gap = |before: Mono| sample.at.since(before) > self.limits.sample_gap;
        let gap = before.is_none_or(gap);
        if let (true, Some(before)) = (gap, before) {
            self.drop_doubtful(before);
        }
        let proven = self.proofs(sample, before, names);
        for delta in &sample.counts {
            self.counts(sample, delta, names, proven);
        }
        for failed_connection in &sample.failed_connections {
            self.failed_connection(sample, failed_connection, gap, names);
        }
    }

    /// After a gap only runs that had lasted continue.
    fn drop_doubtful(&mut self, before: Mono) {
        for run in &mut self.runs {
            let since = run.iter().map(|noted| noted.since).min();
            if since.is_some_and(|since| before.since(since) < self.limits.broken_after) {
                run.clear();
            }
        }
    }

    /// Records the proofs of this sample, and returns the families that it proves.
    fn proofs(&mut self, sample: &Sample, before: Option<Mono>, names: &Names) -> [bool; 2] {
        let known = Family::ALL.map(|family| self.last_proof(family));
        for family in Family::ALL {
            for class in SourceClass::ALL {
                if let Some(at) = sample.last_proofs[family as usize][class as usize] {
                    self.prove(family, class, at);
                }
            }
        }
        let mut proven = Family::ALL.map(|family| self.last_proof(family) > known[family as usize]);
        for delta in &sample.counts {
            let Some(family) = real(names, delta.service) else {
                continue;
            };
            if delta.counts[Outcome::Arrived as usize] > 0 {
                self.arrivals[family as usize] = Some(sample.at);
            }
            if delta.counts[Outcome::Proven as usize] > 0 {
                proven[family as usize] = true;
                if self.proofs[family as usize][delta.class as usize] <= before {
                    self.prove(family, delta.class, sample.at);
                }
            }
        }
        proven
    }

    fn prove(&mut self, family: Family, class: SourceClass, at: Mono) {
        let proof = &mut self.proofs[family as usize][class as usize];
        *proof = (*proof).max(Some(at));
        let run = &mut self.runs[family as usize];
        if run.iter().any(|noted| noted.since <= at) {
            run.clear();
        }
    }

    fn counts(&mut self, sample: &Sample, delta: &CountDelta, names: &Names, proven: [bool; 2]) {
        let Some(family) = real(names, delta.service) else {
            return;
        };
        let mut accusing = Vec::new();
        for failure in Failure::ALL {
            let n = match failure {
                Failure::Lost => delta.lost,
                other => delta.counts[outcome(other) as usize],
            };
            if n == 0 || is_suspended(sample, failure) {
                continue;
            }
            self.note(delta.service, sample.at, failure, n);
            if matches!(failure, Failure::Stale | Failure::AnswerNotDelivered) {
                continue;
            }
            self.fail(family, delta.class, sample.at);
            // The connection may have arrived before the proof.
            let early = sample.at.minus(LOST_NOTICED);
            if self.last_proof(family) < Some(early) {
                accusing.push((failure, n));
            }
        }
        if accusing.is_empty() || proven[family as usize] {
            return;
        }
        self.enter(
            family,
            Noted {
                since: sample.at,
                last: sample.at,
                failures: accusing,
                service: delta.service,
            },
        );
    }

    fn failed_connection(
        &mut self,
        sample: &Sample,
        seen: &FailedConnection,
        gap: bool,
        names: &Names,
    ) {
        let Some(family) = real(names, seen.service) else {
            return;
        };
        if is_suspended(sample, seen.failure) && !seen.misdelivered {
            return;
        }
        let heard = self.heard.entry(seen.service).or_insert(seen.at);
        // The Service was forgotten. It is reported again, but its failures are suspended and not counted.
        if sample.at.since(*heard) > TRACK_KEPT_FOR {
            self.counted.remove(&seen.service);
        }
        *heard = seen.at.max(*heard);
        let began = match seen.failure {
            Failure::AnswerNotDelivered => return,
            Failure::Stale => {
                let left = seen.left_since.expect("known");
                if seen.arrived.since(left) > self.limits.left_grace {
                    self.fail(family, seen.class, seen.at);
                }
                return;
            }
            _ => seen.arrived,
        };
        self.fail(family, seen.class, seen.at);
        if self.last_proof(family) >= Some(began) {
            return;
        }
        // The ring may hold old failures. A run must not begin before this sample because of them.
        let floor = match gap {
            true => sample.at,
            false => sample.at.minus(self.limits.sample_gap),
        };
        self.enter(
            family,
            Noted {
                since: began.max(floor).min(sample.at),
                last: seen.at.max(floor),
                failures: vec![(seen.failure, 1)],
                service: seen.service,
            },
        );
    }

    fn enter(&mut self, family: Family, noted: Noted) {
        let run = &mut self.runs[family as usize];
        let last = run.iter().map(|noted| noted.last).max();
        if last.is_some_and(|last| noted.last.since(last) > self.limits.proof_age) {
            run.clear();
        }
        run.push(noted);
    }

    fn fail(&mut self, family: Family, class: SourceClass, at: Mono) {
        let failure = &mut self.failures[family as usize][class as usize];
        *failure = (*failure).max(Some(at));
    }

    fn note(&mut self, service: u32, at: Mono, failure: Failure, n: u32) {
        let heard = self.heard.insert(service, at);
        let counted = self.counted.entry(service).or_default();
        // After a quiet time the counts start from zero.
        if heard.is_some_and(|heard| at.since(heard) > WINDOW) {
            counted.clear();
        }
        counted.push((at, failure, n));
    }

    fn last_proof(&self, family: Family) -> Option<Mono> {
        self.proofs[family as usize].into_iter().flatten().max()
    }

    /// The sum of a run.
    fn streak(&self, family: Family, names: &Names) -> Option<Streak> {
        let run = &self.runs[family as usize];
        let mut failures = [0; FAILURES];
        for (failure, n) in run.iter().flat_map(|noted| &noted.failures) {
            failures[*failure as usize] += u64::from(*n);
        }
        let label = |noted: &Noted| names.service(noted.service).expect("known").label();
        Some(Streak {
            since: run.iter().map(|noted| noted.since).min()?,
            last: run.iter().map(|noted| noted.last).max()?,
            labels: run.iter().map(label).collect(),
            failures,
        })
    }

    pub(super) fn compare(&self, ledger: &Ledger) {
        let names = Names::new();
        for family in Family::ALL {
            let known = ledger.family(family);
            assert_eq!(known.proofs, self.proofs[family as usize]);
            assert_eq!(known.failures, self.failures[family as usize]);
            assert_eq!(known.arrival, self.arrivals[family as usize]);
            assert_eq!(known.streak, self.streak(family, &names), "{family:?}");
            assert!(known.answers_not_delivered.len() <= SOURCES_KEPT);
        }
        for track in Family::ALL
            .into_iter()
            .flat_map(|family| ledger.tracks(family))
        {
            let service = (0..SENTINEL).find(|id| track.is(&names.service(*id).expect("known")));
            let counted = self.counted.get(&service.expect("one of these"));
            let mut failures = [0; FAILURES];
            for (_, failure, n) in counted.into_iter().flatten() {
                failures[*failure as usize] += u64::from(*n);
            }
            assert_eq!(track.failures, failures, "{}", track.label);
        }
    }
}

/// The family of a known Service other than the sentinel's.
fn real(names: &Names, service: u32) -> Option<Family> {
    let info = names.service(service)?;
    (!info.sentinel).then_some(info.family)
}

fn is_suspended(sample: &Sample, failure: Failure) -> bool {
    match failure {
        Failure::Lost => sample.observer.lost_suspended,
        Failure::Refused => sample.observer.refused_suspended,
        Failure::Misrouted | Failure::Stale => sample.observer.misrouted_suspended,
        _ => false,
    }
}
