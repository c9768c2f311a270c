//! Network policies that reject, like those of kube-router in k3s: the node answers denied packets with an
//! ICMP error. Imitated with nftables.

use node_tests::prelude::*;

use crate::parts::denied;

#[test]
fn a_rejection_is_not_the_nodes_fault() {
    let mut scene = Scene::busy(Backend::Nftables, &[]);
    let rules: Vec<String> = ["client-1", "client-2"]
        .map(|pod| {
            let device = &scene.world.pod(pod).device;
            format!("iifname {device} reject with icmpx type port-unreachable")
        })
        .into();
    denied(&mut scene, &rules);
}
