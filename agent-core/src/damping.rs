//! Flapping, damped: design.md, section 5, rule 6. A state machine over what is answered for the
//! datapath; it is the only memory between a verdict and its answer.
//!
//! 503 comes at once: the verdict has confirmed it. 200 comes after one second without a failure. Where
//! nothing was decided before the 503 either, it is over after half a minute in which nothing is: the
//! node is as it was.
//! A node that is broken again within 30 s of that stays at 503 for a dwell, which doubles with
//! each such flap.

use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::answer::{Required, Served, UnknownPolicy, required};
use crate::cause::State;
use crate::limits::{CLEAN, DOUBTED, DOUBTFUL, DWELL_MAX, FLAP_WINDOW, RECENT, WATCHED};
use crate::time::Mono;
use crate::verdict::report::Verdict;

/// The first dwell where `--flap-dwell` says nothing.
pub const DWELL_DEFAULT: Duration = Duration::from_secs(10);

/// Both families, and one place for a node without any.
const SLOTS: usize = FAMILIES + 1;

/// The state machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damping {
    dwell: Duration,
    /// State to store for [`Damping::restore`].
    pub memory: DampingMemory,
}

/// Its state: plain data, which outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DampingMemory {
    /// Answered as unhealthy, by family.
    unhealthy: [bool; SLOTS],
    /// Sound without interruption since then, by family.
    sound_since: [Option<Mono>; SLOTS],
    /// Undecided without interruption since then, by family.
    #[serde(default)]
    undecided_since: [Option<Mono>; SLOTS],
    /// It was undecided for long when the 503 began, by family.
    #[serde(default)]
    doubtful_before: [bool; SLOTS],
    /// 503 stays until then.
    held_until: Option<Mono>,
    /// When the node last went back to 200.
    recovered: Option<Mono>,
    /// Flaps in a row.
    flaps: u32,
}

impl Damping {
    /// Begins healthy. A `dwell` of zero turns the dwell off, not the second without failure.
    pub fn new(dwell: Duration) -> Self {
        Self::restore(dwell, DampingMemory::default())
    }

    /// Continues where the agent before stopped, in the same boot of the node.
    pub fn restore(dwell: Duration, mut memory: DampingMemory) -> Self {
        // Nobody looked meanwhile.
        memory.undecided_since = Default::default();
        Self { dwell, memory }
    }

    /// Takes in a verdict. To be called for every verdict, a few times a second.
    pub fn step(&mut self, verdict: &Verdict, policy: UnknownPolicy) -> Served {
        self.step_required(required_by_family(verdict, policy), verdict.at)
    }

    fn step_required(&mut self, required: [Required; SLOTS], now: Mono) -> Served {
        let was_healthy = self.is_healthy();
        for (slot, required) in required.into_iter().enumerate() {
            self.note(slot, required, now);
        }
        let fell = was_healthy && !self.is_healthy();
        if fell {
            self.fall(now);
        }
        self.recover(now);
        if (!was_healthy || fell) && self.is_healthy() {
            self.memory.recovered = Some(now);
            self.memory.held_until = None;
        }
        self.served()
    }

    fn note(&mut self, slot: usize, required: Required, now: Mono) {
        let memory = &mut self.memory;
        let undecided = &mut memory.undecided_since[slot];
        let lasts = |of: &Option<Mono>, span| of.is_some_and(|since| now.since(since) > span);
        if required == Required::Fail && !memory.unhealthy[slot] {
            memory.doubtful_before[slot] = lasts(undecided, DOUBTFUL);
        }
        match required {
            Required::Undecided => {
                undecided.get_or_insert(now);
            }
            _ => *undecided = None,
        }
        // A filter of the sentinel's own addresses that was there before the fault stays after it.
        let over = memory.doubtful_before[slot] && lasts(undecided, DOUBTED);
        match if over { Required::Pass } else { required } {
            Required::Fail => {
                memory.unhealthy[slot] = true;
                memory.sound_since[slot] = None;
            }
            Required::Undecided => memory.sound_since[slot] = None,
            Required::Pass => {
                memory.sound_since[slot].get_or_insert(now);
            }
        }
    }

    fn fall(&mut self, now: Mono) {
        let memory = &mut self.memory;
        let soon = |at: Mono| now.since(at) <= FLAP_WINDOW;
        let again = memory.recovered.is_some_and(soon) && !self.dwell.is_zero();
        memory.flaps = if again {
            memory.flaps.saturating_add(1)
        } else {
            0
        };
        memory.held_until = again.then(|| now.plus(dwell(self.dwell, memory.flaps)));
    }

    fn recover(&mut self, now: Mono) {
        let memory = &mut self.memory;
        if memory.held_until.is_some_and(|until| now < until) {
            return;
        }
        for (unhealthy, sound_since) in memory.unhealthy.iter_mut().zip(memory.sound_since) {
            if sound_since.is_some_and(|since| now.since(since) >= CLEAN) {
                *unhealthy = false;
            }
        }
    }

    fn is_healthy(&self) -> bool {
        self.memory.unhealthy == [false; SLOTS]
    }

    fn served(&self) -> Served {
        let [v4, v6, _] = self.memory.unhealthy;
        Served {
            healthy: self.is_healthy(),
            families: [!v4, !v6],
            held_until: self.memory.held_until,
            flaps: self.memory.flaps,
        }
    }
}

/// The dwell of the n-th flap in a row, counted from one.
fn dwell(first: Duration, flaps: u32) -> Duration {
    let doubled = 2u32.saturating_pow(flaps.saturating_sub(1));
    first.saturating_mul(doubled).min(DWELL_MAX.max(first))
}

/// Answer that each family requires. A family of which nothing is known is ignored where more is known of
/// another one: nothing known is the node's state only where nothing else is.
fn required_by_family(verdict: &Verdict, policy: UnknownPolicy) -> [Required; SLOTS] {
    let of_family = |family: Family| match verdict.family(family) {
        Some(judged) if judged.state < verdict.state.min(State::Proven) => Required::Pass,
        Some(judged) => required(&judged.finding, policy),
        None => Required::Pass,
    };
    let [v4, v6] = Family::ALL.map(of_family);
    let whole = if verdict.families.is_empty() {
        required(&verdict.finding, policy)
    } else {
        Required::Pass
    };
    [v4, v6, whole]
}

/// Compares this agent's verdicts with its predecessor's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UpgradeGate {
    /// When this agent began; nothing where the former agent's verdict failed, or there was none
    /// lately.
    since: Option<Mono>,
    /// The agent is not ready because of it.
    pub closed: bool,
}

impl UpgradeGate {
    /// After an agent whose last verdict was `before`, given at that time of the same boot.
    pub fn new(before: Option<(State, Mono)>, now: Mono) -> Self {
        let sound = |(state, at): &(State, Mono)| !state.fails() && now.since(*at) <= RECENT;
        Self {
            since: before.filter(sound).map(|_| now),
            closed: false,
        }
    }

    /// Takes in a state. A failure that began in time keeps the gate closed for as long as it lasts.
    /// Returns whether it has just closed.
    pub fn judge(&mut self, state: State, now: Mono) -> bool {
        let before = self.closed;
        let early = self.since.is_some_and(|since| now.since(since) <= WATCHED);
        self.closed = state.fails() && (self.closed || early);
        self.closed && !before
    }
}

#[cfg(test)]
mod tests;
