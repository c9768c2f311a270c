//! A healthy node never answers 503, whatever Cilium translates, and at whichever place.

use std::net::IpAddr;

use node_tests::capture::{Capture, Frame};
use node_tests::prelude::*;

use crate::scene::{
    CLSACT, DIRECT_RETURN, HOST_SOCKETS, MIXED, OLD, OLD_MIXED, ProxySetup, REPLACING, Scene,
    TUNNEL, XDP, assert_never_503,
};

/// The node is first idle, then busy, then Cilium's agent restarts. No probe leaves the node untranslated,
/// although Cilium does not translate the probes of paths that are off.
#[rstest]
#[case::replacing(REPLACING)]
#[case::host_sockets(HOST_SOCKETS)]
#[case::clsact(CLSACT)]
#[case::tunnel(TUNNEL)]
#[case::mixed(MIXED)]
#[case::direct_return(DIRECT_RETURN)]
#[case::xdp(XDP)]
#[case::old(OLD)]
#[case::old_mixed(OLD_MIXED)]
fn a_healthy_node_is_never_503(#[case] setup: ProxySetup) {
    let mut scene = needs!(Scene::proven(setup));
    let watch = scene.watch();
    let mut capture = Capture::start(&scene.world.outside);
    capture_for(&mut capture, 5);
    scene.traffic();
    capture_for(&mut capture, 10);
    for path in setup.seen() {
        scene.wait_path(path, "proven");
    }
    scene.restart_cilium();
    capture_for(&mut capture, 20);
    println!("{setup:?}: clients felt {:?}", scene.felt());
    assert_never_503(&watch);
    let ends: Vec<_> = capture.frames.iter().filter_map(Frame::ends).collect();
    let node = scene.world.node_address(Family::V4);
    assert!(ends.iter().any(|[from, _]| from.0 == node), "nothing seen");
    let untranslated = ends.iter().find(|[_, to]| is_cluster_ip(to.0));
    assert_eq!((untranslated, capture.missed()), (None, 0));
    let report = scene.wait_for("proven", 200, Duration::from_secs(20));
    assert!(setup.is_recognised(&report), "{}", report["datapath"]);
    let metrics = scene.agent().metrics().expect("metrics");
    assert_eq!(metrics.contains("xdp=\"yes\""), setup.has_xdp());
    // Cilium must not have replaced a program of the observer.
    let none: [&str; 0] = [];
    let repairs = metric(&metrics, "pathproof_observer_reattached_total", &none);
    assert_eq!(repairs, 0);
}

/// Endpoints change under traffic. Then Cilium's agent restarts with other settings, and again with the first
/// ones. Some connections time out until its programs are compiled. This causes no 503, because others
/// succeed.
#[test]
fn changes_of_endpoints_and_settings_are_never_503() {
    let mut scene = needs!(Scene::proven(REPLACING));
    scene.traffic();
    let watch = scene.watch();
    for _ in 0..4 {
        for (from, to) in [("web-1", "spare"), ("spare", "web-1")] {
            scene.replace("web", from, to);
            thread::sleep(Duration::from_secs(2));
        }
    }
    for setup in [HOST_SOCKETS, CLSACT, XDP, REPLACING] {
        scene.restart_cilium_as(setup);
        thread::sleep(Duration::from_secs(10));
        scene.wait("recognised", |report| setup.is_recognised(report));
        println!("{setup:?}: clients felt {:?}", scene.felt());
    }
    assert_never_503(&watch);
    scene.wait_for("proven", 200, Duration::from_secs(20));
}

/// Cilium is installed on a node that until then only kube-proxy has served.
#[test]
fn cilium_may_come_to_a_node_that_kube_proxy_serves() {
    let mut scene = needs!(Scene::before_cilium(MIXED));
    scene.start_agent(&[]);
    scene.wait_proven();
    assert!(!MIXED.is_recognised(&scene.report()));
    let watch = scene.watch();
    scene.restart_cilium();
    scene.wait_served();
    scene.traffic();
    scene.wait("Cilium recognised", |report| MIXED.is_recognised(report));
    thread::sleep(Duration::from_secs(10));
    assert_never_503(&watch);
    scene.wait_for("proven", 200, Duration::from_secs(20));
}

/// During an update, two pathproof agents have programs at the uplink. Neither may take the other's programs
/// for Cilium's, so the sentinel's paths through kube-proxy stay armed.
#[test]
fn an_update_is_never_503_and_disarms_nothing() {
    let mut scene = needs!(Scene::proven(MIXED));
    scene.wait_proven();
    scene.traffic();
    let watch = scene.watch();
    let old = scene.agent.take().expect("an agent");
    scene.start_agent(&[]);
    thread::sleep(Duration::from_secs(10));
    let report = scene.report();
    assert!(MIXED.is_recognised(&report), "{}", report["datapath"]);
    old.terminate().expect("it ends");
    scene.wait_proven();
    assert_never_503(&watch);
}

/// Cilium has replaced kube-proxy, whose stale rules still serve the sentinel's probes. Deleting them is no
/// fault. Without the replacement it would be one: `beside_kube_proxy_its_missing_tables_are_503`.
#[test]
fn rules_that_kube_proxy_leaves_behind_may_go() {
    let mut scene = needs!(Scene::proven(MIXED));
    scene.wait_proven();
    let watch = scene.watch();
    scene.restart_cilium_as(REPLACING);
    scene.proxy = None;
    scene.wait("taken over", |report| REPLACING.is_recognised(report));
    let failed = |report: &Value| {
        let lane = lane_of(report, Family::V4, "off_cluster", "tcp");
        lane["failed"].as_u64().unwrap_or_default()
    };
    let before = failed(&scene.report());
    scene.delete_rules();
    scene.wait("probes fail", |report| failed(report) > before);
    // Wait: repeated probes would confirm a suspected fault within this time.
    thread::sleep(Duration::from_secs(5));
    scene.traffic();
    scene.wait_path("external", "proven");
    scene.wait_for("proven", 200, Duration::from_secs(20));
    assert_never_503(&watch);
}

/// Drains the capture for this time, so often that the kernel drops no frame.
fn capture_for(capture: &mut Capture, seconds: usize) {
    for _ in 0..seconds * 2 {
        thread::sleep(Duration::from_millis(500));
        capture.drain();
    }
}

fn is_cluster_ip(address: IpAddr) -> bool {
    let text = address.to_string();
    text.starts_with("10.96.") || text.starts_with("fd00:10:96:")
}
