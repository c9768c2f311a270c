//! `cargo xtask bench`: builds and runs the measuring programs of package node-tests, and the fleet simulator.

use std::ffi::OsStr;

use anyhow::Result;

use crate::run::Rest;
use crate::{host, image, run, setup_cluster};

/// Variable that names the agent's program.
const AGENT: &str = "PATHPROOF_AGENT";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Nanoseconds per packet over an empty TCX program (needs root)
    Packet(Rest),
    /// Memory and time to the first verdict with 10,000 Services and 100,000 endpoints (needs root)
    Scale {
        /// Measure in a real cluster, while 100 endpoints change per second
        #[arg(long)]
        cluster: bool,
        #[command(flatten)]
        rest: Rest,
    },
    /// Time from fault to 503 and from repair to 200, idle and busy (needs root)
    Detect {
        /// Measure in a real cluster, and compare with kube-proxy's own health server
        #[arg(long)]
        kube_proxy: bool,
        #[command(flatten)]
        rest: Rest,
    },
    /// Time from a change of endpoints to connections that follow it, over 1,000 changes, measured
    /// by the agent, a packet capture and kube-proxy (needs root)
    Programming,
    /// Time from kube-proxy's first sync after boot to 200 (needs root)
    Boot(Rest),
    /// Response time of /healthz with 10,000 open connections and all processors busy (needs root)
    Http(Rest),
    /// Connections a second, handshakes and throughput with and without the agent, and a SYN flood
    /// (needs root)
    Load(Rest),
    /// Growth of memory, open files, map entries and log over an hour of churn (needs root)
    Soak(Rest),
    /// CPU time of the agent on an idle node while it probes all paths (needs root)
    Idle(Rest),
    /// Memory of a rotator that counts 5,000 nodes at a real API server (needs root)
    Rotator(Rest),
    /// Query time of the dashboard's panels and of the rules on a Prometheus with the series of 2,000
    /// nodes (needs root)
    Dashboard(Rest),
    /// Simulation of the fleet brake: the tables and the picture of docs/fleet-brake.md
    Fleet,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if matches!(args.what, What::Fleet) {
        return fleet();
    }
    host::install_world("the benchmark")?;
    match &args.what {
        What::Packet(rest) => bench("packet", rest),
        What::Scale { cluster, rest } if *cluster => in_cluster("cluster", rest),
        What::Scale { rest, .. } => bench("scale", rest),
        What::Detect { kube_proxy, rest } if !kube_proxy => bench("detect", rest),
        What::Detect { .. } => cluster_tests(&["faults::", "calm::"]),
        What::Programming => cluster_tests(&["programming::"]),
        What::Boot(rest) => in_cluster("boot", rest),
        What::Http(rest) => bench("http", rest),
        What::Load(rest) => bench("load", rest),
        What::Soak(rest) => measure("storm", &["--soak", "--minutes=60", "--seed=1"], rest),
        What::Idle(rest) => bench("idle", rest),
        What::Rotator(rest) => in_cluster("rotator", rest),
        What::Dashboard(rest) => {
            setup_cluster::prometheus()?;
            bench("dashboard", rest)
        }
        What::Fleet => fleet(),
    }
}

/// Nothing of it is measured: the same seed gives the same tables everywhere.
fn fleet() -> Result<()> {
    let picture = run::root().join("docs/images/fleet-brake.svg");
    let mut command = run::cargo();
    let example = ["--package", "agent-core", "--example", "fleet"];
    command.args(["run", "--quiet", "--release"]).args(example);
    run::run(command.arg("--").arg(picture))
}

fn bench(name: &str, rest: &Rest) -> Result<()> {
    measure("bench", &[name], rest)
}

fn in_cluster(name: &str, rest: &Rest) -> Result<()> {
    setup_cluster::ready()?;
    bench(name, rest)
}

/// Runs a program of package node-tests with the agent as it is shipped.
fn measure(program: &str, words: &[&str], rest: &Rest) -> Result<()> {
    // This one loads the eBPF programs itself, and the build of the agent takes minutes.
    let needs_agent = words != ["packet"];
    let agent = needs_agent.then(image::program).transpose()?;
    let program = run::build_program("node-tests", program, "release")?;
    let variable = agent.as_ref().map(|agent| (AGENT, agent.as_os_str()));
    let mut command = host::as_root_with(program, variable.as_slice())?;
    run::run_through_interrupts(command.args(words).args(&rest.arguments))
}

/// Some cluster tests print tables; here with the agent that is shipped, and one after another.
fn cluster_tests(tests: &[&str]) -> Result<()> {
    let agent = image::program()?;
    setup_cluster::ready()?;
    let test = run::build_test("node-tests", "cluster", "release")?;
    let changes = ("PATHPROOF_CHANGES", OsStr::new("1000"));
    let mut command = host::as_root_with(test, &[(AGENT, agent.as_os_str()), changes])?;
    run::run(
        command
            .args(["--nocapture", "--test-threads=1"])
            .args(tests),
    )
}
