//! `pathproof check`: one verdict on the node, path by path, with an exit code.
//!
//! The verdict comes from a running agent, which is queried here, or from `app`, which probes. This
//! module must not judge.

use std::thread;
use std::time::Duration;

use pathproof_facts::cause::{State, Why};
use pathproof_facts::time::HumanDuration;
use pathproof_facts::trace::Transport;
use pathproof_judge::explain::{self, Remedy};
use pathproof_judge::verdict::{FamilyVerdict, LaneState, LaneView, Verdict};
use pathproof_report::{Report, SentinelCondition, SentinelReport};
use pathproof_wire::service::Family;
use pathproof_witness::evidence::CoverageLoss;
use serde::Serialize;
use serde_json::{Value, json};

use super::page::{Style, Text, sentence};
use super::{Exit, FetchError, fetch};
use crate::args::Output;

/// Version of the document; fields are added, never renamed.
const SCHEMA: u32 = 1;
/// Retries for an agent that has just started, and the pause between them.
const ATTEMPTS: u32 = 50;
const AGAIN: Duration = Duration::from_millis(200);

/// Checks the node by the verdict of the agent at the admin port. Returns `None` if no agent answers.
///
/// # Errors
/// An agent answers, but its verdict cannot be read.
pub fn beside_agent(address: &str, output: Output) -> Result<Option<Exit>, FetchError> {
    let ask = || fetch::report(address);
    let mut asked = ask();
    for _ in 0..ATTEMPTS {
        if matches!(asked, Err(FetchError::TooEarly(..))) {
            thread::sleep(AGAIN);
            asked = ask();
        }
    }
    match asked {
        Ok((report, _)) => {
            let source = Source::Agent {
                address: address.to_owned(),
                version: report.agent.version.clone(),
            };
            let time = report.written.duration_since(report.agent.started);
            Ok(Some(print(output, &report, &source, time.unsigned_abs())))
        }
        // No agent that can be queried answers at this address.
        Err(
            FetchError::Unreachable(..)
            | FetchError::NotAnAgent(..)
            | FetchError::Denied(..)
            | FetchError::Broken(..),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Prints a report that was made without an agent, by probing for `time`.
pub fn show(output: Output, report: &Report, time: Duration) -> Exit {
    print(output, report, &Source::Itself, time)
}

fn print(output: Output, report: &Report, source: &Source, time: Duration) -> Exit {
    let printed = super::show(output, &document(report, source, time), |colour| {
        page(report, source, time, colour)
    });
    printed.then(match result(report).0 {
        CheckResult::Healthy => Exit::Success,
        CheckResult::Broken => Exit::Failure,
        CheckResult::Unknown => Exit::Unknown,
    })
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
enum Source {
    Itself,
    Agent { address: String, version: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckResult {
    /// The node is proven, and every TCP path passes.
    Healthy,
    /// The node is broken or stale.
    Broken,
    Unknown,
}

/// A path over one transport (TCP or UDP).
#[derive(Debug, Serialize)]
struct CheckedPath<'a> {
    family: Family,
    /// `pass`, `fail`, or `unsure`: probes are inconclusive, or too few.
    result: &'static str,
    #[serde(flatten)]
    lane: &'a LaneView,
    /// Whether the explanation of the TCP path also covers this one.
    explained: bool,
    /// Explanation of a path that does not pass.
    sentence: Option<String>,
}

/// The check for programs. Its paths were probed for `time`.
fn document(report: &Report, source: &Source, time: Duration) -> Value {
    let verdict = &report.verdict;
    let (result, sentence) = result(report);
    let paths = probed(verdict).map(|(family, lane)| path(verdict, family, lane));
    json!({
        "schema": SCHEMA,
        "node": report.node,
        "source": source,
        "seconds": time.as_secs_f64(),
        "result": result,
        "sentence": sentence,
        "paths": paths.collect::<Vec<_>>(),
        "state": verdict.state,
        "reason": verdict.reason(),
        "services": verdict.services,
        "sentinel": report.sentinel,
        "coverage": coverage(verdict),
        "next": next(report),
    })
}

fn page(report: &Report, source: &Source, time: Duration, colour: bool) -> String {
    let verdict = &report.verdict;
    let (result, said) = result(report);
    let mut out = Text::new(colour);
    // Show the state as on other pages. But the check may be unknown although the agent's state is proven.
    let state = match result {
        CheckResult::Healthy | CheckResult::Broken => verdict.state,
        CheckResult::Unknown => State::Unknown,
    };
    out.head(Style::of(state), state.name(), &report.node, "");
    out.wrapped(Style::Plain, 0, &sentence(&said));
    let time = HumanDuration(time);
    let source = match source {
        Source::Itself if probed(verdict).next().is_none() => String::new(),
        Source::Itself => {
            format!("Probed for {time}; the sentinel's interfaces were removed again.")
        }
        Source::Agent { address, version } => {
            format!("Read from the agent at {address} (pathproof {version}, running for {time}).")
        }
    };
    out.wrapped(Style::Faint, 0, &source);
    out.gap();
    out.lanes(verdict);
    out.services(verdict);
    out.list("not observed", Style::Warn, &coverage(verdict));
    out.gap();
    out.remedies(&next(report));
    out.finish()
}

/// Losses of coverage, in sentences.
fn coverage(verdict: &Verdict) -> Vec<String> {
    let losses = verdict.coverage.losses.iter();
    // Omit `Settling`: the observer was loaded a moment ago, as in every check without an agent.
    let losses = losses.filter(|loss| **loss != CoverageLoss::Settling);
    losses.map(ToString::to_string).collect()
}

fn next(report: &Report) -> Vec<Remedy> {
    let installation = installation(&report.sentinel).into_iter();
    installation.chain(explain::next(&report.verdict)).collect()
}

/// Remedy for a missing sentinel. It comes first, because no path can be tested without one.
fn installation(sentinel: &SentinelReport) -> Option<Remedy> {
    (sentinel.state == SentinelCondition::Absent).then(|| Remedy {
        subject: "sentinel".to_owned(),
        commands: Vec::new(),
        advice: "Install the sentinel: no path can be tested without it.".to_owned(),
        page: "docs/operations.md#install-the-sentinel".to_owned(),
    })
}

fn probed(verdict: &Verdict) -> impl Iterator<Item = (&FamilyVerdict, &LaneView)> {
    let families = verdict.families.iter();
    let lanes = families.flat_map(|family| family.lanes.iter().map(move |lane| (family, lane)));
    lanes.filter(|(_, lane)| lane.state != LaneState::Off)
}

fn path<'a>(verdict: &Verdict, family: &FamilyVerdict, lane: &'a LaneView) -> CheckedPath<'a> {
    let long = lane.failures >= verdict.limits.probe_failures;
    let explained = explain::is_explained(lane, &family.lanes);
    CheckedPath {
        family: family.family,
        result: match lane.state {
            LaneState::Passing => "pass",
            LaneState::Failing if long => "fail",
            LaneState::NeverWorked if lane.cause.is_some() => "fail",
            _ => "unsure",
        },
        lane,
        explained,
        sentence: explain::meaning(family.family, lane).filter(|_| !explained),
    }
}

/// The verdict as a result, and the sentence for it.
fn result(report: &Report) -> (CheckResult, String) {
    let (verdict, sentinel) = (&report.verdict, &report.sentinel);
    if matches!(verdict.state, State::Broken | State::Stale) {
        return (CheckResult::Broken, verdict.reason());
    }
    let unread = matches!(
        verdict.why,
        Some(Why::ObserverBlind | Why::NotSampled | Why::ViewNotSynced)
    );
    let unknown = |sentence: String| (CheckResult::Unknown, sentence);
    if let Some(missing) = &report.cluster.missing_node {
        return unknown(missing.clone());
    }
    let why = &sentinel.sentence;
    match sentinel.state {
        _ if unread => return unknown(verdict.reason()),
        SentinelCondition::Probing if verdict.state != State::Proven => {
            return unknown(verdict.reason());
        }
        SentinelCondition::Probing => {}
        SentinelCondition::Absent => return unknown(format!("there is no sentinel: {why}")),
        state => return unknown(format!("the sentinel is {}: {why}", state.name())),
    }
    let tcp = || probed(verdict).filter(|(_, lane)| lane.transport == Transport::Tcp);
    match tcp().find(|(_, lane)| lane.state != LaneState::Passing) {
        Some((of, lane)) => unknown(explain::sentence(of.family, lane, verdict.at)),
        None if tcp().next().is_none() => unknown("no path was probed".to_owned()),
        None => (CheckResult::Healthy, "every TCP path passes".to_owned()),
    }
}

#[cfg(test)]
mod tests;
