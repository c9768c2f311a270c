//! Faults that Cilium's health endpoint does not report, and their effect on clients.

use node_tests::prelude::*;

use crate::scene::{
    DIRECT_RETURN, HOST_SOCKETS, MANAGING, MIXED, OLD, OLD_MIXED, PATIENCE, ProxySetup, REPLACING,
    Scene, TUNNEL, XDP, assert_never_503,
};

/// Promised maximum time from a fault to 503.
const TOLD: Duration = Duration::from_secs(10);

/// Asserts that 503 comes within [`TOLD`] after `start`. Returns the time that it took.
fn told(scene: &Scene, watch: &Watch, start: Instant) -> Duration {
    let took = scene.answers(watch, 503, start);
    assert!(took < scaled(TOLD), "503 after {took:?}");
    took
}

/// A node with clients of all kinds. Waits until failed probes count.
fn busy(setup: ProxySetup) -> Needed<(Scene, Watch)> {
    let mut scene = Scene::proven(setup)?;
    scene.traffic();
    let watch = scene.watch();
    settle();
    Ok((scene, watch))
}

#[rstest]
#[case::replacing(REPLACING)]
#[case::xdp(XDP)]
#[case::old(OLD)]
fn emptied_tables_are_503_until_they_are_filled_again(#[case] setup: ProxySetup) {
    let scene = needs!(Scene::proven(setup));
    let watch = scene.watch();
    settle();
    let start = Instant::now();
    let mend = scene.cilium.empty_tables().expect("empty");
    let broken = told(&scene, &watch, start);
    scene.assert_cause("leaked");
    let start = Instant::now();
    mend();
    let repaired = scene.answers(&watch, 200, start);
    println!("tables emptied: 503 after {broken:?}, 200 after {repaired:?}");
}

/// Connections of pods fail too, because they are translated at the pods' interfaces, by the emptied tables.
#[test]
fn emptied_tables_fail_the_connections_of_pods() {
    let (scene, watch) = needs!(busy(HOST_SOCKETS));
    let start = Instant::now();
    let mend = scene.cilium.empty_tables().expect("empty");
    println!("503 after {:?}", told(&scene, &watch, start));
    scene.wait_path("pod", "failing");
    mend();
    scene.answers(&watch, 200, start);
    scene.wait_path("pod", "proven");
}

/// The node's own connections fail, and those of outside clients do not. So this causes a 503 only if there
/// are no outside clients.
#[test]
fn detached_socket_programs_are_503_unless_clients_outside_are_served() {
    let mut scene = needs!(Scene::proven(REPLACING));
    let watch = scene.watch();
    settle();
    let start = Instant::now();
    scene.cilium.detach_from_sockets().expect("detach");
    let broken = told(&scene, &watch, start);
    scene.assert_cause("leaked");
    let start = Instant::now();
    scene.restart_cilium();
    let repaired = scene.answers(&watch, 200, start);
    println!("sockets: 503 after {broken:?}, 200 after {repaired:?} with a restart");

    scene.outside_traffic();
    scene.wait_path("external", "proven");
    let watch = scene.watch();
    scene.cilium.detach_from_sockets().expect("detach");
    scene.wait_for("degraded", 200, PATIENCE);
    let felt = scene.outside_felt(Duration::from_secs(3));
    assert!(felt.ok > 0 && felt.failed() == 0, "{felt:?}");
    assert_never_503(&watch);
}

/// If Cilium translates at the sentinel's interfaces, all probes count. Otherwise the probes from outside the
/// node do not.
#[test]
fn the_sentinels_interfaces_on_ciliums_list_are_judged() {
    let mut scene = needs!(Scene::proven(REPLACING));
    let managed = |report: &Value, told| report["datapath"]["sentinel_managed"] == told;
    let lanes = |report: &Value, state: &str| {
        let are = |path: &&str| lanes_are(report, path, "tcp", state);
        ["node_port", "off_cluster"].iter().all(are)
    };
    let off = |report: &Value| managed(report, "no") && lanes(report, "off");
    let report = scene.wait("not judged", off);
    let notes = report["datapath"]["notes"].to_string();
    assert!(notes.contains("pathproof-c0"), "{notes}");
    scene.restart_cilium_as(MANAGING);
    // The next agent starts when Cilium's programs are already attached at these interfaces.
    scene.agent.take().expect("an agent").kill().expect("kill");
    scene.start_agent(&[]);
    let passing = |report: &Value| managed(report, "yes") && lanes(report, "passing");
    scene.wait("judged", passing);
    let watch = scene.watch();
    settle();
    let start = Instant::now();
    let mend = scene.cilium.empty_tables().expect("empty");
    println!("503 after {:?}", told(&scene, &watch, start));
    scene.wait("failing", |report| lanes(report, "failing"));
    mend();
    scene.answers(&watch, 200, start);
    let watch = scene.watch();
    scene.restart_cilium_as(REPLACING);
    scene.wait("not judged again", off);
    assert_never_503(&watch);
}

