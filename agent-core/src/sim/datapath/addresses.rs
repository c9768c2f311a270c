//! The address plan of simulated clusters, the same in both families. It knows no rule and no object.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agent_common::service::{FAMILIES, Family};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// An IPv4 and an IPv6 address of one thing, by [`Family`].
pub(in crate::sim) type Both = [IpAddr; FAMILIES];

/// The sentinel's cluster IPs.
pub(in crate::sim) const SENTINEL: Both = [
    IpAddr::V4(Ipv4Addr::new(10, 96, 255, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd96, 0, 0, 0, 0, 0, 0xffff, 1)),
];
/// The sentinel's one endpoint.
pub(in crate::sim) const ECHO: Both = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2)),
];
/// Source of its probes.
pub(in crate::sim) const PROBER: Both = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1)),
];

fn v6(first: u16, high: u32, low: u32) -> IpAddr {
    let [a, b] = [(high >> 16) as u16, high as u16];
    let [c, d] = [(low >> 16) as u16, low as u16];
    Ipv6Addr::new(first, 0, a, b, 0, 0, c, d).into()
}

/// Addresses of a node itself.
pub(super) fn node(number: u32) -> Both {
    let [_, high, low, last] = number.to_be_bytes();
    let v4 = Ipv4Addr::new(172, 16 | high, low, last);
    [v4.into(), v6(0xfd01, number, 1)]
}

/// Addresses of a pod of a node.
pub(super) fn pod(number: u32, last: u8) -> Both {
    let [.., high, low] = number.to_be_bytes();
    let v4 = Ipv4Addr::new(10, 128 | high, low, last);
    [v4.into(), v6(0xfd10, number, last.into())]
}

/// Range of a node's pods.
pub(super) fn pod_range(number: u32, family: Family) -> IpNet {
    match pod(number, 0)[family as usize] {
        IpAddr::V4(ip) => Ipv4Net::new_assert(ip, 24).into(),
        IpAddr::V6(ip) => Ipv6Net::new_assert(ip, 64).into(),
    }
}

/// Addresses of the pod of this number, which is on another node.
pub(super) fn remote_pod(number: u32) -> Both {
    let v4 = Ipv4Addr::new(10, 255, (number >> 8) as u8, number as u8);
    [v4.into(), v6(0xfd10, 0xffff_0000, number)]
}

/// An address of the pods' ranges that no endpoint has had since long ago.
pub(super) fn long_ago(number: u32) -> Both {
    let v4 = Ipv4Addr::new(10, 254, (number >> 8) as u8, number as u8);
    [v4.into(), v6(0xfd10, 0xfffe_0000, number)]
}

/// Cluster IPs of the Service at this place.
pub(super) fn cluster_ip(place: usize) -> Both {
    let v4 = Ipv4Addr::new(10, 96, (place >> 8) as u8, place as u8);
    [v4.into(), v6(0xfd96, 0, place as u32 + 1)]
}

/// Addresses of a client outside of the cluster.
pub(super) fn outsider(number: u8) -> Both {
    let v4 = Ipv4Addr::new(203, 0, 113, number);
    [v4.into(), v6(0x2001, 0x0db8_0000, number.into())]
}

/// Addresses that a tenant may claim, and nobody has.
pub(super) fn unused(number: u16) -> Both {
    let v4 = Ipv4Addr::from(0xC633_0000 + u32::from(number));
    [v4.into(), v6(0x2001, 0x0db8_ffff, number.into())]
}
