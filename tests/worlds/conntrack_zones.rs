//! The node tracks connections in a separate conntrack zone, and not in the default zone, as OpenFlow-based
//! CNIs do (Antrea, OVN-Kubernetes). Imitated with nftables.

use node_tests::prelude::*;

use crate::parts::healthy;

#[test]
fn another_zone_is_the_same_node() {
    healthy(Backend::Nftables, |scene| {
        scene.nft(
            "table inet zones {\n\
                 chain prerouting { type filter hook prerouting priority raw; ct zone set 7\n}\n\
                 chain output { type filter hook output priority raw; ct zone set 7\n}\n}\n",
        );
        eventually("connections in the zone", || {
            let node = &scene.world.node;
            let entries = node.feed("cat", &["/proc/net/nf_conntrack"], "");
            entries.expect("conntrack entries").contains("zone=7")
        });
    });
}
