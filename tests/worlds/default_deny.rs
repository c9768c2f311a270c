//! A default-deny policy is rolled out everywhere: on a node with little traffic every connection of
//! a pod is dropped, to whichever Service.

use node_tests::rules::Backend;
use node_tests::scene::Scene;

use crate::parts::denied;

#[test]
fn a_policy_is_not_the_nodes_fault() {
    let mut scene = Scene::busy(Backend::IptablesNft, &[]);
    let rules: Vec<String> = ["client-1", "client-2", "spare"]
        .map(|pod| format!("iifname {} drop", scene.world.pod(pod).device))
        .into();
    denied(&mut scene, &rules);
}
