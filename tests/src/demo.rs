//! The demo: the real agent on real packets, printed as a timeline.
//!
//! A node, its pods and its clients are namespaces, with Service NAT by nftables from the agent's YAML, and
//! steady traffic. The script breaks the node in several ways, and each time waits for the answers that a
//! load balancer would get at /healthz. The demo succeeds only if all expected answers came. It removes
//! everything that it created, even after Ctrl-C.

mod cluster;
mod script;
mod teller;
mod timeline;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use clap::Parser;
use nix::sys::signal::{SigHandler, Signal, signal};
use timeline::Timeline;

use crate::skip;

/// Maximum lines and columns of a printed error: an error may quote a log, and a verifier's log can have
/// megabytes.
const SHOWN: (usize, usize) = (20, 300);

/// The real agent on real packets, shown as a timeline
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Args {
    /// On a real one-node Kubernetes: install, fault, alert, repair, uninstall
    #[arg(long)]
    cluster: bool,
    /// Write the timeline as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_signal: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Returns an error after Ctrl-C or SIGTERM. Every wait calls this, so that the demo ends by an error and
/// `Drop` cleans up.
fn check_signals() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "by a signal");
    Ok(())
}

pub fn main() -> ExitCode {
    let args = Args::parse();
    for at in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { signal(at, SigHandler::Handler(interrupt)) }.expect("a signal of the kernel's");
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if check_signals().is_err() => {
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

/// Returns whether all expected results came.
fn run(args: &Args) -> Result<bool> {
    ensure!(
        skip::is_root(),
        "network namespaces and eBPF programs need root: run `sudo cargo xtask demo`"
    );
    let mut timeline = Timeline::new();
    let outcome = if args.cluster {
        let pod = std::env::current_exe()?.with_file_name("pod");
        cluster::play(&pod, &mut timeline)
    } else {
        script::play(&mut timeline)
    };
    // Draw the picture even if the demo failed.
    if let Some(file) = &args.svg {
        timeline.draw(file)?;
    }
    outcome
}
