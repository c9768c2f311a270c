//! kube-proxy in ipvs mode, where cluster IPs are local addresses and IPVS translates local packets itself.
//! Few kernels at hand have IPVS, so these tests run in the virtual machines of `cargo xtask test --kernels`.

use node_tests::prelude::*;

use crate::scene::{PATIENCE, PORT, Scene};

/// Time in which a false 503 would occur: twice as long as a confirmation takes.
const LOOK: Duration = Duration::from_secs(6);
/// Connections per second of each client, few because an emulated processor is slow.
const RATE: f64 = 3.0;
/// Poll interval, long because an emulated processor is slow.
const ASKED: Duration = Duration::from_millis(200);

/// Freezes kube-proxy and removes every virtual server. A running kube-proxy would restore them within
/// seconds.
pub(crate) fn clear(scene: &Scene) {
    scene.proxy().freeze();
    ipvsadm(scene, &["--clear"]);
}

/// Freezes kube-proxy and removes the virtual servers of IPv6.
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

/// Freezes kube-proxy and removes a pod from every virtual server.
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

/// The IPVS table, as the commands that would restore it.
fn saved(scene: &Scene) -> Vec<String> {
    let text = ipvsadm(scene, &["--save", "--numeric"]);
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn ipvsadm(scene: &Scene, words: &[&str]) -> String {
    let run = scene.world.node.feed("ipvsadm", words, "");
    run.expect("ipvsadm")
}

/// A node with traffic. Waits until probes and connections from pods and from outside have proven it.
fn scene() -> Needed<Scene> {
    skip::root()?;
    skip::ipvs()?;
    let mut scene = Scene::proven(Mode::Ipvs, &[])?;
    println!("{}", scene.proxy().rules().expect("what IPVS holds"));
    scene.traffic_at(RATE);
    scene.wait("pods and outsiders proven", |report| {
        let families = report["verdict"]["families"].as_array();
        families.is_some_and(|all| all.len() == 2 && all.iter().all(is_path_proven))
    });
    let served = || scene.clients.iter().all(|client| client.tally().ok > 0);
    until(PATIENCE, || served().then_some(())).expect("every client is served");
    Ok(scene)
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

/// A dead backend and a Service without rules are no fault of the node. A wiped table is one.
#[test]
fn a_wiped_table_is_503_in_ipvs_mode_and_its_twins_are_not() {
    let mut scene = needs!(scene());
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
    // The cause is `refused`, because cluster IPs are local addresses without a listener, so the node itself
    // answers RST.
    assert_eq!(report["verdict"]["cause"], "refused", "{report:#}");

    // kube-proxy restores everything by itself. End the clients, which would only slow it down.
    scene.clients.clear();
    scene.proxy().thaw();
    watch
        .wait(PATIENCE, |codes| codes.healthz == 200 && codes.livez == 200)
        .expect("200");
}
