//! `cargo xtask bench http`: time in which /healthz answers a probe on a quiet node, beside 10,000 idle
//! connections, beside clients that send many requests at once, and beside busy processors. The peer in the same run is a bare server of the HTTP library
//! that the agent uses, without any limits.

use anyhow::{Context, Result};
use node_tests::abuse::{Crowd, burn, raise_open_files};
use node_tests::cgroup::Cgroup;
use node_tests::detect::{Figure, Load};
use node_tests::http;
use node_tests::prelude::*;
use node_tests::process::Process;
use node_tests::promises::{Missed, head};
use node_tests::world::HEALTHZ_PORT;

use crate::stage;

/// The design's promise for p99.
const PROMISED: Duration = Duration::from_millis(50);
const PEER_PORT: u16 = 10300;
/// Interval between probes, however long each takes. It is no multiple of any period of the agent's
/// loops.
const PACE: Duration = Duration::from_millis(23);
/// Time after which a probe counts as unanswered.
const NEVER: Duration = Duration::from_secs(5);
/// Number of connections that unauthenticated clients keep open.
const STRANGERS: usize = 10_000;
/// Number of clients that send many requests at once, and the interval at which they do so.
const PIPELINING: (usize, Duration) = (400, Duration::from_millis(20));
/// Load beside the probes: connections of unauthenticated clients, busy processors, a small processor share
/// for the server, and clients that send many requests at once, which cannot be combined with the first.
const BESIDE: [(&str, [bool; 4]); 6] = [
    ("nothing", [false, false, false, false]),
    ("strangers", [true, false, false, false]),
    ("pipelining clients", [false, false, false, true]),
    ("busy processors", [false, true, false, false]),
    ("busy processors, strangers", [true, true, false, false]),
    ("busy processors, few shares", [false, true, true, false]),
];

pub(crate) fn run(probes: usize, missed: &mut Missed) -> Result<()> {
    raise_open_files();
    // Dropped after the servers, whose processes are in these groups.
    let mut groups = Vec::new();
    let stage = stage(Load::Idle, true, &[])?;
    let at = |port| SocketAddr::new(stage.world.node_address(Family::V4), port);
    let peer = start_peer(&stage.world, at(PEER_PORT))?;
    let servers = [
        (stage.agent.pid(), at(HEALTHZ_PORT)),
        (peer.pid(), at(PEER_PORT)),
    ];
    let columns = Figure::COLUMNS;
    head(&format!("beside | server | {columns} | ratio of p99"));
    for (name, [strangers, burners, few, pipelining]) in BESIDE {
        if few {
            let made = servers.iter().map(|(pid, _)| few_shares(*pid));
            match made.collect::<Result<Vec<_>>>() {
                Ok(made) => groups.extend(made),
                Err(error) => {
                    missed.record(format!("{name}: not measured: {error:#}"), false);
                    continue;
                }
            }
        }
        let mut measured = Vec::new();
        for (_, target) in servers {
            let from = &stage.world.outside;
            let _crowd = match (strangers, pipelining) {
                (true, _) => Some(gather(from, target)?),
                (_, true) => Some(pipeline(from, target)?),
                _ => None,
            };
            let _burners = burners.then(burn);
            measured.push(from.run(|| {
                hurry();
                probe(probes, target)
            }));
        }
        let p99 = |figure: &Figure| {
            figure
                .rank(99)
                .map_or(f64::INFINITY, |time| time.as_secs_f64())
        };
        let ratio = p99(&measured[0]) / p99(&measured[1]);
        for (server, figure) in ["agent", "peer"].into_iter().zip(&measured) {
            println!(
                "| {name} | {server} | {} | {ratio:.2} |",
                figure.row(PROMISED)
            );
        }
        missed.record(
            format!("/healthz beside {name}"),
            measured[0].keeps(PROMISED),
        );
    }
    Ok(())
}

/// Puts a process into a group with the processor share of a pod with `cpu: 50m`. In cgroup v1 that is 51
/// shares (an ordinary process has 1024), which kubelet converts to a weight of 2 for v2.
fn few_shares(process: u32) -> Result<Cgroup> {
    let (group, hierarchy) = Cgroup::with("cpu")?;
    match hierarchy.has("cpu") {
        true => group.set("cpu.shares", "51")?,
        false => group.set("cpu.weight", "2")?,
    }
    group.set("cgroup.procs", &process.to_string())?;
    Ok(group)
}

fn gather(from: &Namespace, target: SocketAddr) -> Result<Crowd> {
    let crowd = Crowd::gather(from, target, STRANGERS)?;
    // If the server closes idle connections after some seconds, about nine of ten are open at any time.
    wait_open(crowd, STRANGERS * 9 / 10)
}

fn pipeline(from: &Namespace, target: SocketAddr) -> Result<Crowd> {
    let (clients, round) = PIPELINING;
    let crowd = Crowd::pipelining(from, target, clients, round)?;
    wait_open(crowd, clients * 9 / 10)
}

fn wait_open(crowd: Crowd, count: usize) -> Result<Crowd> {
    let many = || (crowd.open() >= count).then_some(());
    let gathered = until(Duration::from_secs(60), many);
    gathered.with_context(|| format!("only {} connections are open", crowd.open()))?;
    Ok(crowd)
}

/// Sends probes at a fixed interval, and measures each from its due time. So the wait for a slow previous
/// answer counts as well.
fn probe(probes: usize, target: SocketAddr) -> Figure {
    let mut figure = Figure::default();
    let mut due = Instant::now();
    for _ in 0..probes {
        due += PACE;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let answer = http::get(target, "/healthz", NEVER);
        let is_well = answer.is_ok_and(|answer| answer.status == 200);
        figure.note(is_well.then(|| due.elapsed()));
    }
    figure
}

/// Gives this thread real-time priority, so that the prober's wait for a processor is not measured.
fn hurry() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a local that outlives the call, which only reads it.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) } != 0 {
        eprintln!("the prober waits for processors as everyone: its own delay is in the figures");
    }
}

/// Starts the peer as a separate process, like the agent.
fn start_peer(world: &World, address: SocketAddr) -> Result<Process> {
    let mut command = world.node.command(std::env::current_exe()?);
    command.arg("peer");
    let mut peer = Process::start(command, "peer", world.dir())?;
    let get = || http::get(address, "/healthz", NEVER);
    let answers = || world.node.run(get).is_ok();
    peer.wait("an answer", Duration::from_secs(10), answers)?;
    Ok(peer)
}

pub(crate) fn serve() -> Result<()> {
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let router = axum::Router::new().route("/healthz", axum::routing::get(|| async { "ok" }));
        let listener = tokio::net::TcpListener::bind(("::", PEER_PORT)).await?;
        Ok(axum::serve(listener, router).await?)
    })
}
