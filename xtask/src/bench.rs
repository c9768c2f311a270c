//! `cargo xtask bench`: builds and runs the measuring programs of package node-tests, and the fleet simulator.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::run::Rest;
use crate::{host, image, run, setup_cluster};

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
        /// In a real cluster, while 100 endpoints change a second
        #[arg(long)]
        cluster: bool,
        #[command(flatten)]
        rest: Rest,
    },
    /// Time from fault to 503 and from repair to 200, idle and busy (needs root)
    Detect {
        /// In a real cluster: what kube-proxy's own health server says of the same faults
        #[arg(long)]
        kube_proxy: bool,
        #[command(flatten)]
        rest: Rest,
    },
    /// Time from 1,000 changes of endpoints to the connections that follow them: by the agent, by a
    /// packet capture and by kube-proxy (needs root)
    Programming,
    /// Time from the datapath's first sync after a boot to 200, with a real kube-proxy (needs root)
    Boot(Rest),
    /// Time to an answer of /healthz with 10,000 open connections and all processors busy (needs root)
    Http(Rest),
    /// Connections a second, handshakes and throughput with and without the agent, and a SYN flood
    /// (needs root)
    Load(Rest),
    /// What the agent holds over an hour of churn: memory, files, entries, log (needs root)
    Soak(Rest),
    /// Processor time of the agent on an idle node, all paths probed (needs root)
    Idle(Rest),
    /// Memory of a rotator that counts 5,000 nodes, at a real API server (needs root)
    Rotator(Rest),
    /// The fleet brake in simulated fleets: the tables of docs/fleet-brake.md, and its picture
    Fleet,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if matches!(args.what, What::Fleet) {
        return fleet();
    }
    host::install_world("the benchmark")?;
    match &args.what {
        // It loads the programs itself.
        What::Packet(rest) => measure("bench-packet", rest, None),
        What::Scale {
            cluster: false,
            rest,
        } => measure("bench-scale", rest, Some(agent()?)),
        What::Scale { rest, .. } => {
            setup_cluster::ready()?;
            measure("bench-cluster", rest, Some(agent()?))
        }
        What::Detect {
            kube_proxy: false,
            rest,
        } => measure("bench-detect", rest, Some(agent()?)),
        What::Detect { .. } => cluster_tables("ten minutes", &["faults::", "calm::"], &[]),
        What::Programming => {
            let changes = [("PATHPROOF_CHANGES", OsStr::new("1000"))];
            cluster_tables("twenty minutes", &["programming::"], &changes)
        }
        What::Boot(rest) => {
            setup_cluster::ready()?;
            measure("bench-boot", rest, Some(agent()?))
        }
        What::Http(rest) => measure("bench-http", rest, Some(agent()?)),
        What::Load(rest) => measure("bench-load", rest, Some(agent()?)),
        What::Soak(rest) => measure("soak", rest, Some(agent()?)),
        What::Idle(rest) => measure("bench-idle", rest, Some(agent()?)),
        What::Rotator(rest) => {
            setup_cluster::ready()?;
            measure("bench-rotator", rest, Some(agent()?))
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

/// The agent as it is shipped.
fn agent() -> Result<PathBuf> {
    image::program()
}

fn measure(program: &str, rest: &Rest, agent: Option<PathBuf>) -> Result<()> {
    let bench = run::build_program("node-tests", program, "release")?;
    let agent = agent
        .as_ref()
        .map(|path| ("PATHPROOF_AGENT", path.as_os_str()));
    let mut command = host::as_root_with(bench, agent.as_slice())?;
    run::run_through_interrupts(command.args(&rest.arguments))
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
    println!("about {time}; each table comes when its test is over");
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
