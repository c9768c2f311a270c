//! Checks that several worlds use.

use node_tests::prelude::*;
use node_tests::traffic::Tally;

/// Time for which a healthy world is watched, idle and busy.
const WATCHED: Duration = Duration::from_secs(30);

/// Time for which another state is tolerated, because a busy machine may delay a probe.
const MOMENT: Duration = Duration::from_secs(2);

/// Allowed states of a node that serves its users.
pub(crate) const SOUND: [&str; 1] = ["proven"];
/// Allowed states of a node that serves its users while some connections fail on purpose.
pub(crate) const NAMED: [&str; 3] = ["proven", "suspect", "degraded"];

/// Makes a healthy world, and runs [`idle_then_busy`] in it.
pub(crate) fn healthy(backend: Backend, make: impl FnOnce(&mut Scene)) {
    let mut scene = Scene::idle(backend, &[]);
    make(&mut scene);
    idle_then_busy(&mut scene);
}

/// Asserts that the node is proven without and with traffic, and detects flushed Service rules.
pub(crate) fn idle_then_busy(scene: &mut Scene) {
    let watch = scene.watch();
    stays(scene, &watch, &SOUND);
    scene.traffic();
    stays(scene, &watch, &SOUND);
    everybody_is_served(scene);
    flushed(scene, &watch);
}

/// Asserts that the agent never answers 503 and that the state stays one of these while the world is watched.
pub(crate) fn stays(scene: &Scene, watch: &Watch, states: &[&str]) {
    let mut expected = Instant::now();
    throughout(WATCHED, || {
        assert_never_503(watch);
        let report = scene.report();
        let state = report["verdict"]["state"].as_str().unwrap_or_default();
        if states.contains(&state) {
            expected = Instant::now();
        }
        assert!(
            expected.elapsed() < MOMENT,
            "{state}: {:#}",
            report["verdict"]
        );
    });
    wait_answers(watch, 200);
    assert_never_503(watch);
}

/// Flushes the chain of all Services and restores it, expecting 503 and then 200.
pub(crate) fn flushed(scene: &Scene, watch: &Watch) {
    scene.rules.flush_services().expect("flush");
    wait_answers(watch, 503);
    let cause = scene.report()["verdict"]["cause"].clone();
    assert!(
        ["leaked", "refused", "lost"].contains(&cause.as_str().unwrap_or_default()),
        "{cause}"
    );
    scene.rules.install().expect("install again");
    wait_answers(watch, 200);
}

/// Breaks the path to the other node by these rules in the other node's table `path`. Asserts that the agent
/// names the cause without a 503, and that the node is proven again after the repair. Returns the report with
/// the cause.
pub(crate) fn named_until_mended(scene: &Scene, rules: &str, cause: &str) -> Value {
    let watch = scene.watch();
    scene.world.worker.nft(rules).expect("a broken path");
    let named = scene.wait(&format!("{cause} named"), |report| {
        assert_never_503(&watch);
        report["verdict"]["state"] == "degraded" && report["verdict"]["cause"] == cause
    });
    stays(scene, &watch, &NAMED);
    let mend = scene.world.worker.nft("delete table inet path");
    mend.expect("repair");
    scene.wait("proven again", |report| {
        report["verdict"]["state"] == "proven"
    });
    assert_never_503(&watch);
    named
}

/// The ground truth: all clients are answered, except for the few losses of a busy machine.
pub(crate) fn everybody_is_served(scene: &Scene) {
    let sum: Tally = scene.clients.iter().map(|client| client.tally()).sum();
    assert!(sum.ok > 100, "{sum:?}");
    assert!(sum.failed() * 200 <= sum.started, "not healthy: {sum:?}");
}

pub(crate) fn tc(ns: &Namespace, words: &str) {
    let mut command = ns.command("tc");
    let output = command.args(words.split(' ')).output().expect("run tc");
    assert!(
        output.status.success(),
        "tc {words}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Number of packets sent by the devices that `ip link show` selects.
pub(crate) fn packets(ns: &Namespace, devices: &str) -> u64 {
    let shown = ns.ip(&format!("-s -j link show {devices}"));
    let shown: Value = serde_json::from_str(&shown.expect("devices")).expect("JSON");
    let sent = |device: &Value| device["stats64"]["tx"]["packets"].as_u64();
    let devices = shown.as_array().into_iter().flatten();
    devices.filter_map(sent).sum()
}

pub(crate) fn policy(ns: &Namespace, rules: &[String]) {
    let rules = rules.join("\n");
    ns.nft(&format!(
        "table inet netpolicy {{ chain forward {{ type filter hook forward priority -5; policy accept;\n\
         {rules}\n}}\n}}\n"
    ))
    .expect("a policy");
}

/// On a busy node, the rules of a policy deny all traffic of the only pods that dial. The agent must report
/// this, but not as a fault of the node, and must still detect a flush.
pub(crate) fn denied(scene: &mut Scene, rules: &[String]) {
    let watch = scene.watch();
    scene.clients.clear();
    policy(&scene.world.node, rules);
    scene.pod_traffic();
    some_fail(scene);
    stays(scene, &watch, &NAMED);
    scene.wait("degraded, and named", |report| {
        report["verdict"]["state"] == "degraded" && blames(report, "demo/web")
    });
    flushed(scene, &watch);
}

pub(crate) fn pod_devices(scene: &Scene) -> Vec<String> {
    let pods = scene.world.pods();
    let here = pods.filter(|pod| pod.place != node_tests::world::Place::Remote);
    here.map(|pod| pod.device.clone()).collect()
}

/// Waits until more than five connections have failed.
pub(crate) fn some_fail(scene: &Scene) {
    eventually("connections fail", || {
        let sum: Tally = scene.clients.iter().map(|client| client.tally()).sum();
        sum.failed() > 5
    });
}
