//! A packet broker or another capture by mirroring: each packet of the pods and of the uplink is copied to
//! another device, at ingress and at egress. Imitated with tc's mirred. The copies enter the node again by
//! the far end of the monitor's device.

use node_tests::prelude::*;

use crate::measured::settled;
use crate::parts::{idle_then_busy, packets, pod_devices, tc};

#[test]
fn copies_are_no_connections() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    mirror(&scene);
    idle_then_busy(&mut scene);
    are_copied(&scene);
}

/// A copy that leaves by the monitor's device must not count as forwarded to the endpoint.
#[test]
fn copies_hide_no_wrong_routes() {
    let scene = Scene::busy(Backend::Nftables, &[]);
    mirror(&scene);
    let watch = settled(&scene);
    are_copied(&scene);
    let routes = scene.world.cut_pod_routes().expect("cut routes");
    wait_answers(&watch, 503);
    scene.world.mend_pod_routes(&routes).expect("mend routes");
    wait_answers(&watch, 200);
}

fn are_copied(scene: &Scene) {
    let copies = packets(&scene.world.node, "mon0");
    assert!(copies > 1_000, "{copies} copies");
}

fn mirror(scene: &Scene) {
    let node = &scene.world.node;
    node.ip("link add mon0 type veth peer name mon0-far")
        .expect("a monitor");
    node.ip("link set mon0 up").expect("up");
    node.ip("link set mon0-far up").expect("up");
    for device in pod_devices(scene).into_iter().chain(["eth0".to_owned()]) {
        tc(node, &format!("qdisc add dev {device} clsact"));
        for direction in ["ingress", "egress"] {
            tc(
                node,
                &format!(
                    "filter add dev {device} {direction} protocol all u32 match u32 0 0 action mirred egress mirror dev mon0"
                ),
            );
        }
    }
}
