//! `cargo xtask bench load`: what the agent costs a node under load. Connections a second and bulk
//! throughput with the agent and, in the same run, without; what agent and programs take at several
//! rates, beside a program that reads one byte of each packet, from clients that wait for their answers
//! (a closed loop) and from one that does not (an open one); and a SYN flood from a million sources,
//! under which the memory of its maps is bounded and its verdict stands.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use agent_common::abi::program;
use anyhow::{Result, ensure};
use aya::programs::TcAttachType;
use node_tests::manifests::Sentinel;
use node_tests::observer::Observer;
use node_tests::promises::{Missed, head, median};
use node_tests::rules::Backend;
use node_tests::scene::{PORT, Scene};
use node_tests::traffic::Flood;
use node_tests::usage;
use node_tests::wait::until;
use node_tests::world::{Agent, Family, World};
use pathproof::datapath::load;

mod clients;

/// A turn of connections, or of bulk, in a round. This machine's speed changes by a tenth within a minute,
/// and so turns are short, and many.
const TURN: Duration = Duration::from_secs(2);
/// Of each measurement at a rate.
const AT_A_RATE: Duration = Duration::from_secs(10);
/// Connections a second: more than any thread can make.
const FLOOD: u32 = 1_000_000;
/// SYNs of the flood, nearly all from other sources, and the time for them.
const SOURCES: u64 = 1_000_000;
const FLOODED: Duration = Duration::from_secs(180);
/// New connections a second.
const RATES: [u32; 3] = [1_000, 10_000, FLOOD];
/// The part of a rate below that of the flood which has to be reached.
const REACHED: f64 = 0.95;
/// Promise: what load adds to an idle node's agent and programs, in percent of a processor, beyond
/// what it adds where one byte of each packet is read.
const MOST_ADDED: f64 = 4.0;
/// Promise: connections and bulk beside those of a node without the agent.
const LEAST: f64 = 0.98;
/// Promise: memory that a flood adds to the agent's maps, KiB.
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

/// The node port of outsiders' connections.
fn outside(scene: &Scene) -> SocketAddr {
    scene.node_port(30081, Family::V4)
}

/// Figures of the clients with the agent and without, by turns. Ratios are medians of the rounds'
/// ratios.
fn felt(scene: &mut Scene, rounds: usize, missed: &mut Missed) -> Result<()> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        scene.start(&OPTIONS);
        thread::sleep(TURN);
        with.push(turn(scene)?);
        // It ends in order, and `cleanup` takes its programs away.
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
        let met = missed.judge(name, ratio >= LEAST);
        let [with, without] =
            [&with, &without].map(|turns| median(turns.iter().map(|turn: &[f64; 2]| turn[index])));
        println!(
            "| {name} | {with:.0} | {without:.0} | {unit} | {ratio:.3} | median at least {LEAST} | {met} |"
        );
    }
    Ok(())
}

/// New connections, and then megabytes, a second.
fn turn(scene: &Scene) -> Result<[f64; 2]> {
    let start = Instant::now();
    let answered = clients::connect(scene, FLOOD, TURN)?;
    let connections = answered as f64 / start.elapsed().as_secs_f64();
    let target = scene.node_port(30082, Family::V4);
    let bytes = clients::push(&scene.world.outside, target, TURN)?;
    Ok([connections, bytes / 1e6])
}

/// A program that reads one byte of every packet and passes it, at both hooks of every device of the
/// node: what any observer costs. It is detached when the result is dropped.
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

/// Cost of the program that reads one byte, and then of the agent, at every rate.
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

/// Measures an idle node and every rate; gives the percentage of a processor that each rate adds.
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
            // A closed loop waits for its answers.
            if kind == "open" && rate < FLOOD {
                let is_reached = made >= f64::from(rate) * REACHED;
                missed.judge(format!("{rate} connections a second"), is_reached);
            }
            added.push((name, cost - idle));
        }
    }
    Ok(added)
}

/// Percent of a processor that the agent, if there is one, and the programs take meanwhile, and connections
/// a second. The kernel's times of programs contain its readings of the clock, for the agent's programs and
/// for the peer's alike.
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
        [0, 1].map(|of: usize| (after[of] - before[of]).as_secs_f64() / seconds * 100.0);
    let made = made as f64 / seconds;
    println!("{name}: {made:.0} made, agent {agent:.2} %, programs {programs:.2} %");
    ensure!(made == 0.0 || programs > 0.0, "no program ran");
    Ok((agent + programs, made))
}

/// SYNs from a million sources to a node port, while the load balancer asks. The promise is that a
/// million were sent, maps stayed as they were and no answer was 503.
fn flood(scene: &mut Scene, missed: &mut Missed) -> Result<()> {
    scene.start(&OPTIONS);
    let watch = scene.watch();
    watch.wait(Duration::from_secs(30), |codes| codes.healthz == 200)?;
    let maps = || usage::maps_kib(scene.agent().pid());
    let before = maps()? as f64;
    let flood = Flood::start(&scene.world, outside(scene), FLOOD)?;
    let sent = until(FLOODED, || (flood.sent() >= SOURCES).then_some(()));
    drop(flood);
    // Its effect on the evidence is judged some seconds later.
    thread::sleep(Duration::from_secs(5));
    watch.wait(Duration::from_secs(30), |codes| {
        (codes.healthz, codes.livez) == (200, 200)
    })?;
    let after = maps()? as f64;
    let changes = watch.changes().into_iter();
    let bad = changes.filter(|change| change.codes.healthz == 503 || change.codes.livez == 503);

    missed.judge(format!("{SOURCES} SYNs in {FLOODED:?}"), sent.is_some());
    head(Missed::FIGURE);
    let (name, most) = ("maps after the flood", before + MOST_OF_FLOOD);
    let peer = Some(("before it", before));
    missed.figure(name, "KiB", &[after], Some(most), peer);
    let bad = bad.count() as f64;
    missed.figure("answers that became 503", "", &[bad], Some(0.0), None);
    Ok(())
}
