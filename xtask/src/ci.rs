//! `cargo xtask ci` and `cargo xtask nightly`: plays a list of steps (`ci/steps.rs`). A step that fails
//! does not stop the next one, and a skip that is not listed in .ci/skips.txt is a failure.

mod beside;
mod skips;
mod steps;

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::tally::{Counted, Tally, slowest};
use crate::{ahead, excused};
use beside::{Running, Time};
pub(crate) use steps::{CI, NIGHTLY};
use steps::{Place, Step};

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

/// Runs a step alone: the process that [`Running`] is.
pub(crate) fn play(name: &str) -> Result<()> {
    let Some(step) = CI.iter().find(|step| step.name == name) else {
        bail!("there is no step {name}");
    };
    let tally = step.act()?.tally;
    match tally.failed {
        0 => Ok(()),
        _ => bail!("{tally}"),
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
    let with_tools = steps.iter().filter(|step| step.tools.is_some());
    let ahead = all.then(|| ahead::begin(with_tools.map(|step| step.name).collect()));
    let wanted: Vec<&Step> = steps.iter().filter(wanted).collect();
    let mut ended = play_all(&wanted, all);
    // Its last part is what the last step with tools built, or waited for.
    ahead.map(JoinHandle::join);
    let place = |name: &str| wanted.iter().position(|step| step.name == name);
    ended.sort_by_key(|(name, ..)| place(name));
    let mut sum = Tally::default();
    let (mut lines, mut unsteady, mut panics) = (Vec::new(), Vec::new(), Vec::new());
    let (mut unlisted, mut times) = (Vec::new(), Vec::new());
    for (name, took, result) in ended {
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
        lines.push((name, took, error));
    }
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

/// A step that has ended, and how long it took.
type Ended = (&'static str, Duration, Result<Counted>);

/// Runs steps, each at its place; not in their order. `all`: those that wait for idle time get it.
fn play_all(steps: &[&Step], all: bool) -> Vec<Ended> {
    let (mut ended, mut idle) = (Vec::new(), Vec::new());
    let mut steps = steps.iter().peekable();
    while let Some(step) = steps.next() {
        let mut together = vec![*step];
        match step.place {
            Place::Idle if all => {
                idle.push((step.name, Running::start(step.name, Time::Idle)));
                continue;
            }
            Place::Together(_) => {
                let beside = |next: &&&Step| matches!(next.place, Place::Together(_));
                while let Some(next) = steps.next_if(beside) {
                    together.push(next);
                }
            }
            Place::InTurn | Place::Idle => {}
        }
        if let [step] = together[..] {
            let (took, result) = timed(step.name, || step.act());
            ended.push((step.name, took, result));
        } else {
            ended.extend(play_together(&together));
        }
    }
    let stopped = |(name, running): (_, Result<_>)| (name, running.map(Running::stop_idle));
    let idle: Vec<_> = idle.into_iter().map(stopped).collect();
    ended.extend(idle.into_iter().map(end));
    ended
}

fn play_together(steps: &[&Step]) -> Vec<Ended> {
    for step in steps {
        if let Place::Together(build) = step.place
            && let Err(error) = build()
        {
            // It repeats in the step itself, which reports it.
            eprintln!("building for {}: {error:#}", step.name);
        }
    }
    let start = |step: &&Step| (step.name, Running::start(step.name, Time::Shared));
    let running: Vec<_> = steps.iter().map(start).collect();
    running.into_iter().map(end).collect()
}

fn end((name, running): (&'static str, Result<Running>)) -> Ended {
    let ended = running.and_then(Running::end);
    let (took, result) = ended.unwrap_or_else(|error| (Duration::ZERO, Err(error)));
    if let Err(error) = &result {
        eprintln!("error: {name}: {error:#}");
    }
    (name, took, result)
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
