//! `cargo xtask bench http`: how long /healthz takes to answer a probe, quiet, with 10,000 strangers'
//! connections, and with all processors busy beside; the peer in the same run is a bare server of the
//! library that the agent's listeners are made of, without any limit. Exits 1 if a promise is not met.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use node_tests::abuse::{Burners, Crowd, raise_open_files};
use node_tests::detect::{Load, Stage, nearest_rank};
use node_tests::http;
use node_tests::process::Process;
use node_tests::promises::Missed;
use node_tests::rules::Backend;
use node_tests::wait::until;
use node_tests::world::{Family, HEALTHZ_PORT, Namespace, World, agent_binary};

/// Design's promise.
const PROMISED: Duration = Duration::from_millis(50);
/// Port of the peer.
const PEER_PORT: u16 = 10300;
/// From one probe to the next, however long that one takes: no multiple of any period of the agent's
/// loops.
const PACE: Duration = Duration::from_millis(23);
/// A probe that takes longer was not answered.
const NEVER: Duration = Duration::from_secs(5);
/// What a pod with `cpu: 10m` gets beside others, in shares of which an ordinary process has 1024.
const FEW_SHARES: u32 = 10;

/// Time to an answer of /healthz under abuse
#[derive(Parser)]
struct Args {
    /// Probes of each measurement
    #[arg(long, default_value_t = 1000)]
    probes: usize,
    /// Connections that strangers keep open
    #[arg(long, default_value_t = 10_000)]
    strangers: usize,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
    /// Serve as the peer, at this address
    #[arg(long, hide = true)]
    peer: Option<SocketAddr>,
}

/// Load beside the probes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Beside {
    name: &'static str,
    strangers: bool,
    burners: bool,
    few_shares: bool,
}

const BESIDE: [Beside; 5] = [
    beside("nothing", [false, false, false]),
    beside("strangers", [true, false, false]),
    beside("busy processors", [false, true, false]),
    beside("busy processors, strangers", [true, true, false]),
    beside("busy processors, strangers, few shares", [true, true, true]),
];

const fn beside(name: &'static str, [strangers, burners, few_shares]: [bool; 3]) -> Beside {
    Beside {
        name,
        strangers,
        burners,
        few_shares,
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    raise_open_files();
    if let Some(address) = args.peer {
        serve(address)?;
        return Ok(ExitCode::SUCCESS);
    }
    let agent = args.agent.clone().map_or_else(agent_binary, Ok)?;
    let stage = Stage::build(
        &agent,
        Backend::Nftables,
        Load::Idle,
        &["--log-filter", "warn"],
        true,
    )?;
    let node = stage.world.node_address(Family::V4);
    let peer = start_peer(&stage.world, SocketAddr::new(node, PEER_PORT))?;
    let shares = Shares::new();
    if shares.is_none() {
        println!("no control group for processors can be made here: few shares are left out");
    }
    println!(
        "| beside | server | probes | median | p99 | worst | no answer | unit | promise | met | ratio of p99 |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---|---|---|---:|");
    let mut missed = Missed::default();
    for beside in BESIDE
        .iter()
        .filter(|beside| shares.is_some() || !beside.few_shares)
    {
        let servers = [(HEALTHZ_PORT, stage.agent.pid()), (PEER_PORT, peer.pid())];
        let mut measured = Vec::new();
        for (port, process) in servers {
            let held = shares.as_ref().filter(|_| beside.few_shares);
            let _few = held.map(|shares| shares.hold(process)).transpose()?;
            let target = SocketAddr::new(node, port);
            measured.push(measure(&args, &stage.world.outside, target, *beside)?);
        }
        let [agent, peer] = &measured[..] else {
            bail!("two servers were measured");
        };
        agent.print(beside.name, "agent", Some(peer), &mut missed);
        peer.print(beside.name, "peer", None, &mut missed);
    }
    Ok(missed.close())
}

/// Times to an answer, sorted, and probes without one.
struct Measured {
    times: Vec<Duration>,
    never: usize,
}

fn measure(args: &Args, from: &Namespace, target: SocketAddr, beside: Beside) -> Result<Measured> {
    let crowd = beside
        .strangers
        .then(|| Crowd::gather(from, target, args.strangers));
    let crowd = crowd.transpose()?;
    if let Some(crowd) = &crowd {
        // Nine of ten at once is what a server that closes them after seconds leaves.
        let gathered = until(Duration::from_secs(60), || {
            (crowd.open() >= args.strangers * 9 / 10).then_some(())
        });
        gathered.with_context(|| format!("only {} connections are open", crowd.open()))?;
    }
    let _burners = beside.burners.then(Burners::start);
    let mut measured = from.run(|| {
        hurry();
        probe(args.probes, target)
    });
    measured.times.sort();
    if let Some(crowd) = &crowd {
        eprintln!(
            "{}: {} open, {} opened",
            beside.name,
            crowd.open(),
            crowd.opened()
        );
    }
    Ok(measured)
}

/// A probe's time begins when it is due: one that waits for the one before has waited for its answer.
fn probe(probes: usize, target: SocketAddr) -> Measured {
    let (mut times, mut never) = (Vec::new(), 0);
    let mut due = Instant::now();
    for _ in 0..probes {
        due += PACE;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        match http::get(target, "/healthz", NEVER) {
            Ok(answer) if answer.status == 200 => times.push(due.elapsed()),
            _ => never += 1,
        }
    }
    Measured { times, never }
}

/// The server is measured, not how soon this thread gets a processor after its answer.
fn hurry() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a local that outlives the call, which only reads it.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) } != 0 {
        eprintln!("the prober waits for processors as everyone: its own delay is in the figures");
    }
}

