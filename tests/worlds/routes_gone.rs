//! A total fault: the routes to local and remote pods are missing, while the default route stays. So
//! translated packets leave by the uplink and get no answer.

use node_tests::prelude::*;

fn cut(scene: &Scene) {
    for pod in ["web-1", "web-2", "api-1", "spare", "client-1", "client-2"] {
        scene.world.cut_route(pod).expect("cut a route");
    }
    let node = &scene.world.node;
    node.ip("route del 10.244.1.0/24").expect("cut a route");
    node.ip("-6 route del fd00:10:244:1::/64")
        .expect("cut a route");
    node.ip("link set cni0 down").expect("cut the bridge off");
}

#[test]
fn pods_without_routes_are_a_fault() {
    let scene = Scene::busy(Backend::Nftables, &[]);
    let watch = scene.watch();
    cut(&scene);
    wait_answers(&watch, 503);
    eventually("both families are broken", || {
        in_both(&scene.report(), |family| family["state"] == "broken")
    });
    // The sentinel's path works, so it was real traffic that decided the verdict.
    let report = scene.report();
    let lane = lane_of(&report, Family::V4, "off_cluster", "tcp");
    assert_eq!(lane["state"], "passing", "{report:#}");
}
