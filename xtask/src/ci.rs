//! `cargo xtask ci` and `cargo xtask nightly`: run a list of steps (`ci/steps.rs`). A failing step
//! does not stop the next one, and a skip that is not listed in .ci/skips.txt is a failure.

mod beside;
mod skips;
mod steps;

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use beside::{Running, Time};
pub(crate) use steps::{CI, NIGHTLY};
use steps::{Place, Step};

use crate::excused;
use crate::tally::{Counted, Tally, slowest};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of the steps to run [default: all]
    #[arg(value_name = "STEP")]
    only: Vec<String>,
}

/// Runs one step, or only builds its tools; [`beside`] starts processes that do this.
pub(crate) fn play(name: &str, only_tools: bool) -> Result<()> {
    let step = CI.iter().find(|step| step.name == name);
    let step = step.with_context(|| format!("there is no step {name}"))?;
    if only_tools {
        return step.tools.map_or(Ok(()), |tools| tools());
    }
    if matches!(step.place, Place::Idle) {
        beside::after_tools()?;
    }
    let tally = step.act()?.tally;
    ensure!(tally.failed == 0, "{tally}");
    Ok(())
}

pub(crate) fn run(steps: &'static [Step], args: &Args) -> Result<()> {
    let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
    for only in &args.only {
        ensure!(
            names.contains(&only.as_str()),
            "there is no step {only}; the steps are {}",
            names.join(", ")
        );
    }
    let all = args.only.is_empty();
    let wanted = |step: &&Step| all || args.only.iter().any(|only| only == step.name);
    let wanted: Vec<&Step> = steps.iter().filter(wanted).collect();
    let accepted = skips::Accepted::read()?;
    let with_tools = steps.iter().filter(|step| step.tools.is_some());
    let ahead = all.then(|| beside::build_tools(with_tools.map(|step| step.name).collect()));
    let ahead = ahead.transpose()?;
    let mut ended = play_all(&wanted, all);
    // The thread has nothing left to do: the last step with tools has built them or waited for them.
    ahead.map(JoinHandle::join);
    ended.sort_by_key(|(name, ..)| names.iter().position(|step| step == name));
    let mut sum = Counted::default();
    let (mut rows, mut unlisted) = (Vec::new(), Vec::new());
    for (name, took, result) in ended {
        let (mut counted, error) = match result {
            Ok(counted) => (counted, None),
            Err(error) => (Tally::FAILED.into(), Some(error)),
        };
        unlisted.extend(accepted.hold(&mut counted));
        let failed = (counted.tally.failed > 0).then(|| anyhow!("{}", counted.tally));
        rows.push((name.to_owned(), took, outcome(error.or(failed))));
        sum += counted;
    }
    let repeated = excused::keep(&sum.unsteady, &sum.panics)?;
    for panic in sum.panics {
        println!("\n{panic}");
    }
    println!("\n{}{}", table(&rows), slowest(&mut sum.times));
    for skip in unlisted {
        println!("UNLISTED     {skip}: CI accepts only the skips in .ci/skips.txt");
    }
    for test in &sum.unsteady {
        let file = excused::FILE;
        println!("UNSTEADY     {test} failed in parallel and passed alone: fix it ({file})");
    }
    for test in &repeated {
        println!("UNSTEADY     {test} was excused less than a week ago: it counts as failed");
    }
    sum.tally.passed -= repeated.len();
    sum.tally.failed += repeated.len();
    println!("{}", sum.tally);
    // The closing line must stay the last one: failures were printed above.
    std::process::exit(i32::from(sum.tally.failed > 0))
}

/// A finished step, and how long it took.
type Ended = (&'static str, Duration, Result<Counted>);

/// Runs each step according to its [`Place`], so steps may end in another order. Without `all`, idle steps
/// run in turn.
fn play_all(steps: &[&Step], all: bool) -> Vec<Ended> {
    let (mut ended, mut idle) = (Vec::new(), Vec::new());
    let beside = |step: &Step| matches!(step.place, Place::Together(_));
    for steps in steps.chunk_by(|step, next| beside(step) && beside(next)) {
        match *steps {
            [step] if all && matches!(step.place, Place::Idle) => {
                idle.push((step.name, Running::start(step.name, Time::Idle)));
            }
            [step] => {
                let (took, result) = timed(step.name, || step.act());
                ended.push((step.name, took, result));
            }
            _ => ended.extend(play_together(steps)),
        }
    }
    for (_, running) in &mut idle {
        let _ = running.as_mut().map(Running::stop_idle);
    }
    ended.extend(idle.into_iter().map(end));
    ended
}

fn play_together(steps: &[&Step]) -> Vec<Ended> {
    for step in steps {
        if let Place::Together(build) = step.place
            && let Err(error) = build()
        {
            // The failure repeats in the step itself, which reports it.
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

/// Prints the name of a part of the work and runs it; returns its duration and result.
pub(crate) fn timed<T>(name: &str, act: impl FnOnce() -> Result<T>) -> (Duration, Result<T>) {
    eprintln!("\n== {name}");
    let start = Instant::now();
    let result = act();
    if let Err(error) = &result {
        eprintln!("error: {name}: {error:#}");
    }
    (start.elapsed(), result)
}

/// Outcome of a part of the work, for the table.
pub(crate) fn outcome(error: Option<anyhow::Error>) -> String {
    error.map_or("ok".to_owned(), |error| format!("FAILED: {error:#}"))
}

/// Rows with name, duration and outcome.
pub(crate) fn table(rows: &[(String, Duration, String)]) -> String {
    let width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let row = |(name, took, outcome): &(String, Duration, String)| {
        let seconds = took.as_secs_f64();
        format!("{name:<width$} {seconds:>7.1} s   {outcome}\n")
    };
    rows.iter().map(row).collect()
}
