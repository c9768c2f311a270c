//! `cargo xtask bench scale`: the agent at the size that the design promises. Memory of the process
//! and of its maps, and how long it takes from start to a verdict that knows all Services. The peer
//! in the same run is the agent with an empty view. Exits 1 if a promise is not met.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Parser;
use node_tests::promises::Missed;
use node_tests::scale::{self, Size};
use node_tests::usage;
use node_tests::world::{Agent, World, agent_binary};

/// Memory and time to first verdict at scale
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    size: Size,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
    /// Rounds; promises are judged by the median, and the best and worst are told
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Measurements of one round.
#[derive(Clone, Copy, Default)]
struct Figures {
    first_answer: Duration,
    first_verdict: Duration,
    rss_kib: u64,
    peak_kib: u64,
    maps_kib: u64,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let agent = args.agent.clone().map_or_else(agent_binary, Ok)?;
    let folder = tempfile::tempdir()?;
    let (full, empty) = (folder.path().join("full"), folder.path().join("empty"));
    let written = scale::write(&full, args.size.services, args.size.endpoints)?;
    scale::write(&empty, 0, 0)?;
    println!(
        "folder: {} Services ({} with a node port), {} endpoints in {} slices, {} files, {:.1} MB of YAML",
        written.services,
        written.node_ports,
        written.endpoints,
        written.slices,
        written.files,
        written.bytes as f64 / 1e6
    );
    let world = World::builder().pods(&["web"]).build()?;
    let peer = rounds(&world, &agent, &empty, 0, args.rounds)?;
    let size = rounds(&world, &agent, &full, args.size.services, args.rounds)?;
    Ok(print_table(&peer, &size).close())
}

fn rounds(
    world: &World,
    binary: &Path,
    folder: &Path,
    services: usize,
    rounds: usize,
) -> Result<Vec<Figures>> {
    (0..rounds)
        .map(|_| round(world, binary, folder, services))
        .collect()
}

fn round(world: &World, binary: &Path, folder: &Path, services: usize) -> Result<Figures> {
    let start = Instant::now();
    let mut agent = world.spawn_agent(binary, folder, &["--log-filter", "warn"])?;
    let first_answer = wait(&mut agent, start, |agent| agent.healthz().is_ok())?;
    let first_verdict = wait(&mut agent, start, |agent| {
        agent.verdict().is_ok_and(|report| {
            report["cluster"]["synced"] == true
                && report["expectations"]["services"].as_u64() == Some(services as u64)
                && report["verdict"]["state"].is_string()
        })
    })?;
    // Everything that start allocated and frees is freed, and the first ticks are over.
    thread::sleep(Duration::from_secs(3));
    let memory = usage::memory(agent.pid())?;
    let figures = Figures {
        first_answer,
        first_verdict,
        rss_kib: memory.rss_kib,
        peak_kib: memory.peak_kib,
        maps_kib: usage::maps_kib(agent.pid())?,
    };
    agent.terminate()?;
    Ok(figures)
}

fn wait(
    agent: &mut Agent,
    start: Instant,
    mut reached: impl FnMut(&Agent) -> bool,
) -> Result<Duration> {
    while start.elapsed() < Duration::from_secs(60) {
        if reached(agent) {
            return Ok(start.elapsed());
        }
        if let Some(status) = agent.exited()? {
            bail!("the agent ended with {status}:\n{}", agent.log());
        }
        thread::sleep(Duration::from_millis(5));
    }
    bail!("no verdict within 60 s:\n{}", agent.log())
}

fn print_table(peer: &[Figures], size: &[Figures]) -> Missed {
    let mut missed = Missed::default();
    println!();
    println!(
        "| figure | median | best | worst | unit | promise | met | peer: empty view | ratio |"
    );
    println!("|---|---:|---:|---:|---|---:|---|---:|---:|");
    let mib = |kib: u64| kib as f64 / 1024.0;
    let seconds = |duration: Duration| duration.as_secs_f64();
    let rss = |figures: &Figures| mib(figures.rss_kib);
    let mut row = |name: &str, unit: &str, promise: Option<f64>, of: &dyn Fn(&Figures) -> f64| {
        print_row([name, unit], promise, peer, size, of, &mut missed);
    };
    row("RSS", "MiB", Some(40.0), &rss);
    row("RSS, peak while loading", "MiB", None, &|f| mib(f.peak_kib));
    row("maps", "MiB", Some(32.0), &|f| mib(f.maps_kib));
    row("RSS and maps together", "MiB", Some(72.0), &|f| {
        mib(f.rss_kib + f.maps_kib)
    });
    row("start to first answer", "s", None, &|f| {
        seconds(f.first_answer)
    });
    row("start to first verdict", "s", Some(3.0), &|f| {
        seconds(f.first_verdict)
    });
    let empty = ["RSS, empty view", "MiB"];
    print_row(empty, Some(16.0), peer, peer, &rss, &mut missed);
    missed
}

fn print_row(
    [name, unit]: [&str; 2],
    promise: Option<f64>,
    peer: &[Figures],
    size: &[Figures],
    figure: &dyn Fn(&Figures) -> f64,
    missed: &mut Missed,
) {
    let sorted = |figures: &[Figures]| {
        let mut values: Vec<f64> = figures.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (values, peers) = (sorted(size), sorted(peer));
    let (median, peer) = (values[values.len() / 2], peers[peers.len() / 2]);
    let (promised, met) = missed.at_most(name, "median", promise, median);
    println!(
        "| {name} | {median:.2} | {:.2} | {:.2} | {unit} | {promised} | {met} | {peer:.2} | {:.2} |",
        values[0],
        values[values.len() - 1],
        median / peer
    );
}
