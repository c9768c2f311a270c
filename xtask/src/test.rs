//! `cargo xtask test`: all tests, and one closing line `N passed, N failed, N skipped`.
//!
//! Host tests (unit, table and property tests of the default members) run for anyone. The tests of
//! package node-tests need root; those on a cluster and on a real node need further programs. Tests
//! that cannot run are named and counted as skipped.

mod libtest;
#[cfg(test)]
mod tests;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest::{cargo_test, follow, skip};

use crate::excused::Budget;
use crate::tally::{Counted, Tally, slowest};
use crate::{ci, ebpf, host, image, kernels, release, run, sanitize, setup_cluster};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only tests that need neither root nor a kernel: unit, table and property tests
    #[arg(long)]
    fast: bool,
    /// With --fast: only the tests beside the code of this package, such as pathproof-judge, with few cases
    #[arg(long, short, value_name = "PACKAGE", requires = "fast")]
    package: Option<String>,
    /// Also run the tests on a real one-node Kubernetes with the shipped image: 20 minutes the
    /// first time, then 6
    #[arg(long)]
    pub(crate) install: bool,
    /// Run only the worlds of docs/internal/worlds.md, all of them: 15 minutes [default: ten of
    /// them, with all other tests]
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels"])]
    worlds: bool,
    /// Run only the tests with the real Cilium in two releases, all of them: 25 minutes [default: three
    /// of them, with all other tests]
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels", "worlds"])]
    cilium: bool,
    /// Run only the tests beside kube-proxies of other releases, which no run without this has: 10
    /// minutes
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels", "worlds", "cilium", "filter"])]
    proxies: bool,
    /// Run only the outages and their negative controls for every kind of users beside kube-proxy 1.36 in
    /// both modes, all of them: 15 minutes [default: three outages and seven controls, with all other tests]
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels", "worlds", "cilium", "proxies", "filter"])]
    uses: bool,
    /// Run only the namespace tests, with an agent whose memory AddressSanitizer watches: 30 minutes
    #[arg(long, conflicts_with_all = ["fast", "install", "kernels", "worlds", "cilium", "proxies", "uses"])]
    sanitize: bool,
    /// Run only the tests on other kernels, in virtual machines: 6.1-cloud, 6.12-cloud and
    /// 6.12-cloud-arm64, or the given ones, separated by commas. With --install: only tests on a real
    /// node in such a machine, which has cgroup v2
    #[arg(long, value_name = "KERNELS", value_delimiter = ',', num_args = 0..=1)]
    kernels: Option<Vec<String>>,
    /// With --kernels: write docs/internal/kernels.md
    #[arg(long, requires = "kernels")]
    pub(crate) write_docs: bool,
    /// Run only tests whose name contains this
    pub(crate) filter: Option<String>,
    /// Run only this part. A few that failed beside others run once more, alone (`excused`)
    #[arg(long, hide = true, value_name = "PART")]
    in_ci: Option<Part>,
    /// Run only the tests on a real node
    #[arg(long, hide = true)]
    only_install: bool,
}

/// Parts of CI's tests. Only the nightly run has the tests on a real node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Tests that need almost no tools.
    Nodes,
    /// Tests with programs of Kubernetes and Cilium.
    Clusters,
}

/// Number of tests that earlier parts excused.
static EXCUSED: AtomicUsize = AtomicUsize::new(0);

