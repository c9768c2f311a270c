//! `cargo xtask test`: all tests, and one closing line `N passed, N failed, N skipped`.
//!
//! Host tests (unit, table and property tests of the default members) run for anyone. The tests
//! of package node-tests need root, those on a cluster also its servers, those on a real node more
//! still: without them they are named and counted as skipped, never left out in silence.

mod libtest;
mod report;
#[cfg(test)]
mod tests;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::excused::Budget;
use crate::tally::{Counted, Tally, slowest};
use crate::{ebpf, host, image, kernels, run, setup_cluster};
use libtest::{cargo_test, filter, follow, follow_in_world};
use report::report;

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Run only tests that need neither root nor a kernel: unit, table and property tests
    #[arg(long)]
    fast: bool,
    /// With --fast: only the tests of this package, such as agent-core
    #[arg(long, short, value_name = "PACKAGE", requires = "fast")]
    package: Option<String>,
    /// Also run the tests on a real one-node Kubernetes with the shipped image: 20 minutes the
    /// first time, then 6
    #[arg(long)]
    install: bool,
    /// Run only the worlds of docs/internal/worlds.md, all of them: 15 minutes [default: ten of
    /// them, with all other tests]
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels"])]
    worlds: bool,
    /// Run only the tests with the real Cilium in two releases, all of them: 20 minutes [default: one
    /// of them, with all other tests]
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels", "worlds"])]
    cilium: bool,
    /// Run only the tests beside kube-proxies of other releases, which no run without this has: 10
    /// minutes
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels", "worlds", "cilium", "filter"])]
    proxies: bool,
    /// Run only the tests on other kernels, in virtual machines: 6.1-cloud, 6.12-cloud and
    /// 6.12-cloud-arm64, or the given ones, separated by commas. With --install: only tests on a real
    /// node in such a machine, which has cgroup v2
    #[arg(long, value_name = "KERNELS", value_delimiter = ',', num_args = 0..=1)]
    kernels: Option<Vec<String>>,
    /// With --kernels: write docs/kernels.md
    #[arg(long, requires = "kernels")]
    write_docs: bool,
    /// Run only tests whose name contains this
    filter: Option<String>,
    /// Run a few that failed beside others once more, alone (`excused`); the tests on a real node are
    /// left to the nightly run.
    #[arg(skip)]
    in_ci: bool,
    #[arg(skip)]
    only_install: bool,
    /// Run only tests whose names contain one of these.
    #[arg(skip)]
    choice: &'static [&'static str],
    /// Do not run tests whose names contain one of these.
    #[arg(skip)]
    but: &'static [&'static str],
}

impl Args {
    /// The tests in virtual machines alone: on other kernels, or on a real node with cgroup v2.
    pub(crate) fn in_machines(install: bool) -> Self {
        Self {
            kernels: Some(Vec::new()),
            install,
            ..Self::default()
        }
    }

    pub(crate) fn all_worlds() -> Self {
        Self {
            worlds: true,
            ..Self::default()
        }
    }

    pub(crate) fn all_of_cilium() -> Self {
        Self {
            cilium: true,
            ..Self::default()
        }
    }

    pub(crate) fn all_proxies() -> Self {
        Self {
            proxies: true,
            ..Self::default()
        }
    }

    /// The tests on a real node alone.
    pub(crate) fn on_a_real_node() -> Self {
        Self {
            only_install: true,
            ..Self::default()
        }
    }
}

