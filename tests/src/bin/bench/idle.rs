//! `cargo xtask bench idle`: processor time of the agent on a node without traffic, with every path of
//! both families probed. The peer in the same run is the agent without a sentinel.

use anyhow::{Result, ensure};
use node_tests::detect::Load;
use node_tests::prelude::*;
use node_tests::promises::{Missed, head};
use node_tests::usage;

use crate::stage;

/// The design's promise for the mean of the run, in percent of one processor.
const PROMISED: f64 = 0.5;
/// Time until start-up memory is freed and the first checks are over.
const CALM: Duration = Duration::from_secs(3);
/// Addresses for the sentinel's pod lanes that no pod of the world has, so that the path of pods is probed
/// too.
const ALL_PATHS: [&str; 2] = ["--sentinel-pod-address", "10.244.0.99,fd00:10:244::99"];

pub(crate) fn run(seconds: usize, missed: &mut Missed) -> Result<()> {
    let ours = percent(seconds, true, &ALL_PATHS)?;
    let peer = percent(seconds, false, &["--sentinel", "off"])?;
    ensure!(ours > 0.0, "the agent used no processor time");
    head(Missed::FIGURE);
    let (unit, peer) = ("% of a processor", ("no sentinel", peer));
    missed.figure("processor time", unit, &[ours], Some(PROMISED), Some(peer));
    Ok(())
}

/// Processor time of an agent with these options, in percent of one processor.
fn percent(seconds: usize, probed: bool, options: &[&str]) -> Result<f64> {
    let stage = stage(Load::Idle, probed, options)?;
    println!("measured for {seconds} s");
    thread::sleep(CALM);
    let passed = || -> Result<u64> {
        let (name, labels) = ("pathproof_probes_total", ["outcome=\"passed\""]);
        Ok(metric(&stage.agent.metrics()?, name, &labels))
    };
    let probes = passed()?;
    let (start, before) = (Instant::now(), usage::processor(stage.agent.pid())?);
    thread::sleep(Duration::from_secs(seconds as u64));
    let used = usage::processor(stage.agent.pid())? - before;
    let probes = passed()? - probes;
    ensure!((probes > 0) == probed, "{probes} probes passed");
    Ok(used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
}
