//! A default-deny policy for all pods. On a node with little traffic it drops every connection from a pod to
//! any Service.

use node_tests::prelude::*;

use crate::parts::denied;

#[test]
fn a_policy_is_not_the_nodes_fault() {
    let mut scene = Scene::busy(Backend::IptablesNft, &[]);
    let rules: Vec<String> = ["client-1", "client-2", "spare"]
        .map(|pod| format!("iifname {} drop", scene.world.pod(pod).device))
        .into();
    denied(&mut scene, &rules);
}
