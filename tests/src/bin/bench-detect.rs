//! `cargo xtask bench detect`: how long a fault of the datapath takes to show in the metrics and at
//! /healthz, and a repair to show there, over many faults at random moments; and how often harmless
//! things show at /healthz, which is never. Exits 1 if a promise is not met: something was late or
//! never showed, or something harmless did.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use node_tests::detect::{Eyes, Fault, Figure, HARMLESS, Load, Stage};
use node_tests::promises::Missed;
use node_tests::rules::Backend;
use node_tests::world::agent_binary;

/// In the metrics, design's promise for p99, as the others are.
const PROMISED_METRICS: Duration = Duration::from_millis(1000);
/// 503 for causes that nothing else explains.
const PROMISED_503: Duration = Duration::from_millis(1500);
/// 200 after a first repair.
const PROMISED_200: Duration = Duration::from_millis(3000);
/// After this it never happened, which meets no promise.
const NEVER: Duration = Duration::from_secs(30);
/// Pauses before a fault are random up to this: longer than any period of the agent's loops but
/// that of its checks, so that every phase is met.
const PAUSE: Duration = Duration::from_secs(1);

/// Time from fault to 503, and from repair to 200
#[derive(Parser)]
struct Args {
    /// Injections, on the idle node and as many on the busy one, all faults together
    #[arg(long, default_value_t = 100)]
    injections: usize,
    /// Harmless things, on the idle node and as many on the busy one, all kinds together
    #[arg(long, default_value_t = 10)]
    controls: usize,
    /// Seconds that each of them lasts
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// Only one of both
    #[arg(long)]
    load: Option<WhichLoad>,
    /// Program that does the node's NAT
    #[arg(long, default_value = "nftables")]
    backend: WhichBackend,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum WhichLoad {
    Idle,
    Busy,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WhichBackend {
    Nftables,
    IptablesLegacy,
    IptablesNft,
}

/// Measurements of one fault.
#[derive(Clone, Debug, Default)]
struct Times {
    /// The longest that a breaking command took.
    injecting: Duration,
    metrics: Figure,
    unhealthy: Figure,
    healthy: Figure,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let agent = args.agent.clone().map_or_else(agent_binary, Ok)?;
    let loads = match args.load {
        None => vec![Load::Idle, Load::Busy],
        Some(WhichLoad::Idle) => vec![Load::Idle],
        Some(WhichLoad::Busy) => vec![Load::Busy],
    };
    let mut tables = Tables::default();
    for load in loads {
        measure(&args, &agent, load, &mut tables)?;
    }
    tables.print();
    Ok(tables.missed.close())
}

fn measure(args: &Args, agent: &Path, load: Load, tables: &mut Tables) -> Result<()> {
    let backend = match args.backend {
        WhichBackend::Nftables => Backend::Nftables,
        WhichBackend::IptablesLegacy => Backend::IptablesLegacy,
        WhichBackend::IptablesNft => Backend::IptablesNft,
    };
    // Every repair is to count as a first one: later ones are damped by the dwell.
    let options = ["--flap-dwell", "0", "--log-filter", "warn"];
    let mut stage = Stage::build(agent, backend, load, &options, true)?;
    let eyes = Eyes::open(&stage.world)?;
    let mut all = vec![Times::default(); Fault::CERTAIN.len()];
    let mut given_up = false;
    for number in 0..args.injections {
        let place = number % Fault::CERTAIN.len();
        let told = inject(&mut stage, &eyes, Fault::CERTAIN[place], &mut all[place]);
        let said = match told {
            Ok(said) => said,
            Err(error) => {
                // What was measured so far is told nevertheless.
                println!("{load}: given up: {error:#}");
                given_up = true;
                break;
            }
        };
        println!("{load} {:>3}/{}  {said}", number + 1, args.injections);
    }
    for (fault, times) in Fault::CERTAIN.into_iter().zip(&all) {
        tables.push(load, &fault.to_string(), times);
    }
    let whole = joined(&all);
    tables.push(load, ALL, &whole);
    if given_up {
        let what = format!("{load} node: all injections");
        tables.missed.judge(what, false);
    } else {
        controls(args, &mut stage, &eyes, load, tables)?;
    }
    println!(
        "{load}: a breaking command itself took {} ms at most",
        whole.injecting.as_millis()
    );
    if load == Load::Busy {
        let tally = stage.tally();
        println!(
            "{load}: {} connections, {} answered, {} failed while the node was broken",
            tally.started,
            tally.ok,
            tally.failed()
        );
    }
    Ok(())
}

/// One fault, from a sound node to a sound node. Gives the line that tells of it.
fn inject(stage: &mut Stage, eyes: &Eyes, fault: Fault, times: &mut Times) -> Result<String> {
    stage.settle()?;
    thread::sleep(random(PAUSE));
    let failures = eyes.failures.now().unwrap_or_default();
    let start = Instant::now();
    let mend = fault.inject(stage)?;
    let injected = start.elapsed();
    let unhealthy = eyes.healthz.first(start, NEVER, |status| *status == 503);
    let metrics = eyes.failures.first(start, NEVER, |count| *count > failures);
    // A while, so that the agent is not met just after it made up its mind.
    thread::sleep(random(PAUSE));
    let repair = Instant::now();
    mend(stage)?;
    let healthy = eyes.healthz.first(repair, NEVER, |status| *status == 200);
    let since = |start: Instant| move |at: Instant| at.duration_since(start);
    let (metrics, unhealthy) = (metrics.map(since(start)), unhealthy.map(since(start)));
    // Where there was no 503, there is no way back.
    let healthy = healthy.map(since(repair)).filter(|_| unhealthy.is_some());
    times.injecting = times.injecting.max(injected);
    times.metrics.note(metrics);
    times.unhealthy.note(unhealthy);
    times.healthy.note(healthy);
    let told = |time: Option<Duration>| {
        time.map_or_else(
            || "never".to_owned(),
            |time| format!("{} ms", time.as_millis()),
        )
    };
    Ok(format!(
        "{fault:32} injected in {} ms; metrics {}, 503 {}; repaired: 200 {}",
        injected.as_millis(),
        told(metrics),
        told(unhealthy),
        told(healthy)
    ))
}

/// Harmless things, which must not show.
fn controls(
    args: &Args,
    stage: &mut Stage,
    eyes: &Eyes,
    load: Load,
    tables: &mut Tables,
) -> Result<()> {
    let mut alarms = [(0, 0); HARMLESS.len()];
    for number in 0..args.controls {
        let place = number % HARMLESS.len();
        let (harmless, happen) = HARMLESS[place];
        stage.settle()?;
        let start = Instant::now();
        let mend = happen(stage)?;
        thread::sleep(Duration::from_secs(args.seconds));
        mend(stage)?;
        thread::sleep(Duration::from_secs(1));
        let changes = eyes.healthz.changes().into_iter();
        let seen = changes.filter(|(at, status)| *at > start && *status == 503);
        let seen = seen.count();
        let (rounds, alarmed) = &mut alarms[place];
        *rounds += 1;
        *alarmed += usize::from(seen > 0);
        println!(
            "{load} {:>3}/{}  {harmless:32} 503 {seen} times",
            number + 1,
            args.controls
        );
    }
    for ((harmless, _), (rounds, alarmed)) in HARMLESS.into_iter().zip(alarms) {
        let what = format!("{load} node: no 503 beside {harmless}");
        let met = tables.missed.judge(what, alarmed == 0);
        tables.controls.push(format!(
            "| {load} | {harmless} | {rounds} | {} | {alarmed} | 0 | {met} |",
            args.seconds
        ));
    }
    Ok(())
}

fn joined(all: &[Times]) -> Times {
    let join = |of: fn(&Times) -> &Figure| Figure::join(all.iter().map(|times| of(times).clone()));
    let injecting = all.iter().map(|times| times.injecting).max();
    Times {
        injecting: injecting.unwrap_or_default(),
        metrics: join(|times| &times.metrics),
        unhealthy: join(|times| &times.unhealthy),
        healthy: join(|times| &times.healthy),
    }
}

/// Name of the row of all faults together.
const ALL: &str = "all of them";

/// The report at the end.
#[derive(Default)]
struct Tables {
    faults: Vec<String>,
    controls: Vec<String>,
    missed: Missed,
}

impl Tables {
    fn push(&mut self, load: Load, fault: &str, times: &Times) {
        for (what, figure, promise) in [
            ("fault to metrics", &times.metrics, PROMISED_METRICS),
            ("fault to 503", &times.unhealthy, PROMISED_503),
            ("repair to 200", &times.healthy, PROMISED_200),
        ] {
            let row = figure.row(promise);
            // The promise is of all injections: the p99 of one kind's 25 is their maximum.
            if fault == ALL {
                let name = format!("{load} node: {what}, {fault}");
                self.missed.judge(name, figure.keeps(promise));
            }
            self.faults
                .push(format!("| {load} | {fault} | {what} | {row} |"));
        }
    }

    fn print(&self) {
        println!(
            "\n| node | fault | from, to | times | median | p99 | maximum | never | unit | promise | met | p99 / promise |"
        );
        println!("|---|---|---|---:|---:|---:|---:|---:|---|---:|---|---:|");
        self.faults.iter().for_each(|row| println!("{row}"));
        println!(
            "\n| node | harmless | rounds | seconds each | rounds with a 503 | promise | met |"
        );
        println!("|---|---|---:|---:|---:|---:|---|");
        self.controls.iter().for_each(|row| println!("{row}"));
        println!(
            "\nTimes count from before the command that breaks or mends. The peer, kube-proxy's \
             healthz, never shows any of these faults: it tells whether rules were synced."
        );
    }
}

/// A random part of a time.
fn random(most: Duration) -> Duration {
    let word = RandomState::new().build_hasher().finish();
    most.mul_f64(word as f64 / u64::MAX as f64)
}