impl Measured {
    fn print(&self, beside: &str, server: &str, peer: Option<&Self>, missed: &mut Missed) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let rank = |percent| nearest_rank(&self.times, percent).map_or(f64::INFINITY, ms);
        let (promise, met, ratio) = match peer {
            None => (String::new(), "", String::new()),
            Some(peer) => {
                let theirs = nearest_rank(&peer.times, 99).map_or(f64::INFINITY, ms);
                let is_met = self.never == 0 && rank(99) <= ms(PROMISED);
                let met = missed.judge(format!("/healthz beside {beside}"), is_met);
                let promise = format!("p99 under {}", PROMISED.as_millis());
                (promise, met, format!("{:.2}", rank(99) / theirs))
            }
        };
        println!(
            "| {beside} | {server} | {} | {:.2} | {:.2} | {:.2} | {} | ms | {promise} | {met} | {ratio} |",
            self.times.len() + self.never,
            rank(50),
            rank(99),
            rank(100),
            self.never,
        );
    }
}

/// Starts the peer: a process of its own, as the agent is.
fn start_peer(world: &World, address: SocketAddr) -> Result<Process> {
    let mut command = world.node.command(std::env::current_exe()?);
    command.args(["--peer", &address.to_string()]);
    let mut peer = Process::start(command, "peer", world.dir())?;
    let get = || http::get(address, "/healthz", NEVER);
    let answers = || world.node.run(get).is_ok();
    peer.wait("an answer", Duration::from_secs(10), answers)?;
    Ok(peer)
}

/// Two threads, as the agent has.
fn serve(address: SocketAddr) -> Result<()> {
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

/// A control group with little of the processors.
struct Shares(PathBuf);

impl Shares {
    fn new() -> Option<Self> {
        let name = format!("pathproof-bench-{}", std::process::id());
        let found = |(root, file, value): &(&str, &str, String)| {
            let path = Path::new(root).join(&name);
            fs::create_dir(&path).ok()?;
            let made = Self(path);
            set(&made.0.join(file), value).ok()?;
            Some(made)
        };
        // kubelet's own conversion makes 1 of 10 shares.
        let kinds = [
            ("/sys/fs/cgroup", "cpu.weight", "1".to_owned()),
            ("/sys/fs/cgroup/cpu", "cpu.shares", FEW_SHARES.to_string()),
            (
                "/sys/fs/cgroup/cpu,cpuacct",
                "cpu.shares",
                FEW_SHARES.to_string(),
            ),
        ];
        kinds.iter().find_map(found)
    }

    /// Puts a process in; it is back where everyone is when that is dropped.
    fn hold(&self, process: u32) -> Result<Held> {
        let root = self.0.parent().context("a root")?.join("cgroup.procs");
        set(&self.0.join("cgroup.procs"), &process.to_string())?;
        Ok(Held { root, process })
    }
}

/// Where there is no hierarchy the folder may be an ordinary one, in which writing would make a file.
fn set(file: &Path, value: &str) -> std::io::Result<()> {
    fs::OpenOptions::new()
        .write(true)
        .open(file)?
        .write_all(value.as_bytes())
}

impl Drop for Shares {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

struct Held {
    root: PathBuf,
    process: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = set(&self.root, &self.process.to_string());
    }
}
