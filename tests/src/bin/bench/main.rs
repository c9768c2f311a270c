//! The benchmarks of `cargo xtask bench`, as `bench NAME [NUMBER]`. The number replaces the default count of
//! rounds, seconds or other units of work. Each benchmark prints its figures with promises and peers, and
//! exits 1 if a promise is missed. `PATHPROOF_AGENT` names the agent's binary.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use node_tests::detect::{Load, Stage};
use node_tests::prelude::*;
use node_tests::promises::Missed;

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

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().context("the name of a benchmark")?;
    let given = arguments.next().map(|text| text.parse::<usize>());
    let given = given
        .transpose()
        .context("expected a number after the benchmark's name")?;
    let amount = |usual| given.unwrap_or(usual);
    let mut missed = Missed::default();
    match name.as_str() {
        // The number is the rounds of a repeated packet; there are ten times as many rounds of connections.
        "packet" => packet::run(amount(11), &mut missed)?,
        // The number is the starts of the agent.
        "scale" => scale::run(amount(3), &mut missed)?,
        // Seconds of endpoint changes, once without the agent and once with it.
        "cluster" => cluster::run(amount(60) as u64, &mut missed)?,
        // Total number of injections of all faults, on the idle node and again on the busy one.
        "detect" => detect::run(amount(100), &mut missed)?,
        // Boots in each mode of kube-proxy.
        "boot" => boot::run(amount(20), &mut missed)?,
        // Probes in each measurement.
        "http" => http::run(amount(1000), &mut missed)?,
        // Starts the peer of `http`.
        "peer" => http::serve()?,
        // Rounds of connections and bulk, with the agent and without it.
        "load" => load::run(amount(9), &mut missed)?,
        // Seconds of each measurement.
        "idle" => idle::run(amount(60), &mut missed)?,
        // Number of nodes.
        "rotator" => rotator::run(amount(5_000), &mut missed)?,
        "dashboard" => dashboard::run(amount(2_000), &mut missed)?,
        other => bail!("no benchmark {other}"),
    }
    Ok(missed.close())
}

/// A node with Services, a sentinel, and an agent with these options. If `probed`, waits until every path
/// is proven.
fn stage(load: Load, probed: bool, options: &[&str]) -> Result<Stage> {
    let options = [options, &["--log-filter", "warn"]].concat();
    let mut stage = Stage::build(Backend::Nftables, load, |world, manifests| {
        let mut agent = world.spawn_agent(&agent_binary()?, manifests.dir(), &options)?;
        agent.wait_ready(Duration::from_secs(10))?;
        Ok(agent)
    })?;
    if probed {
        stage.settle()?;
    }
    Ok(stage)
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
