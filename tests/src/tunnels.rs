//! An overlay like flannel's: traffic to another node's pods passes a VXLAN device. The tunnels between the
//! two nodes are real, with neighbours and routes as flannel sets them.

use anyhow::Result;

use crate::world::layout::{NODE, NODE_POD_CIDRS, WORKER, WORKER_POD_CIDRS, pick, range};
use crate::world::{Family, World};

/// An nft table `path` that drops tunnel packets at one hook of a node, if they match.
pub fn path(hook: &str, matching: &str) -> String {
    format!(
        "table inet path {{\nchain it {{ type filter hook {hook} priority -300; \
         udp dport 8472 {matching} drop\n}}\n}}\n"
    )
}

/// Matches packets with segments of more than 800 bytes.
pub const LARGE: &str = "udp length > 1000";

/// Creates a tunnel of each family between the two nodes, and routes to the pods through it.
pub fn tunnels(world: &World) -> Result<()> {
    for family in Family::ALL {
        let (device, length) = match family {
            Family::V4 => ("flannel.1", 32),
            Family::V6 => ("flannel-v6.1", 128),
        };
        // Each side: namespace, node address, pod range, and hardware address of the tunnel.
        let node = (&world.node, NODE, NODE_POD_CIDRS, "02:70:70:03:00:01");
        let worker = (&world.worker, WORKER, WORKER_POD_CIDRS, "02:70:70:03:00:02");
        for (own, other) in [(node, worker), (worker, node)] {
            let (ns, outer, own_pods, mac) = own;
            let (_, far_outer, far_pods, far_mac) = other;
            let [outer, far_outer] = [outer, far_outer].map(|pair| pick(pair, family));
            let [own_pods, pods] = [own_pods, far_pods].map(|pair| range(pair, family));
            // The ends of the tunnel have the first address of their pods' range.
            let first = |pods: &'static str| pods.split('/').next().unwrap_or_default();
            let (inner, far_inner) = (first(own_pods), first(pods));
            let batch = format!(
                "link add {device} address {mac} type vxlan id 1 dev eth0 dstport 8472 nolearning \
                 local {outer} remote {far_outer}\n\
                 addr add {inner}/{length} dev {device}\nlink set {device} up\n\
                 neigh add {far_inner} lladdr {far_mac} dev {device} nud permanent\n\
                 route del {pods}\nroute add {pods} via {far_inner} dev {device} onlink\n"
            );
            ns.ip_batch(&batch)?;
        }
    }
    Ok(())
}
