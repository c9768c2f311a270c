//! `cargo xtask bench load`: cost of the agent on a node under load.
//!
//! - New connections and bulk throughput, with the agent and without it in the same run.
//! - Processor time of agent and programs at several rates, compared with that of a program that reads one
//!   byte of each packet. Clients wait for their answers (closed loop) or do not (open loop).
//! - A SYN flood from a million sources: the memory of the maps stays bounded, and the verdict holds.

use anyhow::{Result, ensure};
use aya::programs::TcAttachType;
use node_tests::observer::Observer;
use node_tests::prelude::*;
use node_tests::promises::{Missed, head, median};
use node_tests::traffic::Flood;
use node_tests::usage;
use node_tests::world::Agent;
use pathproof::datapath::load;
use pathproof_wire::abi::program;

mod clients;

/// Duration of one measurement of connections or bulk in a round. The machine's speed changes by a tenth
/// within a minute, so there are many short rounds.
const TURN: Duration = Duration::from_secs(2);
/// Duration of each measurement at a rate.
const AT_A_RATE: Duration = Duration::from_secs(10);
/// Rate without a limit: more connections a second than any thread can make.
const FLOOD: u32 = 1_000_000;
/// SYNs of the flood, nearly all from different sources, and the time limit for them.
const SOURCES: u64 = 1_000_000;
const FLOODED: Duration = Duration::from_secs(180);
/// New connections a second.
const RATES: [u32; 3] = [1_000, 10_000, FLOOD];
/// Minimum share of a rate that must be reached, for rates below `FLOOD`.
const REACHED: f64 = 0.95;
/// Promise: the load's additional cost in agent and programs, beyond that of reading one byte of each
/// packet, in percent of a processor.
const MOST_ADDED: f64 = 4.0;
/// Promise: connections and bulk relative to a node without the agent.
const LEAST: f64 = 0.98;
/// Promise: memory that a flood adds to the agent's maps, in KiB.
const MOST_OF_FLOOD: f64 = 1024.0;
const OPTIONS: [&str; 2] = ["--log-filter", "warn"];

pub(crate) fn run(rounds: usize, missed: &mut Missed) -> Result<()> {
    ensure!(
        !rounds.is_multiple_of(2),
        "a median needs an odd number of rounds, not {rounds}"
    );
    let mut scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    scene.servers.remove("db-1");
    clients::sink(&scene.world.pod("db-1").ns, PORT)?;
    felt(&mut scene, rounds, missed)?;
    at_rates(&mut scene, missed)?;
    flood(&mut scene, missed)
}

/// Node port that outside clients dial.
fn outside(scene: &Scene) -> SocketAddr {
    scene.node_port(30081, Family::V4)
}

/// Measures the clients in turn with the agent and without it. Each result is the median of the ratios of all
/// rounds.
fn felt(scene: &mut Scene, rounds: usize, missed: &mut Missed) -> Result<()> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        scene.start(&OPTIONS);
        thread::sleep(TURN);
        with.push(turn(scene)?);
        // Ends the agent by SIGTERM, and runs `pathproof cleanup`, which removes its programs.
        scene.agent = None;
        without.push(turn(scene)?);
    }
    head("figure, median | with the agent | without | unit | ratio | promise | met");
    let names = [
        ("new connections", "1/s"),
        ("bulk, one connection through a node port", "MB/s"),
    ];
    for (index, (name, unit)) in names.into_iter().enumerate() {
        let both = with.iter().zip(&without);
        let ratio = median(both.map(|(with, without)| with[index] / without[index]));
        let met = missed.record(name, ratio >= LEAST);
        let [with, without] =
            [&with, &without].map(|turns| median(turns.iter().map(|turn: &[f64; 2]| turn[index])));
        println!(
            "| {name} | {with:.0} | {without:.0} | {unit} | {ratio:.3} | median at least {LEAST} | {met} |"
        );
    }
    Ok(())
}

/// New connections a second, then megabytes a second.
fn turn(scene: &Scene) -> Result<[f64; 2]> {
    let start = Instant::now();
    let answered = clients::connect(scene, FLOOD, TURN)?;
    let connections = answered as f64 / start.elapsed().as_secs_f64();
    let target = scene.node_port(30082, Family::V4);
    let bytes = clients::push(&scene.world.outside, target, TURN)?;
    Ok([connections, bytes / 1e6])
}

/// Attaches a program that reads one byte of every packet and passes it, at both hooks of every device:
/// the minimum cost of any observer. It is detached when the result is dropped.
fn glance(world: &World) -> Result<Observer> {
    let mut observer = Observer::load(&[]);
    let classifier = load::classifier(&mut observer.ebpf, program::GLANCE)?;
    let devices = world.node.ip("-brief link")?;
    let names = devices
        .lines()
        .filter_map(|line| line.split([' ', '@']).next());
    for device in names.filter(|name| *name != "lo") {
        for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
            world.node.run(|| classifier.attach(device, direction))?;
        }
    }
    Ok(observer)
}

