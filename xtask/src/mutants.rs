//! `cargo xtask mutants`: mutates the code that decides an answer, one place at a time, and fails
//! for each mutation that no unit test of judge and node detects (cargo-mutants).
//!
//! It works on a copy of the repository, and never changes the original files.

use std::process::Command;

use anyhow::Result;

use crate::run;
use crate::tools::Tool;

const CARGO_MUTANTS: Tool = Tool::new("cargo-mutants", "27.1.0");

/// The decision, and the files between a verdict and its answer: a single wrong line here gives a
/// wrong 503 or 200.
const FILES: [&str; 6] = [
    "answer.rs",
    "brake.rs",
    "damping.rs",
    "verdict/decision.rs",
    "verdict/programming.rs",
    "verdict/witnesses.rs",
];

/// Mutations that are not made, because these tests do not cover them.
const EQUIVALENT: [&str; 2] = [
    // Tests of other crates compare texts for people with samples.
    "impl (fmt::)?Display",
    "impl (fmt::)?Debug",
];

/// Packages to build for each mutation. Without optimization that takes 10 s in place of a minute.
const UNOPTIMIZED: [&str; 2] = ["pathproof-judge", "pathproof-node"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Change only this file, a path inside the repository [default: the files that decide an answer]
    #[arg(long, value_name = "FILE")]
    file: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut command = Command::new(CARGO_MUTANTS.ready()?);
    command
        .current_dir(run::root())
        .args(["mutants", "--package", "pathproof-judge", "--no-shuffle"])
        // The tests of the whole node cover what those of the judge cannot.
        .args([
            "--test-package=pathproof-judge",
            "--test-package=pathproof-node",
        ])
        .args(["--output", "target", "--timeout", "300"])
        .args(UNOPTIMIZED.map(|package| {
            format!("--cargo-arg=--config=profile.dev.package.{package}.opt-level=0")
        }))
        .args(EQUIVALENT.iter().flat_map(|what| ["--exclude-re", what]));
    match args.file.as_slice() {
        [] => command.args(FILES.map(|name| format!("--file=crates/judge/src/{name}"))),
        files => command.args(files.iter().map(|file| format!("--file={file}"))),
    };
    // Only a few cases of each property: all of them would take a minute for each mutation.
    command.envs([("PROPTEST_CASES", "8"), ("CARGO_INCREMENTAL", "1")]);
    run::run(command.args(["--", "--lib"]))
}
