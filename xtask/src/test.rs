//! `cargo xtask test`: all tests, and one closing line `N passed, N failed, N skipped`.
//!
//! Host tests (unit, table and property tests of the default members) run for anyone. The tests
//! of package node-tests need root, those on a cluster also its servers, those on a real node more
//! still: without them they are named and counted as skipped, never left out in silence.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::excused::Budget;
use crate::tally::{Counted, Reader, Tally};
use crate::{host, image, kernels, run, setup_cluster};

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Run only tests that need neither root nor a kernel: unit, table and property tests
    #[arg(long)]
    fast: bool,
    /// Also run the tests on a real one-node Kubernetes with the shipped image: 20 minutes the
    /// first time, then 6
    #[arg(long)]
    install: bool,
    /// Run only the worlds of docs/internal/worlds.md, all of them: 15 minutes [default: ten of
    /// them, with all other tests]
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels"])]
    worlds: bool,
    /// Run only the tests with the real Cilium, all of them: 10 minutes [default: one of them, with
    /// all other tests]
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels", "worlds"])]
    cilium: bool,
    /// Run only the tests on other kernels, in virtual machines: 6.1-cloud and 6.12-cloud, or the
    /// given ones, separated by commas
    #[arg(long, value_name = "KERNELS", value_delimiter = ',', num_args = 0..=1)]
    kernels: Option<Vec<String>>,
    /// With --kernels: write docs/kernels.md
    #[arg(long, requires = "kernels")]
    write_docs: bool,
    /// Run only tests whose name contains this
    filter: Option<String>,
    /// Run a few that failed beside others once more, alone (`excused`).
    #[arg(skip)]
    again: bool,
    /// Run only tests whose names contain one of these.
    #[arg(skip)]
    choice: &'static [&'static str],
}

impl Args {
    /// The tests in virtual machines alone.
    pub(crate) fn on_other_kernels() -> Self {
        Self {
            kernels: Some(Vec::new()),
            ..Self::default()
        }
    }
}

const NODE: &str = "kernel and namespace tests";
const WORLDS: &str = "worlds (docs/internal/worlds.md)";
const WORLDS_TARGET: [&str; 2] = ["--test", "worlds"];
/// Worlds that are run each time: those that once took a healthy node out, and faults that were missed.
const CHOICE: [&str; 10] = [
    "default_deny::",
    "denied_on_a_quiet_node::",
    "filtered_sentinel::",
    "graceful_ending::",
    "late_proxy::",
    "masquerade_gone::",
    "mirrored::",
    "rejecting_policy::",
    "routes_gone::",
    "table_deleted::",
];
const CLUSTER: &str = "cluster tests (tests/cluster)";
/// Cargo leaves these out unless they are named (tests/Cargo.toml).
const CLUSTER_TARGET: [&str; 2] = ["--test", "cluster"];
const CILIUM: &str = "beside the real Cilium (tests/cilium)";
const CILIUM_TARGET: [&str; 2] = ["--test", "cilium"];
/// Its tables are emptied and filled again.
const CILIUM_CHOICE: [&str; 1] = ["emptied_tables_are_503_until_they_are_filled_again"];
const DEPLOY: &str = "chart, kustomize and alert tests";
const DEPLOY_TARGET: [&str; 2] = ["--test", "deploy"];
const INSTALL: &str = "real node tests (tests/install)";
const INSTALL_TARGET: [&str; 2] = ["--test", "install"];
const KERNELS: &str = "tests on other kernels";

impl Args {
    /// All tests of a kind where they are asked for, by an option or a filter; else this choice.
    fn choose(&self, all: bool, choice: &'static [&'static str]) -> Self {
        let all = all || self.filter.is_some();
        Self {
            choice: if all { &[] } else { choice },
            ..self.clone()
        }
    }

    /// All of them, as far as the machine can.
    pub(crate) fn for_ci() -> Self {
        Self {
            install: true,
            again: true,
            ..Self::default()
        }
    }
}

/// Result of one step.
struct Step {
    name: &'static str,
    took: Duration,
    counted: Counted,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let tally = run_all(args)?.tally;
    println!("{tally}");
    if tally.failed > 0 {
        bail!("{} tests failed", tally.failed);
    }
    if args.install && tally.skipped > 0 {
        bail!(
            "{} tests were skipped; see above what each one needs",
            tally.skipped
        );
    }
    Ok(())
}

