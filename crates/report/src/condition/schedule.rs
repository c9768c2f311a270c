//! When the condition is written: a state machine over the current condition, the API server's copy,
//! and failed attempts.
//!
//! A change to False, or back to True, is written at once. Any other change is written once it has
//! lasted (unless the node leaves), within a budget, so that a node with rare connections does not load
//! the API server. An unchanged condition is written every [`Pace::heartbeat`], at a phase that differs by
//! node. Nothing is queued: a write always has the current condition.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::time::{Mono, Wall, doubled};

use super::{ConditionState, Reason, Status};

/// Intervals of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Interval for an unchanged condition, the same as node-problem-detector's.
    pub heartbeat: Duration,
    /// Maximum delay of a change. Each node has a constant delay, so that 5,000 nodes that break at one
    /// moment cause only 1,000 writes a second.
    pub jitter: Duration,
    /// Minimum duration of a change other than to False, back to True, or to a leaving node.
    pub settle: Duration,
    /// Minimum time between two writes.
    pub gap: Duration,
    /// Pause after the first failure; it doubles.
    pub retry: Duration,
    /// Maximum pause after a failure, without the offset that differs between nodes.
    pub retry_max: Duration,
    /// Pause after a write was forbidden.
    pub denied: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(300),
            jitter: Duration::from_secs(5),
            settle: Duration::from_secs(10),
            gap: Duration::from_secs(10),
            retry: Duration::from_secs(1),
            retry_max: Duration::from_secs(60),
            denied: Duration::from_secs(600),
        }
    }
}

/// Budget of changes that are not urgent: this many at once, and one more each heartbeat.
const NOT_URGENT: u32 = 3;
/// Maximum pause that is accepted from the API server.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Salts of [`spread`].
const PHASE: u64 = 0x70;
const JITTER: u64 = 0x71;

/// The API server's copy of the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub status: Status,
    /// The condition's reason; `None` if this release does not know it.
    pub reason: Option<Reason>,
    /// When the condition's status last changed.
    pub transition: Wall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    condition: ConditionState,
    since: Mono,
    status_since: Mono,
    status_wall: Wall,
}

/// Decides when the condition of one node is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    node: String,
    /// The Node's UID, once known.
    uid: Option<Arc<str>>,
    pace: Pace,
    current: Option<Current>,
    written: Option<Written>,
    /// Whether the API server's copy is uncertain, because a write ended without an answer.
    uncertain: bool,
    last_write: Option<Mono>,
    /// `None` before the first write, unless a condition was found.
    heartbeat_at: Option<Mono>,
    not_urgent: Budget,
    retry: Retry,
}

