//! `cargo xtask bench load`: what the agent costs a node under load. Connections a second, the time of
//! a handshake and bulk throughput, with the agent and, in the same run, without; what agent and
//! programs take at several rates, by the kernel's own figures, from clients that wait for their answers
//! (a closed loop) and from one that does not (an open one); and a SYN flood from a million sources,
//! under which its memory and processor time are bounded and its verdict stands. Exits 1 if a promise
//! is not met.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use agent_common::abi::program;
use anyhow::{Context as _, Result};
use aya::programs::TcAttachType;
use aya::programs::tc::SchedClassifierLink;
use clap::Parser;
use node_tests::detect::{Load, Stage, nearest_rank};
use node_tests::load::{Dialers, Felt, Sink, push};
use node_tests::observer::{LO, Observer};
use node_tests::promises::Missed;
use node_tests::rules::Backend;
use node_tests::traffic::Flood;
use node_tests::usage;
use node_tests::watch::{Codes, Watch};
use node_tests::world::{Agent, Family, World, agent_binary};
use pathproof::datapath::load;

/// Clients from pods, and as many from outside.
const CLIENTS: usize = 4;
/// As fast as one thread can...
const FLOOD: u32 = 1_000_000;
/// ...until so many were sent, nearly all from other sources...
const SOURCES: u64 = 1_000_000;
/// ...or for so long.
const FLOODED: Duration = Duration::from_secs(180);
/// New connections a second; the last is as fast as it goes.
const RATES: [Option<u32>; 3] = [Some(1_000), Some(10_000), None];
/// Programs that no agent attaches, measured at the hooks of the agent's: what any observer costs.
const PEERS: [(&str, &str); 2] = [
    ("nothing is read", program::EMPTY),
    ("one byte is read", program::GLANCE),
];
/// Promise: what load adds to an idle node's agent and programs, in percent of a processor, beyond
/// what it adds where one byte of each packet is read.
const MOST_ADDED: f64 = 4.0;
/// Promise: connections and bulk beside those of a node without the agent.
const LEAST: f64 = 0.98;
/// Promise: memory that a flood adds to the agent's maps, KiB.
const MOST_OF_FLOOD: u64 = 1024;
/// Runs of a program that does nothing.
const EMPTY_RUNS: u32 = 2_000_000;
const OPTIONS: [&str; 2] = ["--log-filter", "warn"];

/// Cost of the agent under load
#[derive(Parser)]
struct Args {
    /// Seconds of each measurement at a rate
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Rounds of connections and bulk, two seconds each with the agent, with one byte read, and without
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// A turn of connections, or of bulk, in a round. This machine's speed changes by a tenth within a minute,
/// and so turns are short, and many.
const TURN: Duration = Duration::from_secs(2);

/// Of all rounds with, or without, the agent.
#[derive(Default)]
struct Measured {
    felt: Felt,
    /// Of connections, seconds together.
    lasted: f64,
    /// New connections a second of each round.
    connections: Vec<f64>,
    /// Bytes a second of each round.
    bulk: Vec<f64>,
    /// Seconds of a processor that the agent used while connections were made.
    agent: f64,
}

fn main() -> Result<ExitCode> {
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
        connections(&world, inside, outside, agent, into)?;
        let bulk = SocketAddr::new(world.node_address(Family::V4), 30082);
        into.bulk.push(push(&world.outside, bulk, TURN)?);
        anyhow::Ok(())
    };

    let mut measured: [Measured; 3] = Default::default();
    let [with, glance, without] = &mut measured;
    let mut agent = Some(agent);
    for round in 0..args.rounds {
        println!("round {} of {}", round + 1, args.rounds);
        let started = match agent.take() {
            Some(agent) => agent,
            None => world.ready_agent(&binary, manifests.dir(), &OPTIONS)?,
        };
        thread::sleep(TURN);
        run(Some(&started), with)?;
        // It ends in order, and `cleanup` takes its programs away.
        drop(started);
        run(None, without)?;
        let peer = Peer::attach(&world, program::GLANCE)?;
        run(None, glance)?;
        drop(peer);
    }
    let least = tell(&measured);
    let added = beside_peers(&world, inside, outside, lasts, || {
        world.ready_agent(&binary, manifests.dir(), &OPTIONS)
    })?;
    let is_borne = flood(&world, &binary, manifests.dir(), outside)?;
    drop((sink, servers, rules));
    println!("\n| promise | met |\n|---|---|");
    let mut missed = Missed::default();
    for (promise, is_met) in [
        (
            format!("connections and bulk, medians, at least {LEAST} of without"),
            least >= LEAST,
        ),
        (
            format!("at any rate at most {MOST_ADDED} % more added than where one byte is read"),
            added <= MOST_ADDED,
        ),
        (
            format!("a million SYNs: at most {MOST_OF_FLOOD} KiB of maps more, and no 503"),
            is_borne,
        ),
    ] {
        println!("| {promise} | {} |", missed.judge(&promise, is_met));
    }
    Ok(missed.close())
}

