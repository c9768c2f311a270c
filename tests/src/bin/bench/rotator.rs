//! `cargo xtask bench rotator`: what the rotator holds that counts thousands of nodes, at a real API
//! server and with Nodes as large as a kubelet's. The peer in the same run is `kubectl get nodes
//! --watch`, which keeps no Node either.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use node_tests::cluster::{Process, each};
use node_tests::deploy::Tool;
use node_tests::promises::{Missed, head};
use node_tests::usage;
use node_tests::wait::until;
use serde_json::{Value, json};

use crate::mib;
use crate::site::Site;

/// Resident, design's promise, in MiB.
const PROMISED: f64 = 24.0;
const PATIENCE: Duration = Duration::from_secs(120);
/// The time for which the heartbeats of all nodes come.
const BEATING: Duration = Duration::from_secs(60);
/// An agent writes its condition this often where nothing changes.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// Images that a kubelet names in its Node's status, by default.
const IMAGES: usize = 50;
const SLICE: &str =
    "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices/pathproof-sentinel-ipv4";

pub(crate) fn run(nodes: usize, missed: &mut Missed) -> Result<()> {
    let site = Site::build()?;
    let start = Instant::now();
    each(&site.apis, nodes, |api, index| {
        api.post("/api/v1/nodes", &node(index)).map(drop)
    })?;
    let size = node(0).to_string().len() / 1024;
    let took = start.elapsed();
    println!("{nodes} Nodes of {size} KiB brought to the API in {took:.0?}");

    let (rotator, start) = (site.rotator(&[])?, Instant::now());
    let counted = until(PATIENCE, || {
        let slice = site.apis[0].get(SLICE).ok()?;
        let text = slice["metadata"]["annotations"]["pathproof.io/fleet"].as_str()?;
        let count: Value = serde_json::from_str(text).ok()?;
        (count["nodes"].as_u64()? >= nodes as u64).then(|| start.elapsed())
    });
    let counted = counted.with_context(|| format!("never counted:\n{}", rotator.log()))?;
    println!("all nodes were counted {counted:.1?} after the start");
    let peer = kubectl(&site)?;
    let listed = || (peer.log().lines().count() >= nodes).then_some(());
    until(PATIENCE, listed).context("kubectl lists all nodes")?;

    let [ours, theirs] = [rotator.pid(), peer.pid()];
    let processors = || anyhow::Ok([usage::processor(ours)?, usage::processor(theirs)?]);
    let (start, before) = (Instant::now(), processors()?);
    beat(&site, nodes)?;
    let (took, after) = (start.elapsed().as_secs_f64(), processors()?);
    let percent = |at: usize| (after[at] - before[at]).as_secs_f64() / took * 100.0;
    let (memory, peers) = (usage::memory(ours)?, usage::memory(theirs)?);
    head(Missed::FIGURE);
    let mut row = |name: &str, unit: &str, value: f64, promise: Option<f64>, peer: f64| {
        let peer = Some(("kubectl get nodes --watch", peer));
        missed.figure(name, unit, &[value], promise, peer);
    };
    let (now, peak) = (mib(memory.rss_kib), mib(memory.peak_kib));
    row("resident", "MiB", now, Some(PROMISED), mib(peers.rss_kib));
    row(
        "resident at most",
        "MiB",
        peak,
        Some(PROMISED),
        mib(peers.peak_kib),
    );
    let name = "every node's heartbeats";
    row(name, "% of a processor", percent(0), None, percent(1));
    Ok(())
}

fn kubectl(site: &Site) -> Result<Process> {
    let program = Tool::Kubectl.find();
    let program = program.context("no kubectl; run `cargo xtask setup-cluster --all`")?;
    let config = site.world.dir().join("admin.kubeconfig");
    std::fs::write(&config, site.control.admin_kubeconfig())?;
    let mut command = site.world.worker.command(program);
    command.args(["get", "nodes", "--watch", "--output", "name"]);
    command.arg("--kubeconfig").arg(config);
    Process::start(command, "kubectl", site.world.dir())
}

/// Writes the conditions of all nodes as often as their agents do.
fn beat(site: &Site, nodes: usize) -> Result<()> {
    let beats = (nodes as f64 * BEATING.as_secs_f64() / HEARTBEAT.as_secs_f64()) as usize;
    let start = Instant::now();
    each(&site.apis, beats, |api, index| {
        let due = BEATING.mul_f64(index as f64 / beats as f64);
        thread::sleep(due.saturating_sub(start.elapsed()));
        let change = json!({ "status": { "conditions": [condition("ServiceDatapathReady")] } });
        let path = format!("/api/v1/nodes/{}/status", name(index * 7 % nodes));
        let strategic = "application/strategic-merge-patch+json";
        api.request(http::Method::PATCH, &path, strategic, &change)
            .map(drop)
    })
}

fn name(index: usize) -> String {
    format!("pool-{}-{index:05}.example.internal", index % 7)
}

fn condition(kind: &str) -> Value {
    let now = jiff::Timestamp::now().round(jiff::Unit::Second).ok();
    json!({
        "type": kind, "status": "True", "reason": "DatapathProven",
        "message": "Service traffic is forwarded to current endpoints.",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    })
}

/// A Node with what a kubelet and a cloud write into it.
fn node(index: usize) -> Value {
    let conditions = [
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "Ready",
        "ServiceDatapathReady",
    ];
    let image = |image: usize| {
        let name = format!("images.example.com/team-{}/component-{image}", index % 11);
        let digest = format!("{name}@sha256:{:064x}", image * 7_919 + 1);
        json!({ "names": [digest, format!("{name}:v1.{image}.0")], "sizeBytes": 123_456_789 + image })
    };
    let label = |label: usize| {
        let name = format!("topology.example.com/label-{label}");
        (name, json!(format!("value-{label}")))
    };
    let labels: serde_json::Map<String, Value> = (0..15).map(label).collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name(index), "labels": labels },
        "spec": { "providerID": format!("example:///zone-a/{index:017x}"), "podCIDR": null },
        "status": {
            "conditions": conditions.map(condition),
            "images": (0..IMAGES).map(image).collect::<Vec<Value>>(),
        },
    })
}
