//! The CNI bandwidth plugin: what a pod sends goes by an ifb device, which shapes it, and comes back
//! to the pod's device. Imitated with tc, as the plugin's source has it.

use node_tests::rules::Backend;

use crate::parts::{healthy, pod_devices, tc};

#[test]
fn the_way_by_an_ifb_is_no_leak() {
    healthy("bandwidth", Backend::IptablesNft, |scene| {
        let node = &scene.world.node;
        for (number, device) in pod_devices(scene).into_iter().enumerate() {
            let ifb = format!("bwp{number}");
            node.ip(&format!("link add {ifb} type ifb"))
                .expect("an ifb");
            node.ip(&format!("link set {ifb} up")).expect("up");
            tc(node, &format!("qdisc add dev {device} ingress"));
            tc(
                node,
                &format!(
                    "filter add dev {device} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev {ifb}"
                ),
            );
        }
    });
}
