//! Pass or fail, by path and for the node.
//!
//! A check remembers nothing of the time before it, so a path that does not work may never have
//! worked: only a cause that accuses the datapath alone, on a path that stands for more than the
//! node itself, is broken.

use agent_common::service::Family;
use serde::Serialize;

use super::super::lanes;
use super::super::{Exit, why};
use agent_core::cause::ProbeCause;
use agent_core::cause::{State, Why};
use agent_core::evidence::CoverageLoss;
use agent_core::limits::Limits;
use agent_core::names;
use agent_core::report::check::{Observed, Tally};
use agent_core::report::{SentinelReport, SentinelState};
use agent_core::trace::{ProbePath, Transport};
use agent_core::verdict::{LaneState, LaneView, ServiceTrouble, StageDelays};

/// Version of the document; fields are added, never renamed.
const SCHEMA: u32 = 1;
/// Of fewer probes that failed, without one that passed, nothing is said.
const FEW: u64 = 2;

/// Whose probes these are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Source {
    /// The check's own.
    Itself,
    /// Those of an agent that runs.
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
    /// Every path passes.
    Sound,
    /// The datapath is broken, and nothing else explains what was seen.
    Broken,
    /// It cannot be told.
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
    /// Whose probes these are.
    pub source: Source,
    /// For how many seconds paths were probed.
    pub seconds: f64,
    /// What it comes to.
    pub result: Result,
    /// The same for a person.
    pub sentence: String,
    /// By path.
    pub paths: Vec<CheckedPath>,
    /// The verdict, which has real connections in it.
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
    pub next: Vec<why::Remedy>,
}

/// One path by one transport.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedPath {
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
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
    /// What the last probe took.
    pub delays: StageDelays,
    /// The TCP path fails as well, and tells more.
    pub explained: bool,
    /// What is wrong, where something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
}

impl Checked {
    /// Of what was seen.
    pub fn of(observed: &Observed, source: Source) -> Self {
        let report = &observed.report;
        let verdict = &report.verdict;
        let paths = paths(observed);
        let (result, sentence) = judge(observed, &paths);
        let losses = &verdict.coverage.losses;
        Self {
            schema: SCHEMA,
            node: report.node.clone(),
            source,
            seconds: observed.time.as_secs_f64(),
            result,
            sentence,
            state: verdict.state,
            reason: verdict.reason.clone(),
            services: verdict.services.clone(),
            sentinel: report.sentinel.clone(),
            // A check has always just begun.
            coverage: losses
                .iter()
                .filter(|loss| loss.loss != CoverageLoss::Settling)
                .map(|loss| loss.sentence.clone())
                .collect(),
            next: next(&paths),
            paths,
        }
    }
}

/// In the order of reports: by family, TCP first.
fn paths(observed: &Observed) -> Vec<CheckedPath> {
    let mut tallies: Vec<&Tally> = observed.tallies.iter().collect();
    tallies.sort_by_key(|tally| (tally.family as usize, tally.transport, tally.path));
    let path = |tally: &Tally| {
        let family = observed.report.verdict.family(tally.family);
        let lane = family.and_then(|family| {
            let same =
                |lane: &&LaneView| (lane.path, lane.transport) == (tally.path, tally.transport);
            family.lanes.iter().find(same)
        });
        checked(tally, lane)
    };
    let mut paths: Vec<CheckedPath> = tallies.into_iter().map(path).collect();
    let causes: Vec<_> = paths
        .iter()
        .filter(|path| path.transport == Transport::Tcp && path.result == PathResult::Fail)
        .map(|path| (path.family, path.path, path.cause))
        .collect();
    for path in &mut paths {
        let same = |known: &&(&str, ProbePath, _)| (known.0, known.1) == (path.family, path.path);
        let tcp = causes.iter().find(same).and_then(|(_, _, cause)| *cause);
        path.explained = lanes::is_explained(path.transport, path.cause, tcp);
        if path.explained {
            path.sentence = None;
        }
    }
    paths
}

fn checked(tally: &Tally, lane: Option<&LaneView>) -> CheckedPath {
    let enough = u64::from(Limits::default().probe_failures);
    let result = if tally.in_row >= enough || tally.passed == 0 && tally.in_row >= FEW {
        PathResult::Fail
    } else if tally.passed > 0 && tally.in_row == 0 {
        PathResult::Pass
    } else {
        PathResult::Unsure
    };
    let cause = tally.cause.filter(|_| result != PathResult::Pass);
    CheckedPath {
        family: names::of_family(tally.family),
        path: tally.path,
        transport: tally.transport,
        result,
        cause,
        passed: tally.passed,
        failed: tally.failed,
        void: tally.void,
        delays: lane.map(|lane| lane.delays).unwrap_or_default(),
        explained: false,
        sentence: sentence(tally, lane, result, cause),
    }
}

