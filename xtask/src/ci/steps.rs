//! The steps of CI and of the nightly run.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::tally::{Counted, Tally};
use crate::tools::{CARGO_DENY, TYPOS};
use crate::{demo, run, setup_cluster, setup_ebpf, storm, test, workflows};

pub(crate) struct Step {
    pub(super) name: &'static str,
    act: Act,
    /// Builds the step's tools, which `act` would otherwise build itself.
    pub(super) tools: Option<fn() -> Result<()>>,
    pub(super) place: Place,
}

/// When a step runs.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// After the previous step.
    InTurn,
    /// In parallel with neighbours that have this place too, because the step waits most of the
    /// time. This function builds its programs before any of them starts.
    Together(fn() -> Result<()>),
    /// From here on, in the time that later steps leave idle, and at the latest after the last
    /// step. If only some steps were requested, it runs in turn.
    Idle,
}

enum Act {
    Count(fn() -> Result<Counted>),
    /// Counts as one test in the closing line.
    One(fn() -> Result<()>),
    /// The command line of another task of xtask, which counts tests itself.
    Task(&'static str),
}

use Act::{Count, One, Task};

const fn step(name: &'static str, act: Act) -> Step {
    Step {
        name,
        act,
        tools: None,
        place: Place::InTurn,
    }
}

impl Step {
    const fn needs(self, tools: fn() -> Result<()>) -> Self {
        Step {
            tools: Some(tools),
            ..self
        }
    }

    const fn together(self, build: fn() -> Result<()>) -> Self {
        Step {
            place: Place::Together(build),
            ..self
        }
    }

    const fn idle(self) -> Self {
        Step {
            place: Place::Idle,
            ..self
        }
    }

