//! All histories of rotators that compete for the Lease, over their real [`Candidate`]s. The API server is a
//! model: a request arrives, or its answer, within a step, or is lost.

use std::fmt;
use std::time::Duration;

use pathproof_facts::time::Mono;
use pathproof_rotator::rotation::{Candidate, LEASE, LeaseSeen, LeaseStep};

use super::explore::{Model, hash, letter};
use crate::BEGIN;

/// A step of time: the rotators' interval between checks, and the timeout of their requests.
const STEP: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Election {
    /// One rotator for each: the speed of its machine's clock, in percent.
    pub clocks: Vec<u32>,
    pub steps: u32,
    /// Maximum number of crashes, orderly ends, and lost requests and answers.
    pub faults: u8,
}

#[derive(Clone, Debug, Hash)]
struct Lease {
    holder: Option<String>,
    version: u32,
}

/// A write of the Lease that is on its way.
#[derive(Clone, Debug, Hash)]
struct Request {
    asked: Mono,
    /// The version that was read.
    version: Option<u32>,
}

#[derive(Clone, Debug, Hash)]
struct Rotator {
    candidate: Candidate,
    request: Option<Request>,
    /// Whether it has checked the Lease in this step.
    is_done: bool,
    starts: u32,
}

impl Rotator {
    /// Each start has another name.
    fn started(number: usize, starts: u32) -> Self {
        Self {
            candidate: Candidate::new(format!("{}{starts}", letter(number))),
            request: None,
            is_done: starts > 0,
            starts,
        }
    }
}

#[derive(Clone, Debug, Hash)]
pub struct ElectionState {
    step: u32,
    lease: Option<Lease>,
    rotators: Vec<Rotator>,
    faults: u8,
}

#[derive(Clone, Copy, Debug)]
pub enum Action {
    Read(usize, LeaseStep),
    Write(usize),
    LoseAnswer(usize),
    LoseRequest(usize),
    Crash(usize),
    Release(usize),
    Pass,
}

type Found = Vec<(Action, ElectionState)>;

impl Election {
    /// Number of rotators that may write to the slices.
    pub fn leaders(&self, state: &ElectionState) -> usize {
        let leads = |(number, rotator): &(usize, &Rotator)| {
            rotator.candidate.leads(self.now(state, *number))
        };
        state.rotators.iter().enumerate().filter(leads).count()
    }

    fn now(&self, state: &ElectionState, number: usize) -> Mono {
        BEGIN.plus(STEP * state.step * self.clocks[number] / 100)
    }

    fn checks(&self, state: &ElectionState, number: usize, found: &mut Found) {
        let (rotator, now) = (&state.rotators[number], self.now(state, number));
        let is_free = rotator.request.is_none() && !rotator.is_done;
        if !is_free || !rotator.candidate.is_due(now) {
            return;
        }
        let mut next = state.clone();
        let rotator = &mut next.rotators[number];
        let seen = state.lease.as_ref().map(|lease| LeaseSeen {
            holder: lease.holder.clone(),
            version: lease.version.to_string(),
            duration: LEASE,
        });
        let step = rotator.candidate.step(seen.as_ref(), now);
        rotator.is_done = true;
        if step != LeaseStep::Wait {
            let version = state.lease.as_ref().map(|lease| lease.version);
            rotator.request = Some(Request {
                asked: now,
                version,
            });
        }
        found.push((Action::Read(number, step), next));
    }

    fn request_arrives(state: &ElectionState, number: usize, found: &mut Found) {
        let Some(request) = &state.rotators[number].request else {
            return;
        };
        let mut next = state.clone();
        next.rotators[number].request = None;
        if state.faults > 0 {
            let mut lost = next.clone();
            lost.faults -= 1;
            found.push((Action::LoseRequest(number), lost));
        }
        let candidate = &mut next.rotators[number].candidate;
        if request.version != state.lease.as_ref().map(|lease| lease.version) {
            candidate.lost();
            return found.push((Action::Write(number), next));
        }
        next.lease = Some(Lease {
            holder: Some(candidate.name().to_owned()),
            version: request.version.map_or(1, |version| version + 1),
        });
        if state.faults > 0 {
            let mut unanswered = next.clone();
            unanswered.faults -= 1;
            found.push((Action::LoseAnswer(number), unanswered));
        }
        next.rotators[number].candidate.wrote(request.asked);
        found.push((Action::Write(number), next));
    }

    /// A rotator ends, and starts again as another candidate.
    fn ends(&self, state: &ElectionState, number: usize, found: &mut Found) {
        if state.faults == 0 {
            return;
        }
        let rotator = &state.rotators[number];
        let mut next = state.clone();
        next.faults -= 1;
        next.rotators[number] = Rotator::started(number, rotator.starts + 1);
        found.push((Action::Crash(number), next.clone()));
        let holds = |lease: &&mut Lease| lease.holder.as_deref() == Some(rotator.candidate.name());
        let leads = rotator.candidate.leads(self.now(state, number));
        if let Some(lease) = next.lease.as_mut().filter(holds)
            && leads
            && rotator.request.is_none()
        {
            (lease.holder, lease.version) = (None, lease.version + 1);
            found.push((Action::Release(number), next));
        }
    }
}

impl Model for Election {
    type State = ElectionState;
    type Action = Action;

    fn begin(&self) -> ElectionState {
        let numbers = 0..self.clocks.len();
        ElectionState {
            step: 0,
            lease: None,
            rotators: numbers.map(|number| Rotator::started(number, 0)).collect(),
            faults: self.faults,
        }
    }

    fn next(&self, state: &ElectionState) -> Found {
        let mut found = Vec::new();
        for number in 0..state.rotators.len() {
            self.checks(state, number, &mut found);
            Self::request_arrives(state, number, &mut found);
            self.ends(state, number, &mut found);
        }
        let waits = (0..).zip(&state.rotators).any(|(number, rotator)| {
            let request = rotator.request.as_ref();
            request.is_some_and(|request| request.asked != self.now(state, number))
        });
        if state.step < self.steps && !waits {
            let mut next = state.clone();
            next.step += 1;
            next.rotators
                .iter_mut()
                .for_each(|rotator| rotator.is_done = false);
            found.push((Action::Pass, next));
        }
        found
    }

    fn fingerprint(&self, state: &ElectionState) -> u64 {
        hash(state)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Read(number, step) => write!(f, "{} reads the Lease: {step:?}", letter(number)),
            Self::Write(number) => write!(f, "the server answers {}'s write", letter(number)),
            Self::LoseAnswer(number) => {
                write!(f, "the answer to {}'s write is lost", letter(number))
            }
            Self::LoseRequest(number) => write!(f, "{}'s write is lost", letter(number)),
            Self::Crash(number) => write!(f, "{} is killed", letter(number)),
            Self::Release(number) => write!(f, "{} releases the Lease", letter(number)),
            Self::Pass => f.write_str("5 s pass"),
        }
    }
}
