//! The prober without its thread: when which round begins, and who gets which event. It asks the
//! clock and never sleeps, so tests turn the clock.

use std::os::fd::RawFd;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use tokio::sync::mpsc::UnboundedSender;

use super::dice::Dice;
use super::poll::Waiting;
use super::ports::Ports;
use super::round::{Round, errands};
use super::tools::Tools;
use super::wire::{Network, Sockets};
use super::{FamilyTargets, Kernel, Targets};
use crate::domain::probe::ProbeTrace;
use crate::domain::time::Mono;

/// From one round to the next, at least and at most: nothing that runs by a clock of its own is
/// met at the same moment each time.
pub(super) const PERIOD: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_millis(300));
/// The first round of a family comes within this time.
const FIRST: Duration = Duration::from_millis(50);

/// A family's rounds.
struct Course<S> {
    targets: FamilyTargets,
    due: Mono,
    round: Round<S>,
}

/// All rounds of both families.
pub(super) struct Engine<K: Kernel, N: Network> {
    tools: Tools<K, N>,
    courses: [Option<Course<N::Socket>>; FAMILIES],
    results: UnboundedSender<ProbeTrace>,
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
    /// changed keeps its time.
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
                    old.targets = targets;
                }
            }
        }
    }

    /// Does everything that can be done now.
    pub(super) fn advance(&mut self) {
        self.take_events();
        let now = self.tools.now();
        for family in Family::ALL {
            let Some(course) = &mut self.courses[family as usize] else {
                continue;
            };
            self.tools.go_on(&mut course.round, now);
            // A lane has one probe under way: a round waits for the one before.
            if course.due <= now && course.round.is_complete() {
                let due = course.due;
                // What was missed is not made up for.
                course.due = now.plus(self.tools.period());
                hand_over(&mut course.round, &self.results);
                self.tools
                    .begin(&mut course.round, family, &course.targets, due);
            }
        }
        // Most answers are here before the call that sent the probe returns.
        self.take_events();
        let now = self.tools.now();
        for course in self.courses.iter_mut().flatten() {
            self.tools.go_on(&mut course.round, now);
            hand_over(&mut course.round, &self.results);
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

fn hand_over<S: crate::sentinel::host::Socket>(
    round: &mut Round<S>,
    results: &UnboundedSender<ProbeTrace>,
) {
    for trace in round.settled() {
        // Nobody reads: the thread ends at its next turn.
        let _ = results.send(trace);
    }
}

impl<K: Kernel, N: Network> Tools<K, N> {
    fn period(&mut self) -> Duration {
        let (least, most) = PERIOD;
        least + self.dice.below(most - least)
    }
}
