//! `cargo xtask bench load`: what the agent costs a node under load. Connections a second, the time of
//! a handshake and bulk throughput, with the agent and, in the same run, without; what agent and
//! programs take at several rates, by the kernel's own figures, from clients that wait for their answers
//! (a closed loop) and from one that does not (an open one); and a SYN flood from a million sources,
//! under which its memory and processor time are bounded and its verdict stands.

use std::fmt;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use agent_common::abi::program;
use anyhow::{Result, ensure};
use aya::programs::TcAttachType;
use aya::programs::tc::SchedClassifierLink;
use node_tests::detect::Figure;
use node_tests::manifests::Sentinel;
use node_tests::observer::{LO, Observer};
use node_tests::promises::{Missed, head, median};
use node_tests::rules::Backend;
use node_tests::scene::{PORT, Scene};
use node_tests::traffic::Flood;
use node_tests::usage;
use node_tests::watch::Codes;
use node_tests::world::{Agent, Family, World};
use pathproof::datapath::load;

use crate::observer;

mod bulk;
mod clients;

/// A turn of connections, or of bulk, in a round. This machine's speed changes by a tenth within a minute,
/// and so turns are short, and many.
const TURN: Duration = Duration::from_secs(2);
/// Of each measurement at a rate.
const AT_A_RATE: Duration = Duration::from_secs(10);
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

pub(crate) fn run(rounds: usize, missed: &mut Missed) -> Result<()> {
    ensure!(
        !rounds.is_multiple_of(2),
        "a median needs an odd number of rounds, not {rounds}"
    );
    let mut scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    scene.servers.remove("db-1");
    let _sink = bulk::sink(&scene.world.pod("db-1").ns, PORT)?;
    felt(&mut scene, rounds, missed)?;
    at_rates(&mut scene, missed)?;
    flood(&mut scene, missed)
}

/// The node port of outsiders' connections.
fn outside(scene: &Scene) -> SocketAddr {
    scene.node_port(30081, Family::V4)
}

/// Figures of the clients in all rounds.
#[derive(Default)]
struct Felt {
    handshakes: Figure,
    /// New connections a second of each round.
    connections: Vec<f64>,
    /// Megabytes a second of each round.
    bulk: Vec<f64>,
    /// Percent of a processor that the agent used while connections were made, of each round.
    agent: Vec<f64>,
}

impl Felt {
    fn turn(&mut self, scene: &Scene) -> Result<()> {
        let (start, before) = (Instant::now(), processor(scene.agent.as_ref())?);
        let made = clients::connect(scene, None, TURN)?;
        let seconds = start.elapsed().as_secs_f64();
        let used = processor(scene.agent.as_ref())? - before;
        self.agent.push(used.as_secs_f64() / seconds * 100.0);
        let answered = made.count() - made.never;
        self.connections.push(answered as f64 / seconds);
        self.handshakes = Figure::join([std::mem::take(&mut self.handshakes), made]);
        let target = scene.node_port(30082, Family::V4);
        let bytes = bulk::push(&scene.world.outside, target, TURN)?;
        self.bulk.push(bytes / 1e6);
        Ok(())
    }

    fn handshake(&self, percent: usize) -> Vec<f64> {
        let time = self.handshakes.rank(percent).into_iter();
        time.map(|time| time.as_secs_f64() * 1e6).collect()
    }
}

/// Figures of the clients with the agent, with one byte read, and without, by turns. Ratios are medians of
/// the rounds' ratios.
fn felt(scene: &mut Scene, rounds: usize, missed: &mut Missed) -> Result<()> {
    let [mut with, mut glance, mut without] = <[Felt; 3]>::default();
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        scene.start(&OPTIONS);
        thread::sleep(TURN);
        with.turn(scene)?;
        // It ends in order, and `cleanup` takes its programs away.
        scene.agent = None;
        without.turn(scene)?;
        let _peer = Peer::attach(&scene.world, program::GLANCE)?;
        glance.turn(scene)?;
    }
    head(
        "figure, median | with the agent | one byte is read | without | unit | ratio | ratio to one byte | promise | met",
    );
    let mut row = |name: &str, unit: &str, least: Option<f64>, of: &dyn Fn(&Felt) -> Vec<f64>| {
        let [with, glance, without] = [&with, &glance, &without].map(of);
        let beside = |peer: &[f64]| median(with.iter().zip(peer).map(|(a, b)| a / b));
        let (ratio, to_glance) = (beside(&without), beside(&glance));
        let [with, glance, without] = [with, glance, without].map(median);
        let (promise, met) = least.map_or_else(Default::default, |least| {
            let met = missed.judge(name, ratio >= least);
            (format!("median at least {least}"), met)
        });
        println!(
            "| {name} | {with:.1} | {glance:.1} | {without:.1} | {unit} | {ratio:.3} | {to_glance:.3} | {promise} | {met} |"
        );
    };
    let connections = |felt: &Felt| felt.connections.clone();
    row("new connections", "1/s", Some(LEAST), &connections);
    row("handshake, p50", "µs", None, &|felt| felt.handshake(50));
    row("handshake, p99", "µs", None, &|felt| felt.handshake(99));
    let bulk = "bulk, one connection through a node port";
    row(bulk, "MB/s", Some(LEAST), &|felt| felt.bulk.clone());
    let [failed, glance, without] = [&with, &glance, &without].map(|felt| felt.handshakes.never);
    println!("| not answered, of all | {failed} | {glance} | {without} | connections | | | | |");
    let mean = with.agent.iter().sum::<f64>() / rounds as f64;
    println!("| the agent's processor time, mean | {mean:.1} | | | % of one | | | | |");
    Ok(())
}

