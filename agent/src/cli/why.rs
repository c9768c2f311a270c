//! `pathproof why`: how a running agent's verdict came about, as a person would tell it, or as
//! JSON.

use super::{Exit, colours, fetch};
use crate::args::{Output, WhyArgs};
use agent_core::report::Report;

mod chain;
mod render;
mod stages;

pub use chain::Chain;
pub use render::render;

/// Runs the command.
pub fn run(said: &WhyArgs) -> Exit {
    if let Some(at) = &said.at {
        return match super::recording::report_at(at, said) {
            Ok(report) => show(&report, said.output),
            Err(error) => super::fail(&error),
        };
    }
    let address = &said.admin.address;
    match fetch::fetch(address).and_then(|body| fetch::parse(address, &body)) {
        Ok(report) => show(&report, said.output),
        Err(error) => super::fail(&error),
    }
}

fn show(report: &Report, output: Output) -> Exit {
    let chain = Chain::of(report);
    match output {
        Output::Text => super::print(&render(&chain, colours())),
        Output::Json => super::print_json(&chain),
    }
}

#[cfg(test)]
mod tests;
