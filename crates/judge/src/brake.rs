//! The fleet brake: a node continues to answer 200 if its datapath fails together with those of many other
//! nodes. A wrong 503 on all nodes at once is worse than any fault of one node.
//!
//! The rotator counts the nodes whose datapath fails by evidence and publishes the count on the sentinel's
//! slices ([`FleetReport`](pathproof_facts::fleet_report::FleetReport)); every agent decides for itself
//! ([`Brake`]). Only the answer is held back: verdict, condition and metrics are not changed. A deletion and the
//! autoscaler's taint are never held back; other marks of leaving nodes have a second brake.

use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

use fnv::FnvHasher;
use pathproof_facts::fleet_report::{Count, DOMAIN_LABELS, Published};
use pathproof_facts::time::{HumanDuration, Mono, Wall};
use serde::{Deserialize, Serialize};

/// Minimum age of a 503 that is settled by a count below the limit: such a count includes the nodes that
/// failed at the same moment. A 503 that is not settled can be taken back.
const YOUNG: Duration = Duration::from_secs(30);
/// Time in which all agents write their conditions after an outage of the API server. Until then a
/// count below the limit proves nothing.
const CATCH_UP: Duration = Duration::from_secs(150);
/// The count must have been below the limit for this long before a held 503 is answered.
const CLEAR: Duration = Duration::from_secs(10);
/// Maximum delay of a 503 whose cause may be a policy or a filter, so that the count of other nodes arrives
/// first. Each node's delay depends on a hash of its name.
const SPREAD: Duration = Duration::from_secs(10);
/// Without a count that is newer than its failure, a node answers 503 after its delay, multiplied by this: nodes
/// then fail one after another over ten minutes.
const TURNS: u32 = 60;
/// Time within which the count reflects a condition that returned to healthy.
const RECOUNTED: Duration = Duration::from_secs(30);
const NANOS: i64 = 1_000_000_000;
/// A condition is written and counted within this time.
const COUNTED: Duration = Duration::from_secs(15);
/// If nothing was published for this long, the rotator or the API server is gone: the rotator
/// publishes every `BEAT`.
const SILENT: Duration = Duration::from_secs(15 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrakeReason {
    /// Too many other nodes are unsound.
    Fleet(Count),
    /// Too many other nodes of a failure domain of this node are unsound.
    Domain(Count),
    /// Too many other nodes leave because of marks beyond KEP-3836; `unsound` is their number.
    Leaving(Count),
    /// The cause is uncertain, and the count of other nodes may still arrive.
    Waiting,
    /// The cause is uncertain, and no rotator counts.
    Uncounted,
    /// The cause is certain, no newer count arrives, and it is not this node's turn yet.
    Turn,
}

impl BrakeReason {
    pub const NAMES: [&str; 6] = ["fleet", "domain", "leaving", "waiting", "uncounted", "turn"];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fleet(_) => "fleet",
            Self::Domain(_) => "domain",
            Self::Leaving(_) => "leaving",
            Self::Waiting => "waiting",
            Self::Uncounted => "uncounted",
            Self::Turn => "turn",
        }
    }
}

impl fmt::Display for BrakeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fleet(Count { unsound, nodes }) => {
                write!(f, "the fleet brake is on: {unsound} of {nodes} nodes fail")
            }
            Self::Domain(Count { unsound, nodes }) => write!(
                f,
                "the fleet brake is on: {unsound} of {nodes} nodes in a zone or pool of this node fail"
            ),
            Self::Leaving(Count { unsound, nodes }) => write!(
                f,
                "the fleet brake is on: {unsound} of {nodes} nodes are marked as being removed"
            ),
            Self::Waiting => f.write_str(
                "the cause is not certain, so the agent waits for the rotator's next count of \
                 failing nodes",
            ),
            Self::Uncounted => write!(
                f,
                "the cause is not certain, and the rotator has not counted failing nodes for {}",
                HumanDuration(SILENT)
            ),
            Self::Turn => write!(
                f,
                "the rotator has not counted failing nodes since this one failed, so such nodes \
                 answer 503 one after another within {}",
                HumanDuration(SPREAD * TURNS)
            ),
        }
    }
}

/// The brake of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Brake {
    /// Maximum share of nodes that may be out of service, in percent; `None` turns the brake off.
    percent: Option<u32>,
    /// This node's delay, at most [`SPREAD`].
    wait: Duration,
    /// The API server is unreachable.
    silent: bool,
    /// State to store for [`Brake::restore`].
    pub memory: BrakeMemory,
}