/// Name of a step, its duration, and its result.
type Step = (&'static str, Duration, Counted);

pub(crate) fn run(args: &Args) -> Result<()> {
    let Counted {
        mut tally,
        mut times,
        unsteady,
        ..
    } = run_all(args)?;
    print!("{}", slowest(&mut times));
    // Only CI excuses tests, and keeps a history of them.
    for test in &unsteady {
        println!("UNSTEADY     {test} failed in parallel and passed alone: it counts as failed");
    }
    tally.passed -= unsteady.len();
    tally.failed += unsteady.len();
    println!("{tally}");
    let Tally {
        failed, skipped, ..
    } = tally;
    ensure!(failed == 0, "{failed} tests failed");
    ensure!(
        !args.install || skipped == 0,
        "{skipped} tests were skipped; see above what each one needs"
    );
    Ok(())
}

/// Runs the tests and reports on them, without the closing line, to which CI adds its own steps.
pub(crate) fn run_all(args: &Args) -> Result<Counted> {
    if let Some(names) = &args.kernels {
        let all = step("tests on other kernels", || kernels::run(names, args));
        return Ok(report(vec![all]));
    }
    let budget = match args.in_ci {
        Some(_) => Budget::after(EXCUSED.load(Ordering::Relaxed)),
        None => Budget::nothing(),
    };
    let group = |group: &Group| step(group.name, || group.run(args, &budget));
    let alone = [
        (args.worlds, &WORLDS),
        (args.cilium, &CILIUM),
        (args.proxies, &PROXIES),
        (args.uses, &USES),
        (args.sanitize, &SANITIZED),
        (args.only_install, &INSTALL),
    ];
    if let Some((_, only)) = alone.iter().find(|(is_asked_for, _)| *is_asked_for) {
        return Ok(report(vec![group(only)]));
    }
    let mut steps = Vec::new();
    if args.in_ci != Some(Part::Clusters) {
        steps.push(step("host tests", || host_tests(args)));
        if args.fast {
            println!("--fast: the tests of package node-tests (real kernel, deploy) were left out");
            return Ok(report(steps));
        }
        steps.extend([&KERNEL, &NODE, &WORLDS].map(group));
    }
    if args.in_ci != Some(Part::Nodes) {
        steps.push(step("chart, kustomize and alert tests", || {
            deploy_tests(args)
        }));
        steps.extend([&CLUSTER, &CILIUM].map(group));
    }
    if args.install {
        steps.push(group(&INSTALL));
    } else if args.in_ci.is_none() {
        steps.push(step(INSTALL.name, || {
            left_out(args, INSTALL.targets, "asked for with --install")
        }));
    }
    let all = report(steps);
    EXCUSED.fetch_add(all.unsteady.len(), Ordering::Relaxed);
    Ok(all)
}

fn step(name: &'static str, act: impl FnOnce() -> Result<Counted>) -> Step {
    let (took, result) = ci::timed(name, act);
    (name, took, result.unwrap_or_else(|_| Tally::FAILED.into()))
}

/// Lists skipped tests, prints a row for each step, and adds them up.
fn report(steps: Vec<Step>) -> Counted {
    let row = |(name, took, counted): &Step| (name.to_string(), *took, counted.tally.to_string());
    let table = ci::table(&steps.iter().map(row).collect::<Vec<_>>());
    let mut sum = Counted::default();
    for (.., counted) in steps {
        sum += counted;
    }
    println!();
    for line in &sum.skipped {
        println!("SKIPPED  {line}");
    }
    if !sum.skipped.is_empty() && !host::is_root() {
        println!("SKIPPED tests run as root: sudo -E env \"PATH=$PATH\" cargo xtask test");
    }
    print!("{table}");
    sum
}

/// Tests in network namespaces, which run together.
struct Group {
    name: &'static str,
    /// Arguments that name the programs for cargo. `--tests` would link each of six programs a
    /// second time, as a test without tests.
    targets: &'static [&'static str],
    threads: &'static str,
    agent: fn() -> Result<std::path::PathBuf>,
    /// Builds the tools, and passes their paths to the tests. Tests report a missing tool; this
    /// function reports why it could not be built.
    tools: fn(&Args, &mut Command) -> Result<()>,
    /// Run only tests whose names contain one of these, unless all are requested.
    only: &'static [&'static str],
    /// Skip tests whose names contain one of these.
    but: &'static [&'static str],
    /// Option that runs the other tests.
    others: &'static str,
}

const GROUP: Group = Group {
    name: "",
    targets: &[],
    threads: "1",
    agent: || ebpf::agent("dev"),
    tools: |_, _| Ok(()),
    only: &[],
    but: &[],
    others: "",
};

const KERNEL: Group = Group {
    name: "tests of programs in the kernel",
    targets: &["--lib", "--test", "kernel"],
    // Few at a time: some send packets without a pause, and the observer's limits are per window of the
    // kernel's clock.
    threads: "3",
    ..GROUP
};

const NODE: Group = Group {
    name: "namespace tests",
    targets: &["--test", "node", "--test", "world"],
    // More than there are processors, because these wait for packets most of the time.
    threads: "8",
    tools: |_, command| {
        command.env(SETTLED, "2000");
        found("the tests with Prometheus", setup_cluster::prometheus());
        Ok(())
    },
    ..GROUP
};

const SANITIZED: Group = Group {
    name: "namespace tests, the agent with AddressSanitizer",
    // Fewer, because the agent takes twice the processor time.
    threads: "2",
    agent: sanitize::agent,
    tools: |args, command| {
        sanitize::prepare(command);
        (NODE.tools)(args, command)
    },
    but: sanitize::LEFT_OUT,
    ..NODE
};

