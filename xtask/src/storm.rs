//! `cargo xtask storm`: builds the agent and the storm, and plays it as root.
//!
//! The program `storm` of package node-tests defines the events of a storm, how it is judged, and
//! the options.

use anyhow::Result;

use crate::run::Rest;
use crate::tally::{Counted, Tally};
use crate::{host, run, setup_cluster};

pub(crate) fn run(rest: &Rest) -> Result<()> {
    play("release", &rest.arguments)
}

/// Two minutes in all. Of the fixed seed a fault has to be judged. The day's seed is another storm
/// every day, and its faults may all be ones that cannot be judged. A storm that fails is not played
/// again: a second run could excuse a false 503.
pub(crate) fn for_ci() -> Result<Counted> {
    if !host::is_root() {
        return Ok(Counted::skip("storm", "needs root"));
    }
    let options = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let fixed = "--seed 37 --minutes 1 --slack 3 --told 1 --api --backend iptables-nft";
    play("dev", &options(fixed))?;
    play("dev", &options("--minutes 1 --slack 3"))?;
    Ok(Tally::PASSED.into())
}

fn play(profile: &str, options: &[String]) -> Result<()> {
    host::install_world("the storm")?;
    let agent = run::build_program("pathproof", "pathproof", profile)?;
    let storm = run::build_program("node-tests", "storm", profile)?;
    let servers = options.iter().any(|option| option == "--api");
    let servers = servers.then(setup_cluster::ready).transpose()?;
    let env = servers.as_ref();
    let env = env.map(|folder| ("PATHPROOF_CLUSTER_SERVERS", folder.as_os_str()));
    let mut command = host::as_root_with(storm, env.as_slice())?;
    command.arg("--agent").arg(agent).args(options);
    run::run_through_interrupts(&mut command)
}
