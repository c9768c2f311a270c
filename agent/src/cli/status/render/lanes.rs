//! The sentinel and its lanes: which ways through the datapath work, and how far probes come on
//! those that do not.

use std::time::Duration;

use super::super::super::lanes;
use super::super::super::paper::{Ink, grouped};
use super::{Page, TEXT};
use agent_core::explain;
use agent_core::names;
use agent_core::report::SentinelState;
use agent_core::time::Spoken;
use agent_core::verdict::{FamilyVerdict, LaneState, LaneView};

// Columns of the lanes; those of numbers are where they end.
const PATH: usize = 18;
const TRANSPORT: usize = 30;
const NOW: usize = 35;
const ARMED: usize = 49;
const FAILED: usize = 64;
const ROUND_TRIP: usize = 76;
const LAST_PASS: usize = 80;

/// Rules that are late for less are about to follow.
const LATE: Duration = Duration::from_secs(5);

impl Page<'_> {
    pub(super) fn probes(&mut self) {
        self.sentinel();
        let families = &self.report.verdict.families;
        let probed: Vec<&FamilyVerdict> = families
            .iter()
            .filter(|family| !family.lanes.is_empty())
            .collect();
        if !probed.is_empty() {
            self.lanes_head();
        }
        for family in probed {
            for (index, lane) in family.lanes.iter().enumerate() {
                if index == 0 {
                    self.paper.put(Ink::Plain, names::of_family(family.family));
                }
                self.lane(lane);
            }
        }
        self.follows();
        self.paper.line();
    }

    /// How long the rules took to follow when the sentinel's endpoint last moved.
    fn follows(&mut self) {
        let lanes = || {
            self.report
                .verdict
                .families
                .iter()
                .flat_map(|family| &family.lanes)
        };
        let lag = lanes().filter_map(|lane| lane.lag).max();
        let late = lanes()
            .filter_map(|lane| lane.late)
            .max()
            .map(Duration::from_nanos);
        let (ink, said) = match (late.filter(|late| *late >= LATE), lag) {
            (Some(late), _) => (Ink::Warn, format!("behind the API for {}", Spoken(late))),
            (None, Some(lag)) => {
                let lag = Spoken(Duration::from_nanos(lag));
                (
                    Ink::Plain,
                    format!("followed the API within {lag} the last time"),
                )
            }
            (None, None) => return,
        };
        self.paper.put(Ink::Heading, "rules").to(TEXT);
        self.paper.put(ink, &said).line();
    }

    fn sentinel(&mut self) {
        let sentinel = &self.report.sentinel;
        let ink = match sentinel.state {
            SentinelState::Probing => Ink::Good,
            SentinelState::Absent | SentinelState::Disabled => Ink::Faint,
            SentinelState::Off | SentinelState::Altered => Ink::Warn,
        };
        self.paper
            .put(Ink::Heading, "sentinel")
            .to(TEXT)
            .put(ink, sentinel.state.name());
        match (&sentinel.state, &sentinel.service) {
            (SentinelState::Probing, Some(service)) => {
                self.paper.put(Ink::Plain, " ").put(Ink::Plain, service);
                if let Some(devices) = &sentinel.devices {
                    let said = format!(", from {} to {}", devices.client_near, devices.server_near);
                    self.paper.put(Ink::Faint, &said);
                }
                self.paper.line();
            }
            _ => {
                self.paper.put(Ink::Plain, ": ");
                let sentence = sentinel.sentence.clone();
                self.paper.wrapped(Ink::Plain, TEXT, &sentence);
            }
        }
    }

    fn lanes_head(&mut self) {
        let paper = &mut self.paper;
        paper.put(Ink::Heading, "probes");
        for (column, title) in [(TEXT, "path"), (NOW, "now"), (ARMED, "armed")] {
            paper.to(column).put(Ink::Faint, title);
        }
        paper.right(Ink::Faint, FAILED, "failed");
        paper.right(Ink::Faint, ROUND_TRIP, "round trip");
        paper.to(LAST_PASS).put(Ink::Faint, "last pass").line();
    }

    fn lane(&mut self, lane: &LaneView) {
        let (mark, ink) = look(lane.state);
        let last_pass = self.ago(lane.last_pass);
        let paper = &mut self.paper;
        paper.to(TEXT).put(ink, mark).to(PATH);
        paper
            .put(Ink::Plain, explain::path_label(lane.path))
            .to(TRANSPORT);
        paper.put(Ink::Faint, lane.transport.name()).to(NOW);
        paper.put(ink, explain::state_label(lane.state)).to(ARMED);
        match lane.armed {
            true => paper.put(Ink::Plain, "yes"),
            false => paper.put(Ink::Faint, "no"),
        };
        if lane.failures > 0 {
            paper.right(ink, FAILED, &grouped(u64::from(lane.failures)));
        }
        let round_trip = match lane.delays.round_trip {
            Some(ns) => lanes::fine(Duration::from_nanos(ns)),
            None => "-".to_owned(),
        };
        paper.right(Ink::Plain, ROUND_TRIP, &round_trip);
        let pass_ink = match lane.last_pass {
            Some(_) => Ink::Plain,
            None => Ink::Faint,
        };
        paper.to(LAST_PASS).put(pass_ink, &last_pass).line();
        if let Some(late) = lane
            .late
            .map(Duration::from_nanos)
            .filter(|late| *late >= LATE)
        {
            let said = format!(
                "goes to generation {}, {} after a newer one ({})",
                shown(lane.generation),
                Spoken(late),
                shown(lane.wanted)
            );
            self.paper.to(PATH).put(Ink::Warn, &said).line();
        }
        if let Some(cause) = lane.cause {
            self.paper.to(PATH);
            lanes::chain(&mut self.paper, &explain::steps(lane));
            self.paper.put(ink, &explain::cause_label(cause)).line();
        }
    }
}

/// A generation.
fn shown(generation: Option<u16>) -> String {
    generation.map_or_else(|| "-".to_owned(), |generation| generation.to_string())
}

fn look(state: LaneState) -> (&'static str, Ink) {
    match state {
        LaneState::Passing => ("●", Ink::Good),
        LaneState::Failing => ("✗", Ink::Bad),
        LaneState::Void => ("!", Ink::Warn),
        LaneState::NeverWorked => ("✗", Ink::Warn),
        LaneState::Off => ("○", Ink::Faint),
    }
}
