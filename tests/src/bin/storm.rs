//! `cargo xtask storm`: faults, harmless things, worlds of other software and trouble for the agent at
//! the random moments of a seed, and whether the answers were right all the while.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use node_tests::storm::{Settings, storm};

fn main() -> Result<ExitCode> {
    storm(&Settings::parse())
}
