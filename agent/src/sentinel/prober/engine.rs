//! The prober without its thread: when which round begins, and who gets which event. It asks the
//! clock and never sleeps, so tests turn the clock.
//!
//! Rounds follow each other slowly while every lane fares as it did, quickly while one changes. A
//! fault is then confirmed as soon as by a steady four rounds a second, and a quiet node pays for
//! fewer (ADR 8).

use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;

use agent_common::probe::Stage;
use agent_common::service::{FAMILIES, Family};
use agent_core::report::sentinel::SentinelAddresses;
use agent_core::time::Mono;
use agent_core::trace::{Lane, ProbeSightings, ProbeTrace};
use tokio::sync::mpsc::UnboundedSender;

use super::round::{Round, errands};
use super::tools::{Dice, Ports, Tools, jitter};
use super::wire::{Network, Socket};
use super::{Kernel, Waiting};

/// The first round of a family comes within this time.
const FIRST: Gap = Duration::ZERO..Duration::from_millis(50);
/// A round that is due within this time of the other family's begins with it: a wake-up costs as
/// much as several probes.
const TOGETHER: Duration = Duration::from_millis(100);
/// Pause between probes from outside the node where these do not take the way of real connections
/// ([`SentinelAddresses::outside_rests`]): nothing translates them, and they are probed in vain.
const OUTSIDE_RESTS: Duration = Duration::from_secs(30);

/// A family's rounds.
struct Course<S> {
    targets: SentinelAddresses,
    due: Mono,
    /// Start of the last round.
    begun: Option<Mono>,
    /// Start of the last round that had lanes from outside the node.
    outside: Option<Mono>,
    pace: Pace,
    round: Round<S>,
}

/// All rounds of both families.
pub(super) struct Engine<K: Kernel, N: Network> {
    tools: Tools<K, N>,
    courses: [Option<Course<N::Socket>>; FAMILIES],
    results: UnboundedSender<ProbeTrace>,
    /// Known by now, and handed over at the end of a turn: the reader wakes once, and not while the
    /// other probes are sent.
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

    /// Whether nobody reads the traces any more.
    pub(super) fn is_unheard(&self) -> bool {
        self.results.is_closed()
    }

    /// Probes these from now on. A family whose targets are new begins soon; one whose targets
    /// changed keeps its time, unless the endpoint moved.
    pub(super) fn retarget(&mut self, targets: &[SentinelAddresses]) {
        let now = self.tools.now();
        for family in Family::ALL {
            let course = &mut self.courses[family as usize];
            let targets = targets.iter().find(|of| of.family == family).copied();
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
                        old.hurry(now, self.tools.dice);
                    }
                }
            }
        }
    }

    /// Does everything that can be done now.
    pub(super) fn advance(&mut self) {
        self.take_events();
        let now = self.tools.now();
        self.go_on(now);
        self.begin_rounds(now);
        // Most answers are here before the call that sent the probe returns.
        self.take_events();
        let now = self.tools.now();
        self.go_on(now);
        for trace in self.known.drain(..) {
            // Nobody reads: the thread ends at its next turn.
            let _ = self.results.send(trace);
        }
    }

    fn go_on(&mut self, now: Mono) {
        for course in self.courses.iter_mut().flatten() {
            self.tools.go_on(&mut course.round, now);
            course.collect(&mut self.known, self.tools.dice);
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
            // Nobody can be late for what was brought forward.
            let due = course.due.min(now);
            // Rounds that were missed are not made up for.
            course.begun = Some(now);
            let whole = course.pace.is_whole();
            course.due = now.plus(course.pace.gap(self.tools.dice));
            let outside = course.begins_outside(now);
            let lanes = errands(&course.targets)
                .filter(|errand| outside || errand.is_of_host())
                .take(if whole { usize::MAX } else { 1 });
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

    /// Latest time at which [`advance`](Self::advance) is due; nothing without targets.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let courses = self.courses.iter().flatten();
        let next = |course: &Course<N::Socket>| course.round.next().unwrap_or(course.due);
        courses.map(next).min()
    }

    /// Sockets that are waited for.
    pub(super) fn sockets(&self) -> [Option<Waiting>; FAMILIES] {
        self.courses
            .each_ref()
            .map(|course| course.as_ref().and_then(|course| course.round.socket()))
    }
}

impl<S: Socket> Course<S> {
    /// The endpoint moved: when the rules follow is to be known soon.
    fn hurry(&mut self, now: Mono, dice: Dice) {
        let gap = self.pace.hurry(self.targets.endpoint.port(), dice);
        let next = self.begun.map_or(now, |begun| begun.plus(gap)).max(now);
        self.due = self.due.min(next);
    }

    /// Whether a round that begins now has lanes from outside the node.
    fn begins_outside(&mut self, now: Mono) -> bool {
        let rests = |at: Mono| self.targets.outside_rests && now.since(at) < OUTSIDE_RESTS;
        let begins = !self.outside.is_some_and(rests);
        if begins {
            self.outside = Some(now);
        }
        begins
    }

