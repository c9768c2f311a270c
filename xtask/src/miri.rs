//! `cargo xtask miri`: runs the kernel-side code and the core in an interpreter that stops at
//! undefined behaviour. It is a hundred times slower than the processor, so tests with many rounds
//! are skipped, and properties get few cases.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

const PARTS: [Part; 2] = [
    Part {
        what: "pathproof-wire, which the kernel runs",
        package: "--package pathproof-wire --all-features",
        left_out: "sources_are_spread one_connection_one_outcome dns_at_the_full_rate \
                   each_byte_and_each_length rates_of_any_content marks_of_every_turn",
    },
    Part {
        what: "the core",
        package: "--package pathproof-facts --package pathproof-plan --package pathproof-witness \
                  --package pathproof-judge --package pathproof-node --package pathproof-rotator",
        left_out: "within_a_budget in_the_end_what_stands_is_written nodes_are_spread_evenly",
    },
];

/// A package to interpret.
struct Part {
    what: &'static str,
    package: &'static str,
    /// Tests to skip, because they play thousands of rounds.
    left_out: &'static str,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only tests whose name contains this, in pathproof-wire and the agent
    filter: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ready()?;
    for part in PARTS {
        println!("interpreting {}", part.what);
        run::run(
            rustup_cargo()
                .args(["miri", "test", "--no-fail-fast"])
                .args(part.package.split(' '))
                .arg("--")
                .args(args.filter.as_deref())
                .args(part.left_out.split(' ').flat_map(|test| ["--skip", test]))
                // proptest reads a variable and the current folder, which Miri's isolation forbids.
                .env("MIRIFLAGS", "-Zmiri-disable-isolation")
                .env("PROPTEST_CASES", "2"),
        )?;
    }
    Ok(())
}

/// Only the nightly compiler has Miri.
fn ready() -> Result<()> {
    let there = || run::first_line(rustup_cargo().args(["miri", "--version"])).is_some();
    if there() {
        return Ok(());
    }
    let install = "toolchain install nightly --profile minimal --component miri,rust-src";
    run::run(Command::new("rustup").args(install.split(' ')))
        .context("Miri needs rustup's nightly compiler with miri and rust-src")?;
    if !there() {
        bail!("rustup brought no Miri: try `rustup component add miri --toolchain nightly`");
    }
    Ok(())
}

/// rustup's nightly cargo, since the cargo that runs this task may be another one.
fn rustup_cargo() -> Command {
    let mut command = Command::new("rustup");
    command
        .current_dir(run::root())
        .args(["run", "nightly", "cargo"])
        .env("CARGO_TARGET_DIR", run::root().join("target/miri"))
        .env_remove("RUSTC");
    command
}
