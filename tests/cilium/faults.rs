//! Faults that Cilium's own health endpoint does not see, as clients felt them.

use std::thread;
use std::time::{Duration, Instant};

use node_tests::scene::path_of;
use node_tests::wait::scaled;
use node_tests::watch::Watch;
use node_tests::world::Family;

use rstest::rstest;

use crate::scene::{
    DIRECT_RETURN, HOST_SOCKETS, MIXED, OLD, OLD_MIXED, REPLACING, SETTLED, Scene, Shape, TUNNEL,
    XDP, assert_never_503,
};

/// Promise: from a fault to 503.
const TOLD: Duration = Duration::from_secs(10);

/// Waits for 503, which has to come in time; gives how long it took.
fn told(scene: &Scene, watch: &Watch, start: Instant) -> Duration {
    let took = scene.answers(watch, 503, start);
    assert!(took < scaled(TOLD), "503 after {took:?}");
    took
}

/// A node with clients of all kinds, whose faults count from now on.
fn busy(test: &str, shape: Shape) -> Option<(Scene, Watch)> {
    let mut scene = Scene::proven(test, shape)?;
    scene.traffic();
    let watch = scene.watch();
    thread::sleep(SETTLED);
    Some((scene, watch))
}

#[rstest]
#[case::replacing(REPLACING)]
#[case::xdp(XDP)]
#[case::old(OLD)]
fn emptied_tables_are_503_until_they_are_filled_again(#[case] shape: Shape) {
    let name = "emptied_tables_are_503_until_they_are_filled_again";
    let Some(scene) = Scene::proven(name, shape) else {
        return;
    };
    let watch = scene.watch();
    thread::sleep(SETTLED);
    let tables = scene.cilium().frontends().expect("its tables");
    let start = Instant::now();
    let entries = tables.each_ref().map(|table| table.empty().expect("empty"));
    let broken = told(&scene, &watch, start);
    scene.assert_cause("leaked");
    let start = Instant::now();
    for (table, entries) in tables.iter().zip(&entries) {
        table.fill(entries).expect("fill");
    }
    let repaired = scene.answers(&watch, 200, start);
    println!("tables emptied: 503 after {broken:?}, 200 after {repaired:?}");
}

/// Pods of the node still reach each other past the kernel's forwarding, and nobody outside is served.
#[test]
fn without_forwarding_clients_outside_are_503() {
    let name = "without_forwarding_clients_outside_are_503";
    let Some((mut scene, watch)) = busy(name, HOST_SOCKETS) else {
        return;
    };
    let start = Instant::now();
    scene.world.set_forwarding(false).expect("no forwarding");
    let broken = told(&scene, &watch, start);
    scene.assert_cause("forwarding_off");
    // Load balancers keep away; it holds all the same.
    scene.clients.clear();
    let before = scene.outside_felt(Duration::from_secs(12));
    assert_eq!(before.ok, 0, "{before:?}");
    assert_eq!(scene.agent().healthz().expect("an answer"), 503);
    let start = Instant::now();
    scene.world.set_forwarding(true).expect("forwarding");
    let repaired = scene.answers(&watch, 200, start);
    println!("forwarding off: 503 after {broken:?}, 200 after {repaired:?}");
}

/// The program of the uplink is gone: node ports are refused, and pods are served.
#[rstest]
#[case::replacing(REPLACING)]
#[case::tunnel(TUNNEL)]
#[case::direct_return(DIRECT_RETURN)]
#[case::old(OLD)]
fn a_program_that_is_detached_from_the_uplink_is_503(#[case] shape: Shape) {
    let name = "a_program_that_is_detached_from_the_uplink_is_503";
    let Some((mut scene, watch)) = busy(name, shape) else {
        return;
    };
    let start = Instant::now();
    let detached = scene.cilium().detach_from_uplink(&scene.world);
    detached.expect("detach");
    let broken = told(&scene, &watch, start);
    scene.assert_cause("program_missing");
    let felt = scene.outside_felt(Duration::from_secs(5));
    assert_eq!(felt.ok, 0, "{felt:?}");
    // Its agent attaches it again when it starts.
    let start = Instant::now();
    scene.restart_cilium();
    let repaired = scene.answers(&watch, 200, start);
    println!("program detached: 503 after {broken:?}, 200 after {repaired:?} with a restart");
}

/// XDP has translated what comes in before that program would run: no client misses it.
#[test]
fn with_xdp_a_program_that_is_detached_from_the_uplink_is_200() {
    let name = "with_xdp_a_program_that_is_detached_from_the_uplink_is_200";
    let Some((scene, watch)) = busy(name, XDP) else {
        return;
    };
    let detached = scene.cilium().detach_from_uplink(&scene.world);
    detached.expect("detach");
    let felt = scene.outside_felt(Duration::from_secs(12));
    assert!(felt.ok > 0 && felt.failed() == 0, "{felt:?}");
    assert_never_503(&watch);
}

/// Behind XDP the observer sees the pods' addresses alone: these connections are to no Service.
#[test]
fn known_with_xdp_clients_outside_without_forwarding_are_200() {
    let name = "known_with_xdp_clients_outside_without_forwarding_are_200";
    let Some((scene, watch)) = busy(name, XDP) else {
        return;
    };
    scene.world.set_forwarding(false).expect("no forwarding");
    let felt = scene.outside_felt(Duration::from_secs(12));
    assert_eq!(felt.ok, 0, "{felt:?}");
    assert_never_503(&watch);
}

/// A policy that keeps clients outside away is no fault of the node's: nothing is missing in the kernel.
#[test]
fn a_filter_before_clients_outside_is_200() {
    let name = "a_filter_before_clients_outside_is_200";
    let Some((scene, watch)) = busy(name, REPLACING) else {
        return;
    };
    let filter = "table netdev filter { chain ingress { type filter hook egress device eth0 priority 0; \
                  tcp sport 8080 drop; tcp sport 30081 drop; }\n}\n";
    scene.world.node.nft(filter).expect("a filter");
    let felt = scene.outside_felt(Duration::from_secs(12));
    assert_eq!(felt.ok, 0, "{felt:?}");
    assert_never_503(&watch);
}

/// Two proxies: kube-proxy's tables are gone, and Cilium serves pods.
#[rstest]
#[case::newer(MIXED)]
#[case::old(OLD_MIXED)]
fn beside_kube_proxy_its_missing_tables_are_503(#[case] shape: Shape) {
    let name = "beside_kube_proxy_its_missing_tables_are_503";
    let Some((scene, watch)) = busy(name, shape) else {
        return;
    };
    let start = Instant::now();
    scene
        .world
        .node
        .nft("delete table ip kube-proxy\ndelete table ip6 kube-proxy\n")
        .expect("delete");
    let broken = told(&scene, &watch, start);
    let report = scene.report();
    for family in Family::ALL {
        let pods = path_of(&report, family, "pod");
        assert_eq!(pods, "proven", "{family:?}: {}", scene.status());
    }
    println!("kube-proxy's tables deleted: 503 after {broken:?}");
}
