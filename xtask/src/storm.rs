//! `cargo xtask storm`: builds the agent and the storm, and plays it as root.
//!
//! The program `storm` of package node-tests defines the events of a storm, its judgement, and the options.

use std::path::PathBuf;

use anyhow::Result;

use crate::run::Rest;
use crate::tally::{Counted, Tally};
use crate::{ebpf, host, run, setup_cluster};

pub(crate) fn run(rest: &Rest) -> Result<()> {
    play("release", &rest.arguments)
}

/// Options of CI's storm. `--draws` makes it fail if the seed no longer draws these events.
const FIXED: &str = "--seed 326 --minutes 2.4 --slack 3 --api --backend iptables-nft \
                     --draws Agent(Killed) --draws Fault(DataDropped) \
                     --draws Harmless(ProcessorsTaken) --draws Api(Slow(500ms))";

/// Runs about two minutes of a fixed seed, with five faults. The nightly run takes hours, with another seed
/// each day. A storm that judges fewer than 80 % of its faults fails. A failed storm is not repeated,
/// because a second run could excuse a false 503.
pub(crate) fn for_ci() -> Result<Counted> {
    if let Some(why) = host::no_world() {
        return Ok(Counted::skip("storm", why));
    }
    let options: Vec<String> = FIXED.split(' ').map(str::to_owned).collect();
    play("dev", &options)?;
    Ok(Tally::PASSED.into())
}

pub(crate) fn build_for_ci() -> Result<()> {
    match host::no_world() {
        Some(_) => Ok(()),
        None => build("dev").map(drop),
    }
}

fn build(profile: &str) -> Result<(PathBuf, PathBuf)> {
    host::install_world("the storm")?;
    let agent = ebpf::agent(profile)?;
    Ok((agent, run::build_program("node-tests", "storm", profile)?))
}

fn play(profile: &str, options: &[String]) -> Result<()> {
    let (agent, storm) = build(profile)?;
    if options.iter().any(|option| option == "--api") {
        setup_cluster::ready()?;
    }
    let mut command = host::as_root_with(storm, &[("PATHPROOF_AGENT", agent.as_os_str())])?;
    run::run_through_interrupts(command.args(options))
}
