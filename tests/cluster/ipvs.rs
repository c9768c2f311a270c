//! kube-proxy in its ipvs mode: cluster IPs are addresses of the node itself there, and its own
//! translation stands in the way of what is local. Few kernels at hand have IPVS: these tests run in
//! a machine of `cargo xtask test --kernels`.

use std::thread;
use std::time::{Duration, Instant};

use node_tests::cluster::Mode;
use node_tests::scene::assert_never_503;
use node_tests::skip;
use node_tests::watch::Watch;
use node_tests::world::Family;
use serde_json::Value;

use crate::scene::{PATIENCE, PORT, Scene, until};

/// How long a false alarm gets to show: twice what a confirmation takes.
const LOOK: Duration = Duration::from_secs(6);
/// Connections of each client a second: an emulated processor has enough to do.
const RATE: f64 = 3.0;
/// How often health is asked for, for the same reason.
const ASKED: Duration = Duration::from_millis(200);

/// Removes every virtual server, behind the back of a kube-proxy that is stopped: it would write
/// them again within seconds.
pub(crate) fn clear(scene: &Scene) {
    scene.proxy().freeze();
    ipvsadm(scene, &["--clear"]);
}

/// Removes those of IPv6, in the same way.
pub(crate) fn clear_v6(scene: &Scene) {
    scene.proxy().freeze();
    for line in saved(scene) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["-A", kind, address, ..] = words[..]
            && address.starts_with('[')
        {
            ipvsadm(scene, &["-D", kind, address]);
        }
    }
}

/// Removes a pod from every virtual server, in the same way.
pub(crate) fn remove_endpoint(scene: &Scene, pod: &str) {
    scene.proxy().freeze();
    let pod = scene.world.pod(pod);
    let ends = Family::ALL.map(|family| pod.endpoint(family, PORT).to_string());
    for line in saved(scene) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["-a", kind, address, "-r", end, ..] = words[..]
            && ends.iter().any(|one| one == end)
        {
            ipvsadm(scene, &["-d", kind, address, "-r", end]);
        }
    }
}

/// What IPVS holds, as commands that would make it so.
fn saved(scene: &Scene) -> Vec<String> {
    let text = ipvsadm(scene, &["--save", "--numeric"]);
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn ipvsadm(scene: &Scene, words: &[&str]) -> String {
    let run = scene.world.node.feed("ipvsadm", words, "");
    run.expect("ipvsadm")
}

/// A node with traffic, proven by probes and by what arrives from pods and from outside.
fn scene(name: &str) -> Option<Scene> {
    if skip::without_root(name) || skip::without_ipvs(name) {
        return None;
    }
    let mut scene = Scene::proven(name, Mode::Ipvs, &[])?;
    println!("{}", scene.proxy().rules().expect("what IPVS holds"));
    scene.traffic_at(RATE);
    scene.wait("pods and outsiders proven", |report| {
        let families = report["verdict"]["families"].as_array();
        families.is_some_and(|all| all.len() == 2 && all.iter().all(is_path_proven))
    });
    let served = || scene.clients.iter().all(|client| client.tally().ok > 0);
    until(PATIENCE, || served().then_some(())).expect("every client is served");
    Some(scene)
}

fn is_path_proven(family: &Value) -> bool {
    ["pod", "external"].iter().all(|wanted| {
        family["paths"].as_array().is_some_and(|all| {
            all.iter()
                .any(|path| path["path"] == *wanted && path["state"] == "proven")
        })
    })
}

fn blames_api(report: &Value) -> bool {
    let troubles = report["verdict"]["services"].as_array();
    report["verdict"]["state"] == "degraded"
        && troubles.is_some_and(|all| {
            all.iter().any(|one| {
                let service = one["service"].as_str().unwrap_or_default();
                one["confirmed"] == true && service.starts_with("demo/api")
            })
        })
}

/// What users feel as well, and no fault of the node; then what is one.
#[test]
fn a_wiped_table_is_503_in_ipvs_mode_and_its_twins_are_not() {
    let name = "a_wiped_table_is_503_in_ipvs_mode_and_its_twins_are_not";
    let Some(mut scene) = scene(name) else {
        return;
    };
    let watch = Watch::start(&scene.world, ASKED).expect("a poller");
    drop(scene.servers.remove("web-1"));
    thread::sleep(LOOK);
    assert_never_503(&watch);

    remove_endpoint(&scene, "api-1");
    scene.wait("api blamed", blames_api);
    assert_never_503(&watch);

    let start = Instant::now();
    clear(&scene);
    let seen = watch
        .wait(PATIENCE, |codes| codes.healthz == 503 && codes.livez == 503)
        .expect("503");
    println!("503 after {:?}", seen.saturating_duration_since(start));
    let report = scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    // Cluster IPs are the node's own addresses: it answers for itself that nobody listens there.
    assert_eq!(report["verdict"]["cause"], "refused", "{report:#}");

    // kube-proxy writes everything again of itself; who dials meanwhile would only slow it down.
    scene.clients.clear();
    scene.proxy().thaw();
    watch
        .wait(PATIENCE, |codes| codes.healthz == 200 && codes.livez == 200)
        .expect("200");
}
