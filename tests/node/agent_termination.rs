//! Node termination as the Node object shows it. /healthz answers 503, so that load balancers withdraw the
//! node. /livez stays 200, because nothing is broken (KEP-3836).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use node_tests::prelude::*;

fn wait_leaving(watch: &Watch) {
    let leaving = |codes: Codes| codes.healthz == 503 && codes.livez == 200;
    let left = watch.wait(PATIENCE, leaving);
    left.expect("503 on /healthz alone");
}

fn staying(codes: Codes) -> bool {
    codes.healthz == 200 && codes.livez == 200
}

#[test]
fn a_marked_node_leaves_and_comes_back() {
    let extra = ["--terminating-taint", "karpenter"];
    let mut scene = Scene::proven(Backend::Nftables, &extra);
    let watch = scene.watch();
    wait_answers(&watch, 200);

    for key in [AUTOSCALER_TAINT, "karpenter.sh/disrupted"] {
        scene.manifests.taint(key).expect("taint");
        wait_leaving(&watch);
        let report = scene.report();
        assert_eq!(
            report["verdict"]["eligibility"]["state"], "tainted",
            "{report:#}"
        );
        assert_eq!(report["verdict"]["eligibility"]["taint"], key, "{report:#}");
        assert_eq!(
            report["verdict"]["state"], "proven",
            "leaving is no fault: {report:#}"
        );
        let body = scene.get("/healthz", Family::V4).body;
        assert!(
            body.contains("\"nodeEligible\":false,\"healthy\":true"),
            "{body}"
        );
        scene.manifests.untaint().expect("untaint");
        wait_answers(&watch, 200);
    }

    scene.manifests.set_deleting(true).expect("delete");
    wait_leaving(&watch);
    assert_eq!(
        scene.report()["verdict"]["eligibility"]["state"],
        "deleting"
    );
    scene
        .manifests
        .set_deleting(false)
        .expect("the Node is another one now");
    wait_answers(&watch, 200);

    // The negative control: taints that do not announce the node's removal.
    for key in ["node.kubernetes.io/unschedulable", "example.com/dedicated"] {
        scene.manifests.taint(key).expect("taint");
    }
    let seen = watch.changes().len();
    // Add a Service and wait for it, which shows that the agent has read the folder since then.
    scene.add(Service::new("later", 4, [scene.world.pod("spare")]));
    scene.wait("another Service", |report| {
        report["expectations"]["services"] == 4
    });
    throughout(Duration::from_secs(1), || {
        assert!(staying(watch.now()), "{:?}", watch.changes())
    });
    assert_eq!(watch.changes().len(), seen, "{:?}", watch.changes());
}

/// In a mounted ConfigMap, every file is a symlink through `..data`, itself a symlink to a folder. An update
/// replaces only `..data`.
#[test]
fn a_configmap_is_followed() {
    let mut scene = Scene::bare(Backend::Nftables);
    let mount = scene.world.dir().join("mount");
    fs::create_dir(&mount).expect("make a folder");
    let publish = |scene: &Scene, version: &str| {
        copy(scene.manifests.dir(), &mount.join(version));
        let fresh = mount.join("..data_tmp");
        symlink(version, &fresh).expect("link");
        fs::rename(&fresh, mount.join("..data")).expect("swap");
    };
    publish(&scene, "..2026_01_01");
    for file in fs::read_dir(scene.manifests.dir()).expect("list").flatten() {
        let name = file.file_name();
        symlink(Path::new("..data").join(&name), mount.join(&name)).expect("link");
    }
    scene.start(&["--manifests", mount.to_str().expect("a path")]);
    scene.traffic();
    scene.wait_proven();
    let watch = scene.watch();
    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    publish(&scene, "..2026_01_02");
    fs::remove_dir_all(mount.join("..2026_01_01")).expect("as kubelet does");
    wait_leaving(&watch);
    scene.manifests.untaint().expect("untaint");
    publish(&scene, "..2026_01_03");
    wait_answers(&watch, 200);
    let report = scene.wait_proven();
    assert_eq!(
        report["cluster"]["problems"].as_array().map(Vec::len),
        Some(0),
        "{report:#}"
    );
    assert_eq!(report["expectations"]["services"], 3, "{report:#}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("make a folder");
    for file in fs::read_dir(from).expect("list").flatten() {
        fs::copy(file.path(), to.join(file.file_name())).expect("copy");
    }
}
