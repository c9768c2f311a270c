//! `cargo xtask fuzz`: untrusted bytes, mutated for as long as one likes (libFuzzer), with the
//! stable compiler: the flags are those of cargo-fuzz without a sanitizer.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// What libFuzzer needs to see which code an input reaches.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to feed: objects of an API server, or text of manifests
    #[arg(value_parser = ["api_objects", "manifests"])]
    target: String,
    /// Seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Args { target, seconds } = args;
    let folder = run::root().join("fuzz");
    let host = run::first_line(Command::new("rustc").args(["--print", "host-tuple"]))
        .context("rustc does not say what it builds for")?;
    // A target of its own keeps the flags away from build scripts and macros.
    let mut build = run::cargo();
    build
        .current_dir(&folder)
        .args(["build", "--release", "--bin", target, "--target", &host])
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", run::root().join("target/fuzz"));
    run::run(&mut build).context("the fuzzer needs a C++ compiler (apt-get install g++)")?;
    // What it finds stays in target; what it finds wrong is written beside it and named.
    let found = run::root().join("target/fuzz/corpus").join(target);
    fs::create_dir_all(&found).with_context(|| format!("make {}", found.display()))?;
    let program = run::root()
        .join("target/fuzz")
        .join(host)
        .join("release")
        .join(target);
    let artifacts = format!("-artifact_prefix={}/wrong-", found.display());
    let mut fuzz = Command::new(program);
    fuzz.arg(found)
        .arg(folder.join("seeds").join(target))
        .args(["-max_len=16384", &artifacts])
        .arg(format!("-max_total_time={seconds}"));
    run::run(&mut fuzz)
}
