//! What a check prints: a verdict and its lanes. Nothing is judged here.

use std::time::Duration;

use agent_common::service::Family;
use serde::Serialize;

use super::super::Exit;
use agent_core::cause::{ProbeCause, State, Why};
use agent_core::evidence::CoverageLoss;
use agent_core::explain::{self, Remedy, Step};
use agent_core::names;
use agent_core::report::{Report, SentinelReport, SentinelState};
use agent_core::trace::{ProbePath, Transport};
use agent_core::verdict::{
    FamilyVerdict, LaneState, LaneView, ServiceTrouble, StageDelays, Verdict,
};

/// Version of the document; fields are added, never renamed.
const SCHEMA: u32 = 1;

/// Whose verdict this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Source {
    /// The check's own.
    Itself,
    /// That of an agent that runs.
    Agent {
        /// Its admin port.
        address: String,
        /// Its version.
        version: String,
    },
}

/// What the check comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Result {
    /// The node is proven, and every path passes.
    Sound,
    /// The node is broken or stale.
    Broken,
    /// Neither.
    Unknown,
}

impl Result {
    /// What the command exits with.
    pub fn exit(self) -> Exit {
        match self {
            Result::Sound => Exit::Success,
            Result::Broken => Exit::Failure,
            Result::Unknown => Exit::Unknown,
        }
    }

    /// Name as it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Result::Sound => "sound",
            Result::Broken => "broken",
            Result::Unknown => "unknown",
        }
    }
}

/// What a path comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathResult {
    /// Probes get through.
    Pass,
    /// They do not.
    Fail,
    /// They say nothing, or too little.
    Unsure,
}

/// The whole document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// Version of this document.
    pub schema: u32,
    /// The node.
    pub node: String,
    /// Whose verdict this is.
    pub source: Source,
    /// For how many seconds paths were probed.
    pub seconds: f64,
    /// What it comes to.
    pub result: Result,
    /// The same for a person.
    pub sentence: String,
    /// By path.
    pub paths: Vec<CheckedPath>,
    /// The verdict.
    pub state: State,
    /// Its sentence.
    pub reason: String,
    /// Services in trouble, by real connections.
    pub services: Vec<ServiceTrouble>,
    /// The sentinel.
    pub sentinel: SentinelReport,
    /// What is not seen.
    pub coverage: Vec<String>,
    /// Where to look next.
    pub next: Vec<Remedy>,
}

/// One path by one transport.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedPath {
    /// Its family.
    #[serde(with = "names::FamilyName")]
    pub family: Family,
    /// Which way.
    pub path: ProbePath,
    /// By which transport.
    pub transport: Transport,
    /// What it comes to.
    pub result: PathResult,
    /// How its probes fail.
    pub cause: Option<ProbeCause>,
    /// Probes that passed.
    pub passed: u64,
    /// That failed.
    pub failed: u64,
    /// That say nothing.
    pub void: u64,
    /// What the last of them took.
    pub delays: StageDelays,
    /// The TCP path fails as well, and tells more.
    pub explained: bool,
    /// What it means, where it does not pass.
    pub sentence: Option<String>,
    /// How far the last probe came.
    #[serde(skip)]
    pub(super) steps: Vec<Step>,
}

impl Checked {
    /// Of a report, whose paths were probed for so long.
    pub fn of(report: &Report, source: Source, time: Duration) -> Self {
        let verdict = &report.verdict;
        let (result, sentence) = result(report);
        let losses = &verdict.coverage.losses;
        Self {
            schema: SCHEMA,
            node: report.node.clone(),
            source,
            seconds: time.as_secs_f64(),
            result,
            sentence,
            paths: probed(verdict)
                .map(|(family, lane)| path(verdict, family, lane))
                .collect(),
            state: verdict.state,
            reason: verdict.reason(),
            services: verdict.services.clone(),
            sentinel: report.sentinel.clone(),
            // A check has always just begun.
            coverage: losses
                .iter()
                .filter(|loss| loss.loss != CoverageLoss::Settling)
                .map(|loss| loss.sentence.clone())
                .collect(),
            next: explain::next(verdict),
        }
    }
}

fn probed(verdict: &Verdict) -> impl Iterator<Item = (&FamilyVerdict, &LaneView)> {
    verdict.families.iter().flat_map(|family| {
        let probed = family
            .lanes
            .iter()
            .filter(|lane| lane.state != LaneState::Off);
        probed.map(move |lane| (family, lane))
    })
}

fn path(verdict: &Verdict, family: &FamilyVerdict, lane: &LaneView) -> CheckedPath {
    let long = lane.failures >= verdict.limits.probe_failures;
    let result = match lane.state {
        LaneState::Passing => PathResult::Pass,
        LaneState::Failing if long => PathResult::Fail,
        LaneState::NeverWorked if lane.cause.is_some() => PathResult::Fail,
        _ => PathResult::Unsure,
    };
    let explained = explain::is_explained(lane, &family.lanes);
    let meaning = explain::meaning(family.family, lane);
    CheckedPath {
        family: family.family,
        path: lane.path,
        transport: lane.transport,
        result,
        cause: lane.cause,
        passed: lane.passed,
        failed: lane.failed,
        void: lane.void,
        delays: lane.delays,
        explained,
        sentence: meaning.filter(|_| !explained),
        steps: explain::steps(lane),
    }
}

/// The verdict as an exit code, and the sentence for it.
fn result(report: &Report) -> (Result, String) {
    let verdict = &report.verdict;
    if matches!(verdict.state, State::Broken | State::Stale) {
        return (Result::Broken, verdict.reason());
    }
    let unread = matches!(
        verdict.why,
        Some(Why::ObserverBlind | Why::NotSampled | Why::ViewNotSynced)
    );
    let sentinel = &report.sentinel;
    if sentinel.state != SentinelState::Probing && !unread {
        let text = match sentinel.state {
            SentinelState::Absent => format!("there is no sentinel: {}", sentinel.sentence),
            state => format!("the sentinel is {}: {}", state.name(), sentinel.sentence),
        };
        return (Result::Unknown, text);
    }
    if verdict.state != State::Proven {
        return (Result::Unknown, verdict.reason());
    }
    let mut tcp = probed(verdict)
        .filter(|(_, lane)| lane.transport == Transport::Tcp)
        .peekable();
    if tcp.peek().is_none() {
        return (Result::Unknown, "no path was probed".to_owned());
    }
    match tcp.find(|(_, lane)| lane.state != LaneState::Passing) {
        Some((family, lane)) => {
            let sentence = explain::sentence(family.family, lane, verdict.at);
            (Result::Unknown, sentence)
        }
        None => (Result::Sound, "every path passes".to_owned()),
    }
}
