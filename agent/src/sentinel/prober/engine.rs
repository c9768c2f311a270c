//! The prober without its thread: starts rounds and dispatches events. It reads the clock and never
//! sleeps, so tests control the time.
//!
//! Rounds are slow while the outcome of every lane is unchanged, and fast after a change. So a fault is
//! confirmed as soon as with a constant four rounds a second, and an unchanged node needs less CPU time
//! (docs/internal/design/sentinel.md#echo).

use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;

use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Lane, ProbeSightings, ProbeTrace};
use pathproof_report::sentinel::SentinelAddresses;
use pathproof_wire::probe::Stage;
use pathproof_wire::service::{FAMILIES, Family};
use tokio::sync::mpsc::UnboundedSender;

use super::Waiting;
use super::round::{Round, errands};
use super::tools::{Dice, Ports, Tools, jitter};
use super::wire::{Network, Socket};
use crate::probe::Kernel;

/// Delay of a family's first round.
const FIRST: Gap = Duration::ZERO..Duration::from_millis(50);
/// A family's round that is due within this time starts together with the other family's round: a wake-up
/// costs as much as several probes.
const TOGETHER: Duration = Duration::from_millis(100);
/// Interval of probes from outside the node if they do not take the path of real connections
/// ([`SentinelAddresses::outside_rests`]). Nothing translates these probes, so frequent ones are useless.
const OUTSIDE_RESTS: Duration = Duration::from_secs(30);

struct Course<S> {
    targets: SentinelAddresses,
    due: Mono,
    begun: Option<Mono>,
    /// Start of the last round with probes from outside the node.
    outside: Option<Mono>,
    pace: Pace,
    round: Round<S>,
}

pub(super) struct Engine<K: Kernel, N: Network> {
    tools: Tools<K, N>,
    courses: [Option<Course<N::Socket>>; FAMILIES],
    pub(super) results: UnboundedSender<ProbeTrace>,
    /// Finished traces, delivered at the end of a turn, so that the reader wakes once, and not while other
    /// probes are sent.
    known: Vec<ProbeTrace>,
}

impl<K: Kernel, N: Network> Engine<K, N> {
    pub(super) fn new(
        kernel: K,
        network: N,
        clock: impl Fn() -> Mono + Send + 'static,
        dice: Dice,
        results: UnboundedSender<ProbeTrace>,
    ) -> Self {
        Self {
            tools: Tools {
                kernel,
                network,
                clock: Box::new(clock),
                dice,
                ports: Ports::new(dice),
                tokens: Vec::with_capacity(16),
                frame: Vec::with_capacity(128),
            },
            courses: [None, None],
            results,
            known: Vec::with_capacity(16),
        }
    }

    pub(super) fn now(&self) -> Mono {
        self.tools.now()
    }

    pub(super) fn events_fd(&self) -> RawFd {
        self.tools.kernel.events_fd()
    }

    /// Replaces the targets. A family that had no targets starts soon. A family with changed targets keeps
    /// its schedule, unless the endpoint's port changed: that brings its next round forward.
    pub(super) fn retarget(&mut self, targets: &[SentinelAddresses]) {
        let now = self.tools.now();
        for family in Family::ALL {
            let course = &mut self.courses[family as usize];
            let targets = targets
                .iter()
                .find(|target| target.family == family)
                .copied();
            match (course.as_mut(), targets) {
                (None, None) => {}
                (None, Some(targets)) => {
                    *course = Some(Course {
                        targets,
                        due: now.plus(jitter(self.tools.dice, &FIRST)),
                        begun: None,
                        outside: None,
                        pace: Pace::default(),
                        round: Round::new(),
                    });
                }
                (Some(old), None) => {
                    self.tools.abandon(&mut old.round);
                    *course = None;
                }
                (Some(old), Some(targets)) => {
                    self.tools.keep(&mut old.round, |errand| {
                        errands(&targets).any(|wanted| wanted == *errand)
                    });
                    let moved = old.targets.endpoint.port() != targets.endpoint.port();
                    old.targets = targets;
                    if moved {
                        // To measure when the rules follow.
                        old.hurry(now, self.tools.dice);
                    }
                }
            }
        }
    }

    /// Does everything that is due or ready.
    pub(super) fn advance(&mut self) {
        self.take_events();
        let now = self.tools.now();
        self.go_on(now);
        self.begin_rounds(now);
        // Take events again: most answers arrive before the call that sent the probe returns.
        self.take_events();
        let now = self.tools.now();
        self.go_on(now);
        for trace in self.known.drain(..) {
            // If the receiver is gone, the thread ends at its next turn.
            let _ = self.results.send(trace);
        }
    }

    fn go_on(&mut self, now: Mono) {
        for course in self.courses.iter_mut().flatten() {
            self.tools.go_on(&mut course.round, now);
            course.collect(&mut self.known, now, self.tools.dice);
        }
    }

