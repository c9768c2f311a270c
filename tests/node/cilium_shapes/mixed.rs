//! Two proxies on one node: which of them fails is told, and the other is not blamed.

use node_tests::cilium::Datapath;
use node_tests::manifests::Sentinel;
use node_tests::world::Family;

use super::{bare, dial_from_outside, dial_from_pods, from_pods, from_pods_to, v4, wait_both};
use node_tests::scene::{path_of, wait_answers};

#[test]
fn of_two_proxies_the_stale_one_is_named() {
    // Cilium at the pods, kube-proxy for the rest.
    let mut scene = bare();
    scene.rules.install().expect("the rules");
    scene.add_sentinel(&Sentinel::default());
    let mut datapath = Datapath::new(&scene.world, false).expect("Cilium's devices");
    from_pods(&scene, &mut datapath);
    scene.start(&[]);
    let programs = datapath.attach(&scene.world).expect("programs");
    dial_from_pods(&mut scene);
    dial_from_outside(&mut scene);
    wait_both(&scene);
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
}
