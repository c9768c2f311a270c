//! `cargo xtask storm`: performs faults, harmless actions, effects of other software and agent faults at
//! random moments of one seed, and checks all answers.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use node_tests::storm::{Settings, storm};

fn main() -> Result<ExitCode> {
    storm(&Settings::parse())
}