    /// A lane has one probe under way: a round waits for the one before.
    fn is_due(&self, now: Mono) -> bool {
        self.due <= now && self.round.is_complete()
    }

    /// Takes what is known by now. A change brings the next round forward.
    fn collect(&mut self, known: &mut Vec<ProbeTrace>, dice: Dice) {
        let mut changed = false;
        for trace in self.round.settled() {
            changed |= self.pace.note(&trace);
            known.push(trace);
        }
        if let Some(begun) = self.begun.filter(|_| changed) {
            self.due = self.due.min(begun.plus(self.pace.gap(dice)));
        }
    }
}

/// From one round to the next, at least and at most: nothing that runs by a clock of its own is
/// met at the same moment each time.
pub(super) type Gap = Range<Duration>;

/// While nothing changes. A path that always fails costs no more than one that works.
pub(super) const REST: Gap = Duration::from_millis(420)..Duration::from_millis(480);
/// After a change. A probe that is lost is complete by then; one whose data is lost takes up to twice as long.
pub(super) const DOUBT: Gap = Duration::from_millis(210)..Duration::from_millis(250);
/// While the sentinel's endpoint has moved and probes go where it was: how long the rules take to
/// follow is wanted to a tenth of a second. Probes that get through are complete long before.
pub(super) const HASTE: Gap = Duration::from_millis(80)..Duration::from_millis(100);
/// So many rounds in haste with every lane, three seconds...
const HASTY: u32 = 33;
/// ...and so many more, half a minute, in which one lane alone is in haste: a proxy of a large
/// cluster takes seconds, and how many is wanted as exactly...
const NARROW: u32 = 330;
/// ...while the others are probed every so many rounds, about as often as at rest.
const WHOLE: u32 = 5;
/// So many rounds from the last change on: enough to confirm a failure, and a repair.
const ROUNDS: u32 = 8;

/// Outcome of a probe, as far as a change of it is a reason to hurry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fate {
    returned: bool,
    /// Whether the echo saw the probe's own source.
    own_source: Option<bool>,
    sightings: ProbeSightings,
}

impl Fate {
    fn of(trace: &ProbeTrace) -> Self {
        Self {
            returned: trace.data[Stage::Collected as usize].is_some(),
            own_source: trace.echo_saw.map(|saw| saw.ip() == trace.client.ip()),
            // An old generation, or one that we have not heard of yet, is nothing to hurry for.
            sightings: match trace.data[Stage::Collected as usize] {
                Some(_) => ProbeSightings {
                    misrouted: false,
                    stale: false,
                    ..trace.sightings
                },
                None => trace.sightings,
            },
        }
    }
}

/// A family's pace.
#[derive(Debug, Default)]
struct Pace {
    fates: Vec<(Lane, Fate)>,
    /// Rounds in doubt still to come.
    doubted: u32,
    /// Rounds in haste still to come.
    hurried: u32,
    /// Port that the endpoint moved to.
    wanted: Option<u16>,
    /// A probe of the last round went elsewhere.
    behind: bool,
}

impl Pace {
    /// The endpoint moved to this port. The gap to the next round.
    fn hurry(&mut self, wanted: u16, dice: Dice) -> Duration {
        self.wanted = Some(wanted);
        self.hurried = HASTY + NARROW;
        self.behind = true;
        jitter(dice, &HASTE)
    }

    /// Sees what came of a probe. Whether its lane fares differently from before.
    fn note(&mut self, trace: &ProbeTrace) -> bool {
        let elsewhere = |generation| Some(generation) != self.wanted;
        self.behind |= trace.generation.is_some_and(elsewhere);
        let fate = Fate::of(trace);
        let known = self.fates.iter_mut().find(|(lane, _)| *lane == trace.lane);
        let changed = match known {
            Some((_, before)) => std::mem::replace(before, fate) != fate,
            None => {
                self.fates.push((trace.lane, fate));
                true
            }
        };
        if changed {
            self.doubted = ROUNDS;
        }
        changed
    }

    /// Whether every lane is probed in a round that begins now. Ask before [`gap`](Self::gap).
    fn is_whole(&self) -> bool {
        let narrow = self.behind && (1..=NARROW).contains(&self.hurried);
        !narrow || self.doubted > 0 || self.hurried.is_multiple_of(WHOLE)
    }

    /// The gap from a round that begins now to the next.
    fn gap(&mut self, dice: Dice) -> Duration {
        let span = match (self.hurried, self.doubted) {
            (1.., _) if self.behind => HASTE,
            (_, 1..) => DOUBT,
            _ => REST,
        };
        self.hurried = if self.behind {
            self.hurried.saturating_sub(1)
        } else {
            0
        };
        self.behind = false;
        self.doubted = self.doubted.saturating_sub(1);
        jitter(dice, &span)
    }
}
