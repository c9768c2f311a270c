//! A quiet node: a scanner dials two filtered node ports, and a network policy denies one pod a Service.
//! There are no other clients.

use node_tests::prelude::*;

use crate::parts::{NAMED, everybody_is_served, flushed, policy, some_fail, stays};

#[test]
fn a_policy_and_filtered_ports_affect_no_other_client() {
    let mut scene = Scene::idle(Backend::IptablesNft, &[]);
    let device = scene.world.pod("client-1").device.clone();
    scene.nft(
        "table inet filter { chain ports { type filter hook prerouting priority -300;\n\
             iifname eth0 tcp dport { 30081, 30082 } drop\n}\n}\n",
    );
    policy(&scene.world.node, &[format!("iifname {device} drop")]);
    let watch = scene.watch();
    for family in Family::ALL {
        for port in [30081, 30082] {
            scene.dial_outside(1, scene.node_port(port, family), 2.0);
        }
        scene.dial("client-1", "web", family, 2.0);
    }
    some_fail(&scene);
    stays(&scene, &watch, &NAMED);
    scene.clients.clear();
    scene.dial("client-2", "web", Family::V4, 10.0);
    stays(&scene, &watch, &NAMED);
    everybody_is_served(&scene);
    flushed(&scene, &watch);
}
