//! The body of `/drainz`, which `pathproof drain` reads back.

use pathproof_facts::time::Mono;
use pathproof_judge::drain::{Ask, DrainReason};
use serde::{Deserialize, Serialize};

use super::Report;

/// Whether new connections still arrive from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainReport {
    /// Whether the node counts as leaving: its Node object or the caller declares it.
    pub draining: bool,
    /// Reason for the answer; `quiet` is 200, all others 503.
    pub reason: DrainReason,
    /// The reason as a sentence, without its period.
    pub message: String,
    /// State of the Node object: `eligible`, `tainted`, `deleting` or `never_seen`.
    pub node: String,
    /// Time from which the node counts as leaving.
    pub since: Option<jiff::Timestamp>,
    /// New connections since the Node object showed the removal; `None` before that.
    pub connections: Option<u64>,
    /// New connections since the agent started.
    pub total: u64,
    /// Connections from the ranges of --drain-ignore-cidr, since the agent started. They do not count.
    pub ignored: u64,
    /// When the last connection that counts arrived, before or after the node began to leave.
    pub last_connection: Option<jiff::Timestamp>,
    /// Seconds without a new connection since the node began to leave, as far as it was observed.
    pub quiet_for: f64,
    /// Required seconds without a new connection.
    pub quiet: f64,
}

impl DrainReport {
    /// The answer to a request for `/drainz`, computed from a report.
    pub fn of(report: &Report, ask: &Ask, now: Mono) -> Self {
        let known = &report.drain;
        let answer = known.answer(ask, now);
        let wall = |at: Mono| {
            let ahead = i128::from(at.0) - i128::from(report.verdict.at.0);
            jiff::Timestamp::from_nanosecond(report.written.as_nanosecond() + ahead).ok()
        };
        Self {
            draining: answer.since.is_some(),
            reason: answer.reason,
            message: answer.message,
            node: report.verdict.eligibility.name().to_owned(),
            since: answer.since.and_then(wall),
            connections: known.since.map(|_| known.connections),
            total: known.counted.iter().sum(),
            ignored: known.ignored,
            last_connection: known.last.and_then(wall),
            quiet_for: answer.quiet_for.as_secs_f64(),
            quiet: ask.quiet.as_secs_f64(),
        }
    }

    /// Whether the caller has nothing left to wait for.
    pub fn is_quiet(&self) -> bool {
        self.reason == DrainReason::Quiet
    }
}
