//! `cargo xtask bench rotator`: what the rotator holds that counts thousands of nodes, at a real API
//! server and with Nodes as large as a kubelet's. The peer in the same run is `kubectl get nodes
//! --watch`, which keeps no Node either. Exits 1 if a promise is not met.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use node_tests::cluster::{Api, ControlPlane, Process, Servers, base, each, install};
use node_tests::deploy::Tool;
use node_tests::manifests::Manifests;
use node_tests::promises::Missed;
use node_tests::usage::{self, Memory};
use node_tests::wait::until;
use node_tests::world::{World, agent_binary};
use serde_json::{Value, json};

/// Resident, design's promise, in MiB.
const PROMISED: f64 = 24.0;
const PATIENCE: Duration = Duration::from_secs(120);
/// Clients that write at the same time.
const WRITERS: usize = 4;
/// An agent writes its condition this often where nothing changes.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// Images that a kubelet names in its Node's status, by default.
const IMAGES: usize = 50;
const SLICE: &str =
    "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices/pathproof-sentinel-ipv4";

/// Memory and processor time of a rotator that counts thousands of nodes
#[derive(Parser)]
struct Args {
    /// Nodes
    #[arg(long, default_value_t = 5_000)]
    nodes: usize,
    /// Seconds with the heartbeats of all nodes
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// Usage of a process.
#[derive(Clone, Copy)]
struct Used {
    memory: Memory,
    /// Percent of one processor while heartbeats came.
    processor: f64,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let binary = args.agent.clone().map_or_else(agent_binary, Ok)?;
    let servers = Servers::find()?;
    let kubectl = Tool::Kubectl.find();
    let kubectl = kubectl.context("there is no kubectl; run `cargo xtask setup-cluster --all`")?;
    let world = World::builder().build()?;
    let control = ControlPlane::start(&world, &servers)?;
    let apis: Vec<Api> = (0..WRITERS).map(|_| control.api()).collect::<Result<_>>()?;
    let manifests = Manifests::write(&world, Vec::new())?;
    install(&apis[0], &manifests)?;

    let start = Instant::now();
    each(&apis, args.nodes, |api, index| {
        api.post("/api/v1/nodes", &node(index)).map(drop)
    })?;
    let size = node(0).to_string().len();
    println!(
        "{} Nodes of {:.0} KiB brought to the API in {:.0} s",
        args.nodes,
        size as f64 / 1024.0,
        start.elapsed().as_secs_f64()
    );

    let server: SocketAddr = ControlPlane::address();
    let config = control.account_kubeconfig(&world, server, base::ROTATOR)?;
    let mut command = world.node.command(&binary);
    command.args(["rotate", "--kubeconfig"]).arg(config);
    let start = Instant::now();
    let rotator = Process::start(command, "rotator", world.dir())?;
    let counted = until(PATIENCE, || {
        let slice = apis[0].get(SLICE).ok()?;
        let text = slice["metadata"]["annotations"]["pathproof.io/fleet"].as_str()?;
        let count: Value = serde_json::from_str(text).ok()?;
        (count["nodes"].as_u64()? >= args.nodes as u64).then(|| start.elapsed())
    });
    let counted = counted.with_context(|| format!("never counted:\n{}", rotator.log()))?;

    let config = world.dir().join("admin.kubeconfig");
    std::fs::write(&config, control.admin_kubeconfig())?;
    let mut command = world.worker.command(kubectl);
    command
        .args([
            "get",
            "nodes",
            "--watch",
            "--output",
            "name",
            "--kubeconfig",
        ])
        .arg(config);
    let peer = Process::start(command, "kubectl", world.dir())?;
    until(PATIENCE, || {
        (peer.log().lines().count() >= args.nodes).then_some(())
    })
    .context("kubectl lists all nodes")?;