/// Runs the tests and reports on them, without the closing line: CI adds its own steps to it.
pub(crate) fn run_all(args: &Args) -> Result<Counted> {
    if let Some(names) = &args.kernels {
        return Ok(report(&[step(KERNELS, || {
            let (tally, skipped) = kernels::run(&kernels::Wanted {
                kernels: names,
                filter: args.filter.as_deref(),
                write_page: args.write_docs,
            })?;
            Ok(Counted {
                tally,
                skipped,
                ..Counted::default()
            })
        })]));
    }
    if args.worlds {
        let left_out = || without_root(args, &WORLDS_TARGET);
        let run = || {
            if host::is_root() {
                worlds(args, &Budget::new(false))
            } else {
                left_out()
            }
        };
        return Ok(report(&[step(WORLDS, run)]));
    }
    if args.cilium {
        let run = || match host::is_root() {
            true => cilium_tests(args, &Budget::new(false)),
            false => without_root(args, &CILIUM_TARGET),
        };
        return Ok(report(&[step(CILIUM, run)]));
    }
    let budget = Budget::new(args.again);
    let mut steps = vec![step("host tests", || host_tests(args))];
    if args.fast {
        println!("--fast: the tests of package node-tests (real kernel, deploy) were left out");
        return Ok(report(&steps));
    }
    // First those that need the fewest tools: the rest is built meanwhile, in CI.
    if host::is_root() {
        steps.push(step(NODE, || node_tests(args, &budget)));
        steps.push(step(WORLDS, || worlds(args, &budget)));
        steps.push(step(DEPLOY, || deploy_tests(args)));
        steps.push(step(CLUSTER, || cluster_tests(args, &budget)));
        steps.push(step(CILIUM, || cilium_tests(args, &budget)));
    } else {
        steps.push(step(NODE, || without_root(args, &[])));
        steps.push(step(WORLDS, || without_root(args, &WORLDS_TARGET)));
        steps.push(step(DEPLOY, || deploy_tests(args)));
        steps.push(step(CLUSTER, || without_root(args, &CLUSTER_TARGET)));
        steps.push(step(CILIUM, || without_root(args, &CILIUM_TARGET)));
    }
    steps.push(step(INSTALL, || match (args.install, host::is_root()) {
        (true, true) => install_tests(args),
        (true, false) => left_out(args, &INSTALL_TARGET, "needs root"),
        (false, _) => left_out(args, &INSTALL_TARGET, "asked for with --install"),
    }));
    Ok(report(&steps))
}

fn step(name: &'static str, act: impl FnOnce() -> Result<Counted>) -> Step {
    let start = Instant::now();
    let counted = act().unwrap_or_else(|error| {
        eprintln!("error: {name}: {error:#}");
        Tally::FAILED.into()
    });
    Step {
        name,
        took: start.elapsed(),
        counted,
    }
}

fn host_tests(args: &Args) -> Result<Counted> {
    follow(run::cargo().arg("test"), args)
}

fn node_tests(args: &Args, budget: &Budget) -> Result<Counted> {
    host::install_world("the namespace tests")?;
    // These tests wait for packets most of the time: more at once than there are processors.
    let mut command = with_agent(&[], 5)?;
    match setup_cluster::prometheus() {
        Ok(found) => {
            command.env("PATHPROOF_PROMETHEUS", found.prometheus);
        }
        Err(error) => eprintln!("the tests with Prometheus are skipped: {error:#}"),
    }
    follow_in_world(&mut command, args, budget)
}

/// Each watches a healthy node for a minute, and waits most of the time.
fn worlds(args: &Args, budget: &Budget) -> Result<Counted> {
    host::install_world("the worlds")?;
    let args = args.choose(args.worlds, &CHOICE);
    if !args.choice.is_empty() {
        println!(
            "{} of the worlds; all: cargo xtask test --worlds",
            args.choice.len()
        );
    }
    if let Err(error) = setup_cluster::cni_plugins() {
        eprintln!("the world with CNI plugins is skipped: {error:#}");
    }
    let mut command = with_agent(&WORLDS_TARGET, 5)?;
    follow_in_world(&mut command, &args, budget)
}

