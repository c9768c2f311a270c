//! `cargo xtask storm`: faults, harmless actions, other software and agent faults at random moments of
//! one seed, and the check of all answers.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use node_tests::storm::{Settings, storm};

fn main() -> Result<ExitCode> {
    storm(&Settings::parse())
}
