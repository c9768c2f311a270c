//! Simulates the effect of the fleet brake on fleets of any size, from one seed.
//!
//! The deciding parts are real: [`Brake`](pathproof_judge::brake::Brake),
//! [`Census`](pathproof_rotator::census::Census), [`Rotation`](pathproof_rotator::rotation::Rotation) and the
//! condition's [`Schedule`](pathproof_report::condition::Schedule). The evidence (a node fails from some time
//! on), the API server, the rotator's pace and load balancers are models. [`model`] and [`election`] describe
//! small fleets, of which [`explore`] finds all histories.

mod agent;
mod balancer;
mod curve;
pub mod election;
pub mod explore;
pub mod model;
mod rotator;
mod scenario;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use agent::{Agent, ReportedCondition, Sent};
pub use balancer::{BALANCERS, Balancer};
pub use curve::Curve;
use pathproof_facts::time::{Mono, Wall};
use rotator::{Plan, Rotator, Slice};
pub use scenario::{Rotators, SCENARIOS, Scenario, Wave, Whom};

use super::{BEGIN, Dice, ms};

/// Delay of a request to the API server, and of an event on a watch.
const LATENCY: (Duration, Duration) = (ms(5), ms(40));
const FAN_OUT: (Duration, Duration) = (ms(10), ms(60));
/// Maximum time until a broken watch is noticed, and until it is restored after an outage.
const REJOIN: Duration = Duration::from_secs(15);

#[derive(Debug)]
enum Task {
    /// A node's evidence begins to show a failure (`true`: of a certain cause), or stops.
    Fail(usize, bool),
    Mend(usize),
    /// A failing node's next verdict.
    Judge(usize),
    /// A condition is due, or the API server answers its write.
    Condition(usize),
    Answered(usize, Sent),
    /// An agent receives the sentinel's slice.
    Hear(usize, Slice),
    /// A rotator starts to lead, or is killed.
    Lead(usize),
    Kill(usize),
    /// A rotator receives a condition, evaluates the count, or writes.
    Report(usize, usize, ReportedCondition),
    Look(usize, u32),
    Write(usize, Plan),
    /// An outage of the API server starts or ends: watches of an agent or a rotator break or work again.
    Lose(usize),
    Rejoin(usize),
    Relist(usize),
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Nodes of the fleet, or of the pool that the scenario is about.
    pub nodes: u32,
    /// Number of nodes that answer 503.
    pub refusing: Curve,
    /// Time for which the brake held back the 503 of the first node.
    pub held: Option<Duration>,
    /// Time from the first node's fault to its 503.
    pub answered: Option<Duration>,
    /// Number of rotations of the sentinel's slice, and of writes of the count alone.
    pub writes: (u32, u32),
    answers: Vec<Vec<(Mono, bool)>>,
    onset: Mono,
    end: Mono,
}

impl Outcome {
    /// Number of nodes that answer 503 at this time after the first fault.
    pub fn at(&self, after: Duration) -> u32 {
        self.refusing.at(self.onset.plus(after))
    }

    /// Maximum number of nodes that answer 503 at a time, counted from this time after the first fault.
    pub fn peak_after(&self, after: Duration) -> u32 {
        self.refusing.peak(self.onset.plus(after), self.end)
    }

    /// Total time for which more nodes than this answered 503.
    pub fn above(&self, limit: u32) -> Duration {
        self.refusing.above(limit, self.end)
    }

    /// Maximum number of nodes that a load balancer has out of service at a time.
    pub fn out(&self, balancer: &Balancer) -> u32 {
        let out = balancer.out(&self.answers, BEGIN, self.end);
        out.peak(BEGIN, self.end)
    }
}

/// Plays a scenario with this number of nodes.
pub fn play(scenario: &Scenario, nodes: u32, seed: u64) -> Outcome {
    let mut run = Run::new(scenario, nodes, seed);
    let (onset, end) = (run.onset, run.onset.plus(scenario.lasts));
    let first = run.plan_faults(scenario);
    while let Some(entry) = run.due.first_entry().filter(|entry| entry.key().0 <= end) {
        let ((at, _), task) = entry.remove_entry();
        run.now = at;
        run.take(task);
    }
    let answers: Vec<_> = run.agents.into_iter().map(|agent| agent.answers).collect();
    let refused = answers
        .first()
        .and_then(|answers| answers.iter().find(|answer| answer.1));
    let since = |from: Option<Mono>| Some(refused?.0.since(from?));
    let of_pool = run.pool.map(|pool| pool.len().try_into().unwrap_or(nodes));
    Outcome {
        nodes: of_pool.unwrap_or(nodes),
        refusing: Curve::of(&answers),
        held: since(first),
        answered: since(first.map(|_| onset)),
        writes: run.writes,
        answers,
        onset,
        end,
    }
}

/// The wall clock, which is the same on all machines.
fn wall(at: Mono) -> Wall {
    Wall(1_700_000_000_000_000_000 + i64::try_from(at.0).unwrap_or(0))
}

#[derive(Debug)]
struct Run {
    now: Mono,
    onset: Mono,
    due: BTreeMap<(Mono, u64), Task>,
    pushed: u64,
    dice: Dice,
    /// Start and end of the API server's outage.
    away: Option<(Mono, Mono)>,
    agents: Vec<Agent>,
    /// Nodes of the pool that the scenario is about.
    pool: Option<Range<usize>>,
    /// Conditions at the API server.
    conditions: Vec<ReportedCondition>,
    slice: Slice,
    rotators: Vec<Rotator>,
    /// Whether the rotator is killed as soon as it has written its first count of the fault.
    fatal: bool,
    writes: (u32, u32),
}

