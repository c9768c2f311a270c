//! `cargo xtask bench idle`: processor time of the agent on a node where nobody sends anything and
//! every path of both families is probed; the same beside the pod probe, and what that takes itself.
//! The peer in the same run is the agent without a sentinel. Exits 1 if the promise is not met.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use node_tests::detect::{Load, Stage};
use node_tests::pod_probe::{self, Placed, Probes};
use node_tests::promises::Missed;
use node_tests::rules::Backend;
use node_tests::usage::{self, Memory};
use node_tests::world::agent_binary;

/// Percent of one processor, design's promise for the mean of the run.
const PROMISED: f64 = 0.5;
/// Place of the pod probe's Service in the address plan.
const PROBE_SERVICE: u8 = 4;
/// Pods with a pod probe: one on this node, two elsewhere.
const PROBES: [Placed; 3] = [
    ("client-1", None),
    ("web-3", Some("far-a")),
    ("api-2", Some("far-b")),
];
/// What start allocated is freed, and the first looks are over.
const CALM: Duration = Duration::from_secs(3);

/// Processor time of an idle node's agent
#[derive(Parser)]
struct Args {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// Processor time of one agent.
struct Used {
    /// Percent of one processor, by thread's name.
    threads: BTreeMap<String, f64>,
    /// Of all threads, by clock ticks.
    user: f64,
    system: f64,
    /// Times that its threads went to sleep by themselves, a second.
    wakeups: f64,
}

impl Used {
    fn between(before: &Counters, after: &Counters, lasted: Duration) -> Self {
        let seconds = lasted.as_secs_f64();
        let percent =
            |after: Duration, before: Duration| (after - before).as_secs_f64() / seconds * 100.0;
        let mut threads = BTreeMap::new();
        for (id, (name, ns)) in &after.threads {
            let earlier = before.threads.get(id).map_or(0, |(_, ns)| *ns);
            let [now, earlier] = [*ns, earlier].map(Duration::from_nanos);
            *threads.entry(name.clone()).or_default() += percent(now, earlier);
        }
        Self {
            threads,
            user: percent(after.user, before.user),
            system: percent(after.system, before.system),
            wakeups: (after.switches - before.switches) as f64 / seconds,
        }
    }