fn sentence(
    tally: &Tally,
    lane: Option<&LaneView>,
    result: PathResult,
    cause: Option<ProbeCause>,
) -> Option<String> {
    match result {
        PathResult::Pass => None,
        PathResult::Unsure => Some(match lane {
            _ if tally.failed > 0 => "some probes failed, too few to tell".to_owned(),
            Some(lane) if lane.state == LaneState::Void => lane.sentence.clone(),
            _ => "no probe said anything".to_owned(),
        }),
        PathResult::Fail => {
            let meaning = lane.and_then(why::meaning);
            let meaning = meaning.or_else(|| Some(cause?.cause().to_string()));
            let meaning = meaning.unwrap_or_else(|| "the cause is not known".to_owned());
            Some(match tally.passed {
                0 => format!("did not work during the check: most likely {meaning}"),
                _ => format!("stopped working during the check: most likely {meaning}"),
            })
        }
    }
}

fn accuses(path: &CheckedPath) -> bool {
    path.result == PathResult::Fail
        && path.path != ProbePath::Host
        && path.cause.is_some_and(ProbeCause::is_unambiguous)
}

fn judge(observed: &Observed, paths: &[CheckedPath]) -> (Result, String) {
    let verdict = &observed.report.verdict;
    let sentinel = &observed.report.sentinel;
    let named = |path: &CheckedPath| {
        let cause = path.cause.map_or("failed", ProbeCause::name);
        let lane = lanes::lane(path.family, path.path, path.transport);
        format!("{lane} ({})", cause.replace('_', " "))
    };
    if let Some(path) = paths.iter().find(|path| accuses(path)) {
        let others = paths.iter().filter(|path| accuses(path)).count() - 1;
        let others = match others {
            0 => String::new(),
            1 => " and 1 other path".to_owned(),
            more => format!(" and {more} other paths"),
        };
        let text = format!("probes do not get through: {}{others}", named(path));
        return (Result::Broken, text);
    }
    if matches!(verdict.state, State::Broken | State::Stale) {
        return (Result::Broken, verdict.reason.clone());
    }
    if verdict.why == Some(Why::ObserverBlind) || verdict.why == Some(Why::ViewNotSynced) {
        return (Result::Unknown, verdict.reason.clone());
    }
    if sentinel.state != SentinelState::Probing {
        let text = match sentinel.state {
            SentinelState::Absent => format!("there is no sentinel: {}", sentinel.sentence),
            state => format!("the sentinel is {}: {}", state.name(), sentinel.sentence),
        };
        return (Result::Unknown, text);
    }
    let of = |result| paths.iter().find(move |path| path.result == result);
    if let Some(path) = of(PathResult::Fail) {
        let why = match path.path {
            ProbePath::Host => "the node's own path does not stand for the node",
            _ => "a filter of the sentinel's own addresses would look the same",
        };
        let text = format!("probes do not get through: {}; {why}", named(path));
        return (Result::Unknown, text);
    }
    if paths.is_empty() {
        return (Result::Unknown, "no path was probed".to_owned());
    }
    if of(PathResult::Unsure).is_some() {
        return (Result::Unknown, "not every path could be told".to_owned());
    }
    (Result::Sound, "every path passes".to_owned())
}

fn next(paths: &[CheckedPath]) -> Vec<why::Remedy> {
    let mut causes: Vec<(agent_core::cause::Cause, Vec<Family>)> = Vec::new();
    let told = |path: &&CheckedPath| path.result == PathResult::Fail && !path.explained;
    for path in paths.iter().filter(told) {
        let (Some(cause), Some(family)) = (path.cause, names_family(path.family)) else {
            continue;
        };
        let cause = why::looked_into(cause);
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, families)) if families.contains(&family) => {}
            Some((_, families)) => families.push(family),
            None => causes.push((cause, vec![family])),
        }
    }
    causes
        .into_iter()
        .map(|(cause, families)| why::of_cause(cause, &families))
        .collect()
}

fn names_family(name: &str) -> Option<Family> {
    Family::ALL
        .into_iter()
        .find(|family| names::of_family(*family) == name)
}
