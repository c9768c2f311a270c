//! `cargo xtask bench`: builds and runs the measuring programs of package node-tests, and the fleet simulator.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::run::Rest;
use crate::{ebpf, host, image, run, setup_cluster};

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
    /// Connections a second, throughput and processor time with and without the agent, and a SYN
    /// flood (needs root)
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
        // It loads the programs itself.
        What::Packet(rest) => measure("packet", rest, None),
        What::Scale {
            cluster: false,
            rest,
        } => measure("scale", rest, Some(agent()?)),
        What::Scale { rest, .. } => {
            setup_cluster::ready()?;
            measure("cluster", rest, Some(agent()?))
        }
        What::Detect {
            kube_proxy: false,
            rest,
        } => measure("detect", rest, Some(agent()?)),
        What::Detect { .. } => cluster_tables("ten minutes", &["faults::", "calm::"], &[]),
        What::Programming => {
            let changes = [("PATHPROOF_CHANGES", OsStr::new("1000"))];
            cluster_tables("twenty minutes", &["programming::"], &changes)
        }
        What::Boot(rest) => {
            setup_cluster::ready()?;
            measure("boot", rest, Some(agent()?))
        }
        What::Http(rest) => measure("http", rest, Some(agent()?)),
        What::Load(rest) => measure("load", rest, Some(agent()?)),
        What::Soak(rest) => soak(rest),
        What::Idle(rest) => measure("idle", rest, Some(agent()?)),
        What::Rotator(rest) => {
            setup_cluster::ready()?;
            measure("rotator", rest, Some(agent()?))
        }
        What::Dashboard(rest) => dashboard(rest),
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

/// The agent as it is shipped.
fn agent() -> Result<PathBuf> {
    image::program()
}

fn measure(name: &str, rest: &Rest, agent: Option<PathBuf>) -> Result<()> {
    let agent = agent
        .as_ref()
        .map(|path| ("PATHPROOF_AGENT", path.as_os_str()));
    measure_with("bench", &[name], rest, agent.as_slice())
}

fn soak(rest: &Rest) -> Result<()> {
    let agent = agent()?;
    let variables = [("PATHPROOF_AGENT", agent.as_os_str())];
    let hour = ["--soak", "--minutes=60", "--seed=1"];
    measure_with("storm", &hour, rest, &variables)
}

fn measure_with(
    program: &str,
    name: &[&str],
    rest: &Rest,
    variables: &[(&str, &OsStr)],
) -> Result<()> {
    let bench = run::build_program("node-tests", program, "release")?;
    let mut command = host::as_root_with(bench, variables)?;
    run::run_through_interrupts(command.args(name).args(&rest.arguments))
}

/// Only the series of the agent matter: any build has them.
fn dashboard(rest: &Rest) -> Result<()> {
    let agent = ebpf::agent("dev")?;
    let tools = setup_cluster::prometheus()?;
    let variables = [
        ("PATHPROOF_AGENT", agent.as_os_str()),
        ("PATHPROOF_PROMETHEUS", tools.prometheus.as_os_str()),
        ("PATHPROOF_PROMTOOL", tools.promtool.as_os_str()),
    ];
    measure_with("bench", &["dashboard"], rest, &variables)
}

/// Some cluster tests print tables; here with the agent that is shipped, one after another, and the
/// tables alone.
fn cluster_tables(time: &str, tests: &[&str], more: &[(&str, &OsStr)]) -> Result<()> {
    let agent = agent()?;
    let servers = setup_cluster::ready()?;
    let test = run::build_test("node-tests", "cluster", "release")?;
    let mut env = vec![
        ("PATHPROOF_AGENT", agent.as_os_str()),
        ("PATHPROOF_CLUSTER_SERVERS", servers.as_os_str()),
        ("RUST_TEST_THREADS", OsStr::new("1")),
    ];
    env.extend(more);
    let mut command = host::as_root_with(test, &env)?;
    command.arg("--nocapture").args(tests);
    println!("about {time}; each table is printed when its test ends");
    let status = run::lines(&mut command, |line| {
        if line.starts_with('|') || line.contains("panicked") {
            println!("{line}");
        }
    })?;
    if !status.success() {
        bail!("a test failed: run `cargo xtask test cluster` for the reason");
    }
    Ok(())
}