impl Schedule {
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
            not_urgent: Budget::new(NOT_URGENT, pace.heartbeat),
            retry: Retry::default(),
        };
        schedule.heartbeat_at = found.map(|_| schedule.heartbeat_after(now));
        schedule
    }

    /// Records the Node's UID. A Node that was deleted and registered again has no condition, even if one was
    /// written to the previous Node of that name.
    pub fn follow(&mut self, uid: &Arc<str>) {
        let before = self.uid.replace(Arc::clone(uid));
        if before.is_some_and(|before| before != *uid) {
            (self.written, self.heartbeat_at, self.uncertain) = (None, None, false);
            // Failed writes to the previous Node do not delay writes to this one.
            self.retry = Retry::default();
        }
    }

    /// Records the current condition. Call it whenever the condition may have changed.
    pub fn observe(&mut self, condition: ConditionState, now: Mono, wall: Wall) {
        let before = self.current;
        if before.is_some_and(|before| before.condition == condition) {
            return;
        }
        let same = before.filter(|before| before.condition.status == condition.status);
        self.current = Some(Current {
            condition,
            since: now,
            status_since: same.map_or(now, |same| same.status_since),
            status_wall: same.map_or(wall, |same| same.status_wall),
        });
    }

    /// Brings the next heartbeat forward, because the message shows another agent or mode.
    pub fn renew(&mut self, now: Mono) {
        let jitter = spread(&self.node, JITTER, self.pace.jitter);
        let soon = now.plus(self.pace.settle).plus(jitter);
        self.heartbeat_at = self.heartbeat_at.map(|at| at.min(soon));
    }

    /// Time of the next write of the current condition; `None` before the first call of
    /// [`observe`](Self::observe).
    pub fn due(&self) -> Option<Mono> {
        let current = self.current.as_ref()?;
        let change = self.change_due(current);
        let at = change.into_iter().chain(self.heartbeat_at).min()?;
        let gap = self.last_write.map_or(Mono(0), |at| at.plus(self.pace.gap));
        Some(at.max(gap).max(self.retry.not_before))
    }

    fn change_due(&self, current: &Current) -> Option<Mono> {
        let jitter = spread(&self.node, JITTER, self.pace.jitter);
        let is_leaving = |reason: Option<Reason>| reason == Some(Reason::Leaving);
        let was_leaving = self
            .written
            .is_some_and(|written| is_leaving(written.reason));
        // The fleet brake counts leaving nodes, so the change to one does not wait for the budget. It spends
        // some, so another change must wait before the next one of these.
        if is_leaving(Some(current.condition.reason)) && !was_leaving {
            return Some(current.since.plus(jitter));
        }
        let settled = current.since.plus(self.pace.settle).plus(jitter);
        let Some(written) = &self.written else {
            // Any condition is better than none, but an agent that just started knows nothing yet.
            return Some(match current.condition.status {
                Status::Unknown => settled,
                Status::True | Status::False => current.status_since.plus(jitter),
            });
        };
        if is_urgent(written.status, current.condition.status) {
            return Some(current.status_since.plus(jitter));
        }
        if self.uncertain {
            return Some(current.since);
        }
        let same = written.status == current.condition.status
            && written.reason == Some(current.condition.reason);
        (!same).then(|| settled.max(self.not_urgent.free_at()))
    }

    /// The condition's `lastTransitionTime`. It changes only if the status differs from the API server's.
    pub fn transition(&self) -> Option<Wall> {
        let current = self.current.as_ref()?;
        let kept = self
            .written
            .filter(|written| written.status == current.condition.status);
        Some(kept.map_or(current.status_wall, |written| written.transition))
    }

    /// Records that the API server accepted `condition`, with this transition time.
    pub fn wrote(&mut self, condition: ConditionState, transition: Wall, now: Mono) {
        let before = self.written.replace(Written {
            status: condition.status,
            reason: Some(condition.reason),
            transition,
        });
        let is_not_urgent = before.is_some_and(|before| {
            !is_urgent(before.status, condition.status)
                && (before.status, before.reason) != (condition.status, Some(condition.reason))
        });
        if is_not_urgent {
            self.not_urgent.spend(now);
        }
        self.uncertain = false;
        self.last_write = Some(now);
        // At least half a heartbeat from now, because a change also serves as a heartbeat.
        self.heartbeat_at = Some(self.heartbeat_after(now.plus(self.pace.heartbeat / 2)));
        self.retry = Retry::default();
    }

    /// Records that the API server rejected the write or did not answer.
    pub fn failed(&mut self, refusal: Refusal, now: Mono) {
        self.uncertain |= matches!(refusal, Refusal::Failed { .. });
        self.retry.failed(&self.node, &self.pace, refusal, now);
    }

    /// Makes the API server's copy uncertain, because another agent may have written it.
    pub fn set_uncertain(&mut self) {
        self.uncertain = true;
    }

    /// The node's next heartbeat, at a phase that counts from the node's boot: it is the same after
    /// a restart of the agent.
    fn heartbeat_after(&self, at: Mono) -> Mono {
        let every = Mono(0).plus(self.pace.heartbeat).0.max(1);
        let phase = Mono(0)
            .plus(spread(&self.node, PHASE, self.pace.heartbeat))
            .0;
        let next = at.0.saturating_add(every);
        Mono(next - next.saturating_sub(phase) % every)
    }
}

/// Whether the change may need action: the node is accused, or sound again. Unknown after an accusation is
/// not urgent, because an agent without memory starts with Unknown.
fn is_urgent(before: Status, after: Status) -> bool {
    (before == Status::False) != (after == Status::False) && after != Status::Unknown
}

