//! `pathproof check --npd`: reports the agent's verdict as a custom plugin of node-problem-detector. It
//! prints one line on standard output, and exits with 0 for no problem, 1 for a problem, 2 for unknown
//! (kubernetes/node-problem-detector, pkg/custompluginmonitor/types/types.go).
//!
//! It queries the agent and probes nothing, so it is quick and needs no privilege. deploy/npd
//! contains the monitor's configuration.

use std::time::Duration;

use jiff::Timestamp;
use pathproof_facts::text::visible;
use pathproof_facts::time::HumanDuration;
use pathproof_judge::eligibility::Eligibility;
use pathproof_judge::explain::label;
use pathproof_report::Report;
use pathproof_report::condition::{Status, condition};

use crate::args::CheckArgs;
use crate::cli::{self, Exit, fetch};

/// Default of node-problem-detector's `max_output_length`, in bytes.
const LONGEST: usize = 80;
/// Age from which a report is outdated: the agent writes at least two a second.
const OLD: Duration = Duration::from_secs(10);

/// Runs the command. `now` reads the wall clock.
pub fn run(args: &CheckArgs, now: fn() -> Timestamp) -> Exit {
    let (status, text) = match fetch::report(&args.admin.address, fetch::PLUGIN) {
        Ok((report, _)) => of_report(&report, now()),
        Err(error) => (Exit::PluginUnknown, error.to_string()),
    };
    match cli::print(&format!("{}\n", line(&text))) {
        Exit::Success => status,
        // The line could not be written.
        _ => Exit::PluginUnknown,
    }
}

fn of_report(report: &Report, now: Timestamp) -> (Exit, String) {
    let verdict = &report.verdict;
    if let Ok(age) = Duration::try_from(now.duration_since(report.written))
        && age > OLD
    {
        let text = format!("the agent's last verdict is {} old", HumanDuration(age));
        return (Exit::PluginUnknown, text);
    }
    // The removal of a node is intended, so it is no problem, even if the datapath fails.
    // node-problem-detector has no separate state for it.
    match &verdict.eligibility {
        Eligibility::Deleting => {
            let text = "leaving: the Node is being deleted";
            return (Exit::Success, text.to_owned());
        }
        Eligibility::Tainted { taint } => {
            return (Exit::Success, format!("leaving: taint {taint}"));
        }
        Eligibility::Eligible | Eligibility::NeverSeen => {}
    }
    let livez = report.answers.livez;
    let sound = livez.status == 200 && !livez.would_fail;
    let status = match condition(verdict, sound).status {
        Status::True => Exit::Success,
        Status::False => Exit::Failure,
        Status::Unknown => Exit::PluginUnknown,
    };
    let cause = verdict.cause.map(|cause| cause.name());
    let why = cause.or(verdict.why.map(|why| why.name()));
    let why = why.map_or(String::new(), |why| format!(" {}", label(why)));
    let text = format!("{}{why}: {}", verdict.state.name(), verdict.reason());
    (status, text)
}

/// One line, truncated at a character boundary if it is too long.
fn line(text: &str) -> String {
    const ELLIPSIS: &str = "…";
    let mut line = visible(&text.replace('\n', " ")).into_owned();
    if line.len() > LONGEST {
        line.truncate(line.floor_char_boundary(LONGEST - ELLIPSIS.len()));
        line.push_str(ELLIPSIS);
    }
    line
}

#[cfg(test)]
mod tests;