const KERNEL: &str = "tests of programs in the kernel";
const NODE: &str = "namespace tests";
/// Cargo is told the names of these. `--tests` would link each of twenty benchmarks and programs a second
/// time, as a test without tests.
const KERNEL_TARGET: [&str; 3] = ["--lib", "--test", "kernel"];
const NODE_TARGET: [&str; 4] = ["--test", "node", "--test", "world"];
const WORLDS: &str = "worlds (docs/internal/worlds.md)";
const WORLDS_TARGET: [&str; 2] = ["--test", "worlds"];
/// Worlds that are run each time: those that once took a healthy node out, and faults that were missed.
const CHOICE: [&str; 9] = [
    "default_deny::",
    "denied_on_a_quiet_node::",
    "filtered_sentinel::",
    "graceful_ending::",
    "late_proxy::",
    "masquerade_gone::",
    "mirrored::",
    "rejecting_policy::",
    "routes_gone::",
];
const CLUSTER: &str = "cluster tests (tests/cluster)";
/// Cargo leaves these out unless they are named (tests/Cargo.toml).
const CLUSTER_TARGET: [&str; 2] = ["--test", "cluster"];
const PROXIES: &str = "other kube-proxies (tests/cluster)";
/// Each takes minutes, and what they show changes with a release of Kubernetes alone.
const PROXIES_CHOICE: [&str; 1] = ["releases::"];
const CILIUM: &str = "beside the real Cilium (tests/cilium)";
const CILIUM_TARGET: [&str; 2] = ["--test", "cilium"];
/// Its tables are emptied and filled again.
const CILIUM_CHOICE: [&str; 1] =
    ["emptied_tables_are_503_until_they_are_filled_again::case_1_replacing"];
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

    /// All tests but these, unless some are asked for by a filter.
    fn all_but(&self, but: &'static [&'static str]) -> Self {
        let all = self.filter.is_some();
        Self {
            but: if all { &[] } else { but },
            ..self.clone()
        }
    }

    /// The tests that guard each landing.
    pub(crate) fn for_ci() -> Self {
        Self {
            in_ci: true,
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
    let Counted {
        tally, mut times, ..
    } = run_all(args)?;
    print!("{}", slowest(&mut times));
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
                install: args.install,
            })?;
            Ok(Counted {
                tally,
                skipped,
                ..Counted::default()
            })
        })]));
    }
    if args.worlds {
        let all = || worlds(args, &Budget::new(false));
        return Ok(report(&[in_world(args, WORLDS, &WORLDS_TARGET, all)]));
    }
    if args.cilium {
        let all = || cilium_tests(args, &Budget::new(false));
        return Ok(report(&[in_world(args, CILIUM, &CILIUM_TARGET, all)]));
    }
    if args.proxies {
        let all = || {
            setup_cluster::proxies()?;
            cluster_tests(args, &Budget::new(false))
        };
        return Ok(report(&[in_world(args, PROXIES, &CLUSTER_TARGET, all)]));
    }
    let install = || in_world(args, INSTALL, &INSTALL_TARGET, || install_tests(args));
    if args.only_install {
        return Ok(report(&[install()]));
    }
    let budget = Budget::new(args.in_ci);
    let mut steps = vec![step("host tests", || host_tests(args))];
    if args.fast {
        println!("--fast: the tests of package node-tests (real kernel, deploy) were left out");
        return Ok(report(&steps));
    }
    let deploy = || match cfg!(target_os = "linux") {
        true => deploy_tests(args),
        false => left_out(args, &DEPLOY_TARGET, "needs Linux"),
    };
    // First those that need the fewest tools: the rest is built meanwhile, in CI.
    steps.extend([
        in_world(args, KERNEL, &KERNEL_TARGET, || kernel_tests(args, &budget)),
        in_world(args, NODE, &NODE_TARGET, || node_tests(args, &budget)),
        in_world(args, WORLDS, &WORLDS_TARGET, || worlds(args, &budget)),
        step(DEPLOY, deploy),
        in_world(args, CLUSTER, &CLUSTER_TARGET, || {
            cluster_tests(args, &budget)
        }),
        in_world(args, CILIUM, &CILIUM_TARGET, || cilium_tests(args, &budget)),
    ]);
    if args.install {
        steps.push(install());
    } else if !args.in_ci {
        let left_out = || left_out(args, &INSTALL_TARGET, "asked for with --install");
        steps.push(step(INSTALL, left_out));
    }
    Ok(report(&steps))
}

