//! `cargo xtask bench scale`: the agent with as many Services and endpoints as the design promises. Measures
//! the memory of the process and of its maps, and the time from start to a verdict that includes all
//! Services. The peer in the same run is the agent in a cluster without Services (an empty view).

use std::path::Path;

use anyhow::{Result, ensure};
use node_tests::prelude::*;
use node_tests::promises::{Missed, head, median};
use node_tests::scale::{self, ENDPOINTS, SERVICES};
use node_tests::usage;

use crate::mib;

/// Figures of a start of the agent: name, unit and promise.
const FIGURES: [(&str, &str, f64); 4] = [
    ("RSS", "MiB", 40.0),
    ("maps", "MiB", 32.0),
    ("RSS and maps together", "MiB", 72.0),
    ("start to first verdict", "s", 3.0),
];
const PATIENCE: Duration = Duration::from_secs(60);
/// Promise: RSS with an empty view, in MiB.
const EMPTY: f64 = 16.0;

pub(crate) fn run(rounds: usize, missed: &mut Missed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let world = World::builder().pods(&["web"]).build()?;
    let measure = |services: usize| -> Result<Vec<_>> {
        let folder = folder.path().join(services.to_string());
        let size = scale::write(&folder, services)? as f64 / 1e6;
        println!("folder: {services} Services, {size:.1} MB of YAML");
        (0..rounds)
            .map(|_| round(&world, &folder, services))
            .collect()
    };
    let (peers, ours) = (measure(0)?, measure(SERVICES)?);
    println!("{ENDPOINTS} endpoints");
    head(Missed::FIGURE);
    let all = |rounds: &[[f64; 4]], index: usize| -> Vec<f64> {
        rounds.iter().map(|round| round[index]).collect()
    };
    for (index, (name, unit, promise)) in FIGURES.into_iter().enumerate() {
        let peer = Some(("empty view", median(all(&peers, index))));
        missed.figure(name, unit, &all(&ours, index), Some(promise), peer);
    }
    let rss = all(&peers, 0);
    missed.figure("RSS, empty view", "MiB", &rss, Some(EMPTY), None);
    Ok(())
}

/// The [`FIGURES`] of one start.
fn round(world: &World, folder: &Path, services: usize) -> Result<[f64; 4]> {
    let start = Instant::now();
    let agent = world.spawn_agent(&agent_binary()?, folder, &["--log-filter", "warn"])?;
    let is_judged = || {
        agent.verdict().is_ok_and(|report| {
            report["cluster"]["synced"] == true
                && report["expectations"]["services"].as_u64() == Some(services as u64)
                && report["verdict"]["state"].is_string()
        })
    };
    while !is_judged() {
        let patient = start.elapsed() < PATIENCE;
        ensure!(patient, "no verdict within {PATIENCE:?}:\n{}", agent.log());
        thread::sleep(Duration::from_millis(5));
    }
    let verdict = start.elapsed().as_secs_f64();
    // Time until start-up memory is freed and the first ticks are over.
    thread::sleep(Duration::from_secs(3));
    let rss = mib(usage::memory(agent.pid())?.rss_kib);
    let maps = mib(usage::maps_kib(agent.pid())?);
    agent.terminate()?;
    Ok([rss, maps, rss + maps, verdict])
}