/// The brake's state: plain data, which outlives the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BrakeMemory {
    /// The last count and when it was received; `None` if it was already old when this agent started.
    counted: Option<(Published, Option<Mono>)>,
    /// The current failure, if the answer would be 503.
    failing: Option<CurrentFailure>,
    /// When the last failure ended, and whether a count included it.
    ended: Option<Mono>,
    #[serde(default)]
    ended_counted: bool,
    /// When a count was last at its limit during this failure.
    over: Option<Mono>,
    /// When the API server was last unreachable.
    away: Option<Mono>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct CurrentFailure {
    since: Mono,
    /// Whether nothing but the node's datapath explains it (`Finding::is_certain`).
    certain: bool,
    /// When it became certain: this node's turn is counted from then on.
    #[serde(default)]
    certain_since: Mono,
    /// Number of unsound nodes when it began.
    before: u32,
    /// The same of each failure domain.
    #[serde(default)]
    before_in: [u32; DOMAIN_LABELS],
    /// Whether a count included it.
    #[serde(default)]
    counted: bool,
    /// Whether the 503 is no longer taken back.
    settled: bool,
}

/// Numbers of the cluster, then of this node's failure domains.
type Numbers = [u32; 1 + DOMAIN_LABELS];

impl CurrentFailure {
    /// Numbers of unsound nodes besides this one. This node is in a count once the count has grown, or after
    /// [`COUNTED`]: if other nodes recovered in that time, the count does not grow.
    fn others(&self, published: &Published, now: Mono) -> Numbers {
        let [a, b, c, d] = self.before_in;
        let before = [self.before, a, b, c, d];
        let is_late = now.since(self.since) > COUNTED;
        let mut others = published.counts().map(|count| count.unsound);
        for (others, before) in others.iter_mut().zip(before) {
            *others = others.saturating_sub((*others > before || is_late).into());
        }
        others
    }
}

/// The first count that is at its limit, the cluster's before those of domains: any of them holds a 503 back.
fn at_limit(published: &Published, percent: u32, others: Numbers) -> Option<BrakeReason> {
    let mut counts = published.counts().into_iter().zip(others).enumerate();
    let found = counts.find(|(_, (count, others))| count.is_over(percent, *others));
    found.map(|(place, (count, _))| match place {
        0 => BrakeReason::Fleet(count),
        _ => BrakeReason::Domain(count),
    })
}

impl Brake {
    /// Continues where the previous agent stopped.
    pub fn restore(percent: Option<u32>, node: &str, memory: BrakeMemory) -> Self {
        let mut hasher = FnvHasher::default();
        node.hash(&mut hasher);
        let spread = SPREAD.as_millis() as u64;
        Self {
            percent,
            wait: Duration::from_millis(hasher.finish() % spread),
            silent: false,
            memory,
        }
    }

    /// The last count and when it was received.
    pub fn counted(&self) -> Option<(Count, Option<Mono>)> {
        let counted = self.memory.counted;
        counted.map(|(published, came)| (published.count, came))
    }

    /// Records the count in the slices. Only a count with a new time shows that the rotator is alive. The age
    /// of the first recorded count is computed from its time and the wall clock. A count of no nodes is none: the
    /// last one ages, and is then forgotten. It may come from a rotator whose clock is wrong, or that counts
    /// before agents report again, so it releases no node at once.
    pub fn record(&mut self, published: Published, wall: Wall, now: Mono) {
        let catches_up = self.catches_up(now);
        let memory = &mut self.memory;
        if published.count.nodes == 0 {
            let is_old = |came: Option<Mono>| came.is_none_or(|at| now.since(at) > SILENT);
            if !catches_up && memory.counted.is_some_and(|(_, came)| is_old(came)) {
                (memory.counted, memory.over) = (None, None);
            }
            return;
        }
        let same = |before: &Published| {
            let key = |one: &Published| (one.count, one.leaving, one.written);
            key(before) == key(&published)
        };
        let came = match memory.counted {
            // Other domains in the same count: this node has another label now.
            Some((before, came)) if same(&before) => came,
            Some(_) => Some(now),
            None => {
                let age = (wall.0 / NANOS).saturating_sub(published.written);
                (age <= SILENT.as_secs() as i64).then_some(now)
            }
        };
        memory.counted = Some((published, came));
    }

    /// Whether a 503 for the datapath is held back, and why. Call it with every answer. `certain`:
    /// nothing but the node's datapath explains the failure (`Finding::is_certain`).
    pub fn step(&mut self, fails: bool, certain: bool, now: Mono) -> Option<BrakeReason> {
        let percent = self.percent?;
        if !fails {
            let memory = &mut self.memory;
            if let Some(failing) = memory.failing {
                (memory.ended, memory.ended_counted) = (Some(now), failing.counted);
            }
            (memory.failing, memory.over) = (None, None);
            return None;
        }
        let failing = self.fail(certain, now);
        // There was never a count: the rotator is missing, or too old to count.
        let (published, came) = self.memory.counted?;
        // A count that holds this node back does so until the next count arrives: an outage of the API server
        // must not release all nodes at once.
        let is_heard = came.is_some_and(|at| now.since(at) <= SILENT);
        if !is_heard && self.memory.over.is_none() {
            return match failing.certain {
                true => self.turn(failing, now),
                false => Some(BrakeReason::Uncounted),
            };
        }
        // A count that arrived after the failure shows that other nodes are counted too.
        let catches_up = self.catches_up(now);
        let is_newer = came > Some(failing.since) && !catches_up;
        // A rotation soon after the failure may publish a count that was taken before it.
        let has_grown = published.count.unsound > failing.before;
        let is_late = came.is_some_and(|at| at.since(failing.since) > COUNTED);
        let counted = failing.counted || (is_newer && (has_grown || is_late));
        if let Some(failing) = &mut self.memory.failing {
            failing.counted = counted;
        }
        let over = at_limit(&published, percent, failing.others(&published, now));
        if over.is_some() {
            self.memory.over = Some(now);
        }
        let settled = self.settle(came, now);
        if self.memory.over.is_some() && !settled {
            return over.or(Some(BrakeReason::Fleet(published.count)));
        }
        let lasts = now.since(failing.since);
        match failing.certain {
            _ if settled => None,
            false => (lasts < self.wait || !is_newer).then_some(BrakeReason::Waiting),
            // The next count is on its way.
            true if counted || (is_heard && lasts <= COUNTED && !catches_up) => None,
            true => self.turn(failing, now),
        }
    }

