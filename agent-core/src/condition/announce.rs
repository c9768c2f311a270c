//! When an Event is due: on transitions only, and within a budget.
//!
//! A transition is that the datapath is accused or no longer, or that the node begins to leave or
//! no longer does. What comes and goes while the API server is away, or while the budget is spent,
//! is not announced: nothing is queued.

use std::time::Duration;

use super::schedule::{Budget, Pace, Refusal, Retry, spread};
use super::{Reason, Standing, Status, Written};
use crate::time::Mono;

/// Events: so many at once...
const AT_ONCE: u32 = 6;
/// ...and one more each.
const EACH: Duration = Duration::from_secs(60);

/// What Events are about: whether the datapath is accused, and whether the node leaves.
fn subject(of: Standing) -> (bool, bool) {
    (of.status == Status::False, of.leaving)
}

/// Salt of [`spread`].
const JITTER: u64 = 0x72;

/// The state machine. One for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcer {
    node: String,
    pace: Pace,
    announced: (bool, bool),
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
            announced: (
                found.is_some_and(|found| found.status == Status::False),
                found.is_some_and(|found| found.reason == Some(Reason::Leaving)),
            ),
            current: None,
            budget: Budget::new(AT_ONCE, EACH),
            retry: Retry::default(),
        }
    }

    /// What stands now. To be called whenever it may have changed.
    pub fn observe(&mut self, standing: Standing, now: Mono) {
        let since = match self.current {
            Some((before, since)) if subject(before) == subject(standing) => since,
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
        (subject(standing) != self.announced).then(|| {
            since
                .plus(settle + jitter)
                .max(self.budget.free_at())
                .max(self.retry.not_before)
        })
    }

    /// The API server took an Event about `standing`.
    pub fn announced(&mut self, standing: Standing, now: Mono) {
        self.announced = subject(standing);
        self.budget.spend(now);
        self.retry = Retry::default();
    }

    /// The API server did not take it, or gave no answer.
    pub fn failed(&mut self, refusal: Refusal, now: Mono) {
        self.retry.failed(&self.node, &self.pace, refusal, now);
    }
}