/// The tests with a real API server and kube-proxy. They say themselves that these are missing; why
/// they could not be had is said here.
fn cluster_tests(args: &Args, budget: &Budget) -> Result<Counted> {
    host::install_world("the cluster tests")?;
    host::install_programs("the load balancer of a test", &[("haproxy", "haproxy")])?;
    // Each has an API server of its own.
    let mut command = with_agent(&CLUSTER_TARGET, 2)?;
    with_servers(&mut command, "the cluster tests");
    if let Err(error) = setup_cluster::flannel() {
        eprintln!("the test with flannel is skipped: {error:#}");
    }
    with_chart_tools(&mut command);
    follow_in_world(&mut command, args, budget)
}

/// The tests with a real API server and a real Cilium: one of them, unless all were asked for.
fn cilium_tests(args: &Args, budget: &Budget) -> Result<Counted> {
    host::install_world("the tests beside Cilium")?;
    // Each compiles Cilium's programs, and has an API server of its own.
    let mut command = with_agent(&CILIUM_TARGET, 1)?;
    with_servers(&mut command, "the tests beside Cilium");
    if std::env::var_os("PATHPROOF_CILIUM").is_none()
        && let Err(error) = setup_cluster::cilium()
    {
        eprintln!("the tests beside Cilium are skipped: {error:#}");
    }
    let args = args.choose(args.cilium, &CILIUM_CHOICE);
    follow_in_world(&mut command, &args, budget)
}

/// `cargo test` of package node-tests with the agent, so many tests at a time.
fn with_agent(target: &[&str], threads: usize) -> Result<Command> {
    let agent = run::build_program("pathproof", "pathproof", "dev")?;
    let mut command = run::cargo();
    command
        .args(["test", "--package", "node-tests"])
        .args(target)
        .env("PATHPROOF_AGENT", agent)
        .env("RUST_TEST_THREADS", threads.to_string());
    Ok(command)
}

/// The tests of the chart, of the kustomizations and of the alerts. They say themselves what is
/// missing; why it could not be had is said here.
fn deploy_tests(args: &Args) -> Result<Counted> {
    let mut command = run::cargo();
    command
        .args(["test", "--package", "node-tests"])
        .args(DEPLOY_TARGET);
    with_chart_tools(&mut command);
    match setup_cluster::prometheus() {
        Ok(tools) => {
            command.env("PATHPROOF_PROMTOOL", tools.promtool);
        }
        Err(error) => eprintln!("the tests of alerts are skipped: {error:#}"),
    }
    follow(&mut command, args)
}

/// The tests with kubelet and containerd, one node at a time. They say themselves what is missing;
/// why it could not be had is said here.
fn install_tests(args: &Args) -> Result<Counted> {
    host::install_world("the real node tests")?;
    let image = image::archive()?;
    let mut command = run::cargo();
    command
        .args(["test", "--package", "node-tests"])
        .args(INSTALL_TARGET)
        .env("PATHPROOF_IMAGE", image)
        // The same program, for those who run it at their desks.
        .env("PATHPROOF_AGENT", image::program()?)
        .env("RUST_TEST_THREADS", "1");
    match setup_cluster::real_node() {
        Ok(servers) => {
            command.env("PATHPROOF_CLUSTER_SERVERS", servers);
        }
        Err(error) => eprintln!("the real node tests are skipped: {error:#}"),
    }
    // No second run: they ran alone.
    follow(&mut command, args)
}

fn with_servers(command: &mut Command, what: &str) {
    match setup_cluster::ready() {
        Ok(servers) => {
            command.env("PATHPROOF_CLUSTER_SERVERS", servers);
        }
        Err(error) => eprintln!("{what} are skipped: {error:#}"),
    }
}

fn with_chart_tools(command: &mut Command) {
    match setup_cluster::chart_tools() {
        Ok(tools) => {
            command
                .env("PATHPROOF_HELM", tools.helm)
                .env("PATHPROOF_KUBECTL", tools.kubectl);
        }
        Err(error) => eprintln!("the tests of chart and kustomize are skipped: {error:#}"),
    }
}

