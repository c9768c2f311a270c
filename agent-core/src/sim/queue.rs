//! Tasks that are due at a simulated node, in the order of their time.

use std::collections::BTreeMap;

use agent_common::service::Family;

use super::traffic::Dialled;
use crate::time::Mono;
use crate::trace::ProbeTrace;

/// Something that is due at a simulated node.
#[derive(Debug)]
pub(super) enum Task {
    /// An act of the world, by its place.
    Act(usize),
    /// A state that an act began ends.
    Ended(Passing),
    /// A client of this stream dials.
    Dial(usize),
    /// A SYN is sent again.
    Again(Dialled),
    /// The sentinel's endpoint moves.
    Rotate,
    /// The proxy writes its rules.
    Proxy,
    /// The agent starts.
    Start,
    /// The API delivers what changed.
    Deliver,
    /// Those below are the agent's own: they wait while it is not scheduled, and end with it.
    Agent(u32, Own),
    /// A round of a family's probes, by its plan and when it was due.
    Round {
        family: Family,
        plan: u32,
        due: Mono,
    },
    /// Probes of this agent ended.
    Traces(u32, Vec<ProbeTrace>),
}

/// Tasks that an agent does by timers of its own.
#[derive(Debug)]
pub(super) enum Own {
    Sample,
    Check,
    /// The keeper looks at the sentinel's devices.
    Look,
    /// An uncached reading that began then is answered.
    Reread(Mono),
    /// A new watch lists everything.
    List,
    /// The watches failed.
    Silent,
}

/// A state of the world that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    Silence,
    LoseSightings,
}

/// Tasks by their times; those of one time in the order in which they came.
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

    /// The next that is due by then.
    pub(super) fn pop(&mut self, until: Mono) -> Option<(Mono, Task)> {
        let next = self.due.first_entry()?;
        let (at, _) = *next.key();
        (at <= until).then(|| (at, next.remove()))
    }
}
