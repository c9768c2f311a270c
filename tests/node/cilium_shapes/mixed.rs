//! Two proxies on one node: which of them fails is told, and the other is not blamed.

use std::time::Duration;

use node_tests::cilium::Datapath;
use node_tests::manifests::Sentinel;
use node_tests::world::Family;

use super::{
    bare, dial_from_outside, dial_from_pods, from_pods, from_pods_to, owners, replacement, v4,
    wait_both,
};
use node_tests::scene::{Scene, assert_never_503, lane_of, path_of, throughout, wait_answers};

/// Two proxies: Cilium at the pods, kube-proxy for the rest.
fn mixed() -> (Scene, Datapath) {
    let mut scene = bare();
    scene.rules.install().expect("the rules");
    scene.add_sentinel(&Sentinel::default());
    let mut datapath = Datapath::new(&scene.world, false).expect("Cilium's devices");
    from_pods(&scene, &mut datapath);
    scene.start(&[]);
    (scene, datapath)
}

#[test]
fn of_two_proxies_the_broken_one_is_named() {
    let (mut scene, datapath) = mixed();
    let mut programs = datapath.attach(&scene.world).expect("programs");
    dial_from_pods(&mut scene);
    dial_from_outside(&mut scene);
    wait_both(&scene);
    let report = scene.wait("mixed, and probed", |report| {
        replacement(report) == "no"
            && lane_of(report, Family::V4, "node_port", "tcp")["armed"] == true
    });
    assert_eq!(owners(&report, "pod"), "[\"cilium\"]");
    assert!(
        owners(&report, "external").contains("kube_proxy"),
        "{report:#}"
    );
    let watch = scene.watch();

    // Cilium sends pods where no endpoint is, and nobody answers; those outside are served by kube-proxy.
    for pod in ["web-3", "api-2"] {
        scene.servers.remove(pod);
    }
    let mut wrong = Datapath::new(&scene.world, false).expect("Cilium's devices");
    let elsewhere = [("web", "api-2"), ("api", "web-3"), ("db", "api-2")];
    from_pods_to(&scene, &mut wrong, elsewhere);
    drop(programs);
    programs = wrong.attach(&scene.world).expect("programs");
    let report = scene.wait("degraded", |report| {
        v4(report)["state"] == "degraded" && path_of(report, Family::V4, "pod") == "failing"
    });
    assert_eq!(v4(&report)["cause"], "misrouted", "{report:#}");
    assert_eq!(path_of(&report, Family::V4, "external"), "proven");
    throughout(Duration::from_secs(4), || {
        assert_eq!(scene.asked("/healthz"), 200)
    });
    drop(programs);
    let _programs = datapath.attach(&scene.world).expect("programs");
    wait_both(&scene);
    assert_never_503(&watch);

    // kube-proxy's rules are gone; pods are served by Cilium all the while.
    scene.rules.flush_services().expect("flush");
    wait_answers(&watch, 503);
    // Probes are the first to tell; connections have failed a second after they began.
    let report = scene.wait("broken, and failing outside", |report| {
        v4(report)["state"] == "broken" && path_of(report, Family::V4, "external") == "failing"
    });
    assert_eq!(path_of(&report, Family::V4, "pod"), "proven", "{report:#}");
    scene.rules.install().expect("the rules");
    wait_answers(&watch, 200);
}

#[test]
fn of_two_proxies_the_stale_one_is_named() {
    let (mut scene, datapath) = mixed();
    let programs = datapath.attach(&scene.world).expect("programs");
    dial_from_pods(&mut scene);
    dial_from_outside(&mut scene);
    wait_both(&scene);
    let watch = scene.watch();
    // kube-proxy follows the API, Cilium does not; who left answers no more.
    scene.servers.remove("api-2");
    let spare = scene.world.pod("spare").clone();
    scene
        .manifests
        .swap_endpoint("api", "api-2", &spare)
        .expect("swap");
    scene.rules.install().expect("the rules follow");
    wait_answers(&watch, 503);
    let report = scene.report();
    assert_eq!(report["verdict"]["state"], "stale", "{report:#}");
    assert_eq!(
        path_of(&report, Family::V4, "external"),
        "proven",
        "{report:#}"
    );
    assert!(
        v4(&report)["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("pods"))
    );
    // It follows.
    drop(programs);
    let mut followed = Datapath::new(&scene.world, false).expect("Cilium's devices");
    from_pods_to(
        &scene,
        &mut followed,
        [("web", "web-2"), ("api", "spare"), ("db", "db-1")],
    );
    let _programs = followed.attach(&scene.world).expect("programs");
    wait_answers(&watch, 200);
    wait_both(&scene);
}
