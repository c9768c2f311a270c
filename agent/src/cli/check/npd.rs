//! `pathproof check --npd`: what the node's agent says, as a custom plugin of node-problem-detector
//! says it: one line on standard output, and 0 for no problem, 1 for a problem, 2 for unknown
//! (kubernetes/node-problem-detector, pkg/custompluginmonitor/types/types.go).
//!
//! The agent is asked and nothing is probed, so it is quick and needs no privilege. deploy/npd has
//! the monitor's configuration.

use std::time::Duration;

use jiff::Timestamp;

use super::super::fetch::{self, Patience};
use super::super::{Exit, FetchError};
use crate::args::CheckArgs;
use agent_core::condition::{Status, standing};
use agent_core::eligibility::Eligibility;
use agent_core::explain::label;
use agent_core::report::Report;
use agent_core::time::Spoken;

/// node-problem-detector's `max_output_length` where none is set, in bytes.
const LONGEST: usize = 80;
/// Together below its timeout of 5 s.
const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(1),
    read: Duration::from_secs(3),
};
/// A report this old was not renewed: the agent writes two a second at least.
const OLD: Duration = Duration::from_secs(10);

/// What is said to node-problem-detector.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    status: Exit,
    line: String,
}

/// Runs the command. `now` reads the wall clock.
pub fn run(said: &CheckArgs, now: fn() -> Timestamp) -> Exit {
    let address = &said.admin.address;
    let report = fetch::fetch_within(address, PATIENCE)
        .and_then(|body| fetch::parse(address, &body))
        .map_err(Box::new);
    let said = match report {
        Ok(report) => of_report(&report, now()),
        Err(error) => of_error(&error),
    };
    match super::super::print(&format!("{}\n", said.line)) {
        Exit::Success => said.status,
        // Nobody heard it.
        _ => Exit::PluginUnknown,
    }
}

fn of_report(report: &Report, now: Timestamp) -> Said {
    let verdict = &report.verdict;
    let age = now.duration_since(report.written);
    if let Ok(age) = Duration::try_from(age)
        && age > OLD
    {
        let line = format!("the agent stopped judging {} ago", Spoken(age));
        return told(Exit::PluginUnknown, &line);
    }
    // Expected, whatever its datapath does: node-problem-detector has no word for that.
    match &verdict.eligibility {
        Eligibility::Deleting => return told(Exit::Success, "leaving: the Node is being deleted"),
        Eligibility::Tainted { taint } => {
            return told(Exit::Success, &format!("leaving: taint {taint}"));
        }
        Eligibility::Eligible | Eligibility::NeverSeen => {}
    }
    let livez = report.answers.livez;
    let sound = livez.status == 200 && !livez.would_fail;
    let status = match standing(verdict, sound).status {
        Status::True => Exit::Success,
        Status::False => Exit::Failure,
        Status::Unknown => Exit::PluginUnknown,
    };
    let cause = verdict.cause.map(|cause| cause.name());
    let why = cause.or(verdict.why.map(|why| why.name()));
    let why = why.map_or(String::new(), |why| format!(" {}", label(why)));
    told(
        status,
        &format!("{}{why}: {}", verdict.state.name(), verdict.reason()),
    )
}

fn of_error(error: &FetchError) -> Said {
    let line = match error {
        FetchError::Address { address, .. } => format!("{address:?} is no HOST:PORT of an agent"),
        FetchError::Unreachable { address, .. } => format!("no agent answers at {address}"),
        FetchError::Broken { address, .. } => format!("the agent at {address} does not answer"),
        FetchError::Denied { address } => {
            format!("the agent at {address} lets nobody ask (--admin-allow-cidr)")
        }
        FetchError::TooEarly { .. } => "the agent has no verdict yet".to_owned(),
        FetchError::Stranger { address, .. } => format!("no agent of pathproof is at {address}"),
        FetchError::Schema { .. } => "the agent is of another version of pathproof".to_owned(),
    };
    told(Exit::PluginUnknown, &line)
}

/// One line, cut at a character where it is too long.
fn told(status: Exit, text: &str) -> Said {
    const ELLIPSIS: &str = "…";
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if line.len() > LONGEST {
        line.truncate(line.floor_char_boundary(LONGEST - ELLIPSIS.len()));
        line.push_str(ELLIPSIS);
    }
    Said { status, line }
}

#[cfg(test)]
mod tests;
