//! Flapping, damped: design.md, section 5, rule 6. A state machine over what is answered for the
//! datapath; it is the only memory between a verdict and its answer.
//!
//! 503 comes at once: the verdict has confirmed it. 200 comes after one second without a failure.
//! A node that is broken again within 30 s of that stays at 503 for a dwell, which doubles with
//! each such flap.

use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::cause::State;
use crate::policy::{UnknownPolicy, Wish, wish};
use crate::time::Mono;
use crate::verdict::report::Verdict;

/// What is sound must have been so for this long before 200.
pub const CLEAN: Duration = Duration::from_secs(1);
/// Broken again this soon after 200 is a flap.
pub const FLAP_WINDOW: Duration = Duration::from_secs(30);
/// The longest dwell.
pub const DWELL_MAX: Duration = Duration::from_secs(300);
/// The first dwell where `--flap-dwell` says nothing.
pub const DWELL_DEFAULT: Duration = Duration::from_secs(10);

/// Both families, and one place for a node without any.
const SLOTS: usize = FAMILIES + 1;

/// The state machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damping {
    dwell: Duration,
    memory: DampingMemory,
}

/// Its state: plain data, which outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DampingMemory {
    /// Answered as unhealthy, by family.
    unhealthy: [bool; SLOTS],
    /// Sound without interruption since then, by family.
    sound_since: [Option<Mono>; SLOTS],
    /// 503 stays until then.
    held_until: Option<Mono>,
    /// When the node last went back to 200.
    recovered: Option<Mono>,
    /// Flaps in a row.
    flaps: u32,
}

/// What is answered for the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// The datapath counts as healthy.
    pub healthy: bool,
    /// By [`Family`].
    pub families: [bool; FAMILIES],
    /// 503 stays until then, whatever is proven.
    pub held_until: Option<Mono>,
    /// Flaps in a row.
    pub flaps: u32,
}

impl Damping {
    /// Begins healthy. A `dwell` of zero turns the dwell off, not the second without failure.
    pub fn new(dwell: Duration) -> Self {
        Self::restore(dwell, DampingMemory::default())
    }

    /// Continues where the agent before stopped, in the same boot of the node.
    pub fn restore(dwell: Duration, memory: DampingMemory) -> Self {
        Self { dwell, memory }
    }

    /// What to write down for [`Damping::restore`].
    pub fn memory(&self) -> DampingMemory {
        self.memory.clone()
    }

    /// Takes in a verdict. To be called for every verdict, a few times a second.
    pub fn step(&mut self, verdict: &Verdict, policy: UnknownPolicy) -> Served {
        self.step_wishes(wishes(verdict, policy), verdict.at)
    }

    fn step_wishes(&mut self, wishes: [Wish; SLOTS], now: Mono) -> Served {
        let was_healthy = self.is_healthy();
        for (slot, wish) in wishes.into_iter().enumerate() {
            self.note(slot, wish, now);
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

    fn note(&mut self, slot: usize, wish: Wish, now: Mono) {
        let memory = &mut self.memory;
        match wish {
            Wish::Fail => {
                memory.unhealthy[slot] = true;
                memory.sound_since[slot] = None;
            }
            Wish::Undecided => memory.sound_since[slot] = None,
            Wish::Pass => {
                memory.sound_since[slot].get_or_insert(now);
            }
        }
    }

    fn fall(&mut self, now: Mono) {
        let memory = &mut self.memory;
        let again = memory
            .recovered
            .is_some_and(|at| now.since(at) <= FLAP_WINDOW);
        if again && !self.dwell.is_zero() {
            memory.flaps = memory.flaps.saturating_add(1);
            memory.held_until = Some(now.plus(dwell(self.dwell, memory.flaps)));
        } else {
            memory.flaps = 0;
            memory.held_until = None;
        }
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
    let doubled = 1u32
        .checked_shl(flaps.saturating_sub(1))
        .unwrap_or(u32::MAX);
    first.saturating_mul(doubled).min(DWELL_MAX.max(first))
}

/// What each family asks for. A family of which nothing is known asks for nothing where another
/// one speaks: nothing known is the node's state only where nothing else is.
fn wishes(verdict: &Verdict, policy: UnknownPolicy) -> [Wish; SLOTS] {
    let of_family = |family: Family| match verdict.family(family) {
        Some(judged) if judged.state < verdict.state.min(State::Proven) => Wish::Pass,
        Some(judged) => wish(judged.state, policy),
        None => Wish::Pass,
    };
    let [v4, v6] = Family::ALL.map(of_family);
    let whole = if verdict.families.is_empty() {
        wish(verdict.state, policy)
    } else {
        Wish::Pass
    };
    [v4, v6, whole]
}

#[cfg(test)]
mod tests;