    fn begin_rounds(&mut self, now: Mono) {
        let mut courses = self.courses.iter().flatten();
        if !courses.any(|course| course.is_due(now)) {
            return;
        }
        let together = now.plus(TOGETHER);
        let courses = self.courses.iter_mut().flatten();
        for course in courses.filter(|course| course.is_due(together)) {
            // A round that starts early counts as due now.
            let due = course.due.min(now);
            // Missed rounds are not made up for.
            course.begun = Some(now);
            course.due = now.plus(course.pace.gap(self.tools.dice));
            let outside = course.begins_outside(now);
            let lanes = errands(&course.targets).filter(|errand| outside || errand.is_of_host());
            self.tools
                .begin(&mut course.round, &course.targets, due, lanes);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.tools.kernel.next_event() {
            for course in self.courses.iter_mut().flatten() {
                if self.tools.deliver(&mut course.round, &event) {
                    break;
                }
            }
        }
    }

    /// Latest time at which [`advance`](Self::advance) is due; `None` without targets.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let courses = self.courses.iter().flatten();
        let next = |course: &Course<N::Socket>| course.round.next().unwrap_or(course.due);
        courses.map(next).min()
    }

    pub(super) fn sockets(&self) -> [Option<Waiting>; FAMILIES] {
        self.courses
            .each_ref()
            .map(|course| course.as_ref().and_then(|course| course.round.socket()))
    }
}

impl<S: Socket> Course<S> {
    /// Brings the next round forward, and shortens the intervals after it.
    fn hurry(&mut self, now: Mono, dice: Dice) {
        self.pace.suspect_rounds = SUSPECT_ROUNDS;
        let next = self.begun.map(|begun| begun.plus(self.pace.gap(dice)));
        self.due = self.due.min(next.unwrap_or(now).max(now));
    }

    /// Whether a round that begins now includes the probes from outside the node. If so, its start is
    /// recorded.
    fn begins_outside(&mut self, now: Mono) -> bool {
        let rests = |at: Mono| self.targets.outside_rests && now.since(at) < OUTSIDE_RESTS;
        let begins = !self.outside.is_some_and(rests);
        if begins {
            self.outside = Some(now);
        }
        begins
    }

    /// A lane has at most one probe under way, so a round waits until the previous one is complete.
    fn is_due(&self, now: Mono) -> bool {
        self.due <= now && self.round.is_complete()
    }

    /// Collects finished traces. A changed outcome brings the next round forward.
    fn collect(&mut self, known: &mut Vec<ProbeTrace>, now: Mono, dice: Dice) {
        let mut changed = false;
        for trace in self.round.settled() {
            changed |= self.pace.note(&trace);
            known.push(trace);
        }
        if changed {
            self.hurry(now, dice);
        }
    }
}

/// Random interval between rounds, so that probes do not run in step with anything periodic.
pub(super) type Gap = Range<Duration>;

/// Idle interval. It also applies to a path that keeps failing, which thus costs no more than a healthy one.
pub(super) const IDLE: Gap = Duration::from_millis(420)..Duration::from_millis(480);
/// Interval after a change. A lost probe has timed out before the next round. A probe that loses its data
/// takes up to twice as long.
pub(super) const SUSPECT: Gap = Duration::from_millis(210)..Duration::from_millis(250);
/// Number of rounds at the interval [`SUSPECT`] after a change: enough to confirm a failure, and a repair, and
/// to measure to a quarter of a second when rules follow that do so within two seconds.
const SUSPECT_ROUNDS: u32 = 8;

/// The part of a probe's outcome whose change shortens the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fate {
    returned: bool,
    /// Whether the echo saw the source that the probe was sent from.
    own_source: Option<bool>,
    sightings: ProbeSightings,
}

impl Fate {
    fn of(trace: &ProbeTrace) -> Self {
        let returned = trace.data[Stage::Collected as usize].is_some();
        let mut sightings = trace.sightings;
        // A probe that returned from an old generation, or from one not yet received by this node, is no reason
        // to hurry.
        sightings.misrouted &= !returned;
        sightings.stale &= !returned;
        Self {
            returned,
            own_source: trace.echo_saw.map(|saw| saw.ip() == trace.client.ip()),
            sightings,
        }
    }
}

/// A family's probe intervals.
#[derive(Debug, Default)]
struct Pace {
    fates: Vec<(Lane, Fate)>,
    /// Remaining rounds at the interval after a change.
    suspect_rounds: u32,
}

impl Pace {
    /// Records a probe's outcome; returns whether it differs from the lane's last one.
    fn note(&mut self, trace: &ProbeTrace) -> bool {
        let fate = Fate::of(trace);
        let known = self.fates.iter_mut().find(|(lane, _)| *lane == trace.lane);
        match known {
            Some((_, before)) => std::mem::replace(before, fate) != fate,
            None => {
                self.fates.push((trace.lane, fate));
                true
            }
        }
    }

    /// The interval from a round that starts now to the next.
    fn gap(&mut self, dice: Dice) -> Duration {
        let span = if self.suspect_rounds > 0 {
            SUSPECT
        } else {
            IDLE
        };
        self.suspect_rounds = self.suspect_rounds.saturating_sub(1);
        jitter(dice, &span)
    }
}
