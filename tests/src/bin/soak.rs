//! `cargo xtask bench soak`: what the agent holds over an hour of churn under traffic. Exits 1 if
//! anything of it grows.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use node_tests::promises::Missed;
use node_tests::soak::{Look, Soaked, soak};
use node_tests::world::agent_binary;

/// What the agent holds may grow by this share without a leak, and by some for small numbers.
const MAY_GROW: f64 = 0.05;
const SOME: u64 = 8;
/// Connections to backends that are killed stay in conntrack for two minutes, whoever looks.
const CONNTRACK_MAY_GROW: f64 = 0.25;
/// Bytes of log a second that nobody calls a flood: some lines for each thing that comes or goes.
const LOG: f64 = 2_000.0;

/// Memory, files and entries of the agent under churn
#[derive(Parser)]
struct Args {
    /// Duration of the churn
    #[arg(long, default_value_t = 60.0, value_name = "MINUTES")]
    minutes: f64,
    /// Seed of the churn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let agent = args.agent.clone().map_or_else(agent_binary, Ok)?;
    let length = Duration::try_from_secs_f64(args.minutes * 60.0)?;
    println!("{} minutes under churn, seed {}", args.minutes, args.seed);
    let soaked = soak(agent, args.seed, length)?;
    Ok(tell(&soaked, length).close())
}

fn tell(soaked: &Soaked, length: Duration) -> Missed {
    println!("\n| of the agent | second quarter | last quarter | unit | ratio | flat |");
    println!("|---|---:|---:|---|---:|---|");
    let mut missed = Missed::default();
    let mut row = |name: &str, unit: &str, may_grow: f64, of: fn(&Look) -> u64| {
        let (before, after) = soaked.quarters(of);
        let most = (before as f64 * (1.0 + may_grow)) as u64 + SOME;
        let flat = missed.judge(format!("flat {name}"), after <= most);
        let ratio = after as f64 / before as f64;
        println!("| {name} | {before} | {after} | {unit} | {ratio:.3} | {flat} |");
    };
    row("memory (RSS)", "KiB", MAY_GROW, |look| look.rss_kib);
    row("open files", "files", MAY_GROW, |look| look.files);
    row("its maps", "entries", MAY_GROW, |look| look.entries);
    let conntrack = |look: &Look| look.conntrack;
    row(
        "conntrack of the node",
        "entries",
        CONNTRACK_MAY_GROW,
        conntrack,
    );
    let log = soaked.looks.last().map_or(0, |look| look.log) as f64 / length.as_secs_f64();
    let (connections, failed) = soaked.connections;
    println!("\nlog: {log:.0} bytes a second");
    println!("{connections} connections, {failed} of them not answered");
    println!("{} counters went back", soaked.went_back.len());
    for series in &soaked.went_back {
        println!("  {series}");
    }
    let what = format!("at most {LOG:.0} bytes of log a second");
    missed.judge(what, log <= LOG);
    missed.judge("no counter goes back", soaked.went_back.is_empty());
    missed
}
