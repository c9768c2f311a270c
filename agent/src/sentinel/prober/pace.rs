//! How soon the next round follows: slowly while every lane fares as it did, quickly while one
//! changes. A fault is then confirmed as soon as by a steady four rounds a second, and a quiet
//! node pays for fewer (ADR 8).

use std::time::Duration;

use agent_common::probe::Stage;

use super::dice::Dice;
use agent_core::trace::{Lane, ProbeSightings, ProbeTrace};

/// From one round to the next, at least and at most: nothing that runs by a clock of its own is
/// met at the same moment each time.
pub(super) type Gap = (Duration, Duration);

/// While nothing changes. A path that always fails costs no more than one that works.
pub(super) const REST: Gap = (Duration::from_millis(420), Duration::from_millis(480));
/// After a change. No shorter than a probe's time: the next round finds the one before complete.
pub(super) const DOUBT: Gap = (Duration::from_millis(210), Duration::from_millis(250));
/// While the sentinel's endpoint has moved and probes go where it was: how long the rules take to
/// follow is wanted to a tenth of a second. Probes that get through are complete long before.
pub(super) const HASTE: Gap = (Duration::from_millis(80), Duration::from_millis(100));
/// So many rounds in haste with every lane, three seconds...
const HASTY: u32 = 33;
/// ...and so many more, half a minute, in which one lane alone is in haste: a proxy of a large
/// cluster takes seconds, and how many is wanted as exactly...
const NARROW: u32 = 330;
/// ...while the others are probed every so many rounds, about as often as at rest.
const WHOLE: u32 = 5;
/// So many rounds from the last change on: enough to confirm a failure, and a repair.
const ROUNDS: u32 = 8;

/// How a probe fared, as far as a change of it is a reason to hurry.
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
pub(super) struct Pace {
    fates: Vec<(Lane, Fate)>,
    /// Rounds in doubt still to come.
    doubted: u32,
    /// Rounds in haste still to come.
    hurried: u32,
    /// Where the endpoint moved to.
    wanted: Option<u16>,
    /// A probe of the last round went elsewhere.
    behind: bool,
}

impl Pace {
    /// The endpoint moved to this port. The gap to the next round.
    pub(super) fn hurry(&mut self, wanted: u16, dice: &mut Dice) -> Duration {
        self.wanted = Some(wanted);
        self.hurried = HASTY + NARROW;
        self.behind = true;
        let (least, most) = HASTE;
        least + dice.below(most - least)
    }

    /// Sees what came of a probe. Whether its lane fares differently from before.
    pub(super) fn note(&mut self, trace: &ProbeTrace) -> bool {
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
    pub(super) fn is_whole(&self) -> bool {
        let narrow = self.behind && (1..=NARROW).contains(&self.hurried);
        !narrow || self.doubted > 0 || self.hurried.is_multiple_of(WHOLE)
    }

    /// The gap from a round that begins now to the next.
    pub(super) fn gap(&mut self, dice: &mut Dice) -> Duration {
        let (least, most) = match (self.hurried, self.doubted) {
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
        least + dice.below(most - least)
    }
}
