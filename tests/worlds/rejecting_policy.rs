//! Network policies that reject, as kube-router's do in k3s: the node answers for what is denied, with
//! an ICMP error. Imitated with nftables.

use node_tests::rules::Backend;
use node_tests::scene::{Scene, blames};

use crate::parts::{NAMED, flushed, policy, some_fail, stays};

#[test]
fn a_rejection_is_not_the_nodes_fault() {
    let Some(mut scene) = Scene::busy("rejecting_policy", Backend::Nftables, &[]) else {
        return;
    };
    let watch = scene.watch();
    let denied: Vec<String> = ["client-1", "client-2"]
        .map(|pod| {
            let device = &scene.world.pod(pod).device;
            format!("iifname {device} reject with icmpx type port-unreachable")
        })
        .into();
    scene.clients.clear();
    policy(&scene.world.node, &denied);
    scene.pod_traffic();
    some_fail(&scene);
    stays(&scene, &watch, &NAMED);
    scene.wait("degraded, and named", |report| {
        report["verdict"]["state"] == "degraded" && blames(report, "demo/web")
    });
    flushed(&scene, &watch);
}
