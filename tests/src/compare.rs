//! The simulator is held to the kernel: the same case is played by both, in network namespaces with a real
//! kube-proxy, and the courses of the verdict are compared. A difference is a defect of the simulator or of the
//! agent.
//!
//! `history` compares, and `case` simulates: both are pure. `pairs` is the table of what an act of the simulator is
//! in namespaces, and `stage` plays a case there, on the `pods`.

mod case;
mod history;
mod pairs;
mod pods;
mod stage;

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use anyhow::Result;
pub use case::Case;
use clap::Parser;
pub use history::{Difference, History, Moment, compare};
use jiff::Timestamp;
pub use stage::{Played, Stage};

use crate::cluster::Servers;
use crate::storm::seed_of_the_day;

/// Cases of the simulator, played with a real kube-proxy too
#[derive(Parser)]
pub struct Settings {
    /// Number of cases
    #[arg(long, default_value_t = 200)]
    cases: usize,
    /// Seed that draws the cases; default: the UTC date, as yyyymmdd
    #[arg(long)]
    seed: Option<u64>,
    /// Play this case alone: USE.EVENT.FAMILIES, as printed for each
    #[arg(long, conflicts_with_all = ["cases", "seed"])]
    case: Option<Case>,
}

/// Plays the cases, and prints each with its history, and with the simulated ones if they differ.
pub fn compare_all(settings: &Settings) -> Result<ExitCode> {
    let seed = settings.seed;
    let seed = seed.unwrap_or_else(|| seed_of_the_day(Timestamp::now()));
    let cases = match settings.case {
        Some(case) => vec![case],
        None => {
            println!("seed {seed}: the same cases again by `--seed {seed}`");
            Case::draw(seed, settings.cases)
        }
    };
    let programs = Servers::find()?;
    let mut stage = Stage::build(programs.clone());
    let (mut different, mut unplayed) = (0, 0);
    for case in &cases {
        match is_same(&mut stage, case) {
            Ok(true) => {}
            Ok(false) => different += 1,
            Err(error) => {
                println!("NOT PLAYED {case}  {}: {error:#}", case.name());
                unplayed += 1;
                // Drop the old stage first: worlds share nothing, but its processes take memory.
                drop(stage);
                stage = Stage::build(programs.clone());
            }
        }
    }
    let all = cases.len();
    println!("{all} cases: {different} differ, {unplayed} could not be played");
    Ok(ExitCode::from(u8::from(different + unplayed > 0)))
}

/// Plays a case on both sides. Another order of states counts if it occurs twice: on a busy machine a packet or a
/// sample may be late. A 503 on one side only counts at once.
fn is_same(stage: &mut Stage, case: &Case) -> Result<bool> {
    let simulated = case.simulated();
    let mut played = stage.play(case)?;
    let mut difference = compare(&simulated, &played.history);
    if difference == Some(Difference::States) {
        played = stage.play(case)?;
        difference = compare(&simulated, &played.history);
    }
    let (name, kernel) = (case.name(), &played.history);
    let Some(difference) = difference else {
        println!("{case}  {name}: {kernel}");
        return Ok(true);
    };
    println!("DIFFERENT {case}  {name}: {difference:?}\n  kernel: {kernel}");
    let mut counts: BTreeMap<&History, usize> = BTreeMap::new();
    for one in &simulated {
        *counts.entry(one).or_default() += 1;
    }
    for (history, count) in counts {
        println!(
            "  simulator, {count} of {} seeds: {history}",
            simulated.len()
        );
    }
    let file = std::env::temp_dir().join(format!("compare-{case}.pathproof"));
    fs::write(&file, &played.recording)?;
    println!("  recorded: pathproof replay {}", file.display());
    println!("  alone: cargo xtask compare --case {case}");
    Ok(false)
}