    pub(super) fn act(&self) -> Result<Counted> {
        match self.act {
            Count(act) => return act(),
            One(act) => act()?,
            Task(line) => match crate::parsed(line)? {
                crate::Task::Test(args) => return test::run_all(&args),
                task => crate::run_task(task)?,
            },
        }
        Ok(Tally::PASSED.into())
    }
}

/// The steps that guard each landing. Steps after the tests need tools that are built while tests wait.
/// Clippy and rustdoc use that time too, once the tools are built, because nothing needs their results.
pub(crate) const CI: &[Step] = &[
    step("fmt", One(fmt)),
    step("tidy", Task("tidy")),
    step("clippy", One(clippy)).idle(),
    step("doc", One(doc)).idle(),
    step("gen-docs", Task("gen-docs --check")),
    step("core", One(core_is_pure)),
    step("test", Task("test --in-ci nodes")).needs(setup_cluster::for_nodes),
    // Not in parallel: beside the storm's floods, the demo misses a fault.
    step("demo", Count(demo::for_ci)),
    step("storm", Count(storm::for_ci)).together(storm::build_for_ci),
    step("build-ebpf", One(ebpf))
        .needs(setup_ebpf::run)
        .together(setup_ebpf::run),
    // This step and those below come last, because their tools take longest to build.
    step("clusters", Task("test --in-ci clusters")).needs(setup_cluster::for_clusters),
    step("deny", One(deny)).needs(|| CARGO_DENY.ready().map(drop)),
    step("advisories", Count(advisories)),
    step("typos", One(typos)).needs(|| TYPOS.ready().map(drop)),
    step("workflows", Count(workflows::for_ci)).needs(|| workflows::ACTIONLINT.ready().map(drop)),
];

/// Steps that take too long for each landing, or that few changes can break. Each is a job of
/// .github/workflows/nightly.yml.
pub(crate) const NIGHTLY: &[Step] = &[
    step("worlds", Task("test --worlds")),
    step("cilium", Task("test --cilium")),
    step("proxies", Task("test --proxies")),
    step("uses", Task("test --uses")),
    step("install", Task("test --only-install")),
    step("install-v2", Task("test --kernels --install")),
    step("kernels", Task("test --kernels")),
    step("fuzz", Task("fuzz all --seconds 900")),
    step("miri", Task("miri")),
    step("mutants", Task("mutants")),
    step("judgement", One(judgement)),
    step("sim", Task("sim --hours 20000")),
    step("compare", Task("compare --cases 200")),
    step("sanitize", Task("test --sanitize")),
    step("image", Task("image --check --arch amd64,arm64")),
    step("release", Task("release")),
    // Four storms: today's seed with all users, and fixed seeds with clients outside, with one pod, and with
    // attackers.
    step("storm", Task("storm --minutes 120 --api")),
    step(
        "storm-1",
        Task("storm --seed 1 --minutes 60 --api --users outside"),
    ),
    step(
        "storm-2",
        Task("storm --seed 2 --minutes 60 --api --users one-pod"),
    ),
    step(
        "storm-3",
        Task("storm --seed 3 --minutes 60 --api --attackers"),
    ),
    step("bench-packet", Task("bench packet")),
    step("bench-idle", Task("bench idle")),
    step("bench-boot", Task("bench boot")),
    step("bench-detect", Task("bench detect")),
    step("bench-load", Task("bench load")),
    step("bench-http", Task("bench http")),
    step("bench-rotator", Task("bench rotator")),
    step("bench-dashboard", Task("bench dashboard")),
    step("bench-scale", Task("bench scale --cluster")),
    step("bench-soak", Task("bench soak --minutes 60")),
    step("newcomer", Task("newcomer")),
];

fn fmt() -> Result<()> {
    run::run(run::cargo().args(["fmt", "--all", "--", "--check"]))
}

/// Lints the host's crates; `build-ebpf --check` lints pathproof-ebpf with the eBPF compiler.
fn clippy() -> Result<()> {
    // `--all-targets` excludes tests that run only if named. Both runs select the same packages, so that
    // their features are equal and the tests' library is checked only once.
    let named = ["cluster", "deploy", "install", "worlds", "cilium"];
    let named = named.iter().flat_map(|name| ["--test", name]).collect();
    for targets in [vec!["--all-targets"], named] {
        run::run(
            run::cargo()
                .args(["clippy", "--workspace", "--exclude", "pathproof-ebpf"])
                .args(targets)
                .args(["--", "-D", "warnings"]),
        )?;
    }
    Ok(())
}

/// Every use of a node with every fault and negative control, with 200 seeds, and all histories of fleets of
/// up to five nodes.
fn judgement() -> Result<()> {
    let mut command = run::cargo();
    command.args(["test", "--package", "pathproof-sim", "--release"]);
    command.args(["--test", "judgement", "--test", "exhaustive"]);
    command.env("PATHPROOF_AGENTS", "5");
    run::run(command.env("PATHPROOF_SEEDS", "200"))
}

fn doc() -> Result<()> {
    run::run(
        run::cargo()
            .args([
                "doc",
                "--workspace",
                "--exclude",
                "pathproof-ebpf",
                "--no-deps",
            ])
            .arg("--document-private-items")
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// Checks that no library with I/O is in the dependency trees of the crates that decide.
fn core_is_pure() -> Result<()> {
    const IMPURE: &str = "aya axum hyper k8s_openapi kube libc mio socket2 tokio";
    let tree = run::output(
        run::cargo()
            .args([
                "tree",
                "--package",
                "pathproof-report",
                "--package",
                "pathproof-rotator",
            ])
            .args(["--edges", "normal", "--prefix", "none", "--format", "{lib}"]),
    )?;
    let tree = String::from_utf8_lossy(&tree);
    let is_impure = |name: &&str| IMPURE.split(' ').any(|impure| impure == *name);
    let names = tree.lines().map(|line| line.trim_end_matches(" (*)"));
    let found: Vec<&str> = names.filter(is_impure).collect();
    ensure!(
        found.is_empty(),
        "crates that decide must not depend on {}",
        found.join(", ")
    );
    Ok(())
}

/// Without advisories, which are a separate step.
fn deny() -> Result<()> {
    run::run(cargo_deny()?.args(["check", "bans", "licenses", "sources"]))
}

/// The database is a repository of RustSec. If it cannot be cloned, the step is skipped: CI must
/// work where only a package registry can be reached.
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
    crate::task("build-ebpf --check")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_steps_are_understood() {
        for step in CI.iter().chain(NIGHTLY) {
            if let Task(line) = step.act {
                crate::parsed(line).expect(line);
            }
        }
    }

    /// The workflow's list of jobs must match.
    #[test]
    fn each_nightly_step_is_a_job() {
        let file = run::root().join(".github/workflows/nightly.yml");
        let text = std::fs::read_to_string(file).expect("the workflow");
        let (_, list) = text.split_once("        step:\n").expect("a list of steps");
        let items = list
            .lines()
            .map_while(|line| line.strip_prefix("          - "));
        let names: Vec<&str> = NIGHTLY.iter().map(|step| step.name).collect();
        assert_eq!(items.collect::<Vec<_>>(), names);
    }
}
