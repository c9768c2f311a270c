//! When an Event is due: on transitions only, and within a budget.
//!
//! A transition is that the datapath is accused or no longer, or that the node begins to leave or
//! no longer does. What comes and goes while the API server is away, or while the budget is spent,
//! is not announced: nothing is queued.

use std::time::Duration;

use super::budget::Budget;
use super::retry::{Refusal, Retry};
use super::schedule::Pace;
use super::spread::spread;
use super::{Reason, Standing, Status, Written};
use crate::time::Mono;

/// An Event's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Recovery, and leaving: expected states.
    Normal,
    /// A broken or stale datapath, also on a node that is leaving.
    Warning,
}

/// What Events are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announced {
    accused: bool,
    leaving: bool,
}

impl Announced {
    fn of(standing: Standing) -> Self {
        Self {
            accused: standing.status == Status::False,
            leaving: standing.leaving,
        }
    }
}

/// Salt of [`spread`].
const JITTER: u64 = 0x72;

/// The state machine. One for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcer {
    node: String,
    pace: Pace,
    announced: Announced,
    current: Option<(Standing, Mono)>,
    budget: Budget,
    retry: Retry,
}

impl Announcer {
    /// For this node. `found` is the condition that an agent before wrote, if it did: what it says
    /// is not announced again.
    pub fn new(node: &str, pace: Pace, found: Option<Written>) -> Self {
        Self {
            node: node.to_owned(),
            pace,
            announced: Announced {
                accused: found.is_some_and(|found| found.status == Status::False),
                leaving: found.is_some_and(|found| found.reason == Some(Reason::Leaving)),
            },
            current: None,
            budget: Budget::new(pace.events, pace.events_each),
            retry: Retry::new(&pace),
        }
    }

    /// What stands now. To be called whenever it may have changed.
    pub fn observe(&mut self, standing: Standing, now: Mono) {
        let since = match self.current {
            Some((before, since)) if Announced::of(before) == Announced::of(standing) => since,
            _ => now,
        };
        self.current = Some((standing, since));
    }

    /// When an Event is due, if one is.
    pub fn due(&self) -> Option<Mono> {
        let (standing, since) = self.current?;
        let jitter = spread(&self.node, JITTER, self.pace.jitter);
        // An agent that begins without memory knows nothing at first: that is no recovery.
        let settle = match standing.status {
            Status::Unknown => self.pace.settle,
            Status::True | Status::False => Duration::ZERO,
        };
        (Announced::of(standing) != self.announced).then(|| {
            since
                .plus(settle + jitter)
                .max(self.budget.free_at())
                .max(self.retry.not_before())
        })
    }

    /// The type of an Event about `standing`.
    pub fn severity(standing: Standing) -> Severity {
        match standing.status {
            Status::False => Severity::Warning,
            Status::True | Status::Unknown => Severity::Normal,
        }
    }

    /// The API server took an Event about `standing`.
    pub fn announced(&mut self, standing: Standing, now: Mono) {
        self.announced = Announced::of(standing);
        self.budget.spend(now);
        self.retry.succeeded();
    }

    /// The API server did not take it, or gave no answer.
    pub fn failed(&mut self, refusal: Refusal, now: Mono) {
        self.retry.failed(&self.node, refusal, now);
    }
}
