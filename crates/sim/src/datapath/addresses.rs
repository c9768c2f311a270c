//! Address plan of simulated clusters, the same in both families. Rules and objects are elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pathproof_wire::service::{FAMILIES, Family};

/// IPv4 and IPv6 address of the same thing, by [`Family`].
pub(crate) type Both = [IpAddr; FAMILIES];

pub(crate) const SENTINEL: Both = [
    IpAddr::V4(Ipv4Addr::new(10, 96, 255, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd96, 0, 0, 0, 0, 0, 0xffff, 1)),
];
/// The sentinel's endpoint.
pub(crate) const ECHO: Both = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2)),
];
/// Source of the sentinel's probes.
pub(crate) const PROBER: Both = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1)),
];

fn v6(first: u16, high: u32, low: u32) -> IpAddr {
    let [a, b] = [(high >> 16) as u16, high as u16];
    let [c, d] = [(low >> 16) as u16, low as u16];
    Ipv6Addr::new(first, 0, a, b, 0, 0, c, d).into()
}

pub(super) fn node(number: u32) -> Both {
    let [_, high, low, last] = number.to_be_bytes();
    let v4 = Ipv4Addr::new(172, 16 | high, low, last);
    [v4.into(), v6(0xfd01, number, 1)]
}

pub(super) fn pod(number: u32, last: u8) -> Both {
    let [.., high, low] = number.to_be_bytes();
    let v4 = Ipv4Addr::new(10, 128 | high, low, last);
    [v4.into(), v6(0xfd10, number, last.into())]
}

pub(super) fn pod_range(number: u32, family: Family) -> IpNet {
    match pod(number, 0)[family as usize] {
        IpAddr::V4(ip) => Ipv4Net::new_assert(ip, 24).into(),
        IpAddr::V6(ip) => Ipv6Net::new_assert(ip, 64).into(),
    }
}

/// Addresses of the pod with this number on another node.
pub(super) fn remote_pod(number: u32) -> Both {
    let v4 = Ipv4Addr::new(10, 255, (number >> 8) as u8, number as u8);
    [v4.into(), v6(0xfd10, 0xffff_0000, number)]
}

/// Addresses in the pods' range that have long been without an endpoint.
pub(super) fn long_ago(number: u32) -> Both {
    let v4 = Ipv4Addr::new(10, 254, (number >> 8) as u8, number as u8);
    [v4.into(), v6(0xfd10, 0xfffe_0000, number)]
}

/// Cluster IPs of the Service with this index.
pub(super) fn cluster_ip(place: usize) -> Both {
    let v4 = Ipv4Addr::new(10, 96, (place >> 8) as u8, place as u8);
    [v4.into(), v6(0xfd96, 0, place as u32 + 1)]
}

pub(super) fn outsider(number: u8) -> Both {
    let v4 = Ipv4Addr::new(203, 0, 113, number);
    [v4.into(), v6(0x2001, 0x0db8_0000, number.into())]
}

/// Unused addresses that a tenant may claim.
pub(super) fn unused(number: u16) -> Both {
    let v4 = Ipv4Addr::from(0xC633_0000 + u32::from(number));
    [v4.into(), v6(0x2001, 0x0db8_ffff, number.into())]
}