/// Measures the program that reads one byte, then the agent, at every rate.
fn at_rates(scene: &mut Scene, missed: &mut Missed) -> Result<()> {
    let _stats = aya::sys::enable_stats(aya::sys::Stats::RunTime)?;
    println!("\nOne byte is read:");
    let observer = glance(&scene.world)?;
    let peers = rates(scene, missed)?;
    drop(observer);
    println!("The agent's programs:");
    scene.start(&OPTIONS);
    thread::sleep(Duration::from_secs(5));
    let ours = rates(scene, missed)?;
    scene.agent = None;
    head(Missed::FIGURE);
    for ((name, ours), (_, peer)) in ours.iter().zip(peers) {
        let (name, promise) = (format!("{name}: added to idle"), peer + MOST_ADDED);
        let peer = Some(("one byte is read", peer));
        missed.figure(&name, "% of a processor", &[*ours], Some(promise), peer);
    }
    Ok(())
}

/// Measures an idle node and every rate; returns the percentage of a processor that each rate adds.
fn rates(scene: &Scene, missed: &mut Missed) -> Result<Vec<(String, f64)>> {
    type Dial = fn(&Scene, u32) -> Result<u64>;
    let closed: Dial = |scene, rate| clients::connect(scene, rate, AT_A_RATE);
    let open: Dial = |scene, rate| {
        let flood = Flood::start(&scene.world, outside(scene), rate)?;
        thread::sleep(AT_A_RATE);
        Ok(flood.sent())
    };
    let nothing: Dial = |_, _| {
        thread::sleep(AT_A_RATE);
        Ok(0)
    };
    let (idle, _) = cost(scene, "idle", || nothing(scene, 0))?;
    let mut added = Vec::new();
    for rate in RATES {
        for (kind, dial) in [("closed", closed), ("open", open)] {
            thread::sleep(Duration::from_secs(3));
            let name = format!("{kind} loop, at most {rate} connections a second");
            let (cost, made) = cost(scene, &name, || dial(scene, rate))?;
            // A closed loop waits for its answers, so it may legitimately be slower than the requested rate.
            if kind == "open" && rate < FLOOD {
                let is_reached = made >= f64::from(rate) * REACHED;
                missed.record(format!("{rate} connections a second"), is_reached);
            }
            added.push((name, cost - idle));
        }
    }
    Ok(added)
}

/// Measures while `dial` runs: processor time of the agent (if any) and the programs, in percent of one
/// processor, and connections a second. The kernel's program times include its clock reads, for the agent and
/// for the peer alike.
fn cost(scene: &Scene, name: &str, dial: impl FnOnce() -> Result<u64>) -> Result<(f64, f64)> {
    let agent = scene.agent.as_ref().map(Agent::pid);
    let used = || -> Result<[Duration; 2]> {
        let (_, programs) = usage::programs(agent.unwrap_or_else(std::process::id))?;
        let agent = agent.map_or(Ok(Duration::ZERO), usage::processor)?;
        Ok([agent, programs])
    };
    let before = used()?;
    let start = Instant::now();
    let made = dial()?;
    let seconds = start.elapsed().as_secs_f64();
    let after = used()?;
    let [agent, programs] =
        [0, 1].map(|place: usize| (after[place] - before[place]).as_secs_f64() / seconds * 100.0);
    let made = made as f64 / seconds;
    println!("{name}: {made:.0} made, agent {agent:.2} %, programs {programs:.2} %");
    ensure!(made == 0.0 || programs > 0.0, "no program ran");
    Ok((agent + programs, made))
}

/// Floods a node port with SYNs from a million sources while a load balancer polls. Promised: a million
/// SYNs are sent, the maps keep their size, and no answer is 503.
fn flood(scene: &mut Scene, missed: &mut Missed) -> Result<()> {
    scene.start(&OPTIONS);
    let watch = scene.watch();
    watch.wait(Duration::from_secs(30), |codes| codes.healthz == 200)?;
    let maps = || usage::maps_kib(scene.agent().pid());
    let before = maps()? as f64;
    let flood = Flood::start(&scene.world, outside(scene), FLOOD)?;
    let sent = until(FLOODED, || (flood.sent() >= SOURCES).then_some(()));
    drop(flood);
    // Wait until the agent has judged the flood's evidence.
    thread::sleep(Duration::from_secs(5));
    watch.wait(Duration::from_secs(30), |codes| {
        (codes.healthz, codes.livez) == (200, 200)
    })?;
    let after = maps()? as f64;
    let changes = watch.changes().into_iter();
    let bad = changes.filter(|change| change.codes.healthz == 503 || change.codes.livez == 503);

    missed.record(format!("{SOURCES} SYNs in {FLOODED:?}"), sent.is_some());
    head(Missed::FIGURE);
    let (name, most) = ("maps after the flood", before + MOST_OF_FLOOD);
    let peer = Some(("before it", before));
    missed.figure(name, "KiB", &[after], Some(most), peer);
    let bad = bad.count() as f64;
    missed.figure("answers that became 503", "", &[bad], Some(0.0), None);
    Ok(())
}