    /// Whether a 503 of certain cause waits for this node's turn, because no count shows how many other nodes
    /// fail.
    fn turn(&self, failing: CurrentFailure, now: Mono) -> Option<BrakeReason> {
        let is_due = now.since(failing.certain_since) >= self.wait * TURNS;
        (!failing.counted && !failing.settled && !is_due).then_some(BrakeReason::Turn)
    }

    /// Whether the 503 of a marked node is held back, in a brake that gets
    /// [counts of leaving nodes](Published::of_leaving). A mark waits for no newer count and no turn.
    pub fn hold_leaving(&mut self, is_marked: bool, now: Mono) -> Option<BrakeReason> {
        match self.step(is_marked, true, now)? {
            BrakeReason::Fleet(count) => Some(BrakeReason::Leaving(count)),
            _ => None,
        }
    }

    /// Whether the 503 of Services that fail alone on a healthy node is held back. While too many
    /// other nodes fail, load balancers need this one for every Service.
    pub fn hold_services(&self, fail: bool, now: Mono) -> Option<BrakeReason> {
        let (published, came) = self.memory.counted?;
        let is_known = came.is_some_and(|at| now.since(at) <= SILENT);
        let over = at_limit(
            &published,
            self.percent?,
            self.unsound_before(&published, now),
        );
        over.filter(|_| fail && is_known)
    }

    /// This node's delay of a 503 whose cause may be a policy, if the brake is on.
    pub fn stagger(&self) -> Duration {
        self.percent.map_or(Duration::ZERO, |_| self.wait)
    }

    /// Records whether the API server is unreachable. Call it whenever that may have changed.
    pub fn source(&mut self, silent: bool, now: Mono) {
        if silent || self.silent {
            self.memory.away = Some(now);
        }
        self.silent = silent;
    }

    fn catches_up(&self, now: Mono) -> bool {
        let away = self.memory.away;
        self.silent || away.is_some_and(|at| now.since(at) <= CATCH_UP)
    }

    /// Unsound nodes in each count, without this node's last failure, which it may still include.
    fn unsound_before(&self, published: &Published, now: Mono) -> Numbers {
        let ended = self.memory.ended;
        let still = ended.is_some_and(|at| now.since(at) <= RECOUNTED);
        let counts = published.counts();
        counts.map(|count| count.unsound.saturating_sub(still.into()))
    }

    fn fail(&mut self, certain: bool, now: Mono) -> CurrentFailure {
        let counted = self.memory.counted;
        let before = counted.map(|(last, _)| self.unsound_before(&last, now));
        let [before, before_in @ ..] = before.unwrap_or_default();
        // A failure that comes back at once may change no count.
        let was_counted = self.memory.ended_counted;
        let goes_on = (self.memory.ended).is_some_and(|at| now.since(at) <= RECOUNTED);
        let failing = self.memory.failing.get_or_insert(CurrentFailure {
            since: now,
            certain,
            certain_since: now,
            before,
            before_in,
            counted: was_counted && goes_on,
            settled: false,
        });
        if certain && !failing.certain {
            (failing.certain, failing.certain_since) = (true, now);
        }
        *failing
    }

    /// Whether this node's 503 is no longer taken back: the last count came late enough and is
    /// below the limit, or the counts have been below it for long enough.
    fn settle(&mut self, came: Option<Mono>, now: Mono) -> bool {
        let catches_up = self.catches_up(now);
        let memory = &mut self.memory;
        let Some(failing) = &mut memory.failing else {
            return false;
        };
        let clear = |last: Mono| !catches_up && now.since(last) > CLEAR;
        match memory.over {
            // An older count may lack nodes that failed with this one, so it releases the 503 and settles nothing.
            Some(last) if clear(last) => {
                failing.settled |= came.is_some_and(|at| at.since(last) > CLEAR);
                memory.over = None;
            }
            Some(_) => {}
            None => {
                let late = came.is_some_and(|at| at.since(failing.since) > YOUNG);
                failing.settled |= late && !catches_up;
            }
        }
        failing.settled
    }
}

#[cfg(test)]
mod tests;
