//! Cilium's agent hangs, so sockets of pods stay connected to a removed endpoint. No packet to a frontend
//! shows this.

use node_tests::prelude::*;

use crate::scene::{HOST_SOCKETS, MIXED, PATIENCE, ProxySetup, REPLACING, Scene, assert_never_503};

/// Minimum time from the removal of an endpoint until connections to it are reported.
const NAMED: Duration = Duration::from_secs(40);
/// Maximum time from the removal until connections are reported.
const LATEST: Duration = Duration::from_secs(60);

/// A node with clients. While Cilium's agent hangs, an endpoint is removed from a Service.
fn left_behind(setup: ProxySetup, (service, pod): (&str, &str)) -> Needed<Scene> {
    let mut scene = Scene::proven(setup)?;
    scene.traffic();
    settle();
    scene.cilium.signal(libc::SIGSTOP);
    scene.replace(service, pod, "spare");
    Ok(scene)
}

const WEB: (&str, &str) = ("web", "web-1");

fn is_named(report: &Value) -> bool {
    let services = report["verdict"]["services"].as_array();
    services.is_some_and(|services| {
        let web = |service: &&Value| {
            service["service"]
                .as_str()
                .is_some_and(|name| name.contains("/web"))
        };
        services
            .iter()
            .filter(web)
            .any(|service| service["cause"] == "stale" && service["confirmed"] == true)
    })
}

#[test]
fn an_endpoint_that_left_and_is_silent_is_named() {
    let scene = needs!(left_behind(REPLACING, WEB));
    let watch = scene.watch();
    let mute =
        "table inet mute { chain in { type filter hook input priority 0; policy drop; }\n}\n";
    scene.world.pod("web-1").ns.nft(mute).expect("a silent pod");
    let start = Instant::now();
    scene.wait_within(2 * PATIENCE, "web is named as stale", is_named);
    let took = start.elapsed();
    let promised = scaled(NAMED) - Duration::from_secs(1)..=scaled(LATEST) + Duration::from_secs(1);
    assert!(promised.contains(&took), "named after {took:?}");
    println!("named {took:?} after it left: {}", scene.status());
    scene.wait("degraded", |report| {
        report["verdict"]["state"] == "degraded"
    });
    let before = scene.felt();
    scene.cilium.signal(libc::SIGCONT);
    let start = Instant::now();
    scene.wait_for("proven", 200, PATIENCE);
    println!(
        "proven {:?} after Cilium went on; felt before: {before:?}",
        start.elapsed()
    );
    assert_never_503(&watch);
}

/// If a removed endpoint still answers, its clients are not harmed. With hostns-only, the pods' connections
/// show that it is still dialled.
#[rstest]
#[case::sockets(REPLACING)]
#[case::interfaces(HOST_SOCKETS)]
fn an_endpoint_that_left_and_answers_is_no_trouble(#[case] setup: ProxySetup) {
    let scene = needs!(left_behind(setup, WEB));
    let watch = scene.watch();
    let start = Instant::now();
    while start.elapsed() < NAMED + Duration::from_secs(15) {
        let report = scene.agent().verdict().expect("a verdict");
        assert_eq!(report["verdict"]["state"], "proven", "{}", scene.status());
        thread::sleep(Duration::from_millis(250));
    }
    assert_never_503(&watch);
}

/// kube-proxy follows the removal and Cilium does not, so only the path of pods is stale.
#[test]
fn beside_kube_proxy_that_follows_is_503() {
    let mut scene = needs!(left_behind(MIXED, ("api", "api-1")));
    let watch = scene.watch();
    scene.servers.remove("api-1");
    let start = Instant::now();
    let broken = scene.answers(&watch, 503, start);
    let report = scene.report();
    assert_eq!(report["verdict"]["state"], "stale", "{}", scene.status());
    for family in Family::ALL {
        let outside = path_of(&report, family, "external");
        assert_eq!(outside, "proven", "{family:?}: {}", scene.status());
        let reason = family_of(&report, family)["reason"].to_string();
        assert!(reason.contains("pods"), "{reason}");
    }
    let start = Instant::now();
    scene.cilium.signal(libc::SIGCONT);
    let repaired = scene.answers(&watch, 200, start);
    println!("Cilium hangs beside kube-proxy: 503 after {broken:?}, 200 after {repaired:?}");
}
