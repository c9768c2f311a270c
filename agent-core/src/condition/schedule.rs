//! When the condition is written: a state machine over what stands, what the API server has, and
//! the tries that failed.
//!
//! A change to False, and one back to True, is written at once, any other once it has lasted and
//! within a budget, so that a node that sees a connection now and then does not keep the API server busy. What
//! stands without change is written every [`Pace::heartbeat`], at the node's own place in it.
//! Nothing is queued: what is due is always what stands now.

use std::sync::Arc;
use std::time::Duration;

use super::budget::Budget;
use super::retry::{Refusal, Retry};
use super::spread::spread;
use super::{Reason, Standing, Status};
use crate::time::{Mono, Wall};

/// The numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// An unchanged condition is written this often. node-problem-detector's pace.
    pub heartbeat: Duration,
    /// Changes wait up to so long, each node as long as always: 5,000 nodes that break in one
    /// moment are 1,000 writes a second.
    pub jitter: Duration,
    /// Changes other than to False and back to True have to last so long.
    pub settle: Duration,
    /// Between two writes, whatever changes.
    pub gap: Duration,
    /// Such changes: so many at once, and one more each heartbeat.
    pub calm: u32,
    /// Events: so many at once.
    pub events: u32,
    /// One more Event each.
    pub events_each: Duration,
    /// Pause after a first failure; it doubles.
    pub retry: Duration,
    /// Longest pause after a failure, apart from each node's own part.
    pub retry_max: Duration,
    /// Pause where rights are missing.
    pub denied: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(300),
            jitter: Duration::from_secs(5),
            settle: Duration::from_secs(10),
            gap: Duration::from_secs(10),
            calm: 3,
            events: 6,
            events_each: Duration::from_secs(60),
            retry: Duration::from_secs(1),
            retry_max: Duration::from_secs(60),
            denied: Duration::from_secs(600),
        }
    }
}

/// Salts of [`spread`].
const PHASE: u64 = 0x70;
const JITTER: u64 = 0x71;

/// What the API server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its status.
    pub status: Status,
    /// Its reason; `None` for one that this release does not know.
    pub reason: Option<Reason>,
    /// When its status last changed.
    pub transition: Wall,
}

/// What stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    standing: Standing,
    since: Mono,
    /// Since when the status is what it is.
    status_since: Mono,
    status_wall: Wall,
}

/// The state machine. One for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    node: String,
    /// The Node's UID, once it was told.
    uid: Option<Arc<str>>,
    pace: Pace,
    current: Option<Current>,
    written: Option<Written>,
    /// A try ended without an answer: what the API server has is not known for certain.
    uncertain: bool,
    last_write: Option<Mono>,
    /// Never before the first write; what was found written has its place too.
    heartbeat_at: Option<Mono>,
    calm: Budget,
    retry: Retry,
}

impl Schedule {
    /// For this node. `found` is what an agent before wrote, if it did.
    pub fn new(node: &str, pace: Pace, found: Option<Written>, now: Mono) -> Self {
        let mut schedule = Self {
            node: node.to_owned(),
            uid: None,
            pace,
            current: None,
            written: found,
            uncertain: false,
            last_write: None,
            heartbeat_at: None,
            calm: Budget::new(pace.calm, pace.heartbeat),
            retry: Retry::new(&pace),
        };
        schedule.heartbeat_at = found.map(|_| schedule.place_after(now));
        schedule
    }

    /// The Node has this UID. One that was deleted and registered again has no condition, whatever was
    /// written to the former one of its name.
    pub fn of(&mut self, uid: &Arc<str>) {
        let before = self.uid.replace(Arc::clone(uid));
        if before.is_some_and(|before| before != *uid) {
            (self.written, self.heartbeat_at, self.uncertain) = (None, None, false);
            // That the former one was gone says nothing of this one.
            self.retry.succeeded();
        }
    }

