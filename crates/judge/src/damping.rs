//! Damping of flaps (docs/behaviour.md): a state machine over the answers for the datapath, and the
//! only memory between a verdict and its answer.
//!
//! 503 is immediate, because the verdict is already confirmed. 200 follows one second without a
//! failure. If the answer was undecided for a long time before the 503, half a minute of undecided
//! verdicts also ends the 503: the node is as it was before. A node that fails again within 30 s of
//! a 200 keeps 503 for a hold-down, which doubles with each such flap.

use std::time::Duration;

use pathproof_facts::cause::State;
use pathproof_facts::limits::{
    DWELL_MAX, FLAP_WINDOW, PREDECESSOR_VERDICT_AGE, SOUND_FOR, UNDECIDED_BEFORE,
    UNDECIDED_ENDS_AFTER, UPGRADE_WATCHED_FOR,
};
use pathproof_facts::time::{Mono, doubled};
use pathproof_wire::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::answer::{Required, Served, UnknownPolicy, required};
use crate::verdict::report::Verdict;

/// Default of `--flap-dwell`: the first hold-down.
pub const DWELL_DEFAULT: Duration = Duration::from_secs(10);

/// Both families, and one slot for a node without families.
const SLOTS: usize = FAMILIES + 1;

/// Decides the answer for the datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damping {
    dwell: Duration,
    /// State to store for [`Damping::restore`].
    pub memory: DampingMemory,
}

/// The state of damping: plain data, which outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DampingMemory {
    /// Whether each family is answered as unhealthy.
    unhealthy: [bool; SLOTS],
    /// Since when each family has been sound without interruption.
    sound_since: [Option<Mono>; SLOTS],
    /// Since when each family's answer has been undecided without interruption.
    undecided_since: [Option<Mono>; SLOTS],
    /// Whether each family's answer had been undecided for a long time when its 503 began.
    doubtful_before: [bool; SLOTS],
    /// Earliest end of the 503.
    held_until: Option<Mono>,
    /// Last return to 200.
    recovered: Option<Mono>,
    flaps: u32,
}

impl Damping {
    /// Starts healthy. A `dwell` of zero disables the hold-down, but not the second without failure.
    pub fn new(dwell: Duration) -> Self {
        Self::restore(dwell, DampingMemory::default())
    }

    /// Continues where the previous agent stopped, in the same boot of the node.
    pub fn restore(dwell: Duration, mut memory: DampingMemory) -> Self {
        // Between the two agents there were no verdicts.
        memory.undecided_since = Default::default();
        Self { dwell, memory }
    }

    /// Records a verdict. Call it for every verdict, a few times a second.
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
        let lasts = |at: &Option<Mono>, span| at.is_some_and(|since| now.since(since) > span);
        if required == Required::Fail && !memory.unhealthy[slot] {
            memory.doubtful_before[slot] = lasts(undecided, UNDECIDED_BEFORE);
        }
        match required {
            Required::Undecided => {
                undecided.get_or_insert(now);
            }
            _ => *undecided = None,
        }
        // The answer is as undecided as before the fault, so the 503 ends. The answer may never be decided:
        // for example, a filter on the sentinel's addresses is still there after the repair.
        let over = memory.doubtful_before[slot] && lasts(undecided, UNDECIDED_ENDS_AFTER);
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
            if sound_since.is_some_and(|since| now.since(since) >= SOUND_FOR) {
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
        }
    }
}

/// Hold-down of the n-th flap in a row, counted from one.
fn dwell(first: Duration, flaps: u32) -> Duration {
    doubled(first, flaps.saturating_sub(1), DWELL_MAX.max(first))
}

/// The answer that each family requires. An unknown family is ignored if more is known of the other one.
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

/// Compares the verdicts of this agent and its predecessor.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UpgradeGate {
    /// Start of this agent; `None` if the former agent's last verdict failed, or is missing or too old.
    since: Option<Mono>,
    /// Whether the agent is not ready because of the gate.
    pub closed: bool,
}

impl UpgradeGate {
    /// `before` is the former agent's last verdict and its time in the same boot.
    pub fn new(before: Option<(State, Mono)>, now: Mono) -> Self {
        let sound = |(state, at): &(State, Mono)| {
            !state.fails() && now.since(*at) <= PREDECESSOR_VERDICT_AGE
        };
        Self {
            since: before.filter(sound).map(|_| now),
            closed: false,
        }
    }

    /// Records a state. A failure that begins soon after the agent's start closes the gate for as long as it
    /// lasts. Returns whether the gate just closed.
    pub fn record_state(&mut self, state: State, now: Mono) -> bool {
        let before = self.closed;
        let early = self
            .since
            .is_some_and(|since| now.since(since) <= UPGRADE_WATCHED_FOR);
        self.closed = state.fails() && (self.closed || early);
        self.closed && !before
    }
}

#[cfg(test)]
mod tests;
