//! The demo: the real agent on real packets, told as a timeline.
//!
//! A node, its pods and its clients as namespaces, Service NAT by nftables from the YAML that the
//! agent reads, steady traffic. The script breaks the node in several ways, and each time waits
//! for what a load balancer would see on /healthz. It succeeds only if all of it happened in time,
//! and leaves nothing behind, also after Ctrl-C.

mod cluster;
mod script;
mod signals;
mod svg;
mod teller;
mod timeline;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use crate::real_node::Programs;
use crate::{skip, world};
use timeline::Timeline;

/// Exit code for missing permissions (sysexits.h).
const NO_PERMISSION: u8 = 77;
/// Lines of an error that are shown, and their columns: it may quote a log, and that of a verifier
/// is megabytes.
const SHOWN: (usize, usize) = (20, 300);

/// The real agent on real packets, told as a timeline
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Args {
    /// The agent's binary; with --cluster also its image, as an archive
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// On a real one-node Kubernetes: install, fault, alert, repair, uninstall
    #[arg(long)]
    cluster: bool,
    /// Write the timeline as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs the demo; the process's whole life.
pub fn main() -> ExitCode {
    let args = Args::parse();
    if !skip::is_root() {
        eprintln!(
            "the demo makes network namespaces and loads eBPF programs, which needs root: \
             run `sudo cargo xtask demo`, or `cargo xtask demo` as root"
        );
        return ExitCode::from(NO_PERMISSION);
    }
    signals::catch();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if signals::interrupted() => {
            eprintln!("\ninterrupted ({error}); everything the demo made is removed");
            ExitCode::from(130)
        }
        Err(error) => {
            let text = format!("the demo stopped: {error:#}");
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(SHOWN.0)..] {
                eprintln!("{line:.*}", SHOWN.1);
            }
            ExitCode::FAILURE
        }
    }
}

/// Gives whether everything came that was expected.
fn run(args: &Args) -> Result<bool> {
    let agent = args.agent.clone().map_or_else(world::agent_binary, Ok)?;
    let found = agent.canonicalize();
    let agent = found.with_context(|| format!("find {}", agent.display()))?;
    let mut timeline = Timeline::new();
    let outcome = if args.cluster {
        let pod = std::env::current_exe()?.with_file_name("pod");
        cluster::play(&Programs { agent, pod }, &mut timeline)
    } else {
        script::play(&agent, &mut timeline)
    };
    // The lines are worth a picture, also where the end failed.
    if let Some(file) = &args.svg {
        svg::write(file, &timeline.lines)?;
    }
    outcome
}
