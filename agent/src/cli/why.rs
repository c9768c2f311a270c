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
    let address = &said.admin_address;
    match fetch::fetch(address).and_then(|body| fetch::parse(address, &body)) {
        Ok(report) => show(&report, said.output),
        Err(error) => super::fail(&error),
    }
}

/// Prints the page of a report.
pub fn show(report: &Report, output: Output) -> Exit {
    let chain = Chain::of(report);
    match output {
        Output::Text => super::print(&render(&chain, colours())),
        Output::Json => super::print_json(&chain),
    }
}

#[cfg(test)]
mod tests;