/// A step that needs network namespaces; without them its tests are named.
fn in_world(
    args: &Args,
    name: &'static str,
    target: &[&str],
    act: impl FnOnce() -> Result<Counted>,
) -> Step {
    step(name, || match host::no_world() {
        None => act(),
        Some(why) => left_out(args, target, why),
    })
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

/// Packages that any system can build and test.
const PORTABLE: [&str; 3] = ["agent-common", "agent-core", "xtask"];

fn host_tests(args: &Args) -> Result<Counted> {
    // Without the search for tests in documents: there are none.
    let mut command = cargo_test();
    command.arg("--tests");
    match &args.package {
        Some(package) => {
            command.args(["--package", package]);
            // While somebody edits: every other run has all cases.
            if std::env::var_os("PROPTEST_CASES").is_none() {
                command.env("PROPTEST_CASES", "32");
            }
        }
        None if cfg!(target_os = "linux") => {}
        None => {
            println!("the agent is for Linux: its tests, and those of fuzz, are left out here");
            command.args(PORTABLE.iter().flat_map(|name| ["--package", name]));
        }
    }
    follow(&mut command, args)
}

/// Some of these send packets without a pause, in windows of the kernel's clock: few at a time.
fn kernel_tests(args: &Args, budget: &Budget) -> Result<Counted> {
    host::install_world("the kernel tests")?;
    follow_in_world(&mut with_agent(&KERNEL_TARGET, 3)?, args, budget)
}

/// How long the sentinel must be unchanged before failed probes count, in milliseconds: long enough for
/// kube-proxy, which may write its rules once a second. What is shipped waits for 10 s.
const SETTLED: (&str, &str) = ("PATHPROOF_TEST_SETTLED_MS", "2000");

fn node_tests(args: &Args, budget: &Budget) -> Result<Counted> {
    host::install_world("the namespace tests")?;
    // These wait for packets most of the time: more at once than there are processors.
    let mut command = with_agent(&NODE_TARGET, 8)?;
    command.env(SETTLED.0, SETTLED.1);
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
    let mut command = with_agent(&WORLDS_TARGET, 8)?;
    follow_in_world(&mut command, &args, budget)
}

/// The tests with a real API server and kube-proxy. They say themselves that these are missing; why
/// they could not be had is said here.
fn cluster_tests(args: &Args, budget: &Budget) -> Result<Counted> {
    host::install_world("the cluster tests")?;
    host::install_programs("the load balancer of a test", &[("haproxy", "haproxy")])?;
    // Each has an API server of its own, and waits most of the time.
    let mut command = with_agent(&CLUSTER_TARGET, 3)?;
    command.env(SETTLED.0, SETTLED.1);
    with_servers(&mut command, "the cluster tests");
    if let Err(error) = setup_cluster::flannel() {
        eprintln!("the test with flannel is skipped: {error:#}");
    }
    with_chart_tools(&mut command);
    let args = match args.proxies {
        true => args.choose(false, &PROXIES_CHOICE),
        false => args.all_but(&PROXIES_CHOICE),
    };
    if !args.but.is_empty() {
        println!("without other kube-proxies; those tests: cargo xtask test --proxies");
    }
    follow_in_world(&mut command, &args, budget)
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
    if args.cilium
        && let Err(error) = setup_cluster::old_cilium()
    {
        eprintln!("the tests beside Cilium 1.15 are skipped: {error:#}");
    }
    let args = args.choose(args.cilium, &CILIUM_CHOICE);
    follow_in_world(&mut command, &args, budget)
}

/// `cargo test` of package node-tests with the agent, so many tests at a time.
fn with_agent(target: &[&str], threads: usize) -> Result<Command> {
    let agent = ebpf::agent("dev")?;
    let mut command = cargo_test();
    command
        .args(["--package", "node-tests"])
        .args(target)
        .env("PATHPROOF_AGENT", agent)
        .env("RUST_TEST_THREADS", threads.to_string());
    Ok(command)
}

/// The tests of the chart, of the kustomizations and of the alerts. They say themselves what is
/// missing; why it could not be had is said here.
fn deploy_tests(args: &Args) -> Result<Counted> {
    let mut command = cargo_test();
    command
        .args(["--package", "node-tests"])
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
    match host::cgroup_version() {
        Ok(version) => println!("the real node uses cgroup {version}"),
        Err(error) => eprintln!("the real node tests are skipped: {error:#}"),
    }
    let image = image::archive()?;
    let mut command = cargo_test();
    command
        .args(["--package", "node-tests"])
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

/// Names what is not run. It is compiled all the same, on Linux: it must not rot.
fn left_out(args: &Args, target: &[&str], why: &str) -> Result<Counted> {
    if !cfg!(target_os = "linux") {
        return Ok(Counted::skip(&target.join(" "), why));
    }
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
