//! `cargo xtask demo`: builds the agent and the demo, and runs the demo as root.
//!
//! The world and its timeline are the program `demo` of package node-tests; this file only gets
//! it built and started on a fresh machine.

use std::path::PathBuf;

use anyhow::Result;

use crate::{host, run};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave the world up at the end, and say how to play with it
    #[arg(long)]
    keep: bool,
    /// Remove a world that --keep left, and stop
    #[arg(long)]
    remove: bool,
    /// Write the timeline to a file: plain text, or an asciicast where it ends in .cast
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write the timeline as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Further arguments of the demo itself
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    host::install_world("the demo")?;
    eprintln!("building the agent and the demo (some minutes the first time)");
    // Removing a world needs no agent.
    let agent = (!args.remove).then(|| run::build_program("pathproof", "pathproof", true));
    let agent = agent.transpose()?;
    let demo = run::build_program("node-tests", "demo", true)?;
    if !host::is_root() {
        eprintln!("the demo makes network namespaces and loads eBPF: asking sudo");
    }
    let mut command = host::as_root(demo)?;
    if let Some(agent) = agent {
        command.arg("--agent").arg(agent);
    }
    for (flag, wanted) in [("--keep", args.keep), ("--remove", args.remove)] {
        if wanted {
            command.arg(flag);
        }
    }
    for (flag, file) in [("--record", &args.record), ("--svg", &args.svg)] {
        if let Some(file) = file {
            command.arg(flag).arg(std::path::absolute(file)?);
        }
    }
    command.args(&args.rest);
    run::run_through_interrupts(&mut command)
}
