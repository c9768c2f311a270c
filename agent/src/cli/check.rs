//! `pathproof check`: the verdict on the node once, path by path, and an exit code for it.
//!
//! The verdict is that of an agent that runs, asked here, or of `app`, which probes for itself.

use std::error::Error;
use std::thread;
use std::time::Duration;

use super::{Exit, FetchError, colours, fetch};
use crate::args::{CheckArgs, Output};
use agent_core::report::Report;

mod checked;
pub mod npd;
mod render;

pub use checked::{Checked, PathResult, Result as CheckResult, Source};
pub use render::render;

/// An agent that has just started is asked again so often, so far apart.
const ATTEMPTS: u32 = 50;
const AGAIN: Duration = Duration::from_millis(200);

/// Checks by the verdict of an agent, where one answers at the admin port; nothing where none does.
pub fn beside_agent(said: &CheckArgs) -> Option<Exit> {
    let address = &said.admin.address;
    match ask(address) {
        Ok(report) => {
            let source = Source::Agent {
                address: address.clone(),
                version: report.agent.version.clone(),
            };
            let time = report.written.duration_since(report.agent.started);
            Some(print(
                said,
                &Checked::of(&report, source, time.unsigned_abs()),
            ))
        }
        // Whatever answers there, if anything does, is none that can be asked.
        Err(
            FetchError::Unreachable { .. }
            | FetchError::Stranger { .. }
            | FetchError::Denied { .. }
            | FetchError::Broken { .. },
        ) => None,
        Err(error) => Some(fail(&error)),
    }
}

/// Prints what was seen without an agent, by probes for so long.
pub fn show(said: &CheckArgs, report: &Report, time: Duration) -> Exit {
    print(said, &Checked::of(report, Source::Itself, time))
}

/// Says why nothing is known. Only a datapath that was seen to be broken is [`Exit::Failure`].
pub fn fail(error: &(dyn Error + 'static)) -> Exit {
    match super::fail(error) {
        Exit::Failure => Exit::Unknown,
        exit => exit,
    }
}

fn print(said: &CheckArgs, checked: &Checked) -> Exit {
    let printed = match said.output {
        Output::Text => super::print(&render(checked, colours())),
        Output::Json => super::print_json(checked),
    };
    match printed {
        Exit::Success => checked.result.exit(),
        exit => exit,
    }
}

fn ask(address: &str) -> Result<Report, FetchError> {
    let mut attempts = 0;
    loop {
        let report = fetch::fetch(address).and_then(|body| fetch::parse(address, &body));
        match report {
            Err(FetchError::TooEarly { .. }) if attempts < ATTEMPTS => thread::sleep(AGAIN),
            report => return report,
        }
        attempts += 1;
    }
}

#[cfg(test)]
mod tests;