const WORLDS: Group = Group {
    name: "worlds (docs/internal/worlds.md)",
    targets: &["--test", "worlds"],
    // Each observes a healthy node for a minute, and waits most of the time.
    threads: "8",
    tools: |_, _| {
        found("the world with CNI plugins", setup_cluster::CNI.ready());
        Ok(())
    },
    // Worlds in which a healthy node was once taken out or a fault was missed.
    only: &[
        "default_deny::",
        "denied_on_a_quiet_node::",
        "filtered_sentinel::",
        "full_table::",
        "graceful_ending::",
        "late_proxy::",
        "masquerade_gone::",
        "mirrored::",
        "rejecting_policy::",
        "routes_gone::",
    ],
    others: "--worlds",
    ..GROUP
};

/// The tests with a real API server and kube-proxy. Cargo runs them only if they are named
/// (tests/Cargo.toml).
const CLUSTER: Group = Group {
    name: "cluster tests (tests/cluster)",
    targets: &["--test", "cluster"],
    // Each has its own API server, and waits most of the time.
    threads: "4",
    tools: cluster_tools,
    // These take minutes each. Results with other releases change only with a release of Kubernetes. The
    // nightly outages are those of this group with other users or another mode of kube-proxy.
    but: &["releases::", "nightly::"],
    others: "--proxies, --uses",
    ..GROUP
};

const PROXIES: Group = Group {
    name: "other kube-proxies (tests/cluster)",
    tools: |args, command| {
        setup_cluster::proxies()?;
        cluster_tools(args, command)
    },
    only: &["releases::"],
    but: &[],
    others: "",
    ..CLUSTER
};

const USES: Group = Group {
    name: "outages for every kind of users (tests/cluster)",
    // One world on each processor, because times are measured.
    threads: "2",
    only: &["nightly::"],
    but: &[],
    others: "",
    ..CLUSTER
};

/// The tests with a real API server and a real Cilium, which compiles its programs in each of them.
const CILIUM: Group = Group {
    name: "beside the real Cilium (tests/cilium)",
    targets: &["--test", "cilium"],
    tools: |args, command| {
        with_servers("the tests beside Cilium", setup_cluster::ready(), command);
        found("the tests beside Cilium", setup_cluster::cilium());
        if args.cilium {
            found("the tests beside Cilium 1.15", setup_cluster::old_cilium());
        }
        Ok(())
    },
    // One fault for each kind of connections: of the node, of pods, and from outside beside kube-proxy.
    only: &[
        "emptied_tables_are_503_until_they_are_filled_again::case_1_replacing",
        "emptied_tables_fail_the_connections_of_pods",
        "beside_kube_proxy_its_missing_tables_are_503::case_1_newer",
    ],
    others: "--cilium",
    ..GROUP
};

/// The tests with kubelet and containerd, one node at a time.
const INSTALL: Group = Group {
    name: "real node tests (tests/install)",
    targets: &["--test", "install"],
    // The program of the image, because some of these tests also run it outside of a pod.
    agent: image::program,
    tools: |_, command| {
        if let Some(version) = found("the real node tests", host::cgroup_version()) {
            println!("the real node uses cgroup {version}");
        }
        command.env("PATHPROOF_IMAGE", image::archive()?);
        release::dry_run::offer(command);
        with_servers("the real node tests", setup_cluster::real_node(), command);
        Ok(())
    },
    ..GROUP
};

/// Time, in milliseconds, for which the sentinel must be unchanged before failed probes count. A
/// shipped agent waits for 10 s.
const SETTLED: &str = "PATHPROOF_TEST_SETTLED_MS";

/// Time, in milliseconds, that a proxy gets after a boot, or after the sentinel changed. A shipped
/// agent waits for two minutes.
const BOOT: &str = "PATHPROOF_TEST_BOOT_MS";

impl Group {
    fn run(&self, args: &Args, budget: &Budget) -> Result<Counted> {
        if let Some(why) = host::no_world() {
            return left_out(args, self.targets, why);
        }
        host::install_world(self.name)?;
        let mut command = cargo_test();
        command
            .args(["--package", "node-tests"])
            .args(self.targets)
            .env("PATHPROOF_AGENT", (self.agent)()?)
            .env("RUST_TEST_THREADS", self.threads);
        (self.tools)(args, &mut command)?;
        let mut selection = Vec::from_iter(args.filter.as_deref());
        let is_part = selection.is_empty() && !args.worlds && !args.cilium;
        if is_part {
            selection.extend(self.only);
            if !self.others.is_empty() {
                println!(
                    "some of the tests; others: cargo xtask test {}",
                    self.others
                );
            }
        }
        if is_part || args.sanitize {
            selection.extend(skip(self.but));
        }
        let mut counted = follow(&mut command, &selection, budget)?;
        for part in self.only.iter().filter(|_| is_part && !counted.died) {
            if !counted.times.iter().any(|(_, test)| test.contains(part)) {
                eprintln!("no test is named {part}: put its new name into xtask/src/test.rs");
                counted.tally.failed += 1;
            }
        }
        Ok(counted)
    }
}

