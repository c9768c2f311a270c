//! The fleet brake: being wrong on all nodes at once is worse than any fault of one node, so a node
//! whose datapath fails together with many others' keeps its 200.
//!
//! The rotator counts the nodes whose datapath fails by evidence and publishes the count on the
//! sentinel's slices ([`FleetReport`]); every agent decides for itself ([`Brake`]). Only the answer is
//! held back: verdict, condition and metrics stay as they are. Eligibility is never held back.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

use fnv::FnvHasher;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::time::{Mono, Spoken, Wall};

/// A 503 that is older than this when a count below the limit comes is settled: the nodes that fell at the
/// same moment are in that count. Every other one is taken back.
const YOUNG: Duration = Duration::from_secs(30);
/// After an outage of the API server the agents write their conditions within this time, one by one: until
/// then a count below the limit proves nothing.
const CATCH_UP: Duration = Duration::from_secs(150);
/// The count must have been below the limit for this long before a held 503 is answered.
const CLEAR: Duration = Duration::from_secs(10);
/// Causes that may be a policy's or a filter's wait so long at most, by a hash of the node's name: the
/// count of the others arrives first.
const SPREAD: Duration = Duration::from_secs(10);
/// A condition that changed back, and is counted so, within this time.
const RECOUNTED: Duration = Duration::from_secs(30);
const NANOS: i64 = 1_000_000_000;
/// A condition is written, and counted, within this time.
const COUNTED: Duration = Duration::from_secs(15);
/// A rotator that published nothing for so long is gone, or the API server is: it does every
/// [`BEAT`](crate::fleet::census::BEAT).
const SILENT: Duration = Duration::from_secs(15 * 60);

/// Annotation of the sentinel's slices that holds a [`FleetReport`].
pub const FLEET: &str = "pathproof.io/fleet";

/// Count of the cluster's nodes, as the rotator publishes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetReport {
    /// Nodes with an agent that tells its state.
    pub nodes: u32,
    /// Those whose datapath fails by evidence, by the reason in their condition.
    pub unsound: BTreeMap<String, u32>,
    /// When it was written, in seconds of Unix time: each is a sign of life.
    #[serde(default)]
    pub written: i64,
}

/// Reason why a published count is not believed.
#[derive(Debug, Error)]
pub enum FleetReportError {
    /// It is something else.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// It cannot be.
    #[error("{unsound} failing nodes of {nodes} is not a valid count")]
    Absurd { unsound: u64, nodes: u32 },
}

impl FleetReport {
    /// Reads what [`FleetReport::text`] wrote.
    ///
    /// # Errors
    /// It is no count, or an absurd one.
    pub fn parse(text: &str) -> Result<Self, FleetReportError> {
        let report: Self = serde_json::from_str(text)?;
        let unsound: u64 = report.unsound.values().map(|n| u64::from(*n)).sum();
        if unsound > u64::from(report.nodes) {
            let nodes = report.nodes;
            return Err(FleetReportError::Absurd { unsound, nodes });
        }
        Ok(report)
    }

    /// Its text in an annotation.
    pub fn text(&self) -> String {
        // Maps and numbers always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether it counts the same, whenever it was written.
    pub(crate) fn is_same(&self, other: &FleetReport) -> bool {
        (self.nodes, &self.unsound) == (other.nodes, &other.unsound)
    }

    /// In short.
    pub fn count(&self) -> Count {
        Count {
            unsound: self.unsound.values().sum(),
            nodes: self.nodes,
        }
    }

    /// As agents use it; nothing where no agent publishes its condition.
    pub fn published(&self) -> Option<Published> {
        let (count, written) = (self.count(), self.written);
        (self.nodes > 0).then_some(Published { count, written })
    }
}

/// Unsound nodes, of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Nodes whose datapath fails by evidence.
    pub unsound: u32,
    /// All that tell their state.
    pub nodes: u32,
}

/// A count, and when the rotator wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The count.
    pub count: Count,
    /// See [`FleetReport::written`].
    pub written: i64,
}

impl Count {
    /// Whether so many others are unsound that no further node may go. One may always go.
    fn is_over(self, percent: u32, others: u32) -> bool {
        let may = u64::from(self.nodes) * u64::from(percent) / 100;
        u64::from(others) >= may.max(1)
    }
}

/// Reason why a 503 is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// Too many others are unsound.
    Fleet(Count),
    /// The cause is not certain, and the count of the others may be on its way.
    Waiting,
    /// The cause is not certain, and nobody counts.
    Uncounted,
}

impl Held {
    /// All of [`Held::name`].
    pub const NAMES: [&str; 3] = ["fleet", "waiting", "uncounted"];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fleet(_) => "fleet",
            Self::Waiting => "waiting",
            Self::Uncounted => "uncounted",
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fleet(Count { unsound, nodes }) => {
                write!(f, "the fleet brake is on: {unsound} of {nodes} nodes fail")
            }
            Self::Waiting => f.write_str(
                "the cause is not certain, so the agent waits for the rotator's next count of \
                 failing nodes",
            ),
            Self::Uncounted => write!(
                f,
                "the cause is not certain, and the rotator has not counted failing nodes for {}",
                Spoken(SILENT)
            ),
        }
    }
}

