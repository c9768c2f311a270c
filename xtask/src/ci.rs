//! `cargo xtask ci`: the list that CI runs. A step that fails does not stop the next one.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::tally::Tally;
use crate::tools::{CARGO_DENY, TYPOS};
use crate::{build_ebpf, gen_docs, run, setup_ebpf, test, tidy};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these steps, by name, in the order of the list
    #[arg(value_name = "STEP")]
    only: Vec<String>,
}

type Act = fn() -> Result<()>;

/// The steps before the tests. Each counts as one test in the closing line.
const STEPS: [(&str, Act); 8] = [
    ("fmt", fmt),
    ("tidy", tidy::run),
    ("clippy", clippy),
    ("doc", doc),
    ("gen-docs", || {
        gen_docs::run(&gen_docs::Args { check: true })
    }),
    ("deny", deny),
    ("typos", typos),
    ("build-ebpf", ebpf),
];
const TEST: &str = "test";

pub(crate) fn run(args: &Args) -> Result<()> {
    let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).chain([TEST]).collect();
    if let Some(unknown) = args
        .only
        .iter()
        .find(|only| !names.contains(&only.as_str()))
    {
        bail!(
            "there is no step {unknown}; the steps are {}",
            names.join(", ")
        );
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let mut sum = Tally::default();
    let mut lines = Vec::new();
    for (name, act) in STEPS.into_iter().filter(|(name, _)| wanted(name)) {
        let (took, result) = timed(name, act);
        sum += if result.is_ok() {
            Tally::PASSED
        } else {
            Tally::FAILED
        };
        lines.push((name, took, result.err()));
    }
    if wanted(TEST) {
        let (took, result) = timed(TEST, || test::run_all(&test::Args::default()));
        match result {
            Ok(tally) => {
                sum += tally;
                let failed = (tally.failed > 0).then(|| anyhow::anyhow!("{tally}"));
                lines.push((TEST, took, failed));
            }
            Err(error) => {
                sum += Tally::FAILED;
                lines.push((TEST, took, Some(error)));
            }
        }
    }
    report(&lines);
    println!("{sum}");
    // The closing line stays the last one: what failed was said above.
    std::process::exit(i32::from(sum.failed > 0))
}

fn timed<T>(name: &str, act: impl FnOnce() -> Result<T>) -> (Duration, Result<T>) {
    eprintln!("\n== {name}");
    let start = Instant::now();
    let result = act();
    if let Err(error) = &result {
        eprintln!("error: {name}: {error:#}");
    }
    (start.elapsed(), result)
}

fn report(lines: &[(&str, Duration, Option<anyhow::Error>)]) {
    println!();
    for (name, took, error) in lines {
        let outcome = match error {
            None => "ok".to_owned(),
            Some(error) => format!("FAILED: {error:#}"),
        };
        println!("{name:<12} {:>7.1} s   {outcome}", took.as_secs_f64());
    }
}

fn fmt() -> Result<()> {
    run::run(run::cargo().args(["fmt", "--all", "--", "--check"]))
}

/// The host's crates; agent-ebpf is linted by `build-ebpf --check`, with its own compiler.
fn clippy() -> Result<()> {
    run::run(
        run::cargo()
            .args([
                "clippy",
                "--workspace",
                "--exclude",
                "agent-ebpf",
                "--all-targets",
            ])
            .args(["--", "-D", "warnings"]),
    )
}

fn doc() -> Result<()> {
    run::run(
        run::cargo()
            .args(["doc", "--workspace", "--exclude", "agent-ebpf", "--no-deps"])
            .arg("--document-private-items")
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// Without advisories: they need a database from the network (deny.toml).
fn deny() -> Result<()> {
    let deny = CARGO_DENY.ready()?;
    run::run(Command::new(deny).current_dir(run::root()).args([
        "--workspace",
        "--all-features",
        "check",
        "bans",
        "licenses",
        "sources",
    ]))
}

fn typos() -> Result<()> {
    let typos = TYPOS.ready()?;
    run::run(Command::new(typos).current_dir(run::root()))
}

fn ebpf() -> Result<()> {
    setup_ebpf::run()?;
    build_ebpf::run(&build_ebpf::Args::for_check())
}
