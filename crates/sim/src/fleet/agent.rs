//! Agents of a simulated fleet: modelled evidence, the real brake, and the real schedule of the condition.

use std::time::Duration;

use pathproof_facts::cause::Cause;
use pathproof_facts::time::{Mono, Wall};
use pathproof_judge::brake::{Brake, BrakeMemory};
use pathproof_report::condition::{
    ConditionState, Pace, Reason, Refusal, Schedule, Status, Written,
};

use super::rotator::Slice;
use super::{FAN_OUT, LATENCY, Run, Task, wall};
use crate::{BEGIN, ms};

/// Interval between verdicts of a failing node.
const VERDICTS: Duration = ms(500);

/// The part of a Node's condition that rotators count, as stored at the API server.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedCondition {
    pub(super) status: Status,
    pub(super) heartbeat: Wall,
}

impl ReportedCondition {
    pub(super) fn healthy(at: Mono) -> Self {
        Self {
            status: Status::True,
            heartbeat: wall(at),
        }
    }
}

/// A written condition, and whether the API server accepted it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    condition: ConditionState,
    transition: Wall,
    at: Mono,
    taken: bool,
}

#[derive(Debug)]
pub(super) struct Agent {
    brake: Brake,
    schedule: Schedule,
    /// `Some` if the evidence shows a failure: whether its cause is certain.
    pub(super) fails: Option<bool>,
    /// Whether the watches are broken because of an outage of the API server.
    pub(super) is_deaf: bool,
    /// Time of the pending verdict.
    pub(super) judged_next: Option<Mono>,
    written_next: Option<Mono>,
    is_writing: bool,
    /// Times from which /livez is 503 (true) or 200 again.
    pub(super) answers: Vec<(Mono, bool)>,
}

impl Agent {
    /// A healthy agent that received this slice.
    pub(super) fn new(number: u32, percent: Option<u32>, slice: &Slice) -> Self {
        let name = format!("node-{number}");
        let mut brake = Brake::restore(percent, &name, BrakeMemory::default());
        if let Some(published) = slice.count(false) {
            brake.record(published, wall(BEGIN), BEGIN);
        }
        let found = Written {
            status: Status::True,
            reason: Some(Reason::Proven),
            transition: wall(BEGIN),
        };
        let mut schedule = Schedule::new(&name, Pace::default(), Some(found), BEGIN);
        schedule.observe(condition(false), BEGIN, wall(BEGIN));
        Self {
            brake,
            schedule,
            fails: None,
            is_deaf: false,
            judged_next: None,
            written_next: None,
            is_writing: false,
            answers: Vec::new(),
        }
    }

    pub(super) fn lose(&mut self, now: Mono) {
        self.is_deaf = true;
        self.brake.source(true, now);
    }
}

fn condition(fails: bool) -> ConditionState {
    let (status, reason) = match fails {
        true => (Status::False, Reason::Broken(Some(Cause::Leaked))),
        false => (Status::True, Reason::Proven),
    };
    ConditionState {
        status,
        reason,
        leaving: false,
    }
}

impl Run {
    pub(super) fn step_agent(&mut self, node: usize) {
        let now = self.now;
        let agent = &mut self.agents[node];
        let fails = agent.fails.is_some();
        let held = agent.brake.step(fails, agent.fails == Some(true), now);
        let refuses = fails && held.is_none();
        if agent.answers.last().is_some_and(|last| last.1) != refuses {
            agent.answers.push((now, refuses));
        }
        agent.schedule.observe(condition(fails), now, wall(now));
        if fails && agent.judged_next.is_none() {
            let next = now.plus(VERDICTS);
            agent.judged_next = Some(next);
            self.push(next, Task::Judge(node));
        }
        self.follow_condition(node);
    }

    pub(super) fn follow_condition(&mut self, node: usize) {
        let agent = &mut self.agents[node];
        let due = agent.schedule.due().map(|at| at.max(self.now));
        if !agent.is_writing && due != agent.written_next {
            agent.written_next = due;
            if let Some(at) = due {
                self.push(at, Task::Condition(node));
            }
        }
    }

    pub(super) fn write_condition(&mut self, node: usize) {
        let (now, taken) = (self.now, !self.is_away());
        let agent = &mut self.agents[node];
        if agent.written_next != Some(now) {
            return;
        }
        (agent.written_next, agent.is_writing) = (None, true);
        let sent = Sent {
            condition: condition(agent.fails.is_some()),
            transition: agent.schedule.transition().unwrap_or(wall(now)),
            at: now,
            taken,
        };
        self.soon(LATENCY, Task::Answered(node, sent));
    }

    pub(super) fn condition_answered(&mut self, node: usize, sent: Sent) {
        let agent = &mut self.agents[node];
        agent.is_writing = false;
        if !sent.taken {
            agent
                .schedule
                .failed(Refusal::Failed { wait: None }, self.now);
            return self.follow_condition(node);
        }
        agent
            .schedule
            .wrote(sent.condition, sent.transition, self.now);
        self.follow_condition(node);
        let reported = ReportedCondition {
            status: sent.condition.status,
            heartbeat: wall(sent.at),
        };
        self.conditions[node] = reported;
        for rotator in 0..self.rotators.len() {
            let behind = self.rotators[rotator].behind;
            let delay = (FAN_OUT.0 + behind, FAN_OUT.1 + behind);
            self.soon(delay, Task::Report(rotator, node, reported));
        }
    }

    pub(super) fn rejoin(&mut self, node: usize) {
        let agent = &mut self.agents[node];
        agent.is_deaf = false;
        agent.brake.source(false, self.now);
        let slice = self.slice.clone();
        self.hear(node, &slice);
    }

    /// The watch delivers the sentinel's slice. Events of one watch keep their order.
    pub(super) fn hear(&mut self, node: usize, slice: &Slice) {
        let now = self.now;
        let in_pool = self.pool.as_ref().is_some_and(|pool| pool.contains(&node));
        let agent = &mut self.agents[node];
        let Some(published) = slice.count(in_pool).filter(|_| !agent.is_deaf) else {
            return;
        };
        agent.brake.record(published, wall(now), now);
        if agent.fails.is_some() {
            self.step_agent(node);
        }
    }
}
