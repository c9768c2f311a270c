//! Plays one cell with one seed and compares the node's answers with the truth. It must not know how the
//! judge decides.

use std::time::Duration;

use pathproof_facts::cause::State;
use pathproof_facts::limits::Limits;
use pathproof_facts::time::Mono;

use super::expected::{Expected, expected};
use super::{FaultRow, Felt, Happens, Run};
use crate::{BEGIN, Dice, SimNode, ms};

/// Time before the event, which is long enough for every lane and Service to work.
const WARM: (Duration, Duration) = (ms(20_000), ms(22_000));
/// Time before the event on a node that only its own processes use. It is longer, because their failures
/// count only for Services that are at least 2 min old.
const WARM_FOR_HOST: (Duration, Duration) = (ms(124_000), ms(126_000));
/// Duration of an innocent world.
const INNOCENT: Duration = Duration::from_secs(60);
/// Duration of a fault that need not cause 503.
const WATCHED: Duration = Duration::from_secs(12);
/// Time for which a 503 must last.
const STAYS: Duration = Duration::from_secs(5);
/// Maximum time until a connection is sent to a removed endpoint.
const MET: Duration = Duration::from_secs(30);
/// Time to 503 after the connection that completes the evidence, if clients dial too rarely for the limit.
const FROM_COMPLETE: Duration = Duration::from_secs(3);
const STEP: Duration = ms(250);

/// Result of one run of a cell.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Expected result, for a fault.
    pub expected: Option<Expected>,
    /// Whether connections failed that should have succeeded.
    pub felt: bool,
    /// Time to 503 after the fault, or after the first connection to a removed endpoint.
    pub failed: Option<Duration>,
    /// The worst state after the event.
    pub worst: State,
    /// Difference from the expected result.
    pub wrong: Option<String>,
}

/// Plays a cell once.
pub fn play(run: &Run) -> Outcome {
    let (cell, seed) = (run.cell, run.seed);
    let warm = if cell.used.has_host() {
        WARM_FOR_HOST
    } else {
        WARM
    };
    let at = Dice::new(seed ^ 0x5eed).between(warm);
    let world = cell.used.world(run.families.stack);
    let only = run.families.only;
    match cell.happens {
        Happens::Fault(row) => {
            let node = SimNode::new(0, row.begin(world, at, only), seed);
            Watch::new(node, at).fault(row, expected(row, cell.used))
        }
        Happens::World(row) => {
            let node = SimNode::new(0, row.begin(world, at), seed);
            Watch::new(node, at).world()
        }
    }
}

/// A node, and the time from which its answers are checked.
pub(super) struct Watch {
    pub(super) node: SimNode,
    pub(super) at: Mono,
}

impl Watch {
    fn new(mut node: SimNode, at: Duration) -> Self {
        node.run(at);
        Self {
            node,
            at: BEGIN.plus(at),
        }
    }

    fn world(mut self) -> Outcome {
        self.node.run(INNOCENT);
        let failed = self.node.failed_after(BEGIN);
        let wrong = failed.map(|after| format!("503 after {after:.1?}{}", self.cause()));
        Outcome {
            expected: None,
            felt: self.first_felt().is_some(),
            failed: self.node.failed_after(self.at),
            worst: self.worst(),
            wrong,
        }
    }

    pub(super) fn fault(&mut self, row: &FaultRow, expected: Expected) -> Outcome {
        let early = self.node.answers().iter().any(|answer| answer.livez == 503);
        let since = match row.felt {
            Felt::Stale => self.first_stale(expected),
            _ => Some(self.at),
        };
        let limit = match expected {
            Expected::Fails(within) => within,
            _ => WATCHED,
        };
        let begin = since.unwrap_or(self.at);
        let mut within = limit;
        while self.node.now() < begin.plus(within + STEP) && self.failed(self.at).is_none() {
            self.node.run(STEP);
            let complete = match row.felt {
                Felt::Routes => self.routes_are_met(),
                Felt::Stale => self.removed_is_met(begin),
                _ => continue,
            };
            let complete = complete.unwrap_or(self.node.now());
            within = limit
                .max(complete.since(begin) + FROM_COMPLETE)
                .min(limit + MET);
        }
        let failed = self.failed(begin);
        if failed.is_some() {
            self.node.run(STAYS);
        }
        let felt = self.first_felt().is_some();
        let wrong = match early {
            true => Some("503 before the fault".to_owned()),
            false => self.wrong(expected, within, failed, felt),
        };
        Outcome {
            expected: Some(expected),
            felt,
            failed,
            worst: self.worst(),
            wrong,
        }
    }

