//! The prober without its thread: when which round begins, and who gets which event. It asks the
//! clock and never sleeps, so tests turn the clock.

use std::os::fd::RawFd;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use tokio::sync::mpsc::UnboundedSender;

use super::dice::Dice;
use super::pace::Pace;
use super::poll::Waiting;
use super::ports::Ports;
use super::round::{Round, errands};
use super::tools::Tools;
use super::wire::{Network, Sockets};
use super::{FamilyTargets, Kernel, Targets};
use agent_core::time::Mono;
use agent_core::trace::ProbeTrace;

/// The first round of a family comes within this time.
const FIRST: Duration = Duration::from_millis(50);
/// A round that is due within this time of the other family's begins with it: a wake-up costs as
/// much as several probes.
const TOGETHER: Duration = Duration::from_millis(100);

/// A family's rounds.
struct Course<S> {
    targets: FamilyTargets,
    due: Mono,
    /// When the last round began.
    begun: Option<Mono>,
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
        mut dice: Dice,
        results: UnboundedSender<ProbeTrace>,
    ) -> Self {
        // Without random numbers the sequences begin at the first port.
        let ports = Ports::new(|| dice.word().unwrap_or(0) as u16);
        Self {
            tools: Tools {
                kernel,
                network,
                clock: Box::new(clock),
                dice,
                ports,
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

    pub(super) fn rewire(&mut self, sockets: Sockets) {
        self.tools.network.rewire(sockets);
    }

    /// Probes these from now on. A family whose targets are new begins soon; one whose targets
    /// changed keeps its time, unless the endpoint moved.
    pub(super) fn retarget(&mut self, targets: Targets) {
        let now = self.tools.now();
        for family in Family::ALL {
            let course = &mut self.courses[family as usize];
            match (course.as_mut(), targets.families[family as usize]) {
                (None, None) => {}
                (None, Some(targets)) => {
                    *course = Some(Course {
                        targets,
                        due: now.plus(self.tools.dice.below(FIRST)),
                        begun: None,
                        pace: Pace::default(),
                        round: Round::default(),
                    });
                }
                (Some(old), None) => {
                    self.tools.abandon(&mut old.round);
                    *course = None;
                }
                (Some(old), Some(targets)) => {
                    self.tools.keep(&mut old.round, |errand| {
                        errands(family, &targets).any(|wanted| wanted == *errand)
                    });
                    let moved = old.targets.echo.port() != targets.echo.port();
                    old.targets = targets;
                    if moved {
                        old.hurry(now, &mut self.tools.dice);
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
            course.collect(&mut self.known, &mut self.tools.dice);
        }
    }

    fn begin_rounds(&mut self, now: Mono) {
        let mut courses = self.courses.iter().flatten();
        if !courses.any(|course| course.is_due(now)) {
            return;
        }
        for family in Family::ALL {
            let Some(course) = &mut self.courses[family as usize] else {
                continue;
            };
            if !course.is_due(now.plus(TOGETHER)) {
                continue;
            }
            // Nobody can be late for what was brought forward.
            let due = course.due.min(now);
            // What was missed is not made up for.
            course.begun = Some(now);
            let whole = course.pace.is_whole();
            course.due = now.plus(course.pace.gap(&mut self.tools.dice));
            self.tools
                .begin(&mut course.round, family, &course.targets, due, whole);
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

    /// When [`advance`](Self::advance) is due at the latest; nothing without targets.
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

impl<S: crate::sentinel::host::Socket> Course<S> {
    /// The endpoint moved: when the rules follow is to be known soon.
    fn hurry(&mut self, now: Mono, dice: &mut Dice) {
        let gap = self.pace.hurry(self.targets.echo.port(), dice);
        let next = self.begun.map_or(now, |begun| begun.plus(gap)).max(now);
        self.due = self.due.min(next);
    }

    /// A lane has one probe under way: a round waits for the one before.
    fn is_due(&self, now: Mono) -> bool {
        self.due <= now && self.round.is_complete()
    }

    /// Takes what is known by now. A change brings the next round forward.
    fn collect(&mut self, known: &mut Vec<ProbeTrace>, dice: &mut Dice) {
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
