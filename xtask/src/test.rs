//! `cargo xtask test`: all tests, and one closing line `N passed, N failed, N skipped`.
//!
//! Host tests (unit, table and property tests of the default members) run for anyone. The tests
//! of package node-tests need root, those on a cluster also its servers: without them they are
//! named and counted as skipped, never left out in silence.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::tally::{Reader, Tally};
use crate::{host, run, setup_cluster};

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Only what needs neither root nor a kernel: unit, table and property tests
    #[arg(long)]
    fast: bool,
    /// Only tests whose name contains this
    filter: Option<String>,
}

const NODE: &str = "kernel and namespace tests";
const CLUSTER: &str = "cluster tests (tests/cluster)";
/// Cargo leaves this one out unless it is named (tests/Cargo.toml).
const CLUSTER_TARGET: [&str; 2] = ["--test", "cluster"];

/// What one step came to.
struct Step {
    name: &'static str,
    took: Duration,
    tally: Tally,
    /// Tests that were skipped, with the reason.
    skipped: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let tally = run_all(args)?;
    println!("{tally}");
    if tally.failed > 0 {
        bail!("{} tests failed", tally.failed);
    }
    Ok(())
}

/// Runs the tests and reports on them, without the closing line: CI adds its own steps to it.
pub(crate) fn run_all(args: &Args) -> Result<Tally> {
    let mut steps = vec![step("host tests", || host_tests(args))];
    if args.fast {
        println!("--fast: the tests on a real kernel (package node-tests) were left out");
    } else if host::is_root() {
        steps.push(step(NODE, || node_tests(args)));
        steps.push(step(CLUSTER, || cluster_tests(args)));
    } else {
        steps.push(step(NODE, || without_root(args, &[])));
        steps.push(step(CLUSTER, || without_root(args, &CLUSTER_TARGET)));
    }
    Ok(report(&steps))
}

fn step(name: &'static str, act: impl FnOnce() -> Result<(Tally, Vec<String>)>) -> Step {
    let start = Instant::now();
    let (tally, skipped) = act().unwrap_or_else(|error| {
        eprintln!("error: {name}: {error:#}");
        (Tally::FAILED, Vec::new())
    });
    Step {
        name,
        took: start.elapsed(),
        tally,
        skipped,
    }
}

fn host_tests(args: &Args) -> Result<(Tally, Vec<String>)> {
    follow(run::cargo().arg("test"), args)
}

fn node_tests(args: &Args) -> Result<(Tally, Vec<String>)> {
    host::install_world("the namespace tests")?;
    let agent = run::build_program("pathproof", "pathproof", "dev")?;
    let mut command = run::cargo();
    command
        .args(["test", "--package", "node-tests"])
        .env("PATHPROOF_AGENT", agent)
        // These tests wait for packets most of the time: more at once than there are processors.
        .env("RUST_TEST_THREADS", "5");
    follow(&mut command, args)
}

/// The tests with a real API server and kube-proxy. They say themselves that these are missing; why
/// they could not be had is said here.
fn cluster_tests(args: &Args) -> Result<(Tally, Vec<String>)> {
    host::install_world("the cluster tests")?;
    let agent = run::build_program("pathproof", "pathproof", "dev")?;
    let mut command = run::cargo();
    command
        .args(["test", "--package", "node-tests"])
        .args(CLUSTER_TARGET)
        .env("PATHPROOF_AGENT", agent)
        // Each has an API server of its own.
        .env("RUST_TEST_THREADS", "2");
    match setup_cluster::ready() {
        Ok(servers) => {
            command.env("PATHPROOF_CLUSTER_SERVERS", servers);
        }
        Err(error) => eprintln!("the cluster tests are skipped: {error:#}"),
    }
    follow(&mut command, args)
}

/// Names what root would have run. It is compiled all the same: it must not rot.
fn without_root(args: &Args, target: &[&str]) -> Result<(Tally, Vec<String>)> {
    let mut names = Vec::new();
    let mut list = run::cargo();
    list.args(["test", "--quiet", "--package", "node-tests"])
        .args(target)
        .args(filter(args));
    list.args(["--", "--list", "--format", "terse"]);
    let status = run::lines(&mut list, |line| {
        names.extend(
            line.strip_suffix(": test")
                .map(|name| format!("{name}: needs root")),
        );
    })?;
    if !status.success() {
        bail!("the tests of node-tests do not compile");
    }
    Ok((
        Tally {
            skipped: names.len(),
            ..Tally::default()
        },
        names,
    ))
}

fn filter(args: &Args) -> Option<&OsStr> {
    args.filter.as_deref().map(OsStr::new)
}

/// Runs `cargo test ...`, shows what it prints and counts.
fn follow(command: &mut Command, args: &Args) -> Result<(Tally, Vec<String>)> {
    let mut reader = Reader::default();
    command
        .arg("--no-fail-fast")
        .args(filter(args))
        .args(["--", "--show-output"]);
    let status = run::lines(command, |line| {
        if reader.line(line) {
            println!("{line}");
        }
    })?;
    let (mut tally, skipped) = reader.finish();
    if !status.success() && tally.failed == 0 {
        // It did not compile, or a test binary died without a result.
        tally += Tally::FAILED;
    }
    Ok((tally, skipped))
}

fn report(steps: &[Step]) -> Tally {
    let mut sum = Tally::default();
    println!();
    for Step { skipped, .. } in steps {
        for line in skipped {
            println!("SKIPPED  {line}");
        }
    }
    if steps.iter().any(|step| !step.skipped.is_empty()) && !host::is_root() {
        println!("SKIPPED tests run as root: sudo -E env \"PATH=$PATH\" cargo xtask test");
    }
    for Step {
        name, took, tally, ..
    } in steps
    {
        println!("{name:<30} {:>7.1} s   {tally}", took.as_secs_f64());
        sum += *tally;
    }
    sum
}