/// Names what root would have run.
fn without_root(args: &Args, target: &[&str]) -> Result<Counted> {
    left_out(args, target, "needs root")
}

/// Names what is not run. It is compiled all the same: it must not rot.
fn left_out(args: &Args, target: &[&str], why: &str) -> Result<Counted> {
    let mut names = Vec::new();
    let mut list = run::cargo();
    list.args(["test", "--quiet", "--package", "node-tests"])
        .args(target)
        .args(filter(args));
    list.args(["--", "--list", "--format", "terse"]);
    let status = run::lines(&mut list, |line| {
        names.extend(
            line.strip_suffix(": test")
                .map(|name| format!("{name}: {why}")),
        );
    })?;
    if !status.success() {
        bail!("the tests of node-tests do not compile");
    }
    Ok(Counted {
        tally: Tally {
            skipped: names.len(),
            ..Tally::default()
        },
        skipped: names,
        ..Counted::default()
    })
}

fn filter(args: &Args) -> Option<&OsStr> {
    args.filter.as_deref().map(OsStr::new)
}

/// Tests of `--kernels` alone: of IPVS, which few kernels at hand have, and of a clock and a limit that
/// are set, which are everybody's. Elsewhere they would be skipped each time.
const IN_MACHINES_ONLY: [&str; 3] = [
    "in_ipvs_mode_and",
    "a_clock_that_is_set",
    "a_full_conntrack_table",
];

/// Runs `cargo test ...`, shows what it prints and counts.
fn follow(command: &mut Command, args: &Args) -> Result<Counted> {
    command
        .arg("--no-fail-fast")
        .args(filter(args))
        .args(["--", "--show-output"])
        .args(args.choice)
        .args(IN_MACHINES_ONLY.iter().flat_map(|name| ["--skip", name]));
    count(command)
}

/// [`follow`] for tests on a real kernel, which wait for packets beside many others on two
/// processors. In CI a few that fail there run once more, alone. A test that passes then is a bug of the
/// test or of the agent all the same: it is named at the end, and blocks no unrelated change.
fn follow_in_world(command: &mut Command, args: &Args, budget: &Budget) -> Result<Counted> {
    let mut alone = same(command);
    let counted = follow(command, args)?;
    if !counted.is_whole() {
        return Ok(counted);
    }
    let again = budget.again(&counted.failed, &counted.panics);
    if again.is_empty() {
        return Ok(counted);
    }
    eprintln!("running again, alone: {}", again.join(", "));
    alone
        .args(["--no-fail-fast", "--", "--show-output", "--exact"])
        .args(&again)
        .env("RUST_TEST_THREADS", "1");
    let second = count(&mut alone)?;
    let counted = counted.after(&again, &second);
    budget.spend(counted.unsteady.len());
    Ok(counted)
}

/// The same command once more, as it is now.
fn same(command: &Command) -> Command {
    let mut copy = run::cargo();
    copy.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(name, value),
            None => copy.env_remove(name),
        };
    }
    copy
}

fn count(command: &mut Command) -> Result<Counted> {
    let mut reader = Reader::default();
    let status = run::lines(command, |line| {
        if reader.line(line) {
            println!("{line}");
        }
    })?;
    Ok(reader.finish(status.success()))
}

fn report(steps: &[Step]) -> Counted {
    let mut sum = Counted::default();
    println!();
    for line in steps.iter().flat_map(|step| &step.counted.skipped) {
        println!("SKIPPED  {line}");
    }
    let skipped = |step: &Step| !step.counted.skipped.is_empty();
    if steps.iter().any(skipped) && !host::is_root() {
        println!("SKIPPED tests run as root: sudo -E env \"PATH=$PATH\" cargo xtask test");
    }
    for step in steps {
        let (name, counted) = (step.name, &step.counted);
        println!(
            "{name:<33} {:>7.1} s   {}",
            step.took.as_secs_f64(),
            counted.tally
        );
        sum.tally += counted.tally;
        sum.skipped.extend_from_slice(&counted.skipped);
        sum.unsteady.extend_from_slice(&counted.unsteady);
        sum.panics.extend_from_slice(&counted.panics);
    }
    sum
}
