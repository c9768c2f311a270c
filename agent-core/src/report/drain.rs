//! The body of `/drainz`, which `pathproof drain` reads back.

use serde::{Deserialize, Serialize};

use super::Report;
use crate::drain::{Ask, Reason};
use crate::time::Mono;

/// Whether new connections still come from outside. Spans are seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainReport {
    /// Whether the node counts as leaving: by its Node object, or by the caller's word.
    pub draining: bool,
    /// Reason for the answer; `quiet` is 200, all others 503.
    pub reason: Reason,
    /// The same in a sentence, without its period.
    pub message: String,
    /// State of the Node object: `eligible`, `tainted`, `deleting` or `never_seen`.
    pub node: String,
    /// Since when it counts as leaving.
    pub since: Option<jiff::Timestamp>,
    /// New connections since the Node object says that it leaves; none while it does not.
    pub connections: Option<u64>,
    /// New connections since the agent started.
    pub total: u64,
    /// Connections that do not count, of --drain-ignore-cidr, since the agent started.
    pub ignored: u64,
    /// Open connections over which something was sent within the idle time, while the Node object says that
    /// the node leaves; nothing where they are not counted.
    #[serde(default)]
    pub open: Option<u64>,
    /// Open ones beside these.
    #[serde(default)]
    pub idle: Option<u64>,
    /// When the last one came that counts, before the node left or after.
    pub last_connection: Option<jiff::Timestamp>,
    /// Time in seconds in which none came, since the node leaves and as far as that was seen.
    pub quiet_for: f64,
    /// Time in seconds in which none must come.
    pub quiet: f64,
}

impl DrainReport {
    /// The answer to a question, out of a report.
    pub fn of(report: &Report, ask: &Ask, now: Mono) -> Self {
        let known = &report.drain;
        let finding = known.judge(ask, now);
        let open = known.open_connections(now).ok();
        let open = open.map(|counted| counted.split(ask.idle));
        let wall = |at: Mono| {
            let ahead = i128::from(at.0) - i128::from(report.verdict.at.0);
            jiff::Timestamp::from_nanosecond(report.written.as_nanosecond() + ahead).ok()
        };
        Self {
            draining: finding.since.is_some(),
            reason: finding.reason,
            message: finding.message,
            node: report.verdict.eligibility.name().to_owned(),
            since: finding.since.and_then(wall),
            connections: known.since.map(|_| known.connections),
            total: known.counted.iter().sum(),
            ignored: known.ignored,
            open: open.map(|(active, _)| active),
            idle: open.map(|(_, idle)| idle),
            last_connection: known.last.and_then(wall),
            quiet_for: finding.quiet_for.as_secs_f64(),
            quiet: ask.quiet.as_secs_f64(),
        }
    }

    /// Whether there is nothing left to wait for.
    pub fn is_quiet(&self) -> bool {
        self.reason == Reason::Quiet
    }
}