    /// What stands now. To be called whenever it may have changed.
    pub fn observe(&mut self, standing: Standing, now: Mono, wall: Wall) {
        let before = self.current;
        if before.is_some_and(|before| before.standing == standing) {
            return;
        }
        let same = before.filter(|before| before.standing.status == standing.status);
        self.current = Some(Current {
            standing,
            since: now,
            status_since: same.map_or(now, |same| same.status_since),
            status_wall: same.map_or(wall, |same| same.status_wall),
        });
    }

    /// When the next write is due, as things stand; `None` before the first call of
    /// [`observe`](Self::observe).
    pub fn due(&self) -> Option<Mono> {
        let current = self.current.as_ref()?;
        let change = self.change_due(current);
        let at = match (change, self.heartbeat_at) {
            (Some(change), Some(heartbeat)) => change.min(heartbeat),
            (change, heartbeat) => change.or(heartbeat)?,
        };
        let gap = self.last_write.map_or(Mono(0), |at| at.plus(self.pace.gap));
        Some(at.max(gap).max(self.retry.not_before()))
    }

    fn change_due(&self, current: &Current) -> Option<Mono> {
        let jitter = spread(&self.node, JITTER, self.pace.jitter);
        let settled = current.since.plus(self.pace.settle).plus(jitter);
        let Some(written) = &self.written else {
            // Something is better than nothing, but an agent that just began knows nothing yet.
            return Some(match current.standing.status {
                Status::Unknown => settled,
                Status::True | Status::False => current.status_since.plus(jitter),
            });
        };
        if is_urgent(written.status, current.standing.status) {
            return Some(current.status_since.plus(jitter));
        }
        if self.uncertain {
            return Some(current.since);
        }
        let same = written.status == current.standing.status
            && written.reason == Some(current.standing.reason);
        (!same).then(|| settled.max(self.calm.free_at()))
    }

    /// When the status of what stands came to be: the condition's `lastTransitionTime`. It moves
    /// only where the status differs from the one that the API server has.
    pub fn transition(&self) -> Option<Wall> {
        let current = self.current.as_ref()?;
        let kept = self
            .written
            .filter(|written| written.status == current.standing.status);
        Some(kept.map_or(current.status_wall, |written| written.transition))
    }

    /// The API server took `standing`, with this time of transition.
    pub fn wrote(&mut self, standing: Standing, transition: Wall, now: Mono) {
        let before = self.written.replace(Written {
            status: standing.status,
            reason: Some(standing.reason),
            transition,
        });
        let calm = before.is_some_and(|before| {
            !is_urgent(before.status, standing.status)
                && (before.status, before.reason) != (standing.status, Some(standing.reason))
        });
        if calm {
            self.calm.spend(now);
        }
        self.uncertain = false;
        self.last_write = Some(now);
        // At least half a heartbeat ahead: a change is one, too.
        self.heartbeat_at = Some(self.place_after(now.plus(self.pace.heartbeat / 2)));
        self.retry.succeeded();
    }

    /// The API server did not take it, or gave no answer.
    pub fn failed(&mut self, refusal: Refusal, now: Mono) {
        self.uncertain |= matches!(refusal, Refusal::Failed { .. });
        self.retry.failed(&self.node, refusal, now);
    }

    /// The node's next place in the heartbeat, counted from the node's boot: it is the same after
    /// a restart of the agent.
    fn place_after(&self, at: Mono) -> Mono {
        let every = u64::try_from(self.pace.heartbeat.as_nanos())
            .unwrap_or(u64::MAX)
            .max(1);
        let phase = Mono(0)
            .plus(spread(&self.node, PHASE, self.pace.heartbeat))
            .0;
        let beyond = at.0.saturating_add(every).saturating_sub(phase) % every;
        Mono(at.0.saturating_add(every - beyond))
    }
}

/// Whether somebody may act on it: the node is accused, or found sound again. That nothing is known
/// of an accused node is not urgent: an agent that begins without memory knows nothing either.
fn is_urgent(before: Status, after: Status) -> bool {
    matches!(
        (before, after),
        (Status::True | Status::Unknown, Status::False) | (Status::False, Status::True)
    )
}
