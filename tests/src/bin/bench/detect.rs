//! `cargo xtask bench detect`: how long a fault of the datapath takes to show in the metrics and at
//! /healthz, and a repair to show there, over many faults at random moments; and how often harmless
//! things show at /healthz, which is never. A promise is missed if something was late or never showed,
//! or something harmless did.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use node_tests::detect::{Eyes, Fault, Figure, HARMLESS, Load, Stage, ms};
use node_tests::promises::{Missed, head};

use crate::stage;

/// Times that are measured, and design's promise for their p99: 503 is promised for causes that nothing else
/// explains, 200 after a first repair.
const TIMES: [(&str, Duration); 3] = [
    ("fault to metrics", Duration::from_millis(1000)),
    ("fault to 503", Duration::from_millis(1500)),
    ("repair to 200", Duration::from_millis(3000)),
];
/// After this it never happened, which meets no promise.
const NEVER: Duration = Duration::from_secs(30);
/// Pauses before a fault are random up to this: longer than any period of the agent's loops but
/// that of its checks, so that every phase is met.
const PAUSE: Duration = Duration::from_secs(1);
/// Harmless things of each kind, and how long each of them lasts.
const CONTROLS: usize = 5;
const LASTS: Duration = Duration::from_secs(6);

pub(crate) fn run(injections: usize, missed: &mut Missed) -> Result<()> {
    println!(
        "Times count from before the command that breaks or mends. The peer, kube-proxy's \
         healthz, never shows any of these faults: it tells whether rules were synced."
    );
    for load in [Load::Idle, Load::Busy] {
        if let Err(error) = measure(load, injections, missed) {
            println!("{load} node: {error:#}");
            missed.judge(
                format!("{load} node: every injection without an error"),
                false,
            );
        }
    }
    Ok(())
}

fn measure(load: Load, injections: usize, missed: &mut Missed) -> Result<()> {
    // Every repair is to count as a first one: later ones are damped by the dwell.
    let mut stage = stage(load, true, &["--flap-dwell", "0"])?;
    let eyes = Eyes::open(&stage.world)?;
    inject_all(&mut stage, &eyes, load, injections, missed)?;
    harmless(&mut stage, &eyes, load, missed)?;
    if load == Load::Busy {
        println!("{load}: {:?}", stage.tally());
    }
    Ok(())
}

/// Injects every kind of fault in turn, and prints the times, also of those before an error.
fn inject_all(
    stage: &mut Stage,
    eyes: &Eyes,
    load: Load,
    injections: usize,
    missed: &mut Missed,
) -> Result<()> {
    let mut all = <[[Figure; 3]; Fault::CERTAIN.len()]>::default();
    let done = (0..injections).try_for_each(|number| {
        let place = number % Fault::CERTAIN.len();
        let said = inject(stage, eyes, Fault::CERTAIN[place], &mut all[place])?;
        println!("{load} {:>3}/{injections}  {said}", number + 1);
        anyhow::Ok(())
    });
    head(&format!("node | fault | from, to | {}", Figure::COLUMNS));
    for (index, (what, promise)) in TIMES.into_iter().enumerate() {
        for (fault, times) in Fault::CERTAIN.into_iter().zip(&all) {
            let row = times[index].row(promise);
            println!("| {load} | {fault} | {what} | {row} |");
        }
        // The promise is of all injections: the p99 of one kind's 25 is their maximum.
        let whole = Figure::join(all.iter().map(|times| times[index].clone()));
        println!("| {load} | all of them | {what} | {} |", whole.row(promise));
        let name = format!("{load} node: {what}, all of them");
        missed.judge(name, whole.keeps(promise));
    }
    done
}

/// One fault, from a sound node to a sound node. Gives the line that tells of it.
fn inject(
    stage: &mut Stage,
    eyes: &Eyes,
    fault: Fault,
    figures: &mut [Figure; 3],
) -> Result<String> {
    stage.settle()?;
    thread::sleep(PAUSE.mul_f64(fastrand::f64()));
    let failures = eyes.failures.now().unwrap_or_default();
    let start = Instant::now();
    let mend = fault.inject(stage)?;
    let injected = start.elapsed();
    let unhealthy = eyes.healthz.first(start, NEVER, |status| *status == 503);
    let metrics = eyes.failures.first(start, NEVER, |count| *count > failures);
    // A while, so that the agent is not met just after it made up its mind.
    thread::sleep(PAUSE.mul_f64(fastrand::f64()));
    let repair = Instant::now();
    mend(stage)?;
    let healthy = eyes.healthz.first(repair, NEVER, |status| *status == 200);
    let since = |start: Instant| move |at: Instant| at.duration_since(start);
    let times = [
        metrics.map(since(start)),
        unhealthy.map(since(start)),
        // Without a 503, there is no way back.
        healthy.map(since(repair)).filter(|_| unhealthy.is_some()),
    ];
    for (figure, time) in figures.iter_mut().zip(times) {
        figure.note(time);
    }
    let [metrics, unhealthy, healthy] = times.map(ms);
    Ok(format!(
        "{fault:32} injected in {} ms; metrics {metrics}, 503 {unhealthy}; repaired: 200 {healthy}",
        injected.as_millis(),
    ))
}

/// Harmless things, which must not show.
fn harmless(stage: &mut Stage, eyes: &Eyes, load: Load, missed: &mut Missed) -> Result<()> {
    let mut alarmed = [0; HARMLESS.len()];
    for ((harmless, deed), alarmed) in HARMLESS.into_iter().zip(&mut alarmed) {
        for _ in 0..CONTROLS {
            stage.settle()?;
            let start = Instant::now();
            let mend = deed(stage)?;
            thread::sleep(LASTS);
            mend(stage)?;
            thread::sleep(Duration::from_secs(1));
            let mut changes = eyes.healthz.changes().into_iter();
            let seen = changes.any(|(at, status)| at > start && status == 503);
            println!("{load} {harmless:32} 503: {seen}");
            *alarmed += usize::from(seen);
        }
    }
    head("node | harmless | rounds | rounds with a 503 | promise | met");
    for ((harmless, _), alarmed) in HARMLESS.into_iter().zip(alarmed) {
        let name = format!("{load} node: no 503 beside {harmless}");
        let met = missed.judge(name, alarmed == 0);
        println!("| {load} | {harmless} | {CONTROLS} | {alarmed} | 0 | {met} |");
    }
    Ok(())
}
