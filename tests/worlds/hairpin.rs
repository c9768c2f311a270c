//! GKE's intranode visibility: packets between pods of the same node leave by the uplink, and the network
//! returns them. The `ip` rules and marks are those of GKE's netd (pkg/config/config_policy_routing.go). This
//! world's router is the network.

use node_tests::prelude::*;
use node_tests::world::layout::{NODE, NODE_POD_CIDRS, ROUTER, WORKER, WORKER_POD_CIDRS};

use crate::parts::healthy;

#[test]
fn a_hairpin_at_the_uplink_is_no_misrouting() {
    healthy(Backend::IptablesNft, |scene| turn_back(scene));
}

/// Sends pods' packets by table 1, which only leads to the router. Masqueraded connections and packets from
/// the uplink use the main table.
pub(crate) fn turn_back(scene: &Scene) {
    let world = &scene.world;
    for ((pods4, pods6), (via4, via6)) in [(NODE_POD_CIDRS, NODE), (WORKER_POD_CIDRS, WORKER)] {
        let routes = format!("route add {pods4} via {via4}\nroute add {pods6} via {via6}\n");
        world
            .outside
            .ip_batch(&routes)
            .expect("the network's routes");
    }
    world
        .node
        .nft(
            "table inet gcp {\n\
             chain prerouting { type filter hook prerouting priority mangle; meta mark set ct mark\n}\n\
             chain postrouting { type filter hook postrouting priority mangle;\n\
             meta mark & 0x4000 == 0x4000 ct mark set meta mark\n}\n}\n",
        )
        .expect("marks are kept");
    let (router4, router6) = ROUTER;
    world
        .node
        .sysctl("net/ipv4/conf/all/src_valid_mark", "1")
        .expect("as netd sets it");
    for (family, router) in [("-4", router4.to_string()), ("-6", router6.to_string())] {
        for words in [
            format!("route add default via {router} dev eth0 table 1"),
            "rule add pref 30000 fwmark 0x4000/0x4000 lookup main".to_owned(),
            "rule add pref 30001 iif lo lookup main".to_owned(),
            "rule add pref 30002 not iif eth0 lookup 1".to_owned(),
        ] {
            world
                .node
                .ip(&format!("{family} {words}"))
                .expect("policy routing");
        }
    }
    let (from, to) = (world.pod("client-1"), world.pod("web-1"));
    let asked = format!("route get {} from {} iif {}", to.v4, from.v4, from.device);
    let route = world.node.ip(&asked).expect("a route");
    assert!(route.contains("dev eth0"), "{route}");
}