/// A budget of actions: a burst, and one more per interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// How long before `full_at` the next action is allowed.
    saved: Duration,
    each: Duration,
    /// When the budget is full again.
    full_at: Mono,
}

impl Budget {
    /// `burst` actions at once, and one more per `each`.
    pub(super) fn new(burst: u32, each: Duration) -> Self {
        Self {
            saved: each.saturating_mul(burst.saturating_sub(1)),
            each,
            full_at: Mono(0),
        }
    }

    /// Earliest time for the next action.
    pub(super) fn free_at(&self) -> Mono {
        self.full_at.minus(self.saved)
    }

    pub(super) fn spend(&mut self, now: Mono) {
        self.full_at = self.full_at.max(now).plus(self.each);
    }
}

/// Why a write failed, as far as it affects the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Forbidden: an early retry is useless.
    Denied,
    /// Anything else. Without an answer, the write may have succeeded.
    Failed {
        /// The API server requested this pause.
        wait: Option<Duration>,
    },
}

/// Pauses between attempts. They grow, and differ between nodes, so that not all nodes retry at the
/// moment when the API server recovers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Retry {
    failures: u32,
    /// Earliest time for the next attempt.
    pub(super) not_before: Mono,
}

impl Retry {
    pub(super) fn failed(&mut self, node: &str, pace: &Pace, refusal: Refusal, now: Mono) {
        // An offset by node is added: below the pause itself, or below a tenth of it after a denial.
        let (pause, over) = match refusal {
            Refusal::Denied => (pace.denied, pace.denied / 10),
            Refusal::Failed { wait } => {
                let pause = doubled(pace.retry, self.failures, pace.retry_max);
                let pause = pause.max(wait.unwrap_or_default().min(WAIT_MAX));
                (pause, pause)
            }
        };
        self.failures = self.failures.saturating_add(1);
        let own = spread(node, u64::from(self.failures), over);
        self.not_before = now.plus(pause + own);
    }
}

/// An offset below `over` that differs between nodes, so that they do not all write at once. It depends on the
/// node's name and on `salt` alone, so it is the same after a restart.
pub(super) fn spread(node: &str, salt: u64, over: Duration) -> Duration {
    let over = u64::try_from(over.as_nanos()).unwrap_or(u64::MAX);
    let place = BuildHasherDefault::<DefaultHasher>::default().hash_one((node, salt));
    Duration::from_nanos(place % over.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    fn failed(retry: &mut Retry, refusal: Refusal) -> Duration {
        retry.failed("node-1", &Pace::default(), refusal, Mono(0));
        retry.not_before.since(Mono(0))
    }

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew() {
        let mut retry = Retry::default();
        let mut last = Duration::ZERO;
        for _ in 0..40 {
            last = failed(&mut retry, Refusal::Failed { wait: None });
            assert!(last >= SECOND && last <= 2 * MINUTE, "{last:?}");
        }
        assert!(last >= MINUTE);
        let first = failed(&mut Retry::default(), Refusal::Failed { wait: None });
        assert!(first <= 2 * SECOND);
    }

    #[test]
    fn the_api_server_may_ask_for_more_within_reason() {
        let mut retry = Retry::default();
        let wait = Some(Duration::from_secs(30));
        assert!(failed(&mut retry, Refusal::Failed { wait }) >= Duration::from_secs(30));
        let wait = Some(Duration::MAX);
        assert!(failed(&mut retry, Refusal::Failed { wait }) <= 2 * WAIT_MAX);
    }

    #[test]
    fn missing_rights_are_asked_for_seldom() {
        let pause = failed(&mut Retry::default(), Refusal::Denied);
        assert!(pause >= 10 * MINUTE && pause <= 11 * MINUTE, "{pause:?}");
    }

    #[test]
    fn nodes_are_spread_evenly() {
        for salt in [0, 1, 7] {
            let mut tenths = [0u32; 10];
            for number in 0..5_000 {
                let at = spread(
                    &format!("ip-10-0-{}-{}", number / 250, number % 250),
                    salt,
                    Duration::from_secs(10),
                );
                tenths[at.as_secs() as usize] += 1;
            }
            assert!(
                tenths.iter().all(|count| (400..600).contains(count)),
                "{tenths:?}"
            );
        }
    }
}
