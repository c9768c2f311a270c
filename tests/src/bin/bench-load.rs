//! `cargo xtask bench load`: what the agent costs a node under load. Connections a second, the time of
//! a handshake and bulk throughput, with the agent and, in the same run, without; and a SYN flood from
//! a million sources, under which its memory and processor time are bounded and its verdict stands.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use node_tests::detect::{Load, Stage, nearest_rank};
use node_tests::load::{Dialers, Felt, Sink, push};
use node_tests::rules::Backend;
use node_tests::traffic::Flood;
use node_tests::usage;
use node_tests::watch::{Codes, Watch};
use node_tests::world::{Agent, Family, World, agent_binary};

/// Clients from pods, and as many from outside.
const CLIENTS: usize = 4;
/// As fast as one thread can...
const FLOOD: u32 = 1_000_000;
/// ...until so many were sent, nearly all from other sources...
const SOURCES: u64 = 1_000_000;
/// ...or for so long.
const FLOODED: Duration = Duration::from_secs(180);
const OPTIONS: [&str; 2] = ["--log-filter", "warn"];

/// What the agent costs under load
#[derive(Parser)]
struct Args {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How often with and without the agent are measured, by turns
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// Of all rounds with, or without, the agent.
#[derive(Default)]
struct Measured {
    felt: Felt,
    /// Of connections, seconds together.
    lasted: f64,
    /// Bytes a second of each round.
    bulk: Vec<f64>,
    /// Seconds of a processor that the agent used while connections were made.
    agent: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let binary = args.agent.clone().map_or_else(agent_binary, Ok)?;
    let stage = Stage::build(&binary, Backend::Nftables, Load::Idle, &OPTIONS, true)?;
    let Stage {
        mut servers,
        agent,
        rules,
        manifests,
        world,
        ..
    } = stage;
    servers.remove("db-1");
    let sink = Sink::start(&world.pod("db-1").ns, Stage::PORT)?;
    let services: BTreeMap<&str, _> = manifests
        .services()
        .iter()
        .map(|service| (service.name.as_str(), service))
        .collect();
    let inside = SocketAddr::new(services["web"].cluster_ip(Family::V4), 80);
    let outside = SocketAddr::new(world.node_address(Family::V4), 30081);
    let lasts = Duration::from_secs(args.seconds);
    let run = |agent: Option<&Agent>, into: &mut Measured| {
        connections(&world, inside, outside, lasts, agent, into)?;
        let bulk = SocketAddr::new(world.node_address(Family::V4), 30082);
        into.bulk.push(push(&world.outside, bulk, lasts)?);
        anyhow::Ok(())
    };

    let (mut with, mut without) = (Measured::default(), Measured::default());
    let mut agent = Some(agent);
    for round in 0..args.rounds {
        println!("round {} of {}", round + 1, args.rounds);
        if agent.is_none() {
            agent = Some(world.ready_agent(&binary, manifests.dir(), &OPTIONS)?);
            thread::sleep(Duration::from_secs(2));
        }
        run(agent.as_ref(), &mut with)?;
        // It ends in order, and `cleanup` takes its programs away.
        agent = None;
        run(None, &mut without)?;
    }
    tell(&with, &without);
    flood(&world, &binary, manifests.dir(), outside)?;
    drop((sink, servers, rules));
    Ok(())
}

fn connections(
    world: &World,
    inside: SocketAddr,
    outside: SocketAddr,
    lasts: Duration,
    agent: Option<&Agent>,
    into: &mut Measured,
) -> Result<()> {
    let pod = world.pod("client-1");
    let pods = Dialers::new(&pod.ns, pod.address(Family::V4), inside, CLIENTS);
    let away = world.outside_client(0, Family::V4);
    let outsiders = Dialers::new(&world.outside, away, outside, CLIENTS);
    let before = agent.map(processor).transpose()?;
    let start = Instant::now();
    let mut threads = pods.start(world, lasts)?;
    threads.extend(outsiders.start(world, lasts)?);
    into.felt.join(threads);
    into.lasted += start.elapsed().as_secs_f64();
    if let (Some(agent), Some(before)) = (agent, before) {
        into.agent += (processor(agent)? - before).as_secs_f64();
    }
    Ok(())
}

fn processor(agent: &Agent) -> Result<Duration> {
    let (user, system) = usage::processor(agent.pid())?;
    Ok(user + system)
}

fn tell(with: &Measured, without: &Measured) {
    println!("\n| figure | with the agent | without | unit | ratio |");
    println!("|---|---:|---:|---|---:|");
    let row = |name: &str, of: &dyn Fn(&Measured) -> f64, unit: &str| {
        let (with, without) = (of(with), of(without));
        println!(
            "| {name} | {with:.1} | {without:.1} | {unit} | {:.3} |",
            with / without
        );
    };
    row(
        "new connections",
        &|one| one.felt.times.len() as f64 / one.lasted,
        "1/s",
    );
    for percent in [50, 99] {
        let rank = move |one: &Measured| {
            let mut sorted = one.felt.times.clone();
            sorted.sort();
            nearest_rank(&sorted, percent).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
        };
        row(&format!("handshake, p{percent}"), &rank, "µs");
    }
    let bulk = |one: &Measured| one.bulk.iter().sum::<f64>() / one.bulk.len() as f64 / 1e6;
    row("bulk, one connection through a node port", &bulk, "MB/s");
    println!(
        "| not answered | {} | {} | connections | |",
        with.felt.failed, without.felt.failed
    );
    println!(
        "| the agent's processor time meanwhile | {:.1} | | % of one | |",
        with.agent / with.lasted * 100.0
    );
}

/// SYNs from a million sources to a node port, while the load balancer asks.
fn flood(world: &World, binary: &Path, manifests: &Path, target: SocketAddr) -> Result<()> {
    let agent = world.ready_agent(binary, manifests, &OPTIONS)?;
    let watch = Watch::start(world, Duration::from_millis(50))?;
    watch.wait(Duration::from_secs(30), |codes| codes.healthz == 200)?;
    let maps = usage::maps_kib(agent.pid())?;
    let entries = usage::map_entries(agent.pid())?;
    let (memory, before) = (usage::memory(agent.pid())?, processor(&agent)?);
    let (start, flood) = (Instant::now(), Flood::start(world, target, FLOOD)?);
    while flood.sent() < SOURCES && start.elapsed() < FLOODED {
        thread::sleep(Duration::from_millis(100));
    }
    let sent = flood.sent();
    drop(flood);
    let seconds = start.elapsed().as_secs_f64();
    let used = (processor(&agent)? - before).as_secs_f64() / seconds * 100.0;
    let after = usage::memory(agent.pid())?;
    println!("\n| SYN flood | before | after | unit |");
    println!("|---|---:|---:|---|");
    println!("| SYNs, each from one of 16 million addresses | 0 | {sent} | |");
    println!("| SYNs a second | 0 | {:.0} | 1/s |", sent as f64 / seconds);
    println!(
        "| memory of the agent (RSS) | {} | {} | KiB |",
        memory.rss_kib, after.rss_kib
    );
    println!(
        "| memory of its maps | {maps} | {} | KiB |",
        usage::maps_kib(agent.pid())?
    );
    println!(
        "| entries in its maps | {entries} | {} | |",
        usage::map_entries(agent.pid())?
    );
    println!("| its processor time | | {used:.1} | % of one |");
    let bad = |codes: &Codes| codes.healthz == 503 || codes.livez == 503;
    let changes = watch.changes();
    let bad = changes.iter().filter(|change| bad(&change.codes)).count();
    println!("| times it turned to 503 | | {bad} | |");
    Ok(())
}