/// A program that passes every packet, at both hooks of every device of the node: what any observer
/// costs.
struct Peer {
    _observer: Observer,
    _links: Vec<SchedClassifierLink>,
}

impl Peer {
    fn attach(world: &World, program: &'static str) -> Result<Self> {
        let mut observer = observer(&[])?;
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

/// Cost of the peers and then of the agent at every rate. The promise is of what the agent adds to an idle
/// node beyond the program that reads one byte.
fn at_rates(scene: &mut Scene, missed: &mut Missed) -> Result<()> {
    let _stats = aya::sys::enable_stats(aya::sys::Stats::RunTime)?;
    let clock = clock()?;
    println!(
        "\nThe kernel's figures contain its readings of the clock, {clock:?} a run, which are taken off here."
    );
    head(
        "at the hooks | loop, wanted 1/s | new connections, 1/s | agent, % of a processor | programs, % | added to idle, % | programs: runs a second, ns each | promise | met",
    );
    let mut glance = Vec::new();
    for (name, program) in PEERS {
        let _peer = Peer::attach(&scene.world, program)?;
        glance = rates(name, scene, clock, None, missed)?;
    }
    scene.start(&OPTIONS);
    thread::sleep(Duration::from_secs(5));
    rates("the agent's", scene, clock, Some(&glance), missed)?;
    scene.agent = None;
    Ok(())
}

/// Measures an idle node and every rate; gives the percentage that each adds.
fn rates(
    at_the_hooks: &str,
    scene: &Scene,
    clock: Duration,
    peer: Option<&[f64]>,
    missed: &mut Missed,
) -> Result<Vec<f64>> {
    let mut added = Vec::new();
    let mut idle = 0.0;
    let loads = RATES
        .into_iter()
        .flat_map(|rate| [Dialled::Closed(rate), Dialled::Open(rate)]);
    for (index, load) in [Dialled::Nothing].into_iter().chain(loads).enumerate() {
        let cost = cost(scene, clock, load)?;
        if load == Dialled::Nothing {
            idle = cost.agent + cost.programs;
        }
        added.push(cost.agent + cost.programs - idle);
        let name = format!("{at_the_hooks} | {load}");
        // An idle node adds nothing to itself.
        let peer = peer.filter(|_| load != Dialled::Nothing);
        let (promise, met) = peer.map_or_else(Default::default, |peer| {
            let most = peer[index] + MOST_ADDED;
            let met = missed.judge(&name, added[index] <= most);
            (format!("of one run at most {most:.2}"), met)
        });
        println!(
            "| {name} | {:.0} | {:.2} | {:.2} | {:.2} | {} | {promise} | {met} |",
            cost.connections, cost.agent, cost.programs, added[index], cost.each
        );
        thread::sleep(Duration::from_secs(3));
    }
    Ok(added)
}

/// Connections a second that are wanted, where not as many as go.
#[derive(Clone, Copy, PartialEq)]
enum Dialled {
    Nothing,
    Closed(Option<u32>),
    Open(Option<u32>),
}

impl fmt::Display for Dialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, rate) = match self {
            Self::Nothing => return f.write_str("idle"),
            Self::Closed(rate) => ("closed", rate),
            Self::Open(rate) => ("open", rate),
        };
        match rate {
            Some(rate) => write!(f, "{kind}, {rate}"),
            None => write!(f, "{kind}, as fast as it goes"),
        }
    }
}

