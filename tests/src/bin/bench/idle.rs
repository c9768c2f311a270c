//! `cargo xtask bench idle`: processor time of the agent on a node where nobody sends anything and
//! every path of both families is probed; the same beside the pod probe, and what that takes itself.
//! The peer in the same run is the agent without a sentinel.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use node_tests::detect::{Load, Stage};
use node_tests::pod_probe::{self, Placed, Probes};
use node_tests::promises::{Missed, head};
use node_tests::usage;
use node_tests::world::agent_binary;

use crate::{mib, stage};

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
/// Memory that start allocated is freed, and the first looks are over.
const CALM: Duration = Duration::from_secs(3);
/// Addresses that no pod of the world has, so that the pods' path is probed too.
const ALL_PATHS: [&str; 2] = ["--sentinel-pod-address", "10.244.0.99,fd00:10:244::99"];
const PERCENT: &str = "% of a processor";
const WHOLE: &str = "processor time";

/// Processor time and wake-ups of a process.
struct Used {
    /// Percent of a processor, by name.
    percent: BTreeMap<String, f64>,
    /// Times that its threads went to sleep by themselves, a second.
    wakeups: f64,
}

/// The same since it started.
struct Counters {
    /// Hundredths of a second, by name and the folder of a thread.
    times: BTreeMap<(String, String), f64>,
    /// By the folder of a thread.
    wakeups: BTreeMap<String, f64>,
}

pub(crate) fn run(seconds: u64, missed: &mut Missed) -> Result<()> {
    let plain = stage(Load::Idle, true, &ALL_PATHS)?;
    let with = measure("all paths probed", seconds, &[plain.agent.pid()])?.remove(0);
    drop(plain);
    let mut probed = stage(Load::Idle, true, &ALL_PATHS)?;
    let probes = start_probes(&mut probed)?;
    let probe = probes.pids().next().context("no probe")?;
    let pids = [probed.agent.pid(), probe];
    let beside = measure("beside the pod probe", seconds, &pids)?;
    let memory = usage::memory(probe)?;
    drop((probes, probed));
    let off = stage(Load::Idle, false, &["--sentinel", "off"])?;
    let peer = measure("no sentinel", seconds, &[off.agent.pid()])?.remove(0);

    ensure!(
        with.percent[WHOLE] > 0.0,
        "the agent used no processor time"
    );
    head(Missed::FIGURE);
    for (name, value) in &with.percent {
        // The main thread waits for the others.
        if name != WHOLE && *value <= 0.01 {
            continue;
        }
        let promise = (name == WHOLE).then_some(PROMISED);
        let peer = peer.percent.get(name).map(|peer| ("no sentinel", *peer));
        missed.figure(name, PERCENT, &[*value], promise, peer);
    }
    let without = Some(("no sentinel", peer.wakeups));
    missed.figure("wakeups", "a second", &[with.wakeups], None, without);
    let alone = Some(("without the pod probe", with.percent[WHOLE]));
    let [agent, probe] = [0, 1].map(|index: usize| beside[index].percent[WHOLE]);
    missed.figure("beside the pod probe", PERCENT, &[agent], None, alone);
    missed.figure("the pod probe itself", PERCENT, &[probe], None, None);
    let peak = mib(memory.peak_kib);
    missed.figure("its memory at most", "MiB", &[peak], None, None);
    Ok(())
}

/// Starts pod probes, the first on the node.
fn start_probes(stage: &mut Stage) -> Result<Probes> {
    let service = pod_probe::service(&stage.world, PROBE_SERVICE, &PROBES);
    stage.manifests.add(service)?;
    stage.rules.install()?;
    Probes::start(&stage.world, &agent_binary()?, PROBE_SERVICE, &PROBES)
}

/// Measures processes in the same time.
fn measure(name: &str, seconds: u64, pids: &[u32]) -> Result<Vec<Used>> {
    thread::sleep(CALM);
    let all = || {
        let each = pids.iter().copied().map(counters);
        each.collect::<Result<Vec<_>>>()
    };
    let (start, before) = (Instant::now(), all()?);
    thread::sleep(Duration::from_secs(seconds));
    let (after, lasted) = (all()?, start.elapsed().as_secs_f64());
    println!("{seconds} s, {name}");
    let used = |(before, after): (&Counters, &Counters)| {
        let mut percent = BTreeMap::<String, f64>::new();
        for (key, value) in &after.times {
            // A thread that has begun meanwhile was at nothing before.
            let earlier = before.times.get(key).copied().unwrap_or_default();
            *percent.entry(key.0.clone()).or_default() += (value - earlier) / lasted;
        }
        let earlier = |thread: &str| before.wakeups.get(thread).copied().unwrap_or_default();
        let more = |(thread, value): (&String, &f64)| value - earlier(thread);
        let wakeups = after.wakeups.iter().map(more).sum::<f64>() / lasted;
        Used { percent, wakeups }
    };
    Ok(before.iter().zip(&after).map(used).collect())
}

fn counters(pid: u32) -> Result<Counters> {
    let (mut times, mut wakeups) = (BTreeMap::new(), BTreeMap::new());
    let mut note = |name: &str, of: &str, value: f64| {
        times.insert((name.to_owned(), of.to_owned()), value);
    };
    let (user, system) = usage::times(pid)?;
    note("in user mode", "", user.as_secs_f64() * 100.0);
    note("in the kernel", "", system.as_secs_f64() * 100.0);
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        let text = |file: &str| fs::read_to_string(task.join(file));
        let schedstat = text("schedstat")?;
        let ns = schedstat
            .split_whitespace()
            .next()
            .context("no schedstat")?;
        let hundredths = ns.parse::<f64>()? / 1e7;
        let folder = task.display().to_string();
        note(
            &format!("thread {}", text("comm")?.trim()),
            &folder,
            hundredths,
        );
        note(WHOLE, &folder, hundredths);
        let switches = usage::number(&text("status")?, "voluntary_ctxt_switches:");
        wakeups.insert(folder, switches.context("no switches")? as f64);
    }
    Ok(Counters { times, wakeups })
}