/// Without the kernel's forwarding no outside client is served, but pods of the node still reach each other.
#[test]
fn without_forwarding_clients_outside_are_503() {
    let (mut scene, watch) = needs!(busy(HOST_SOCKETS));
    let start = Instant::now();
    scene.world.set_forwarding(false).expect("no forwarding");
    let broken = told(&scene, &watch, start);
    scene.assert_cause("forwarding_off");
    // The fault must persist without clients, because load balancers withdraw the node.
    scene.clients.clear();
    let before = scene.outside_felt(Duration::from_secs(12));
    assert_eq!(before.ok, 0, "{before:?}");
    assert_eq!(scene.agent().healthz().expect("an answer"), 503);
    let start = Instant::now();
    scene.world.set_forwarding(true).expect("forwarding");
    let repaired = scene.answers(&watch, 200, start);
    println!("forwarding off: 503 after {broken:?}, 200 after {repaired:?}");
}

/// Without the uplink's program, node ports are refused while pods are served.
#[rstest]
#[case::replacing(REPLACING)]
#[case::tunnel(TUNNEL)]
#[case::direct_return(DIRECT_RETURN)]
#[case::old(OLD)]
fn a_program_that_is_detached_from_the_uplink_is_503(#[case] setup: ProxySetup) {
    let (mut scene, watch) = needs!(busy(setup));
    let start = Instant::now();
    let detached = scene.cilium.detach_from_uplink(&scene.world);
    detached.expect("detach");
    let broken = told(&scene, &watch, start);
    scene.assert_cause("program_missing");
    let felt = scene.outside_felt(Duration::from_secs(5));
    assert_eq!(felt.ok, 0, "{felt:?}");
    // Restart Cilium's agent, which attaches the program again.
    let start = Instant::now();
    scene.restart_cilium();
    let repaired = scene.answers(&watch, 200, start);
    println!("program detached: 503 after {broken:?}, 200 after {repaired:?} with a restart");
}

/// No client is affected, because XDP translates packets before this program would run.
#[test]
fn with_xdp_a_program_that_is_detached_from_the_uplink_is_200() {
    let (scene, watch) = needs!(busy(XDP));
    let detached = scene.cilium.detach_from_uplink(&scene.world);
    detached.expect("detach");
    let felt = scene.outside_felt(Duration::from_secs(12));
    assert!(felt.ok > 0 && felt.failed() == 0, "{felt:?}");
    assert_never_503(&watch);
}

/// A known gap: behind XDP the observer only sees pods' addresses, so it cannot recognize connections to a
/// Service.
#[test]
fn known_gap_with_xdp_disabled_forwarding_is_200() {
    let (scene, watch) = needs!(busy(XDP));
    scene.world.set_forwarding(false).expect("no forwarding");
    let felt = scene.outside_felt(Duration::from_secs(12));
    assert_eq!(felt.ok, 0, "{felt:?}");
    assert_never_503(&watch);
}

/// A policy that denies outside clients is no fault of the node. The agent can distinguish it, because no
/// rule or program is missing in the kernel.
#[test]
fn a_filter_before_clients_outside_is_200() {
    let (scene, watch) = needs!(busy(REPLACING));
    let filter = "table netdev filter { chain ingress { type filter hook egress device eth0 priority 0; \
                  tcp sport 8080 drop; tcp sport 30081 drop; }\n}\n";
    scene.world.node.nft(filter).expect("a filter");
    let felt = scene.outside_felt(Duration::from_secs(12));
    assert_eq!(felt.ok, 0, "{felt:?}");
    assert_never_503(&watch);
}

/// With two proxies, missing tables of kube-proxy are a fault although Cilium still serves pods.
#[rstest]
#[case::newer(MIXED)]
#[case::old(OLD_MIXED)]
fn beside_kube_proxy_its_missing_tables_are_503(#[case] setup: ProxySetup) {
    let (scene, watch) = needs!(busy(setup));
    let start = Instant::now();
    scene.delete_rules();
    let broken = told(&scene, &watch, start);
    let report = scene.report();
    for family in Family::ALL {
        let pods = path_of(&report, family, "pod");
        assert_eq!(pods, "proven", "{family:?}: {}", scene.status());
    }
    scene.wait_path("external", "failing");
    println!("kube-proxy's tables deleted: 503 after {broken:?}");
}
