//! `cargo xtask bench rotator`: memory of a rotator that counts thousands of nodes, at a real API server and
//! with Nodes as large as those of a kubelet. The peer in the same run is `kubectl get nodes --watch`, which
//! does not store Nodes either. The cost of rotations at the same server follows ([`events`]).

use anyhow::{Context, Result, ensure};
use node_tests::cluster::{Process, base, each};
use node_tests::deploy::Tool;
use node_tests::prelude::*;
use node_tests::promises::{Missed, head};
use node_tests::usage;

use crate::mib;
use crate::site::Site;

mod events;

/// The design's promise for resident memory, in MiB.
const PROMISED: f64 = 24.0;
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of heartbeats: as many as 5,000 agents write in a minute.
const BEATS: usize = 1_000;
/// One of the sentinel's addresses, which one Node has as well. The rotator must publish this conflict.
const TAKEN: &str = "198.18.0.2";
/// Images that a kubelet lists in its Node's status by default.
const IMAGES: usize = 50;

pub(crate) fn run(nodes: usize, missed: &mut Missed) -> Result<()> {
    let site = Site::build()?;
    let start = Instant::now();
    each(&site.apis, nodes, |api, index| {
        let mut node = node(index);
        if index == nodes - 1 {
            node["status"]["addresses"][0]["address"] = json!(TAKEN);
        }
        api.post("/api/v1/nodes", &node).map(drop)
    })?;
    let (size, took) = (node(0).to_string().len() / 1024, start.elapsed());
    println!("{nodes} Nodes of {size} KiB brought to the API in {took:.0?}");

    let (rotator, start) = (site.rotator(&[])?, Instant::now());
    let counted = until(PATIENCE, || {
        let slice = site.apis[0].get(base::SLICE).ok()?;
        let text = slice["metadata"]["annotations"]["pathproof.io/fleet"].as_str()?;
        let count: Value = serde_json::from_str(text).ok()?;
        (count["nodes"].as_u64()? >= nodes as u64).then(|| start.elapsed())
    });
    let counted = counted.with_context(|| format!("never counted:\n{}", rotator.log()))?;
    println!("all nodes were counted {counted:.1?} after the start");
    let slice = site.apis[0].get(base::SLICE)?.to_string();
    let taken = format!("Node {}", name(nodes - 1));
    ensure!(
        slice.contains(&taken),
        "{taken} has the address {TAKEN} of the sentinel, and the rotator does not say so: {slice}"
    );
    println!("found the one Node that has the sentinel's address {TAKEN}");
    let peer = kubectl(&site)?;
    let listed = || (peer.log().lines().count() >= nodes).then_some(());
    until(PATIENCE, listed).context("kubectl lists all nodes")?;

    println!("{BEATS} heartbeats");
    each(&site.apis, BEATS, |api, index| {
        let status = json!({ "conditions": [condition()] });
        let name = name(index * 7 % nodes);
        api.patch_node_status(&name, &status).map(drop)
    })?;
    let [ours, theirs] = [rotator.pid(), peer.pid()].map(usage::memory);
    let (ours, theirs) = (ours?, theirs?);
    head(Missed::FIGURE);
    for (name, ours, theirs) in [
        ("resident", ours.rss_kib, theirs.rss_kib),
        ("resident at most", ours.peak_kib, theirs.peak_kib),
    ] {
        let peer = Some(("kubectl get nodes --watch", mib(theirs)));
        missed.figure(name, "MiB", &[mib(ours)], Some(PROMISED), peer);
    }
    drop((rotator, peer));
    events::run(&site, nodes, missed)
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

/// A Node of a kubelet's size, mostly a list of images.
fn node(index: usize) -> Value {
    let image = |image: usize| {
        let name = format!("images.example.com/team-{}/component-{image}", index % 11);
        let digest = format!("{name}@sha256:{:064x}", image * 7_919 + 1);
        json!({ "names": [digest, format!("{name}:v1.{image}.0")], "sizeBytes": 123_456_789 + image })
    };
    let (high, low) = (64 + index / 256, index % 256);
    let pods = [
        format!("100.{high}.{low}.0/24"),
        format!("fd00:{index:x}::/64"),
    ];
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name(index) },
        "spec": { "podCIDR": pods[0], "podCIDRs": pods },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": format!("10.{high}.{low}.1") },
                { "type": "InternalIP", "address": format!("fd01::{index:x}") },
                { "type": "Hostname", "address": name(index) },
            ],
            "conditions": [condition()],
            "images": (0..IMAGES).map(image).collect::<Vec<Value>>(),
        },
    })
}
