//! The benchmarks of `cargo xtask bench`. Each prints its figures beside their promises and their
//! peers, and exits 1 if a promise is not met. The agent is the one that `PATHPROOF_AGENT` names.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use node_tests::detect::{Load, Stage};
use node_tests::observer::Observer;
use node_tests::promises::Missed;
use node_tests::rules::Backend;
use node_tests::world::agent_binary;

mod boot;
mod cluster;
mod dashboard;
mod detect;
mod http;
mod idle;
mod load;
mod packet;
mod rotator;
mod scale;
mod site;

/// Benchmark to run, and how much of it
#[derive(Parser)]
enum Bench {
    /// Nanoseconds per packet over an empty program
    Packet {
        /// Rounds of a repeated packet; connections have ten times as many
        #[arg(long, default_value_t = 11)]
        rounds: usize,
    },
    /// Memory and time to the first verdict, from a folder
    Scale {
        /// Starts of the agent; the promises are judged by the median
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// The agent beside kube-proxy in a real cluster, at size
    Cluster {
        /// Seconds of changes, without the agent and with it
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Time from fault to 503, and from repair to 200
    Detect {
        /// Injections on the idle node and as many on the busy one, all faults together
        #[arg(long, default_value_t = 100)]
        injections: usize,
    },
    /// Time from kube-proxy's first sync after boot to 200
    Boot {
        /// Boots in each mode of kube-proxy
        #[arg(long, default_value_t = 20)]
        boots: usize,
    },
    /// Response time of /healthz under abuse
    Http {
        /// Probes of each measurement
        #[arg(long, default_value_t = 1000)]
        probes: usize,
    },
    /// The peer of `http`
    #[command(hide = true)]
    Peer { address: SocketAddr },
    /// Cost of the agent under load
    Load {
        /// Rounds of connections and bulk, with the agent, with one byte read, and without: an odd
        /// number
        #[arg(long, default_value_t = 9)]
        rounds: usize,
    },
    /// Processor time of an idle node's agent
    Idle {
        /// Seconds of each measurement
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Memory of a rotator that counts thousands of nodes
    Rotator {
        #[arg(long, default_value_t = 5_000)]
        nodes: usize,
    },
    /// Query time of the dashboard's panels and of the rules in a large fleet
    Dashboard {
        #[arg(long, default_value_t = 2_000)]
        nodes: usize,
    },
}

fn main() -> Result<ExitCode> {
    let mut missed = Missed::default();
    match Bench::parse() {
        Bench::Packet { rounds } => packet::run(rounds, &mut missed)?,
        Bench::Scale { rounds } => scale::run(rounds, &mut missed)?,
        Bench::Cluster { seconds } => cluster::run(seconds, &mut missed)?,
        Bench::Detect { injections } => detect::run(injections, &mut missed)?,
        Bench::Boot { boots } => boot::run(boots, &mut missed)?,
        Bench::Http { probes } => http::run(probes, &mut missed)?,
        Bench::Peer { address } => http::serve(address)?,
        Bench::Load { rounds } => load::run(rounds, &mut missed)?,
        Bench::Idle { seconds } => idle::run(seconds, &mut missed)?,
        Bench::Rotator { nodes } => rotator::run(nodes, &mut missed)?,
        Bench::Dashboard { nodes } => dashboard::run(nodes, &mut missed)?,
    }
    Ok(missed.close())
}

/// The observer, with other capacities for these maps.
fn observer(capacities: &[(&'static str, u32)]) -> Result<Observer> {
    Observer::load(capacities).context("the programs cannot be loaded here")
}

/// A node with Services, a sentinel, and an agent with these options. If `probed`, every path is
/// proven.
fn stage(load: Load, probed: bool, options: &[&str]) -> Result<Stage> {
    let options = [options, &["--log-filter", "warn"]].concat();
    let mut stage = Stage::build(Backend::Nftables, load, |world, manifests| {
        world.ready_agent(&agent_binary()?, manifests.dir(), &options)
    })?;
    if probed {
        stage.settle()?;
    }
    Ok(stage)
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