/// Measures the peers and then the agent at every rate; gives the most that the agent adds beyond
/// the program that reads one byte.
fn beside_peers(
    world: &World,
    inside: SocketAddr,
    outside: SocketAddr,
    lasts: Duration,
    agent: impl FnOnce() -> Result<Agent>,
) -> Result<f64> {
    let _stats = aya::sys::enable_stats(aya::sys::Stats::RunTime)?;
    let clock = clock()?;
    println!(
        "\nThe kernel's figures contain its readings of the clock, {clock:?} a run, which are taken off here."
    );
    println!(
        "\n| at the hooks | loop | wanted, 1/s | new connections, 1/s | agent, % of a processor | programs, % | added to idle, % | programs: runs a second, ns each |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---|");
    let rates = |name: &str, agent: Option<&Agent>| {
        at_rates(name, world, inside, outside, lasts, |load| {
            cost(agent, clock, load)
        })
    };
    let mut glance = Vec::new();
    for (name, program) in PEERS {
        let peer = Peer::attach(world, program)?;
        glance = rates(name, None)?;
        drop(peer);
    }
    let agent = agent()?;
    thread::sleep(Duration::from_secs(5));
    let ours = rates("the agent's", Some(&agent))?;
    let beyond = ours.iter().zip(&glance).map(|(ours, peer)| ours - peer);
    Ok(beyond.fold(f64::MIN, f64::max))
}

/// A program that passes every packet, at both hooks of every device of the node.
struct Peer {
    _observer: Observer,
    _links: Vec<SchedClassifierLink>,
}

impl Peer {
    fn attach(world: &World, program: &'static str) -> Result<Self> {
        let mut observer = Observer::load(&[])?.context("the programs cannot be loaded here")?;
        let classifier = load::classifier(observer.ebpf_mut(), program)?;
        let mut links = Vec::new();
        let devices = world.node.ip("-brief link")?;
        let names = devices
            .lines()
            .filter_map(|line| line.split([' ', '@']).next());
        for device in names.filter(|name| *name != "lo") {
            for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
                let id = world.node.run(|| classifier.attach(device, direction))?;
                links.push(classifier.take_link(id)?);
            }
        }
        Ok(Self {
            _observer: observer,
            _links: links,
        })
    }
}

/// Measures every rate; gives the percentage that each adds to an idle node.
fn at_rates(
    at_the_hooks: &str,
    world: &World,
    inside: SocketAddr,
    outside: SocketAddr,
    lasts: Duration,
    cost: impl Fn(&mut dyn FnMut() -> Result<u64>) -> Result<Cost>,
) -> Result<Vec<f64>> {
    let idle = cost(&mut || {
        thread::sleep(lasts);
        Ok(0)
    })?;
    idle.print(at_the_hooks, "idle", None, 0.0);
    let mut all = Vec::new();
    for rate in RATES {
        let closed = cost(&mut || closed(world, inside, outside, rate, lasts))?;
        let open = cost(&mut || {
            let flood = Flood::start(world, outside, rate.unwrap_or(FLOOD))?;
            thread::sleep(lasts);
            Ok(flood.sent())
        })?;
        for (name, cost) in [("closed", closed), ("open", open)] {
            let added = cost.percent() - idle.percent();
            cost.print(at_the_hooks, name, rate, added);
            all.push(added);
            thread::sleep(Duration::from_secs(3));
        }
    }
    Ok(all)
}

