//! Log lines for changes of the verdict and of the answers. The level of a line depends on what users lose.

use std::time::Duration;

use pathproof_facts::cause::{Cause, State, Why};
use pathproof_facts::time::Mono;
use pathproof_judge::answer::Answer;
use pathproof_judge::verdict::{LastVerdict, Verdict};
use pathproof_node::effect::Answers;
use tracing::Level;

/// Minimum time between two lines about the verdict, which may change with every sample. Lines about answers
/// need no minimum, because answers are damped.
const PAUSE: Duration = Duration::from_secs(1);

/// The verdict and the answers that were logged last.
#[derive(Default)]
pub(super) struct Changes {
    verdict: Option<(LastVerdict, Mono)>,
    /// Status codes of /healthz and /livez.
    statuses: [Option<u16>; 2],
}

#[derive(Debug, PartialEq)]
pub(super) struct Line {
    level: Level,
    what: &'static str,
    old: Option<String>,
    new: String,
    cause: Option<&'static str>,
    reason: String,
}

impl Line {
    pub(super) fn write(&self, node: &str) {
        let (what, old, new) = (self.what, self.old.as_deref(), &*self.new);
        let (cause, reason) = (self.cause, &*self.reason);
        match self.level {
            Level::ERROR => tracing::error!(node, old, new, cause, reason, "{what}"),
            Level::WARN => tracing::warn!(node, old, new, cause, reason, "{what}"),
            _ => tracing::info!(node, old, new, cause, reason, "{what}"),
        }
    }
}

impl Changes {
    /// The lines for this verdict and its answers.
    pub(super) fn lines(&mut self, verdict: &Verdict, answers: &Answers) -> Vec<Line> {
        let mut lines = Vec::from_iter(self.verdict(verdict));
        let endpoints = [
            ("the answer of /healthz changed", &answers.healthz),
            ("the answer of /livez changed", &answers.livez),
        ];
        for ((what, answer), old) in endpoints.into_iter().zip(&mut self.statuses) {
            let before = old.replace(answer.status);
            // A first answer of 200 is not logged.
            if before.unwrap_or(200) == answer.status {
                continue;
            }
            let (level, leaves) = level(answer, &answers.livez, verdict);
            lines.push(Line {
                level,
                what,
                old: before.map(|status| status.to_string()),
                new: answer.status.to_string(),
                cause: cause(verdict).filter(|_| !leaves),
                reason: match leaves {
                    true => verdict.eligibility.to_string(),
                    false => verdict.reason(),
                },
            });
        }
        lines
    }

    fn verdict(&mut self, verdict: &Verdict) -> Option<Line> {
        let before = self.verdict.map(|(last, _)| last);
        let state = before.map(|last| last.state);
        let fails = verdict.state.fails() && !state.is_some_and(State::fails);
        let rested = (self.verdict).is_none_or(|(_, at)| verdict.at.since(at) >= PAUSE);
        if !before.is_none_or(|last| verdict.differs(&last)) || !(rested || fails) {
            return None;
        }
        self.verdict = Some((LastVerdict::of(verdict), verdict.at));
        Some(Line {
            level: match verdict.state {
                // The state is the same, and only the cause is new.
                now if state == Some(now) => Level::INFO,
                State::Broken | State::Stale => Level::ERROR,
                // At start Unknown is normal, because there is no evidence yet.
                State::Unknown if state.is_none() => Level::INFO,
                State::Suspect | State::Degraded | State::Unknown => Level::WARN,
                State::Proven | State::Starting => Level::INFO,
            },
            what: "the verdict changed",
            old: state.map(|state| state.name().to_owned()),
            new: verdict.state.name().to_owned(),
            cause: cause(verdict),
            reason: verdict.reason(),
        })
    }
}

fn cause(verdict: &Verdict) -> Option<&'static str> {
    let why = verdict.why.map(Why::name);
    verdict.cause.map(Cause::name).or(why)
}

/// The level of a new answer, and whether eligibility alone explains it.
fn level(answer: &Answer, livez: &Answer, verdict: &Verdict) -> (Level, bool) {
    match (answer.status, answer.healthy) {
        (200, _) => (Level::INFO, false),
        // 503 is right for a node that leaves: it should get no new connections.
        (_, true) if verdict.eligibility.is_leaving() => (Level::INFO, true),
        (_, true) => (Level::WARN, true),
        // Only /healthz fails: during boot it waits for the first proof.
        (_, false) if livez.healthy => (Level::INFO, false),
        (_, false) => (Level::ERROR, false),
    }
}

#[cfg(test)]
mod tests;
