//! `cargo xtask bench scale`: the agent at the size that the design promises. Memory of the process
//! and of its maps, and how long it takes from start to a verdict that knows all Services. The peer
//! in the same run is the agent with an empty view.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use node_tests::promises::{Missed, head, median};
use node_tests::scale::{self, ENDPOINTS, SERVICES};
use node_tests::usage;
use node_tests::world::{Agent, World, agent_binary};

use crate::mib;

/// One start of the agent: MiB, and seconds since the start.
struct Round {
    rss: f64,
    peak: f64,
    maps: f64,
    first_answer: f64,
    first_verdict: f64,
}

type Of = fn(&Round) -> f64;

/// Figures that are measured: name, unit, promise, and the value.
const FIGURES: [(&str, &str, Option<f64>, Of); 6] = [
    ("RSS", "MiB", Some(40.0), |one| one.rss),
    ("RSS, peak while loading", "MiB", None, |one| one.peak),
    ("maps", "MiB", Some(32.0), |one| one.maps),
    ("RSS and maps together", "MiB", Some(72.0), |one| {
        one.rss + one.maps
    }),
    ("start to first answer", "s", None, |one| one.first_answer),
    ("start to first verdict", "s", Some(3.0), |one| {
        one.first_verdict
    }),
];
const PATIENCE: Duration = Duration::from_secs(60);
/// Promise: RSS with an empty view, MiB.
const EMPTY: f64 = 16.0;

pub(crate) fn run(rounds: usize, missed: &mut Missed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [full, empty] = ["full", "empty"].map(|name| folder.path().join(name));
    let bytes = scale::write(&full, SERVICES, ENDPOINTS)?;
    scale::write(&empty, 0, 0)?;
    let size = bytes as f64 / 1e6;
    println!("folder: {SERVICES} Services, {ENDPOINTS} endpoints, {size:.1} MB of YAML");
    let world = World::builder().pods(&["web"]).build()?;
    let measure = |folder: &Path, services| {
        let rounds = (0..rounds).map(|_| round(&world, folder, services));
        rounds.collect::<Result<Vec<_>>>()
    };
    let peers = measure(&empty, 0)?;
    let ours = measure(&full, SERVICES)?;
    head(Missed::FIGURE);
    for (name, unit, promise, of) in FIGURES {
        let all = |rounds: &[Round]| rounds.iter().map(of).collect::<Vec<_>>();
        let peer = Some(("empty view", median(all(&peers))));
        missed.figure(name, unit, &all(&ours), promise, peer);
    }
    let rss: Vec<f64> = peers.iter().map(|round| round.rss).collect();
    missed.figure("RSS, empty view", "MiB", &rss, Some(EMPTY), None);
    Ok(())
}

fn round(world: &World, folder: &Path, services: usize) -> Result<Round> {
    let start = Instant::now();
    let agent = world.spawn_agent(&agent_binary()?, folder, &["--log-filter", "warn"])?;
    let first_answer = wait(&agent, start, || agent.healthz().is_ok())?;
    let first_verdict = wait(&agent, start, || {
        agent.verdict().is_ok_and(|report| {
            report["cluster"]["synced"] == true
                && report["expectations"]["services"].as_u64() == Some(services as u64)
                && report["verdict"]["state"].is_string()
        })
    })?;
    // Everything that start allocated and frees is freed, and the first ticks are over.
    thread::sleep(Duration::from_secs(3));
    let memory = usage::memory(agent.pid())?;
    let maps = usage::maps_kib(agent.pid())?;
    agent.terminate()?;
    Ok(Round {
        rss: mib(memory.rss_kib),
        peak: mib(memory.peak_kib),
        maps: mib(maps),
        first_answer,
        first_verdict,
    })
}

/// Seconds until something holds.
fn wait(agent: &Agent, start: Instant, holds: impl Fn() -> bool) -> Result<f64> {
    while !holds() {
        let patient = start.elapsed() < PATIENCE;
        ensure!(patient, "no verdict within {PATIENCE:?}:\n{}", agent.log());
        thread::sleep(Duration::from_millis(5));
    }
    Ok(start.elapsed().as_secs_f64())
}