/// Clients in a closed loop; gives the number of their connections.
fn closed(
    world: &World,
    inside: SocketAddr,
    outside: SocketAddr,
    rate: Option<u32>,
    lasts: Duration,
) -> Result<u64> {
    let pod = world.pod("client-1");
    let away = world.outside_client(0, Family::V4);
    let mut threads = Vec::new();
    for (ns, source, target) in [
        (&pod.ns, pod.address(Family::V4), inside),
        (&world.outside, away, outside),
    ] {
        let dialers = Dialers::new(ns, source, target, CLIENTS);
        let dialers = match rate {
            Some(rate) => dialers.at_rate(f64::from(rate) / 2.0),
            None => dialers,
        };
        threads.extend(dialers.start(world, lasts)?);
    }
    let mut felt = Felt::default();
    felt.join(threads);
    Ok((felt.times.len() + felt.failed) as u64)
}

/// Processor time of agent and programs while something happened.
struct Cost {
    seconds: f64,
    connections: u64,
    agent: Duration,
    programs: BTreeMap<String, usage::Runs>,
}

/// What the kernel's figures say of a program that does nothing.
fn clock() -> Result<Duration> {
    let observer = Observer::load(&[])?.context("the programs cannot be loaded here")?;
    let runs = || -> Result<_> {
        let info = observer.program(program::EMPTY)?.info()?;
        Ok((info.run_count(), info.run_time()))
    };
    let (count, time) = runs()?;
    observer.time(program::EMPTY, &[0; 64], LO, EMPTY_RUNS)?;
    let (count_after, time_after) = runs()?;
    let count = u32::try_from(count_after - count)?;
    Ok((time_after - time) / count.max(1))
}

/// Of an agent and its programs, or of the programs that this process holds.
fn cost(
    agent: Option<&Agent>,
    clock: Duration,
    load: &mut dyn FnMut() -> Result<u64>,
) -> Result<Cost> {
    let holder = agent.map_or_else(std::process::id, Agent::pid);
    let used = || agent.map_or(Ok(Duration::ZERO), processor);
    let (before, ran) = (used()?, usage::programs(holder)?);
    let start = Instant::now();
    let connections = load()?;
    let seconds = start.elapsed().as_secs_f64();
    let mut programs = usage::programs(holder)?;
    for (name, runs) in &mut programs {
        let before = ran.get(name).copied().unwrap_or_default();
        runs.count -= before.count;
        let counted = clock.as_nanos() as u64 * runs.count;
        runs.time = (runs.time - before.time).saturating_sub(Duration::from_nanos(counted));
    }
    Ok(Cost {
        seconds,
        connections,
        agent: used()? - before,
        programs,
    })
}

impl Cost {
    fn of_programs(&self) -> f64 {
        let times = self.programs.values().map(|runs| runs.time.as_secs_f64());
        times.sum::<f64>() / self.seconds * 100.0
    }

    fn of_agent(&self) -> f64 {
        self.agent.as_secs_f64() / self.seconds * 100.0
    }

    fn percent(&self) -> f64 {
        self.of_programs() + self.of_agent()
    }

    fn print(&self, at_the_hooks: &str, name: &str, wanted: Option<u32>, added: f64) {
        let each = |(name, runs): (&String, &usage::Runs)| {
            let mean = runs.time.as_nanos() / u128::from(runs.count.max(1));
            let rate = runs.count as f64 / self.seconds;
            (rate >= 100.0).then(|| format!("{name} {rate:.0}, {mean}"))
        };
        let programs: Vec<String> = self.programs.iter().filter_map(each).collect();
        println!(
            "| {at_the_hooks} | {name} | {} | {:.0} | {:.2} | {:.2} | {added:.2} | {} |",
            wanted.map_or_else(|| "any".to_owned(), |rate| rate.to_string()),
            self.connections as f64 / self.seconds,
            self.of_agent(),
            self.of_programs(),
            programs.join("; "),
        );
    }
}

