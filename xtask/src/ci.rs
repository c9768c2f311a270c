//! `cargo xtask ci` and `cargo xtask nightly`: plays a list of steps (`ci/steps.rs`). A step that fails
//! does not stop the next one, and a skip that is not listed in .ci/skips.txt is a failure.

mod skips;
mod steps;

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::tally::{Tally, slowest};
use crate::{ahead, excused};
use steps::Step;
pub(crate) use steps::{CI, NIGHTLY};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of the steps to run [default: all]
    #[arg(value_name = "STEP")]
    only: Vec<String>,
}

/// Builds the tools of a step: the process that [`ahead::begin`] starts.
pub(crate) fn prepare(name: &str) -> Result<()> {
    match CI.iter().find(|step| step.name == name) {
        Some(step) => step.tools.map_or(Ok(()), |tools| tools()),
        None => bail!("there is no step {name}"),
    }
}

pub(crate) fn run(steps: &[Step], args: &Args) -> Result<()> {
    let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
    if let Some(unknown) = args
        .only
        .iter()
        .find(|only| !names.contains(&only.as_str()))
    {
        bail!(
            "there is no step {unknown}; the steps are {}",
            names.join(", ")
        );
    }
    let all = args.only.is_empty();
    let wanted = |step: &&Step| all || args.only.iter().any(|only| only == step.name);
    let accepted = skips::Accepted::read()?;
    let mut sum = Tally::default();
    let (mut lines, mut unsteady, mut panics) = (Vec::new(), Vec::new(), Vec::new());
    let (mut unlisted, mut times) = (Vec::new(), Vec::new());
    let with_tools = steps.iter().filter(|step| step.tools.is_some());
    let ahead = all.then(|| ahead::begin(with_tools.map(|step| step.name).collect()));
    for step in steps.iter().filter(wanted) {
        let (took, result) = timed(step.name, || step.act());
        let (tally, error) = match result {
            Ok(mut counted) => {
                unlisted.extend(accepted.hold(&mut counted));
                unsteady.extend(counted.unsteady);
                panics.extend(counted.panics);
                times.extend(counted.times);
                let failed = counted.tally.failed > 0;
                let error = failed.then(|| anyhow::anyhow!("{}", counted.tally));
                (counted.tally, error)
            }
            Err(error) => (Tally::FAILED, Some(error)),
        };
        sum += tally;
        lines.push((step.name, took, error));
    }
    // Its last part is what the last step with tools built, or waited for.
    ahead.map(JoinHandle::join);
    let kept = excused::keep(&unsteady, &panics)?;
    for panic in panics {
        println!("\n{panic}");
    }
    report(&lines);
    print!("{}", slowest(&mut times));
    println!();
    for skip in unlisted {
        println!("UNLISTED     {skip}: CI accepts only the skips in .ci/skips.txt");
    }
    for test in &unsteady {
        let kept = kept.path.display();
        println!("UNSTEADY     {test} failed in parallel and passed alone: fix it ({kept})");
    }
    for test in &kept.repeated {
        println!("UNSTEADY     {test} was excused less than a week ago: it counts as failed");
    }
    sum.passed -= kept.repeated.len();
    sum.failed += kept.repeated.len();
    println!("{sum}");
    // The closing line stays the last one: what failed was said above.
    std::process::exit(i32::from(sum.failed > 0))
}

fn timed<T>(name: &str, act: impl FnOnce() -> Result<T>) -> (Duration, Result<T>) {
    eprintln!("\n== {name}");
    let start = Instant::now();
    let result = act();
    if let Err(error) = &result {
        eprintln!("error: {name}: {error:#}");
    }
    (start.elapsed(), result)
}

fn report(lines: &[(&str, Duration, Option<anyhow::Error>)]) {
    println!();
    for (name, took, error) in lines {
        let outcome = match error {
            None => "ok".to_owned(),
            Some(error) => format!("FAILED: {error:#}"),
        };
        println!("{name:<12} {:>7.1} s   {outcome}", took.as_secs_f64());
    }
}
