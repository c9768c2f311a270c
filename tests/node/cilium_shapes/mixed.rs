//! Two proxies on one node: which of them fails is told, and the other is not blamed.

use node_tests::cilium::Datapath;
use node_tests::manifests::Sentinel;
use node_tests::world::Family;
use serde_json::json;

use super::{
    bare, dial_from_outside, dial_from_pods, from_pods, from_pods_to, recognised, replacement, v4,
    wait_both,
};
use node_tests::scene::{lane_of, path_of, wait_answers};

#[test]
fn of_two_proxies_the_one_that_fails_is_named() {
    // Cilium at the pods, kube-proxy for the rest.
    let mut scene = bare();
    scene.rules.install().expect("the rules");
    scene.add_sentinel(&Sentinel::default());
    let mut datapath = Datapath::new(&scene.world, false).expect("Cilium's devices");
    from_pods(&scene, &mut datapath);
    scene.start(&["--flap-dwell", "0"]);
    let programs = datapath.attach(&scene.world).expect("programs");
    dial_from_pods(&mut scene);
    dial_from_outside(&mut scene);
    wait_both(&scene);
    let report = scene.wait("mixed, and probed", |report| {
        replacement(report) == "no"
            && lane_of(report, Family::V4, "node_port", "tcp")["armed"] == true
    });
    assert_eq!(recognised(&report, "pod")["owners"], json!(["cilium"]));
    let outside = recognised(&report, "external")["owners"].to_string();
    assert!(outside.contains("kube_proxy"), "{report:#}");
    let watch = scene.watch();
    // kube-proxy follows the API, Cilium does not; who left answers no more.
    scene.servers.remove("api-2");
    scene.swap_endpoint("api", "api-2", "spare");
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

    // kube-proxy's rules are gone; pods are served by Cilium all the while.
    scene.rules.flush_services().expect("flush");
    wait_answers(&watch, 503);
    // Probes fail first; connections have failed a second after they began.
    let report = scene.wait("broken, and failing outside", |report| {
        v4(report)["state"] == "broken" && path_of(report, Family::V4, "external") == "failing"
    });
    assert_eq!(path_of(&report, Family::V4, "pod"), "proven", "{report:#}");
    scene.rules.install().expect("the rules");
    wait_answers(&watch, 200);
}
