//! `cargo xtask storm` and `cargo xtask compare`: build the agent and a program of package node-tests, and run it
//! as root. The programs `storm` and `compare` define what is played and judged, and the options.

use std::path::PathBuf;

use anyhow::Result;

use crate::run::Rest;
use crate::tally::{Counted, Tally};
use crate::{ebpf, host, run, setup_cluster};

pub(crate) fn run(rest: &Rest) -> Result<()> {
    play("storm", "release", &rest.arguments)
}

pub(crate) fn compare(rest: &Rest) -> Result<()> {
    play("compare", "release", &rest.arguments)
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
    play("storm", "dev", &options)?;
    Ok(Tally::PASSED.into())
}

pub(crate) fn build_for_ci() -> Result<()> {
    match host::no_world() {
        Some(_) => Ok(()),
        None => build("storm", "dev").map(drop),
    }
}

fn build(program: &str, profile: &str) -> Result<(PathBuf, PathBuf)> {
    host::install_world(program)?;
    let agent = ebpf::agent(profile)?;
    Ok((agent, run::build_program("node-tests", program, profile)?))
}

fn play(program: &str, profile: &str, options: &[String]) -> Result<()> {
    let (agent, built) = build(program, profile)?;
    if program == "compare" || options.iter().any(|option| option == "--api") {
        setup_cluster::ready()?;
    }
    let mut command = host::as_root_with(built, &[("PATHPROOF_AGENT", agent.as_os_str())])?;
    run::run_through_interrupts(command.args(options))
}
