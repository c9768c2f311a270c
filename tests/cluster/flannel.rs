//! Two nodes with an overlay that flannel's daemon creates, with a real kube-proxy and API server. The
//! overlay works at first, then dies on the other node.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use node_tests::built::{folder, program, versions};
use node_tests::cluster::{ControlPlane, Process, install_node};
use node_tests::prelude::*;
use node_tests::tunnels::path;
use node_tests::world::layout::WORKER_NAME;

use crate::scene::{PATIENCE, Scene};

/// flannel's configuration, which contains the nodes' pod ranges of both families.
const NETWORK: &str = r#"{"Network": "10.244.0.0/16", "EnableIPv6": true,
"IPv6Network": "fd00:10:244::/48", "IPv6SubnetLen": 64, "Backend": {"Type": "vxlan"}}"#;
const DEVICES: [&str; 2] = ["flannel.1", "flannel-v6.1"];
const CALM: Duration = Duration::from_secs(20);

#[test]
fn a_flannel_overlay_is_proven_and_is_named_when_it_dies() {
    let daemon = program(&folder("flannel", versions::FLANNEL), "flannel");
    let daemon = daemon.context("flannel (run `cargo xtask setup-cluster --all`)");
    let daemon = needs!(skip::needed(daemon));
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    let _daemons = overlay(&scene, &daemon);
    dial_far(&mut scene);
    scene.start_agent(&[]);
    scene.wait_proven();
    scene.traffic();
    let watch = scene.watch_healthy();
    scene.wait("the other node answers", |report| {
        report["peers"]["answering"] == 1
    });
    throughout(CALM, || {
        assert_never_503(&watch);
        let report = scene.report();
        assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
    });

    let worker = &scene.world.worker;
    worker.nft(&path("input", "")).expect("a dead overlay");
    scene.wait("the overlay is named", |report| {
        report["verdict"]["state"] == "degraded" && report["verdict"]["cause"] == "overlay"
    });
    worker.nft("delete table inet path").expect("repair");
    scene.wait("proven again", |report| {
        report["verdict"]["state"] == "proven"
    });
    assert_never_503(&watch);
}

fn overlay(scene: &Scene, daemon: &Path) -> [Process; 2] {
    let (world, dir) = (&scene.world, scene.world.dir());
    fs::write(dir.join("net-conf.json"), NETWORK).expect("write");
    let node = scene.manifests.dir().join("node.yaml");
    let node = fs::read_to_string(node).expect("the scene's Node");
    let file = dir.join("node-2.yaml");
    let node = node.replace(NODE_NAME, WORKER_NAME);
    let node = node.replace("10.244.0.0/24", "10.244.1.0/24");
    let node = node.replace("fd00:10:244::/64", "fd00:10:244:1::/64");
    fs::write(&file, node).expect("write");
    install_node(&scene.api, &file, WORKER_NAME).expect("a Node");
    for name in [NODE_NAME, WORKER_NAME] {
        // Annotate the Node, because flannel exits if a Node has no annotation. A real node controller writes
        // this one.
        let annotated =
            json!({ "metadata": { "annotations": { "node.alpha.kubernetes.io/ttl": "0" } } });
        let patched = scene
            .api
            .patch(&format!("/api/v1/nodes/{name}"), &annotated);
        patched.expect("annotate");
    }
    let daemons = [
        (&world.node, NODE_NAME, scene.far()),
        (&world.worker, WORKER_NAME, ControlPlane::address()),
    ]
    .map(|(ns, name, server)| start(scene, daemon, ns, name, server));
    let made = until(PATIENCE, || {
        let there = |ns: &Namespace| DEVICES.iter().all(|device| ns.ifindex(device).is_ok());
        (there(&world.node) && there(&world.worker)).then_some(())
    });
    assert!(
        made.is_some(),
        "{}",
        daemons.each_ref().map(Process::log).concat()
    );
    daemons
}

fn start(scene: &Scene, daemon: &Path, ns: &Namespace, name: &str, server: SocketAddr) -> Process {
    let dir = scene.world.dir();
    let file = |suffix: &str| dir.join(format!("{name}.{suffix}"));
    let config = scene.control.admin_kubeconfig();
    let config = config.replace(&ControlPlane::address().to_string(), &server.to_string());
    fs::write(file("kubeconfig"), config).expect("write");
    let mut command = ns.command(daemon);
    command
        .env("NODE_NAME", name)
        .args([
            "--kube-subnet-mgr",
            "--iface=eth0",
            "--iptables-forward-rules=false",
        ])
        .arg("--kubeconfig-file")
        .arg(file("kubeconfig"))
        .arg("--net-config-path")
        .arg(dir.join("net-conf.json"))
        .arg("--subnet-file")
        .arg(file("env"));
    Process::start(command, &format!("flannel-{name}"), dir).expect("flannel")
}

/// Adds a Service whose only endpoint is on the other node, and pods that dial it.
fn dial_far(scene: &mut Scene) {
    let far = Service::new("far", 4, [scene.world.pod("web-3")]);
    scene.manifests.add(far).expect("a Service");
    scene.put("far");
    for family in Family::ALL {
        let target = SocketAddr::new(scene.manifests.service("far").cluster_ip(family), 80);
        for pod in ["client-1", "client-2"] {
            let plan = Plan::from_pod(&scene.world, scene.world.pod(pod), target);
            scene.clients.push(plan.start().expect("a client"));
        }
    }
}