impl Dialled {
    /// Gives the number of connections that were begun.
    fn put(self, scene: &Scene) -> Result<u64> {
        match self {
            Self::Closed(rate) => Ok(clients::connect(scene, rate, AT_A_RATE)?.count() as u64),
            Self::Nothing => {
                thread::sleep(AT_A_RATE);
                Ok(0)
            }
            Self::Open(rate) => {
                let rate = rate.unwrap_or(FLOOD);
                let flood = Flood::start(&scene.world, outside(scene), rate)?;
                thread::sleep(AT_A_RATE);
                Ok(flood.sent())
            }
        }
    }
}

/// Time of one run of a program that does nothing, by the kernel's figures.
fn clock() -> Result<Duration> {
    let observer = observer(&[])?;
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

/// Under load, of the agent and its programs, or of the programs that this process holds.
struct Cost {
    connections: f64,
    /// Percent of a processor.
    agent: f64,
    programs: f64,
    /// Of each busy program: name, runs a second, nanoseconds of one.
    each: String,
}

fn cost(scene: &Scene, clock: Duration, load: Dialled) -> Result<Cost> {
    let agent = scene.agent.as_ref();
    let holder = agent.map_or_else(std::process::id, Agent::pid);
    let (before, ran) = (processor(agent)?, usage::programs(holder)?);
    let start = Instant::now();
    let connections = load.put(scene)?;
    let seconds = start.elapsed().as_secs_f64();
    let used = (processor(agent)? - before).as_secs_f64();
    let (mut took, mut each) = (0.0, Vec::new());
    for (name, runs) in usage::programs(holder)? {
        let before = ran.get(&name).copied().unwrap_or_default();
        let count = (runs.count - before.count) as f64;
        let time = (runs.time - before.time).as_secs_f64() - clock.as_secs_f64() * count;
        took += time.max(0.0);
        if count / seconds >= 100.0 {
            let mean = time.max(0.0) * 1e9 / count;
            each.push(format!("{name} {:.0}, {mean:.0}", count / seconds));
        }
    }
    Ok(Cost {
        connections: connections as f64 / seconds,
        agent: used / seconds * 100.0,
        programs: took / seconds * 100.0,
        each: each.join("; "),
    })
}

fn processor(agent: Option<&Agent>) -> Result<Duration> {
    agent.map_or(Ok(Duration::ZERO), |agent| usage::processor(agent.pid()))
}

/// SYNs from a million sources to a node port, while the load balancer asks. The promise is that a
/// million were sent, maps stayed as they were and no answer was 503.
fn flood(scene: &mut Scene, missed: &mut Missed) -> Result<()> {
    scene.start(&OPTIONS);
    let watch = scene.watch();
    watch.wait(Duration::from_secs(30), |codes| codes.healthz == 200)?;
    let pid = scene.agent().pid();
    let held = || -> Result<[u64; 3]> {
        let rss = usage::memory(pid)?.rss_kib;
        Ok([rss, usage::maps_kib(pid)?, usage::map_entries(pid)?])
    };
    let (before, used_before) = (held()?, usage::processor(pid)?);
    let start = Instant::now();
    let flood = Flood::start(&scene.world, outside(scene), FLOOD)?;
    while flood.sent() < SOURCES && start.elapsed() < FLOODED {
        thread::sleep(Duration::from_millis(100));
    }
    let sent = flood.sent();
    drop(flood);
    let seconds = start.elapsed().as_secs_f64();
    let used = (usage::processor(pid)? - used_before).as_secs_f64();
    let after = held()?;
    let bad = |codes: &Codes| codes.healthz == 503 || codes.livez == 503;
    let changes = watch.changes();
    let bad = changes.iter().filter(|change| bad(&change.codes)).count();

    head("SYN flood | before | after | unit");
    println!("| SYNs, each from one of 16 million addresses | 0 | {sent} | |");
    println!("| SYNs a second | 0 | {:.0} | 1/s |", sent as f64 / seconds);
    let units = ["KiB of RSS", "KiB of maps", "entries in maps"];
    for ((before, after), unit) in before.iter().zip(&after).zip(units) {
        println!("| held by the agent | {before} | {after} | {unit} |");
    }
    let percent = used / seconds * 100.0;
    println!("| its processor time | | {percent:.1} | % of one |");
    println!("| times it turned to 503 | | {bad} | |");
    let is_borne = sent >= SOURCES && after[1] <= before[1] + MOST_OF_FLOOD && bad == 0;
    let promise = format!("a million SYNs: at most {MOST_OF_FLOOD} KiB of maps more, and no 503");
    println!("\n{promise}: {}", missed.judge(&promise, is_borne));
    Ok(())
}
