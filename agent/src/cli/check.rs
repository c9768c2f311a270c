//! `pathproof check`: passes or fails each path from what was seen for a few seconds, and says it.
//!
//! What is seen comes from an agent that runs, asked here, or from `app`, which probes for itself.

use std::error::Error;
use std::thread;
use std::time::Duration;

use super::{Exit, FetchError, colours, fetch};
use crate::args::{CheckArgs, Output};
use agent_core::report::check::{Observed, Tally};
use agent_core::report::{Report, SentinelState};
use agent_core::trace::Lane;
use agent_core::verdict::{FamilyVerdict, LaneState, LaneView};

mod judge;
pub mod npd;
mod render;

pub use judge::{Checked, PathResult, Result as CheckResult, Source};
pub use render::render;

/// An agent that has just started is asked again so often, so far apart.
const ATTEMPTS: u32 = 50;
const AGAIN: Duration = Duration::from_millis(200);

/// Checks from the probes of an agent, where one answers at the admin port; nothing where none
/// does.
pub fn beside_agent(said: &CheckArgs) -> Option<Exit> {
    let address = &said.admin_address;
    let first = match ask(address) {
        Ok(report) => report,
        // Whatever answers there, if anything does, is none that can be asked.
        Err(
            FetchError::Unreachable { .. }
            | FetchError::Stranger { .. }
            | FetchError::Denied { .. }
            | FetchError::Broken { .. },
        ) => return None,
        Err(error) => return Some(fail(&error)),
    };
    if first.sentinel.state == SentinelState::Probing {
        thread::sleep(Duration::from_secs(said.seconds));
    }
    let last = match ask(address) {
        Ok(report) => report,
        Err(error) => return Some(fail(&error)),
    };
    let observed = Observed {
        time: last.verdict.at.since(first.verdict.at),
        tallies: between(&first, &last),
        report: last,
    };
    let source = Source::Agent {
        address: address.clone(),
        version: observed.report.agent.version.clone(),
    };
    Some(print(said, &Checked::of(&observed, source)))
}

/// Says what was seen without an agent.
pub fn show(said: &CheckArgs, observed: &Observed) -> Exit {
    print(said, &Checked::of(observed, Source::Itself))
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

/// What became of an agent's probes between two of its reports.
fn between(first: &Report, last: &Report) -> Vec<Tally> {
    let before = |family: &FamilyVerdict, lane: &LaneView| {
        let family = first.verdict.family(family.family)?;
        let same = |old: &&LaneView| (old.path, old.transport) == (lane.path, lane.transport);
        // One that was restarted counts from zero.
        family
            .lanes
            .iter()
            .find(same)
            .filter(|old| old.passed <= lane.passed && old.failed <= lane.failed)
            .filter(|_| first.agent.started == last.agent.started)
    };
    let mut tallies = Vec::new();
    for family in &last.verdict.families {
        for lane in family.lanes.iter().filter(|l| l.state != LaneState::Off) {
            let old = before(family, lane);
            tallies.push(tally(family, lane, old));
        }
    }
    tallies
}

fn tally(family: &FamilyVerdict, lane: &LaneView, old: Option<&LaneView>) -> Tally {
    let since = |now: u64, then: fn(&LaneView) -> u64| now.saturating_sub(old.map_or(0, then));
    let failed = since(lane.failed, |old| old.failed);
    let fails_now = lane.last_failure > lane.last_pass && failed > 0;
    let mut tally = Tally::new(Lane {
        path: lane.path,
        family: family.family,
        transport: lane.transport,
    });
    tally.passed = since(lane.passed, |old| old.passed);
    tally.failed = failed;
    tally.void = since(lane.void, |old| old.void);
    tally.in_row = match lane.state {
        LaneState::Failing => u64::from(lane.failures),
        LaneState::NeverWorked => failed,
        _ => u64::from(fails_now),
    };
    tally.cause = lane.cause;
    tally
}

#[cfg(test)]
mod tests;
