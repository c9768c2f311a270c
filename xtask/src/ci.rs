//! `cargo xtask ci`: the list that CI runs. A step that fails does not stop the next one, and a skip
//! that is not listed in .ci/skips.txt is a failure.

mod skips;

use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::tally::{Counted, Tally};
use crate::tools::{CARGO_DENY, TYPOS};
use crate::{
    ahead, build_ebpf, demo, excused, fuzz, gen_docs, image, run, setup_ebpf, storm, test, tidy,
    workflows,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of the steps to run [default: all]
    #[arg(value_name = "STEP")]
    only: Vec<String>,
}

type Act = fn() -> Result<Counted>;

/// In this order: what is shipped takes longest to build, and most of it is built ahead while the
/// tests wait.
const STEPS: [(&str, Act); 17] = [
    ("fmt", || one(fmt())),
    ("tidy", || one(tidy::run())),
    ("clippy", || one(clippy())),
    ("doc", || one(doc())),
    ("gen-docs", || {
        one(gen_docs::run(&gen_docs::Args { check: true }))
    }),
    ("core", || one(core_is_pure())),
    ("deny", || one(deny())),
    ("typos", || one(typos())),
    ("workflows", workflows::for_ci),
    ("build-ebpf", || one(ebpf())),
    ("advisories", advisories),
    ("test", || test::run_all(&test::Args::for_ci())),
    ("kernels", || test::run_all(&test::Args::on_other_kernels())),
    ("storm", storm::for_ci),
    ("demo", demo::for_ci),
    ("fuzz", || one(fuzz::every_target(10))),
    ("image", || one(image::for_ci())),
];

/// A step that counts as one test in the closing line.
fn one(done: Result<()>) -> Result<Counted> {
    done.map(|()| Tally::PASSED.into())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let names = STEPS.map(|(name, _)| name);
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
    let accepted = skips::Accepted::read()?;
    let mut sum = Tally::default();
    let (mut lines, mut unsteady, mut panics) = (Vec::new(), Vec::new(), Vec::new());
    let mut unlisted = Vec::new();
    let ahead = args.only.is_empty().then(ahead::begin);
    for (name, act) in STEPS.into_iter().filter(|(name, _)| wanted(name)) {
        let (took, result) = timed(name, act);
        let (tally, error) = match result {
            Ok(mut counted) => {
                unlisted.extend(accepted.hold(&mut counted));
                unsteady.extend(counted.unsteady);
                panics.extend(counted.panics);
                let failed = counted.tally.failed > 0;
                let error = failed.then(|| anyhow::anyhow!("{}", counted.tally));
                (counted.tally, error)
            }
            Err(error) => (Tally::FAILED, Some(error)),
        };
        sum += tally;
        lines.push((name, took, error));
    }
    // Its last part is what the last step built, or waited for.
    ahead.map(JoinHandle::join);
    let kept = excused::keep(&unsteady, &panics)?;
    for panic in panics {
        println!("\n{panic}");
    }
    report(&lines);
    for skip in unlisted {
        println!("UNLISTED     {skip}: CI accepts only the skips in .ci/skips.txt");
    }
    for test in unsteady {
        let kept = kept.display();
        println!("UNSTEADY     {test} failed in parallel and passed alone: fix it ({kept})");
    }
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
    let clippy = |targets: &[&str]| {
        run::run(
            run::cargo()
                .arg("clippy")
                .args(targets)
                .args(["--", "-D", "warnings"]),
        )
    };
    clippy(&["--workspace", "--exclude", "agent-ebpf", "--all-targets"])?;
    // Tests that run only where they are named are not among all targets.
    clippy(&[
        "--package",
        "node-tests",
        "--test",
        "cluster",
        "--test",
        "deploy",
        "--test",
        "install",
        "--test",
        "worlds",
        "--test",
        "cilium",
    ])
}

fn doc() -> Result<()> {
    run::run(
        run::cargo()
            .args(["doc", "--workspace", "--exclude", "agent-ebpf", "--no-deps"])
            .arg("--document-private-items")
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// No library that does I/O is in the dependency tree of agent-core, however far down.
fn core_is_pure() -> Result<()> {
    const IMPURE: [&str; 9] = [
        "aya",
        "axum",
        "hyper",
        "k8s_openapi",
        "kube",
        "libc",
        "mio",
        "socket2",
        "tokio",
    ];
    let tree = run::output(
        run::cargo()
            .args(["tree", "--package", "agent-core"])
            .args(["--edges", "normal", "--prefix", "none", "--format", "{lib}"]),
    )?;
    let tree = String::from_utf8_lossy(&tree);
    let found: Vec<&str> = tree
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|name| IMPURE.contains(name))
        .collect();
    if !found.is_empty() {
        bail!("agent-core must not depend on {}", found.join(", "));
    }
    Ok(())
}

/// Without advisories: they are a step of their own.
fn deny() -> Result<()> {
    run::run(cargo_deny()?.args(["check", "bans", "licenses", "sources"]))
}

/// Their database is a repository of RustSec's. Where it cannot be cloned nothing is known, which is
/// said and fails nothing: CI has to work where only a package registry can be reached.
fn advisories() -> Result<Counted> {
    if let Err(error) = run::run(cargo_deny()?.args(["fetch", "db"])) {
        let why = format!("the database of RustSec cannot be fetched ({error:#})");
        return Ok(Counted::skip("advisories", &why));
    }
    run::run(cargo_deny()?.args(["check", "advisories"]))?;
    Ok(Tally::PASSED.into())
}

fn cargo_deny() -> Result<Command> {
    let mut command = Command::new(CARGO_DENY.ready()?);
    command.current_dir(run::root());
    command.args(["--workspace", "--all-features"]);
    Ok(command)
}

fn typos() -> Result<()> {
    let typos = TYPOS.ready()?;
    run::run(Command::new(typos).current_dir(run::root()))
}

fn ebpf() -> Result<()> {
    setup_ebpf::run()?;
    build_ebpf::run(&build_ebpf::Args::for_check())
}