impl Run {
    fn new(scenario: &Scenario, nodes: u32, seed: u64) -> Self {
        let onset = BEGIN.plus(scenario.calm);
        let away = |(from, to): (i32, i32)| (shifted(onset, from), shifted(onset, to));
        let slice = Slice::of(nodes);
        let agents = (0..nodes).map(|number| Agent::new(number, scenario.percent, &slice));
        let mut run = Self {
            now: BEGIN,
            onset,
            due: BTreeMap::new(),
            pushed: 0,
            dice: Dice::new(seed),
            away: scenario.away.map(away),
            agents: agents.collect(),
            pool: scenario.pool.map(|pool| pool.of(nodes as usize)),
            conditions: vec![ReportedCondition::healthy(BEGIN); nodes as usize],
            slice,
            rotators: Vec::new(),
            fatal: scenario.rotators == Rotators::KilledCounting,
            writes: (0, 0),
        };
        for node in 0..run.agents.len() {
            run.follow_condition(node);
        }
        run.start_rotators(scenario.rotators);
        if let Some((from, back)) = run.away {
            run.plan_outage(from, back);
        }
        run
    }

    fn start_rotators(&mut self, rotators: Rotators) {
        let behind = match rotators {
            Rotators::None => vec![],
            Rotators::One => vec![0],
            Rotators::Killed | Rotators::KilledCounting => vec![0, 0],
            Rotators::Two { behind } => vec![0, behind],
        };
        let of = |seconds: &u64| Rotator::new(Duration::from_secs(*seconds));
        self.rotators = behind.iter().map(of).collect();
        if !behind.is_empty() {
            self.push(BEGIN, Task::Lead(0));
        }
        match rotators {
            Rotators::Two { .. } => self.push(BEGIN, Task::Lead(1)),
            Rotators::Killed => self.push(self.onset, Task::Kill(0)),
            _ => {}
        }
    }

    fn plan_outage(&mut self, from: Mono, back: Mono) {
        for node in 0..self.agents.len() {
            let at = from.plus(self.dice.between((ms(0), REJOIN)));
            self.push(at, Task::Lose(node));
            let at = back.plus(self.dice.between((ms(0), REJOIN)));
            self.push(at, Task::Rejoin(node));
        }
        for rotator in 0..self.rotators.len() {
            let at = back.plus(self.dice.between((ms(0), REJOIN)));
            self.push(at, Task::Relist(rotator));
        }
    }

    /// Schedules the faults. Returns the time of the first node's verdict, if it fails in a wave without
    /// spread.
    fn plan_faults(&mut self, scenario: &Scenario) -> Option<Mono> {
        let mut first = None;
        for wave in scenario.waves {
            let begin = self.onset.plus(Duration::from_secs(wave.at));
            for node in wave.whom.of(self.agents.len()) {
                let fault =
                    begin.plus(self.dice.between((ms(0), Duration::from_secs(wave.spread))));
                let verdict = fault.plus(self.dice.between(wave.detection()));
                self.push(verdict, Task::Fail(node, wave.certain));
                if node == 0 && wave.spread == 0 {
                    first.get_or_insert(verdict);
                }
                if let Some(lasts) = wave.lasts {
                    let mended = begin.plus(Duration::from_secs(lasts + wave.spread));
                    let verdict = mended.plus(self.dice.between(scenario::REPAIR));
                    self.push(verdict, Task::Mend(node));
                }
            }
        }
        first
    }

    fn push(&mut self, at: Mono, task: Task) {
        self.pushed += 1;
        self.due.insert((at.max(self.now), self.pushed), task);
    }

    fn soon(&mut self, delay: (Duration, Duration), task: Task) {
        let at = self.now.plus(self.dice.between(delay));
        self.push(at, task);
    }

    fn is_away(&self) -> bool {
        self.away
            .is_some_and(|(from, to)| from <= self.now && self.now < to)
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Fail(node, certain) => {
                self.agents[node].fails = Some(certain);
                self.step_agent(node);
            }
            Task::Mend(node) => {
                self.agents[node].fails = None;
                self.step_agent(node);
            }
            Task::Judge(node) => {
                self.agents[node].judged_next = None;
                self.step_agent(node);
            }
            Task::Condition(node) => self.write_condition(node),
            Task::Answered(node, sent) => self.condition_answered(node, sent),
            Task::Hear(node, slice) => self.hear(node, &slice),
            Task::Lose(node) => self.agents[node].lose(self.now),
            Task::Rejoin(node) => self.rejoin(node),
            Task::Lead(rotator) => self.lead(rotator),
            Task::Kill(rotator) => self.kill(rotator),
            Task::Report(rotator, node, reported) => self.report(rotator, node, reported),
            Task::Look(rotator, turn) => self.look(rotator, turn),
            Task::Write(rotator, plan) => self.write_slice(rotator, plan),
            Task::Relist(rotator) => self.relist(rotator),
        }
    }
}

/// Shifts a time by seconds, in either direction.
fn shifted(at: Mono, seconds: i32) -> Mono {
    let span = Duration::from_secs(seconds.unsigned_abs().into());
    match seconds < 0 {
        true => at.minus(span),
        false => at.plus(span),
    }
}