    fn total(&self) -> f64 {
        self.threads.values().sum()
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let agent = args.agent.clone().map_or_else(agent_binary, Ok)?;
    // Addresses that no pod of the world has, so that the pods' path is probed too.
    let all = [
        "--log-filter",
        "warn",
        "--sentinel-pod-address",
        "10.244.0.99,fd00:10:244::99",
    ];
    let plain = stage(&agent, &all)?;
    let with = measure(&args, "all paths probed", &[plain.agent.pid()])?.remove(0);
    drop(plain);
    let mut probed = stage(&agent, &all)?;
    let probes = start_probes(&mut probed, &agent)?;
    let pids = [
        probed.agent.pid(),
        probes.pids().next().context("no probe")?,
    ];
    let beside = measure(&args, "beside the pod probe", &pids)?;
    let memory = usage::memory(pids[1])?;
    drop((probes, probed));
    let off = stage(&agent, &["--log-filter", "warn", "--sentinel", "off"])?;
    let peer = measure(&args, "no sentinel", &[off.agent.pid()])?.remove(0);
    let mut missed = Missed::default();
    print_table(&with, &peer, &mut missed);
    print_probe(&with, &beside, memory);
    Ok(missed.close())
}

/// An idle node, and its agent.
fn stage(binary: &Path, options: &[&str]) -> Result<Stage> {
    let probed = !options.contains(&"off");
    let stage = Stage::build(binary, Backend::Nftables, Load::Idle, options, probed)?;
    if probed {
        println!("{} lanes are probed", stage.lanes()?);
    }
    Ok(stage)
}

/// Starts pod probes, the first on the node.
fn start_probes(stage: &mut Stage, binary: &Path) -> Result<Probes> {
    let service = pod_probe::service(&stage.world, PROBE_SERVICE, &PROBES);
    stage.manifests.add(service)?;
    stage.rules.install()?;
    Probes::start(&stage.world, binary, PROBE_SERVICE, &PROBES)
}

/// What processes use in the same time.
fn measure(args: &Args, name: &str, pids: &[u32]) -> Result<Vec<Used>> {
    thread::sleep(CALM);
    let all = |pids: &[u32]| {
        pids.iter()
            .map(|pid| read(*pid))
            .collect::<Result<Vec<_>>>()
    };
    let (start, before) = (Instant::now(), all(pids)?);
    thread::sleep(Duration::from_secs(args.seconds));
    let (after, lasted) = (all(pids)?, start.elapsed());
    let used: Vec<Used> = (before.iter().zip(&after))
        .map(|(before, after)| Used::between(before, after, lasted))
        .collect();
    let totals: Vec<String> = used
        .iter()
        .map(|used| format!("{:.2} %", used.total()))
        .collect();
    println!(
        "{} s, {name}: {} of a processor",
        args.seconds,
        totals.join(" and ")
    );
    Ok(used)
}

/// Counters of a process.
struct Counters {
    /// Name and nanoseconds on a processor, by thread.
    threads: BTreeMap<String, (String, u64)>,
    user: Duration,
    system: Duration,
    switches: u64,
}

fn read(pid: u32) -> Result<Counters> {
    let text = |path: String| fs::read_to_string(&path).with_context(|| format!("read {path}"));
    let mut counters = Counters {
        threads: BTreeMap::new(),
        user: Duration::ZERO,
        system: Duration::ZERO,
        switches: 0,
    };
    for entry in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let task = entry.path();
        let of = |file: &str| text(task.join(file).display().to_string());
        let name = of("comm")?.trim().to_owned();
        let ns = of("schedstat")?;
        let ns = ns.split_whitespace().next().context("no schedstat")?;
        let id = entry.file_name().to_string_lossy().into_owned();
        counters.threads.insert(id, (name, ns.parse()?));
        let status = of("status")?;
        let switches = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        counters.switches += switches.context("no switches")?.trim().parse::<u64>()?;
    }
    (counters.user, counters.system) = usage::processor(pid)?;
    Ok(counters)
}

fn print_table(with: &Used, peer: &Used, missed: &mut Missed) {
    println!();
    println!(
        "| figure | idle, all paths probed | unit | promise | met | peer: no sentinel | ratio |"
    );
    println!("|---|---:|---|---|---|---:|---:|");
    let mut row = |name: &str, unit: &str, promise: Option<f64>, value: f64, peer: f64| {
        let (promised, met) = missed.at_most(name, "mean of one run", promise, value);
        let ratio = match peer {
            0.0 => String::new(),
            peer => format!("{:.1}", value / peer),
        };
        println!("| {name} | {value:.2} | {unit} | {promised} | {met} | {peer:.2} | {ratio} |");
    };
    let unit = "% of a processor";
    row(
        "processor time",
        unit,
        Some(PROMISED),
        with.total(),
        peer.total(),
    );
    // The main thread waits for the others.
    for (name, value) in with.threads.iter().filter(|(_, value)| **value > 0.01) {
        let other = peer.threads.get(name).copied().unwrap_or_default();
        row(&format!("thread {name}"), unit, None, *value, other);
    }
    row("in user mode", unit, None, with.user, peer.user);
    row("in the kernel", unit, None, with.system, peer.system);
    row("wakeups", "a second", None, with.wakeups, peer.wakeups);
}

/// `beside` is the agent beside the pod probe, and the probe itself.
fn print_probe(alone: &Used, beside: &[Used], memory: Memory) {
    println!("\n| figure | with the pod probe | unit | peer: without | ratio |");
    println!("|---|---:|---|---:|---:|");
    if let [agent, probe] = beside {
        let (with, without) = (agent.total(), alone.total());
        let unit = "% of a processor";
        println!(
            "| the agent | {with:.2} | {unit} | {without:.2} | {:.1} |",
            with / without
        );
        println!(
            "| the pod probe itself | {:.2} | {unit} | | |",
            probe.total()
        );
    }
    let peak = memory.peak_kib as f64 / 1024.0;
    println!("| its memory at most | {peak:.1} | MiB | | |");
}