/// The brake of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brake {
    /// The most nodes that may be out of service, in percent; nothing turns the brake off.
    percent: Option<u32>,
    /// This node's part of [`SPREAD`].
    wait: Duration,
    /// The API server is away.
    silent: bool,
    /// State to store for [`Brake::restore`].
    pub memory: BrakeMemory,
}

/// Its state: plain data, which outlives the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrakeMemory {
    /// The last count, and when it came; nothing where that was long before this agent.
    #[serde(default)]
    counted: Option<(Published, Option<Mono>)>,
    /// Since when the answer would be 503.
    failing: Option<Failing>,
    /// When the last failure ended.
    #[serde(default)]
    ended: Option<Mono>,
    /// When too many others were last unsound.
    over: Option<Mono>,
    /// When the API server was last away.
    #[serde(default)]
    away: Option<Mono>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Failing {
    since: Mono,
    /// The sentinel named a cause that nothing but the datapath has.
    certain: bool,
    /// Unsound nodes as of then.
    before: u32,
    /// It is not taken back any more.
    settled: bool,
}

impl Failing {
    /// Unsound nodes but this one. It is in the count once that has grown, or its condition has had the
    /// time: others may have recovered meanwhile.
    fn others(&self, count: Count, now: Mono) -> u32 {
        let counted = count.unsound > self.before || now.since(self.since) > COUNTED;
        count.unsound.saturating_sub(counted.into())
    }
}

impl Brake {
    /// Continues where the agent before stopped.
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

    /// The last count, and when it came.
    pub fn counted(&self) -> Option<(Count, Option<Mono>)> {
        let counted = self.memory.counted;
        counted.map(|(published, came)| (published.count, came))
    }

    /// Takes in a count as the slices hold it. One that was known before is no sign of life, and the first
    /// one is as old as it says, by the wall clock.
    pub fn record(&mut self, published: Published, wall: Wall, now: Mono) {
        let memory = &mut self.memory;
        let came = match memory.counted {
            Some((before, _)) if before == published => return,
            Some(_) => Some(now),
            None => {
                let age = (wall.0 / NANOS).saturating_sub(published.written);
                (age <= SILENT.as_secs() as i64).then_some(now)
            }
        };
        memory.counted = Some((published, came));
    }

    /// Whether the 503 that the datapath asks for is held back, and why. To be called with every
    /// answer. `certain`: the sentinel names a cause that nothing but the datapath has.
    pub fn step(&mut self, fails: bool, certain: bool, now: Mono) -> Option<Held> {
        let percent = self.percent?;
        if !fails {
            let memory = &mut self.memory;
            memory.ended = memory.failing.map(|_| now).or(memory.ended);
            (memory.failing, memory.over) = (None, None);
            return None;
        }
        let failing = self.fail(certain, now);
        // Nobody ever counted: no rotator, or one of an older version.
        let (Published { count, .. }, came) = self.memory.counted?;
        // A count that holds this node back does so until the next one: an outage must not release all.
        let heard = came.filter(|at| now.since(*at) <= SILENT);
        if heard.is_none() && self.memory.over.is_none() {
            return (!failing.certain).then_some(Held::Uncounted);
        }
        if count.is_over(percent, failing.others(count, now)) {
            self.memory.over = Some(now);
        }
        let settled = self.settle(came, now);
        if self.memory.over.is_some() && !settled {
            return Some(Held::Fleet(count));
        }
        // A count that came since is the sign that the others are counted too.
        let counted = came > Some(failing.since) && !self.catches_up(now);
        let waits = now.since(failing.since) < self.wait || !counted;
        (waits && !failing.certain && !settled).then_some(Held::Waiting)
    }

    /// The API server is away (`silent`), or it is not. To be called whenever that may have changed.
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

    /// Notes that this node fails.
    fn fail(&mut self, certain: bool, now: Mono) -> Failing {
        let memory = &mut self.memory;
        // The count may have this node's last failure still.
        let still = memory.ended.is_some_and(|at| now.since(at) <= RECOUNTED);
        let unsound = memory.counted.map_or(0, |(of, _)| of.count.unsound);
        let failing = memory.failing.get_or_insert(Failing {
            since: now,
            certain,
            before: unsound.saturating_sub(still.into()),
            settled: false,
        });
        failing.certain |= certain;
        *failing
    }

    /// Whether this node's 503 is not taken back any more: the last count came late enough, and is below
    /// the limit; or it has been for a while.
    fn settle(&mut self, came: Option<Mono>, now: Mono) -> bool {
        let catches_up = self.catches_up(now);
        let memory = &mut self.memory;
        let Some(failing) = &mut memory.failing else {
            return false;
        };
        let clear = |last: Mono| !catches_up && now.since(last) > CLEAR;
        match memory.over {
            Some(last) if clear(last) => (memory.over, failing.settled) = (None, true),
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