    let pids = [rotator.pid(), peer.pid()];
    let before = processors(&pids)?;
    let span = Duration::from_secs(args.seconds);
    let beats = (args.nodes as f64 * span.as_secs_f64() / HEARTBEAT.as_secs_f64()) as usize;
    let start = Instant::now();
    each(&apis, beats, |api, index| {
        let due = span.mul_f64(index as f64 / beats as f64);
        thread::sleep(due.saturating_sub(start.elapsed()));
        let index = index * 7 % args.nodes;
        let change = json!({ "status": { "conditions": [condition()] } });
        let path = format!("/api/v1/nodes/{}/status", name(index));
        let strategic = "application/strategic-merge-patch+json";
        api.request(http::Method::PATCH, &path, strategic, &change)
            .map(drop)
    })?;
    let took = start.elapsed();
    let after = processors(&pids)?;
    let mut used = Vec::new();
    for (index, pid) in pids.into_iter().enumerate() {
        let spent = after[index].saturating_sub(before[index]);
        used.push(Used {
            memory: usage::memory(pid)?,
            processor: 100.0 * spent.as_secs_f64() / took.as_secs_f64(),
        });
    }
    let missed = print_table(&args, counted, used[0], used[1]);
    Ok(missed.close())
}

fn processors(pids: &[u32]) -> Result<Vec<Duration>> {
    let both = |pid: &u32| usage::processor(*pid).map(|(user, system)| user + system);
    pids.iter().map(both).collect()
}

fn name(index: usize) -> String {
    format!("pool-{}-{index:05}.example.internal", index % 7)
}

fn condition() -> Value {
    let now = jiff::Timestamp::now().round(jiff::Unit::Second).ok();
    json!({
        "type": "ServiceDatapathReady", "status": "True", "reason": "DatapathProven",
        "message": "Service traffic is forwarded to current endpoints.",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    })
}

/// A Node with what a kubelet and a cloud write into it.
fn node(index: usize) -> Value {
    let name = name(index);
    let other = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
    let mut conditions: Vec<Value> = other
        .iter()
        .map(|kind| {
            let mut condition = condition();
            condition["type"] = json!(kind);
            condition
        })
        .collect();
    conditions.push(condition());
    let images: Vec<Value> = (0..IMAGES)
        .map(|image| {
            let name = format!("images.example.com/team-{}/component-{image}", index % 11);
            let digest = format!("{:064x}", image * 7_919 + 1);
            json!({ "names": [format!("{name}@sha256:{digest}"), format!("{name}:v1.{image}.0")], "sizeBytes": 123_456_789 + image })
        })
        .collect();
    let labels: serde_json::Map<String, Value> = (0..15)
        .map(|label| {
            (
                format!("topology.example.com/label-{label}"),
                json!(format!("value-{label}")),
            )
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": labels },
        "spec": { "providerID": format!("example:///zone-a/{index:017x}"), "podCIDR": null },
        "status": { "conditions": conditions, "images": images },
    })
}

fn print_table(args: &Args, counted: Duration, rotator: Used, peer: Used) -> Missed {
    let mut missed = Missed::default();
    println!();
    println!(
        "| figure, {} nodes | rotator | unit | promise | met | peer: kubectl get nodes --watch | ratio |",
        args.nodes
    );
    println!("|---|---:|---|---|---|---:|---:|");
    let mib = |kib: u64| kib as f64 / 1024.0;
    let mut row = |name: &str, unit: &str, promise: Option<f64>, value: f64, peer: f64| {
        let (promised, met) = missed.at_most(name, "of one run", promise, value);
        let ratio = value / peer;
        println!("| {name} | {value:.2} | {unit} | {promised} | {met} | {peer:.2} | {ratio:.2} |");
    };
    let (ours, theirs) = (rotator.memory, peer.memory);
    let (now, peak) = (ours.rss_kib, ours.peak_kib);
    row(
        "resident",
        "MiB",
        Some(PROMISED),
        mib(now),
        mib(theirs.rss_kib),
    );
    row(
        "resident at most",
        "MiB",
        Some(PROMISED),
        mib(peak),
        mib(theirs.peak_kib),
    );
    let unit = "% of a processor";
    row(
        "every node's heartbeats",
        unit,
        None,
        rotator.processor,
        peer.processor,
    );
    println!(
        "\nall nodes were counted {:.1} s after the start",
        counted.as_secs_f64()
    );
    missed
}