fn connections(
    world: &World,
    inside: SocketAddr,
    outside: SocketAddr,
    agent: Option<&Agent>,
    into: &mut Measured,
) -> Result<()> {
    let pod = world.pod("client-1");
    let pods = Dialers::new(&pod.ns, pod.address(Family::V4), inside, CLIENTS);
    let away = world.outside_client(0, Family::V4);
    let outsiders = Dialers::new(&world.outside, away, outside, CLIENTS);
    let before = agent.map(processor).transpose()?;
    let start = Instant::now();
    let mut threads = pods.start(world, TURN)?;
    threads.extend(outsiders.start(world, TURN)?);
    let made = into.felt.times.len();
    into.felt.join(threads);
    let lasted = start.elapsed().as_secs_f64();
    into.connections
        .push((into.felt.times.len() - made) as f64 / lasted);
    into.lasted += lasted;
    if let (Some(agent), Some(before)) = (agent, before) {
        into.agent += (processor(agent)? - before).as_secs_f64();
    }
    Ok(())
}

fn processor(agent: &Agent) -> Result<Duration> {
    let (user, system) = usage::processor(agent.pid())?;
    Ok(user + system)
}

/// Prints what clients got with the agent, with one byte read, and without; gives the smaller of the
/// agent's ratios of connections and bulk, each the median over the rounds.
fn tell([with, glance, without]: &[Measured; 3]) -> f64 {
    println!(
        "\n| figure, median | with the agent | one byte is read | without | unit | ratio | ratio to one byte |"
    );
    println!("|---|---:|---:|---:|---|---:|---:|");
    let row = |name: &str, of: &dyn Fn(&Measured) -> Vec<f64>, unit: &str| {
        let [with, glance, without] = [with, glance, without].map(of);
        let beside = |peer: &[f64]| median(with.iter().zip(peer).map(|(a, b)| a / b));
        let (ratio, to_glance) = (beside(&without), beside(&glance));
        let [with, glance, without] = [with, glance, without].map(|all| median(all.into_iter()));
        println!(
            "| {name} | {with:.1} | {glance:.1} | {without:.1} | {unit} | {ratio:.3} | {to_glance:.3} |"
        );
        ratio
    };
    let connections = row("new connections", &|one| one.connections.clone(), "1/s");
    for percent in [50, 99] {
        let rank = move |one: &Measured| {
            let mut sorted = one.felt.times.clone();
            sorted.sort();
            let rank = nearest_rank(&sorted, percent);
            vec![rank.map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)]
        };
        row(&format!("handshake, p{percent}"), &rank, "µs");
    }
    let bulk = row(
        "bulk, one connection through a node port",
        &|one| one.bulk.iter().map(|bytes| bytes / 1e6).collect(),
        "MB/s",
    );
    println!(
        "| not answered | {} | {} | {} | connections | | |",
        with.felt.failed, glance.felt.failed, without.felt.failed
    );
    println!(
        "| the agent's processor time meanwhile | {:.1} | | | % of one | | |",
        with.agent / with.lasted * 100.0
    );
    connections.min(bulk)
}

fn median(all: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = all.collect();
    sorted.sort_by(f64::total_cmp);
    nearest_rank(&sorted, 50).unwrap_or(f64::NAN)
}

/// SYNs from a million sources to a node port, while the load balancer asks. Gives whether a million were
/// sent, maps stayed as they were and no answer was 503.
fn flood(world: &World, binary: &Path, manifests: &Path, target: SocketAddr) -> Result<bool> {
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
    let maps_after = usage::maps_kib(agent.pid())?;
    println!("\n| SYN flood | before | after | unit |");
    println!("|---|---:|---:|---|");
    println!("| SYNs, each from one of 16 million addresses | 0 | {sent} | |");
    println!("| SYNs a second | 0 | {:.0} | 1/s |", sent as f64 / seconds);
    println!(
        "| memory of the agent (RSS) | {} | {} | KiB |",
        memory.rss_kib, after.rss_kib
    );
    println!("| memory of its maps | {maps} | {maps_after} | KiB |");
    println!(
        "| entries in its maps | {entries} | {} | |",
        usage::map_entries(agent.pid())?
    );
    println!("| its processor time | | {used:.1} | % of one |");
    let bad = |codes: &Codes| codes.healthz == 503 || codes.livez == 503;
    let changes = watch.changes();
    let bad = changes.iter().filter(|change| bad(&change.codes)).count();
    println!("| times it turned to 503 | | {bad} | |");
    Ok(sent >= SOURCES && maps_after <= maps + MOST_OF_FLOOD && bad == 0)
}
