//! `cargo xtask sim`: plays hours of simulated nodes, by an example of pathproof-sim.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::Result;

use crate::bench;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Node-hours to play
    #[arg(long, default_value_t = 1_000)]
    hours: u64,
    /// Seed from which all nodes are drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of threads
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Write a recording of each wrong case to this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Play this case alone: WORLD.FAULT.SEED, as printed for a wrong one
    #[arg(long, conflicts_with_all = ["hours", "seed"])]
    case: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (hours, seed, jobs) = (args.hours, args.seed, args.jobs);
    let mut words = vec![
        format!("--hours={hours}"),
        format!("--seed={seed}"),
        format!("--jobs={jobs}"),
    ];
    if let Some(folder) = &args.keep {
        // The example runs in the repository's root.
        let folder = std::path::absolute(folder)?;
        words.push(format!("--keep={}", folder.display()));
    }
    words.extend(args.case.iter().map(|case| format!("--case={case}")));
    bench::simulate("hours", words.iter().map(OsStr::new))
}
