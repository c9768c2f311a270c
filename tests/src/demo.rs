//! The demo: the real agent on real packets, told as a timeline.
//!
//! A node, its pods and its clients as namespaces, Service NAT by nftables from the YAML that the
//! agent reads, steady traffic. The script breaks the node in several ways, and each time waits
//! for what a load balancer would see on /healthz. It succeeds only if all of it happened in time,
//! and leaves nothing behind, also after Ctrl-C; `--keep` leaves the world up to play with.

mod cluster;
mod script;
mod signals;
mod stage;
mod summary;
mod svg;
mod teller;
mod timeline;
mod verdict;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use crate::{skip, world};
use stage::Stage;
use summary::Outcome;
use timeline::{Kind, Timeline};

/// Name of a kept world.
const KEPT: &str = "pp-demo";
/// Exit code for missing permissions (sysexits.h).
const NO_PERMISSION: u8 = 77;

/// The real agent on real packets, told as a timeline
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Args {
    /// The agent's binary
    #[arg(long, value_name = "FILE", env = "PATHPROOF_AGENT")]
    agent: Option<PathBuf>,
    /// On a real one-node Kubernetes: install, fault, alert, repair, uninstall
    #[arg(long, conflicts_with_all = ["keep", "remove"])]
    cluster: bool,
    /// The agent's image as an archive, for --cluster; made of the binary without it
    #[arg(long, value_name = "FILE", env = "PATHPROOF_IMAGE")]
    image: Option<PathBuf>,
    /// Leave the world up at the end, and say how to play with it
    #[arg(long)]
    keep: bool,
    /// Remove a world that --keep left, and stop
    #[arg(long)]
    remove: bool,
    /// Write the timeline to a file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write the timeline as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Serve and dial in a kept world (used by --keep)
    #[arg(long, hide = true)]
    tend: bool,
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
            eprintln!("the demo stopped: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool> {
    if args.tend {
        return stage::tend(KEPT).map(|()| true);
    }
    if args.remove {
        let found = world::remove_kept(KEPT)?;
        println!(
            "{}",
            if found {
                "the world is removed"
            } else {
                "there is no world to remove"
            }
        );
        return Ok(true);
    }
    check_tools()?;
    let mut timeline = Timeline::new();
    let outcome = if args.cluster {
        on_a_real_node(args, &mut timeline)
    } else {
        in_a_world(args, &mut timeline)
    };
    // What was told is worth keeping, also where the end failed.
    if let Some(file) = &args.record {
        timeline.record(file)?;
    }
    if let Some(file) = &args.svg {
        svg::write(file, timeline.lines())?;
    }
    outcome
}

fn on_a_real_node(args: &Args, timeline: &mut Timeline) -> Result<bool> {
    let programs = cluster::Programs {
        agent: match &args.image {
            Some(image) => image.clone(),
            None => binary(args)?,
        },
        pod: beside("pod")?,
    };
    cluster::play(&programs, timeline)
}

/// A program of this package.
fn beside(name: &str) -> Result<PathBuf> {
    let file = std::env::current_exe()?.with_file_name(name);
    file.canonicalize()
        .with_context(|| format!("find {}", file.display()))
}

fn binary(args: &Args) -> Result<PathBuf> {
    let agent = args.agent.clone().map_or_else(world::agent_binary, Ok)?;
    agent
        .canonicalize()
        .with_context(|| format!("find {}", agent.display()))
}

fn in_a_world(args: &Args, timeline: &mut Timeline) -> Result<bool> {
    perform(args, &binary(args)?, timeline)
}

fn perform(args: &Args, agent: &std::path::Path, timeline: &mut Timeline) -> Result<bool> {
    timeline.title("pathproof: is this node really routing Service traffic, right now?");
    let mut stage = Stage::build(agent, args.keep.then_some(KEPT), timeline)?;
    let outcome = script::play(&mut stage, timeline)?;
    if args.keep {
        stage.keep(agent, timeline)?;
    } else {
        drop(stage);
        timeline.tell(
            Kind::Note,
            "the world is removed: no namespace, program or file is left",
        );
        timeline.tell(
            Kind::Note,
            "next: `cargo xtask demo --keep` leaves the world up; docs/quickstart.md continues in a cluster",
        );
    }
    Ok(outcome != Outcome::Missed)
}

fn check_tools() -> Result<()> {
    for (tool, package) in [("ip", "iproute2"), ("nft", "nftables")] {
        world::tool(tool)
            .with_context(|| format!("{tool} is not in PATH: install the package {package}"))?;
    }
    Ok(())
}
