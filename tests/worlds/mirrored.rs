//! A packet broker, or any capture by mirrors: each packet of the pods and of the uplink is copied to
//! another device, as it is when it comes in and when it leaves. Imitated with tc's mirred.

use node_tests::rules::Backend;

use crate::parts::{healthy, pod_devices, tc};

#[test]
fn copies_are_no_connections() {
    healthy("mirrored", Backend::Nftables, |scene| {
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
    });
}
