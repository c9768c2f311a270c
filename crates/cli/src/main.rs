//! `kubectl pathproof` for systems that no agent runs on, such as macOS and Windows: the fleet's commands, and those of
//! `pathproof` that need neither an agent on this machine nor Linux. The program `pathproof` has all commands.

use std::process::ExitCode;

use clap::Parser;
use jiff::Timestamp;
use pathproof_cli::args::{Plugin, PreflightArgs, ReplayArgs};
use pathproof_cli::{fleet, preflight, recording, refused};
use pathproof_facts::time::Wall;

/// Commands in addition to the plugin's. The first word selects the parser: the plugin's global options, such as
/// --output, must not be added to these commands.
#[derive(Parser)]
#[command(
    name = "kubectl pathproof",
    bin_name = "kubectl pathproof",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
enum Beside {
    /// Check a cluster before anything is installed: nodes, proxy, addresses, load balancers, rights
    ///
    /// Runs kubectl, which must be in PATH, and changes nothing.
    Preflight(PreflightArgs),
    /// Replay a recording: show its verdicts over time, and whether this version reaches the same
    /// ones
    Replay(ReplayArgs),
}

fn main() -> ExitCode {
    let first = std::env::args().nth(1);
    let exit = match first.as_deref() {
        Some("preflight" | "replay") => Beside::try_parse().map(|beside| match beside {
            Beside::Preflight(args) => preflight::run(&args),
            Beside::Replay(args) => recording::run_replay(&args),
        }),
        _ => Plugin::try_parse().map(|plugin| fleet::run(&plugin.fleet, now())),
    };
    exit.unwrap_or_else(|error| refused(&error)).into()
}

/// The wall clock. A time after 2262 becomes the latest that fits.
#[expect(
    clippy::disallowed_methods,
    reason = "the only reader of a clock in this program"
)]
fn now() -> Wall {
    Wall::of(Timestamp::now()).unwrap_or(Wall(i64::MAX))
}
