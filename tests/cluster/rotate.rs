//! The rotator moves the sentinel's endpoint with the rights of deploy/base, and the agent measures how
//! long kube-proxy takes to follow.

use node_tests::cluster::{Process, base};
use node_tests::http;
use node_tests::prelude::*;

use crate::scene::{PATIENCE, Scene};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices";

const METRICS: &str = "127.0.0.1:19257";

/// Waits until the rotator's metrics have these lines.
fn wait_metrics(scene: &Scene, lines: &[&str]) {
    let address: SocketAddr = METRICS.parse().expect("an address");
    let mut page = String::new();
    let shown = until(PATIENCE, || {
        let asked = || http::get(address, "/metrics", PATIENCE);
        page = scene.world.node.run(asked).ok()?.body;
        let has = |line: &&str| page.lines().any(|shown| shown == *line);
        lines.iter().all(has).then_some(())
    });
    assert!(shown.is_some(), "not all of {lines:?}: {page}");
}

/// The distinct ports of the sentinel's slices, one per generation.
fn generations(scene: &Scene) -> Vec<u64> {
    let slices = scene.api.get(SLICES).expect("slices");
    let ports = slices["items"].as_array().into_iter().flatten();
    let ports = ports.flat_map(|slice| slice["ports"].as_array().cloned().unwrap_or_default());
    let mut ports: Vec<u64> = ports.filter_map(|port| port["port"].as_u64()).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn rotator(scene: &Scene) -> Process {
    let file = scene.kubeconfig_of(base::ROTATOR);
    let mut command = scene.world.node.command(agent_binary().expect("a binary"));
    command
        .args(["rotate", "--interval", "10", "--kubeconfig"])
        .arg(file)
        .arg(format!("--metrics-bind-address={METRICS}"));
    Process::start(command, "rotator", scene.world.dir()).expect("a rotator")
}

#[test]
fn a_rotation_is_followed_and_its_lag_known() {
    let scene = needs!(Scene::proven(Mode::Nftables, &[]));
    let watch = scene.watch();
    let rotator = rotator(&scene);

    for _ in 0..2 {
        let before = generations(&scene);
        let moved = until(PATIENCE, || {
            let now = generations(&scene);
            (now.len() == 1 && now != before).then_some(now[0])
        });
        let moved = moved.unwrap_or_else(|| panic!("never moved: {}", rotator.log()));
        let mut last = Value::Null;
        let followed = until(PATIENCE, || {
            last = scene.agent().verdict().ok()?;
            let families = last["verdict"]["families"].as_array()?;
            let lanes: Vec<&Value> = families
                .iter()
                .flat_map(|family| family["lanes"].as_array().into_iter().flatten())
                .filter(|lane| lane["state"] != "off")
                .collect();
            let on_the_wire = |lane: &&Value| lane["generation"] == moved && lane["lag"].is_u64();
            (!lanes.is_empty() && lanes.iter().all(on_the_wire)).then_some(())
        });
        assert_never_503(&watch);
        assert!(followed.is_some(), "{moved} is not on the wire: {last:#}");
        // kube-proxy waits up to a second between syncs, so a lag of minutes would be a wrong measurement.
        let lags = last["verdict"]["families"].as_array().into_iter().flatten();
        for lane in lags.flat_map(|family| family["lanes"].as_array().into_iter().flatten()) {
            let lag = lane["lag"].as_u64().unwrap_or_default();
            assert!(lag < 30_000_000_000, "{lane:#}");
        }
    }
    // The rotator restores the label by which the Service's slices are found, if somebody deletes it.
    let slice = format!("{SLICES}/pathproof-sentinel-ipv4");
    let label = "kubernetes.io/service-name";
    let change = json!({ "metadata": { "labels": { label: null } } });
    scene.api.patch(&slice, &change).expect("a change");
    let back = until(PATIENCE, || {
        let found = scene.api.get(&slice).ok()?;
        found["metadata"]["labels"][label]
            .as_str()
            .map(str::to_owned)
    });
    assert_eq!(
        back.as_deref(),
        Some("pathproof-sentinel"),
        "{}",
        rotator.log()
    );
    wait_metrics(
        &scene,
        &[
            "pathproof_rotator_leader 1.0",
            "pathproof_rotator_nodes 1.0",
            "pathproof_rotator_failing_nodes 0.0",
            "pathproof_rotator_writes_total{kind=\"slice\",result=\"rejected\"} 0.0",
        ],
    );
    let metrics = scene.agent().metrics().expect("metrics");
    assert!(
        metrics.contains("pathproof_programming_lag_seconds{"),
        "{metrics}"
    );
    let healthy = watch
        .changes()
        .iter()
        .all(|change| change.codes.healthz == 200);
    assert!(healthy, "{:?}", watch.changes());
}

/// kube-proxy rewrites this chain at every change. If other chains are missing, it does not notice
/// (docs/operations.md).
#[test]
fn a_flushed_chain_comes_back_with_the_next_rotation() {
    let scene = needs!(Scene::proven(Mode::Iptables, &[]));
    let flushed = scene.proxy().iptables("-t nat -F KUBE-SERVICES");
    flushed.expect("flush the chain");
    scene.wait_for("broken", 503, PATIENCE);
    let _rotator = rotator(&scene);
    scene.wait_for("proven", 200, 2 * PATIENCE);
}
