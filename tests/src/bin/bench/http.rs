//! `cargo xtask bench http`: how long /healthz takes to answer a probe, quiet, with 10,000 strangers'
//! connections, and with all processors busy beside; the peer in the same run is a bare server of the
//! library that the agent's listeners are made of, without any limit.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use node_tests::abuse::{Burners, Crowd, raise_open_files};
use node_tests::detect::{Figure, Load};
use node_tests::http;
use node_tests::process::Process;
use node_tests::promises::{Missed, head};
use node_tests::wait::until;
use node_tests::world::{Family, HEALTHZ_PORT, Namespace, World};

use crate::stage;

/// Design's promise for p99.
const PROMISED: Duration = Duration::from_millis(50);
/// Port of the peer.
const PEER_PORT: u16 = 10300;
/// From one probe to the next, however long that one takes: no multiple of any period of the agent's
/// loops.
const PACE: Duration = Duration::from_millis(23);
/// A probe that takes longer was not answered.
const NEVER: Duration = Duration::from_secs(5);
/// Connections that strangers keep open.
const STRANGERS: usize = 10_000;
/// Share of a pod with `cpu: 10m` beside others, in units of which an ordinary process has 1024: where
/// control groups lie, the file, and what is written there. kubelet's own conversion makes 1 of 10 shares.
const FEW_SHARES: [(&str, &str, &str); 3] = [
    ("/sys/fs/cgroup", "cpu.weight", "1"),
    ("/sys/fs/cgroup/cpu", "cpu.shares", "10"),
    ("/sys/fs/cgroup/cpu,cpuacct", "cpu.shares", "10"),
];
/// Load beside the probes: strangers, busy processors, and few shares of these.
const BESIDE: [(&str, [bool; 3]); 5] = [
    ("nothing", [false, false, false]),
    ("strangers", [true, false, false]),
    ("busy processors", [false, true, false]),
    ("busy processors, strangers", [true, true, false]),
    ("busy processors, strangers, few shares", [true, true, true]),
];

pub(crate) fn run(probes: usize, missed: &mut Missed) -> Result<()> {
    raise_open_files();
    let stage = stage(Load::Idle, true, &[])?;
    let at = |port| SocketAddr::new(stage.world.node_address(Family::V4), port);
    let peer = start_peer(&stage.world, at(PEER_PORT))?;
    let servers = [
        (stage.agent.pid(), at(HEALTHZ_PORT)),
        (peer.pid(), at(PEER_PORT)),
    ];
    let shares = Shares::new();
    let columns = Figure::COLUMNS;
    head(&format!("beside | server | {columns} | ratio of p99"));
    for (name, [strangers, burners, few_shares]) in BESIDE {
        if few_shares && shares.is_none() {
            println!("{name}: not measured, since no control group can be made");
            continue;
        }
        let mut measured = Vec::new();
        for (pid, target) in servers {
            let few = shares.as_ref().filter(|_| few_shares);
            let _few = few.map(|shares| shares.hold(pid)).transpose()?;
            let from = &stage.world.outside;
            let _crowd = strangers.then(|| gather(from, target)).transpose()?;
            let _burners = burners.then(Burners::start);
            measured.push(from.run(|| {
                hurry();
                probe(probes, target)
            }));
        }
        let [ours, theirs] = &measured[..] else {
            unreachable!("two servers were measured");
        };
        let p99 = |of: &Figure| of.rank(99).map_or(f64::INFINITY, |time| time.as_secs_f64());
        let ratio = p99(ours) / p99(theirs);
        println!("| {name} | agent | {} | {ratio:.2} |", ours.row(PROMISED));
        println!("| {name} | peer | {} | |", theirs.row(PROMISED));
        missed.judge(format!("/healthz beside {name}"), ours.keeps(PROMISED));
    }
    Ok(())
}

fn gather(from: &Namespace, target: SocketAddr) -> Result<Crowd> {
    let crowd = Crowd::gather(from, target, STRANGERS)?;
    // Nine of ten at once is what a server that closes them after seconds leaves.
    let many = || (crowd.open() >= STRANGERS * 9 / 10).then_some(());
    let gathered = until(Duration::from_secs(60), many);
    gathered.with_context(|| format!("only {} connections are open", crowd.open()))?;
    Ok(crowd)
}

/// A probe's time begins when it is due: one that waits for the one before has waited for its answer.
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

/// The server is measured, not how soon this thread gets a processor after its answer.
fn hurry() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a local that outlives the call, which only reads it.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) } != 0 {
        eprintln!("the prober waits for processors as everyone: its own delay is in the figures");
    }
}

/// Starts the peer: a process of its own, as the agent is.
fn start_peer(world: &World, address: SocketAddr) -> Result<Process> {
    let mut command = world.node.command(std::env::current_exe()?);
    command.args(["peer", &address.to_string()]);
    let mut peer = Process::start(command, "peer", world.dir())?;
    let get = || http::get(address, "/healthz", NEVER);
    let answers = || world.node.run(get).is_ok();
    peer.wait("an answer", Duration::from_secs(10), answers)?;
    Ok(peer)
}

/// The peer. Two threads, as the agent has.
pub(crate) fn serve(address: SocketAddr) -> Result<()> {
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let router = axum::Router::new().route("/healthz", axum::routing::get(|| async { "ok" }));
        let listener = tokio::net::TcpListener::bind(address).await?;
        Ok(axum::serve(listener, router).await?)
    })
}

/// A control group with little of the processors. It is removed when this is dropped.
struct Shares(PathBuf);

impl Shares {
    fn new() -> Option<Self> {
        let name = format!("pathproof-bench-{}", std::process::id());
        FEW_SHARES.into_iter().find_map(|(root, file, few)| {
            let group = Path::new(root).join(&name);
            fs::create_dir(&group).ok()?;
            let made = Self(group);
            write(&made.0.join(file), few).ok()?;
            Some(made)
        })
    }

    /// Puts a process into the group. It is back in the root's group when the result is dropped.
    fn hold(&self, process: u32) -> Result<Held> {
        let root = self.0.parent().context("a root")?.join("cgroup.procs");
        let processes = self.0.join("cgroup.procs");
        write(&processes, &process.to_string())
            .with_context(|| format!("write {process} to {}", processes.display()))?;
        Ok(Held { root, process })
    }
}

struct Held {
    root: PathBuf,
    process: u32,
}

/// If there is no hierarchy, the folder may be an ordinary one, in which writing would make a file.
fn write(file: &Path, value: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(file)?;
    file.write_all(value.as_bytes())
}

impl Drop for Shares {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = write(&self.root, &self.process.to_string());
    }
}
