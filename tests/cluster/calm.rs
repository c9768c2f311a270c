//! What is no fault of the node's datapath: not one 503, whatever the cluster does.

use std::thread;
use std::time::Duration;

use node_tests::cluster::Mode;
use node_tests::manifests::Service;
use node_tests::watch::Watch;

use crate::scene::{PATIENCE, Scene};

/// A node without traffic is watched for so long.
const IDLE: Duration = Duration::from_secs(60);
/// The API server is away for so long.
const AWAY: Duration = Duration::from_secs(15);

/// No 503 was seen so far. An answer that was too late for the poller is none.
fn still_calm(watch: &Watch, after: &str) {
    let changes = watch.changes();
    let bad = |code: u16| code == 503;
    let seen = changes
        .iter()
        .any(|change| bad(change.codes.healthz) || bad(change.codes.livez));
    assert!(!seen, "503 after {after}: {changes:?}");
}

fn calm(name: &str, mode: Mode, idle: Duration) {
    let Some(mut scene) = Scene::proven(name, mode, &[]) else {
        return;
    };
    let watch = scene.watch();
    watch
        .wait(PATIENCE, |codes| codes.healthz == 200)
        .expect("200");
    thread::sleep(idle);
    still_calm(&watch, "an idle while");
    scene.traffic();
    thread::sleep(Duration::from_secs(2));

    if let Some(proxy) = scene.proxy.take() {
        proxy.kill().expect("kill kube-proxy");
    }
    scene.start_proxy();
    thread::sleep(Duration::from_secs(3));
    still_calm(&watch, "a restart of kube-proxy");

    let pods = ["web-1", "spare"].map(|name| scene.world.pod(name).clone());
    for turn in 0..20 {
        let (from, to) = (&pods[turn % 2], &pods[(turn + 1) % 2]);
        scene
            .manifests
            .swap_endpoint("web", &from.name, to)
            .expect("swap an endpoint");
        scene.put("web");
        thread::sleep(Duration::from_millis(500));
    }
    still_calm(&watch, "20 changes of endpoints");

    for turn in 0..4 {
        let name = format!("new-{turn}");
        let service = Service::new(&name, 40 + turn, [scene.world.pod("api-1")]);
        scene.manifests.add(service).expect("add a Service");
        scene.put(&name);
        thread::sleep(Duration::from_millis(700));
        scene.remove(&name);
        thread::sleep(Duration::from_millis(700));
    }
    still_calm(&watch, "Services that came and went");

    scene.control.stop_apiserver();
    thread::sleep(AWAY);
    still_calm(&watch, "an API server that is away");
    scene
        .control
        .start_apiserver()
        .expect("the API server again");
    thread::sleep(Duration::from_secs(5));
    still_calm(&watch, "its return");
    // It follows again.
    let back = scene.world.pod("spare").clone();
    scene
        .manifests
        .swap_endpoint("api", "api-1", &back)
        .expect("swap an endpoint");
    scene.put("api");
    thread::sleep(Duration::from_secs(4));
    still_calm(&watch, "a change after it");
    scene.wait_proven();
}

#[test]
fn no_503_without_a_fault_in_nftables_mode() {
    calm(
        "no_503_without_a_fault_in_nftables_mode",
        Mode::Nftables,
        IDLE,
    );
}

#[test]
fn no_503_without_a_fault_in_iptables_mode() {
    calm(
        "no_503_without_a_fault_in_iptables_mode",
        Mode::Iptables,
        Duration::ZERO,
    );
}
