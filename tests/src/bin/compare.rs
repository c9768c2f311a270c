//! `cargo xtask compare`: plays cases of the simulator in network namespaces too, and compares the verdicts.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use node_tests::compare::{Settings, compare_all};

fn main() -> Result<ExitCode> {
    compare_all(&Settings::parse())
}
