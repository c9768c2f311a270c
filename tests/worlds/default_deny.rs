//! A default-deny policy is rolled out everywhere: on a node with little traffic every connection of
//! a pod is dropped, to whichever Service.

use node_tests::rules::Backend;
use node_tests::scene::{Scene, blames};

use crate::parts::{NAMED, flushed, policy, some_fail, stays};

#[test]
fn a_policy_is_not_the_nodes_fault() {
    let Some(mut scene) = Scene::busy("default_deny", Backend::IptablesNft, &[]) else {
        return;
    };
    let watch = scene.watch();
    let denied: Vec<String> = ["client-1", "client-2", "spare"]
        .map(|pod| format!("iifname {} drop", scene.world.pod(pod).device))
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
