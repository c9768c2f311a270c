//! When the condition is written: a state machine over what stands, what the API server has, and
//! the tries that failed.
//!
//! A change to False, and one back to True, is written at once, any other once it has lasted and
//! within a budget, so that a node that sees a connection now and then does not keep the API server busy. What
//! stands without change is written every [`Pace::heartbeat`], at the node's own place in it.
//! Nothing is queued: what is due is always what stands now.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

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
            retry: Duration::from_secs(1),
            retry_max: Duration::from_secs(60),
            denied: Duration::from_secs(600),
        }
    }
}

/// Changes other than to False and back to True: so many at once, and one more each heartbeat.
const CALM: u32 = 3;
/// The API server is believed up to here.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Salts of [`spread`].
const PHASE: u64 = 0x70;
const JITTER: u64 = 0x71;

/// The condition as the API server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its status.
    pub status: Status,
    /// Its reason; `None` for one that this release does not know.
    pub reason: Option<Reason>,
    /// When its status last changed.
    pub transition: Wall,
}

/// The current standing, with its times.
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
            calm: Budget::new(CALM, pace.heartbeat),
            retry: Retry::default(),
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
            // The former Node's absence does not matter for this one.
            self.retry = Retry::default();
        }
    }

    /// Takes in the current standing. To be called whenever it may have changed.
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
        let at = change.into_iter().chain(self.heartbeat_at).min()?;
        let gap = self.last_write.map_or(Mono(0), |at| at.plus(self.pace.gap));
        Some(at.max(gap).max(self.retry.not_before))
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
        self.retry = Retry::default();
    }

    /// The API server did not take it, or gave no answer.
    pub fn failed(&mut self, refusal: Refusal, now: Mono) {
        self.uncertain |= matches!(refusal, Refusal::Failed { .. });
        self.retry.failed(&self.node, &self.pace, refusal, now);
    }

    /// Another agent may have written meanwhile.
    pub fn doubt(&mut self) {
        self.uncertain = true;
    }

    /// The node's next place in the heartbeat, counted from the node's boot: it is the same after
    /// a restart of the agent.
    fn place_after(&self, at: Mono) -> Mono {
        let every = Mono(0).plus(self.pace.heartbeat).0.max(1);
        let phase = Mono(0)
            .plus(spread(&self.node, PHASE, self.pace.heartbeat))
            .0;
        let next = at.0.saturating_add(every);
        Mono(next - next.saturating_sub(phase) % every)
    }
}

/// Whether somebody may act on it: the node is accused, or found sound again. That nothing is known
/// of an accused node is not urgent: an agent that begins without memory knows nothing either.
fn is_urgent(before: Status, after: Status) -> bool {
    (before == Status::False) != (after == Status::False) && after != Status::Unknown
}

/// A budget of things that may be done: so many at once, and one more each while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Maximum that is saved up, as time.
    saved: Duration,
    /// One each.
    each: Duration,
    /// When all of it would be there again.
    full_at: Mono,
}

impl Budget {
    /// `burst` at once, and one more for `each` that passes.
    pub(super) fn new(burst: u32, each: Duration) -> Self {
        Self {
            saved: each.saturating_mul(burst.saturating_sub(1)),
            each,
            full_at: Mono(0),
        }
    }

    /// From when on one may be spent.
    pub(super) fn free_at(&self) -> Mono {
        self.full_at.minus(self.saved)
    }

    pub(super) fn spend(&mut self, now: Mono) {
        self.full_at = self.full_at.max(now).plus(self.each);
    }
}

/// Why a write did not succeed, as far as it matters for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Rights are missing: nothing to gain by asking soon.
    Denied,
    /// Anything else. It may have been done all the same where no answer came.
    Failed {
        /// The API server said to wait for so long.
        wait: Option<Duration>,
    },
}

/// Pauses between tries: longer each time, and each node's own, so that nodes do not come back in
/// one moment when the API server does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Retry {
    failures: u32,
    /// Nothing is tried before.
    pub(super) not_before: Mono,
}

impl Retry {
    pub(super) fn failed(&mut self, node: &str, pace: &Pace, refusal: Refusal, now: Mono) {
        let doubled = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        // The pause, and a part of it that is the node's own: all of it where it is short.
        let (pause, over) = match refusal {
            Refusal::Denied => (pace.denied, pace.denied / 10),
            Refusal::Failed { wait } => {
                let pause = pace.retry.saturating_mul(doubled).min(pace.retry_max);
                let pause = pause.max(wait.unwrap_or_default().min(WAIT_MAX));
                (pause, pause)
            }
        };
        self.failures = self.failures.saturating_add(1);
        let own = spread(node, u64::from(self.failures), over);
        self.not_before = now.plus(pause + own);
    }
}

/// A node's place below `over`, by its name and what it is for: nodes are spread over time, and each
/// keeps its place over a restart.
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
