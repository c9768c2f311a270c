//! Pending tasks of a simulated node, in order of time.

use std::collections::BTreeMap;

use pathproof_facts::time::Mono;
use pathproof_facts::trace::ProbeTrace;
use pathproof_wire::service::Family;

use super::traffic::Dialled;

#[derive(Debug)]
pub(super) enum Task {
    /// An act of the world, by its index.
    Act(usize),
    /// A temporary state ends.
    Ended(Passing),
    /// A client of this stream dials.
    Dial(usize),
    /// A SYN is repeated.
    Again(Dialled),
    /// The sentinel's endpoint moves.
    Rotate,
    /// The proxy writes its rules.
    Proxy,
    Start,
    /// The API delivers changes.
    Deliver,
    /// A task of this agent. Such tasks wait while the agent is not scheduled and end with it.
    Agent(u32, AgentTask),
    /// A round of a family's probes, with its plan and due time.
    Round {
        family: Family,
        plan: u32,
        due: Mono,
    },
    /// Probes of this agent ended.
    Traces(u32, Vec<ProbeTrace>),
}

/// Tasks that an agent does on timers.
#[derive(Debug)]
pub(super) enum AgentTask {
    Sample,
    Check,
    /// The agent checks the sentinel's devices.
    Look,
    /// The API server answers an uncached read that began at this time.
    Reread(Mono),
    /// A new watch lists everything.
    List,
    /// The watches failed.
    Silent,
}

/// A temporary state of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    Silence,
    LoseSightings,
}

/// Tasks by time; simultaneous ones in order of insertion.
#[derive(Debug, Default)]
pub(super) struct Queue {
    due: BTreeMap<(Mono, u64), Task>,
    pushed: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at: Mono, task: Task) {
        self.pushed += 1;
        self.due.insert((at, self.pushed), task);
    }

    /// The next task that is due by `until`.
    pub(super) fn pop(&mut self, until: Mono) -> Option<(Mono, Task)> {
        let next = self.due.first_entry()?;
        let (at, _) = *next.key();
        (at <= until).then(|| (at, next.remove()))
    }
}