fn cluster_tools(_: &Args, command: &mut Command) -> Result<()> {
    host::install_programs("the load balancer of a test", &[("haproxy", "haproxy")])?;
    let keepalived = &[("keepalived", "keepalived")];
    found(CHECKERS, host::install_programs(CHECKERS, keepalived));
    found(CHECKERS, setup_cluster::checkers());
    // A real kube-proxy follows within a second, but later on a busy machine.
    command.env(SETTLED, "5000").env(BOOT, "30000");
    with_servers("the cluster tests", setup_cluster::ready(), command);
    found("the test with flannel", setup_cluster::FLANNEL.ready());
    found(CHART, setup_cluster::chart_tools());
    Ok(())
}

/// Names, in messages, of the tests with nginx, keepalived and Envoy, and of those with helm and kubectl.
const CHECKERS: &str = "the tests of checkers";
const CHART: &str = "the tests of chart and kustomize";

/// Reports why a tool of some tests could not be built.
fn found<T>(tests: &str, tool: Result<T>) -> Option<T> {
    tool.inspect_err(|error| eprintln!("{tests} are skipped: {error:#}"))
        .ok()
}

fn with_servers(tests: &str, servers: Result<std::path::PathBuf>, command: &mut Command) {
    if let Some(servers) = found(tests, servers) {
        command.env("PATHPROOF_CLUSTER_SERVERS", servers);
    }
}

/// Packages that can be built and tested on any system.
const PORTABLE: &str = "wire facts plan witness judge node report rotator";

fn host_tests(args: &Args) -> Result<Counted> {
    // Without documentation tests: there are none.
    let mut command = cargo_test();
    match &args.package {
        Some(package) => {
            // This selection is for use while editing. Every other run has all tests and cases.
            println!("--package: the tests beside the code, with few cases of each property");
            let target = if package == "xtask" {
                "--bins"
            } else {
                "--lib"
            };
            command.args(["--package", package, target]);
            if std::env::var_os("PROPTEST_CASES").is_none() {
                command.env("PROPTEST_CASES", "8");
            }
        }
        None if cfg!(target_os = "linux") => drop(command.arg("--tests")),
        None => {
            command.arg("--tests");
            println!("the agent is for Linux: its tests, and those of fuzz, are left out here");
            let ours = PORTABLE
                .split(' ')
                .map(|name| format!("--package=pathproof-{name}"));
            command.args(ours).arg("--package=xtask");
        }
    }
    follow_all(&mut command, args)
}

/// Runs tests whose failures are never excused.
fn follow_all(command: &mut Command, args: &Args) -> Result<Counted> {
    let selection = Vec::from_iter(args.filter.as_deref());
    follow(command, &selection, &Budget::nothing())
}

const DEPLOY_TARGET: [&str; 2] = ["--test", "deploy"];

/// The tests of the chart, the kustomizations and the alerts.
fn deploy_tests(args: &Args) -> Result<Counted> {
    if !cfg!(target_os = "linux") {
        return left_out(args, &DEPLOY_TARGET, "needs Linux");
    }
    let mut command = cargo_test();
    command
        .args(["--package", "node-tests"])
        .args(DEPLOY_TARGET);
    found(CHART, setup_cluster::chart_tools());
    found("the tests of alerts", setup_cluster::prometheus());
    follow_all(&mut command, args)
}

/// Names tests that do not run. On Linux they are compiled anyway, so that they stay valid.
fn left_out(args: &Args, targets: &[&str], why: &str) -> Result<Counted> {
    if !cfg!(target_os = "linux") {
        return Ok(Counted::skip(&targets.join(" "), why));
    }
    let mut names = Vec::new();
    let mut list = run::cargo();
    list.args(["test", "--quiet", "--package", "node-tests"])
        .args(targets)
        .args(args.filter.as_deref())
        .args(["--", "--list", "--format", "terse"]);
    let status = run::lines(&mut list, |line| {
        let name = line.strip_suffix(": test");
        names.extend(name.map(|name| format!("{name}: {why}")));
    })?;
    ensure!(status.success(), "the tests of node-tests do not compile");
    Ok(Counted::skips(names))
}
