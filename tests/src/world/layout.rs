//! The address plan of the world. It is fixed, because every world has its own namespaces.
//!
//! ```text
//!  outside clients                 router            node                     local pods
//!  203.0.113.11.. (lo of outside)  192.0.2.1  ----  eth0 192.0.2.10   veth-*  10.244.0.11..  (/32 routes)
//!                                  lan0       \                       cni0    10.244.0.130.. (bridged)
//!                                              \--  worker 192.0.2.20 veth-*  10.244.1.11..  (remote pods)
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use pathproof_wire::service::Family;

/// Name of the node in the manifests.
pub const NODE_NAME: &str = "node-1";
/// Name of the other node.
pub const WORKER_NAME: &str = "node-2";
/// The node's device towards the node network and the outside.
pub const UPLINK: &str = "eth0";
/// The node's bridge, which exists if there are bridged pods.
pub const BRIDGE: &str = "cni0";
/// The router of the node network: next hop of the default route.
pub const ROUTER: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(192, 0, 2, 1), v6(1, 1));
pub const NODE: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(192, 0, 2, 10), v6(1, 0x10));
pub const WORKER: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(192, 0, 2, 20), v6(1, 0x20));
/// Pod address ranges of the whole cluster.
pub const CLUSTER_CIDRS: (&str, &str) = ("10.244.0.0/16", "fd00:10:244::/48");
pub const NODE_POD_CIDRS: (&str, &str) = ("10.244.0.0/24", "fd00:10:244::/64");
/// First addresses in [`NODE_POD_CIDRS`] that no pod of the world uses.
pub const FREE_PODS: (&str, &str) = ("10.244.0.160", "fd00:10:244::a0");
pub const WORKER_POD_CIDRS: (&str, &str) = ("10.244.1.0/24", "fd00:10:244:1::/64");
pub const SERVICE_CIDRS: (&str, &str) = ("10.96.0.0/16", "fd00:10:96::/112");
/// Addresses of load balancers and external IPs; the router forwards them to the node.
pub const VIP_CIDRS: (&str, &str) = ("198.51.100.0/24", "2001:db8:1b::/64");

const fn v6(segment: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, segment, 0, 0, 0, host)
}

/// Addresses of an outside client, counted from 0.
pub fn outside_client(index: u8) -> (Ipv4Addr, Ipv6Addr) {
    (
        Ipv4Addr::new(203, 0, 113, 11 + index),
        v6(0xffff, 0x11 + u16::from(index)),
    )
}

/// ClusterIPs, counted from 0.
pub fn cluster_ip(index: u8) -> (Ipv4Addr, Ipv6Addr) {
    let host = 10 + index;
    (
        Ipv4Addr::new(10, 96, 0, host),
        Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, u16::from(host)),
    )
}

/// Addresses of load balancers or external IPs, counted from 0.
pub fn vip(index: u8) -> (Ipv4Addr, Ipv6Addr) {
    let host = 10 + index;
    (
        Ipv4Addr::new(198, 51, 100, host),
        Ipv6Addr::new(0x2001, 0xdb8, 0x1b, 0, 0, 0, 0, u16::from(host)),
    )
}

/// Where a pod is, and how it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the node, with a veth pair and a host route (as with Calico and ptp).
    Local,
    /// On the node, behind the bridge cni0 (as with flannel and kubenet).
    Bridged,
    /// On the other node.
    Remote,
}

/// The addresses of a pod; `index` counts the pods of a place from 0.
pub(super) fn pod(place: Place, index: u8) -> (Ipv4Addr, Ipv6Addr) {
    let (third, fourth, segment, sub) = match place {
        Place::Local => (0, 11 + index, 0, 0),
        Place::Bridged => (0, 130 + index, 0, 1),
        Place::Remote => (1, 11 + index, 1, 0),
    };
    (
        Ipv4Addr::new(10, 244, third, fourth),
        Ipv6Addr::new(0xfd00, 0x10, 0x244, segment, sub, 0, 0, u16::from(fourth)),
    )
}

pub(super) fn is_pod(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[..2] == [10, 244],
        IpAddr::V6(v6) => v6.segments()[..3] == [0xfd00, 0x10, 0x244],
    }
}

pub fn pick((v4, v6): (Ipv4Addr, Ipv6Addr), family: Family) -> IpAddr {
    match family {
        Family::V4 => v4.into(),
        Family::V6 => v6.into(),
    }
}

pub fn range((v4, v6): (&'static str, &'static str), family: Family) -> &'static str {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}