    /// Runs until a connection is sent to a removed endpoint.
    fn first_stale(&mut self, expected: Expected) -> Option<Mono> {
        if matches!(expected, Expected::NotFelt) {
            return None;
        }
        while self.node.now() < self.at.plus(MET) {
            let stale = self
                .node
                .unanswered()
                .iter()
                .find(|connection| connection.stale && connection.at >= self.at);
            if let Some(stale) = stale {
                return Some(stale.at);
            }
            self.node.run(STEP);
        }
        None
    }

    /// Arrival of the connection that completes the evidence: the third without a route, if there were two
    /// endpoints. The limit counts from there, because clients may dial too rarely.
    fn routes_are_met(&self) -> Option<Mono> {
        let astray = || {
            let later = self
                .node
                .unanswered()
                .iter()
                .filter(|connection| connection.at >= self.at);
            later.filter_map(|connection| Some((connection.at, connection.astray?)))
        };
        let (_, first) = astray().next()?;
        let (second, _) = astray().find(|(_, endpoint)| *endpoint != first)?;
        let (third, _) = astray().nth(2)?;
        Some(third.max(second))
    }

    /// Arrival of the third connection to an endpoint that was removed long before.
    fn removed_is_met(&self, first: Mono) -> Option<Mono> {
        let old = first.plus(Limits::default().stale_after);
        let mut met = (self.node.unanswered().iter())
            .filter(|connection| connection.stale && connection.at >= old);
        met.nth(2).map(|connection| connection.at)
    }

    fn wrong(
        &self,
        expected: Expected,
        within: Duration,
        failed: Option<Duration>,
        felt: bool,
    ) -> Option<String> {
        let state = self
            .node
            .answer()
            .map_or(State::Unknown, |answer| answer.state);
        let cause = self.cause();
        match expected {
            Expected::Fails(_) => match failed {
                None => Some(format!("200, {}{cause}", state.name())),
                Some(after) if after > within => Some(format!("503 after {after:.1?}")),
                Some(_) if !self.stays() => Some(format!("back at 200, {}{cause}", state.name())),
                Some(_) => None,
            },
            Expected::Suspect if failed.is_some() => Some(format!("503{cause}")),
            Expected::Suspect | Expected::Noticed => {
                (state < State::Suspect).then(|| format!("{}: not noticed", state.name()))
            }
            Expected::Unseen => (!felt).then(|| "nobody feels it".to_owned()),
            Expected::NotFelt => felt.then(|| "somebody feels it".to_owned()),
        }
    }

    pub(super) fn cause(&self) -> String {
        let answer = self
            .node
            .answers()
            .iter()
            .rfind(|answer| answer.livez == 503);
        let cause = answer
            .or(self.node.answers().last())
            .and_then(|answer| answer.cause);
        cause.map_or_else(String::new, |cause| format!(" ({cause:?})"))
    }

    /// Whether the last answer of /livez is 503.
    fn stays(&self) -> bool {
        self.node.answer().is_some_and(|answer| answer.livez == 503)
    }

    fn failed(&self, since: Mono) -> Option<Duration> {
        let mut answers = self.node.answers().iter();
        let found = answers.find(|answer| answer.at >= self.at && answer.livez == 503)?;
        Some(found.at.since(since))
    }

    fn first_felt(&self) -> Option<Mono> {
        let mut unanswered = self.node.unanswered().iter();
        unanswered
            .find(|connection| connection.at >= self.at)
            .map(|connection| connection.at)
    }

    fn worst(&self) -> State {
        let answers = self.node.answers();
        let before = answers.iter().rfind(|answer| answer.at <= self.at);
        let after = answers.iter().filter(|answer| answer.at > self.at);
        let states = before.into_iter().chain(after).map(|answer| answer.state);
        states.max().unwrap_or(State::Unknown)
    }
}
