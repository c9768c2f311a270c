//! Whether the sentinel's addresses are in use, on the node or in the cluster. Pure.

use std::fmt;
use std::net::IpAddr;

use agent_common::service::Family;
use ipnet::IpNet;
use rtnetlink::packet_route::route::RouteType;

use super::node::{NodeState, Route};
use super::settings::{Settings, benchmark_range};
use agent_core::cluster::ObjectName;

/// What the cluster view knows of addresses.
pub struct Known<'a> {
    /// `spec.podCIDRs` of this node.
    pub pod_cidrs: &'a [IpNet],
    /// Addresses of this node in its Node object.
    pub node_addresses: &'a [IpAddr],
    /// Cluster, load balancer and external IPs of all Services.
    pub services: Box<dyn Iterator<Item = (IpAddr, &'a ObjectName)> + 'a>,
    /// Endpoints of all Services but the sentinel's.
    pub endpoints: Box<dyn Iterator<Item = (IpAddr, &'a ObjectName)> + 'a>,
}

/// Why an address of the sentinel's cannot be used. Displays as a sentence with its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// A device of the node has it.
    LocalAddress {
        /// Ours.
        address: IpAddr,
        /// The device.
        device: String,
    },
    /// The Node object says that the node has it.
    NodeAddress {
        /// Ours.
        address: IpAddr,
    },
    /// Somebody routes the range that it lies in.
    Route {
        /// Ours.
        address: IpAddr,
        /// Destination of the route.
        destination: IpNet,
        /// Where it leads.
        device: String,
        /// Its table.
        table: u32,
    },
    /// Pods of this node may be given it.
    PodCidr {
        /// Ours.
        address: IpAddr,
        /// The podCIDR.
        cidr: IpNet,
    },
    /// A Service has it.
    Service {
        /// Ours.
        address: IpAddr,
        /// The Service.
        service: ObjectName,
    },
    /// An endpoint of another Service has it.
    Endpoint {
        /// Ours.
        address: IpAddr,
        /// The Service.
        service: ObjectName,
    },
    /// The pod source lies in no podCIDR of this node.
    PodOutside {
        /// Ours.
        address: IpAddr,
        /// The podCIDRs of its family.
        cidrs: Vec<IpNet>,
    },
    /// The pod source is an address that no pod can have.
    PodReserved {
        /// Ours.
        address: IpAddr,
        /// The podCIDR.
        cidr: IpNet,
        /// Which address of it.
        what: &'static str,
    },
    /// The pod source is a neighbour already: a pod, surely.
    PodNeighbour {
        /// Ours.
        address: IpAddr,
        /// The device.
        device: String,
    },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const OTHERS: &str = "choose other sentinel addresses";
        const RESERVE: &str =
            "reserve another address of the podCIDR, one that IPAM never hands out, or give none";
        match self {
            Conflict::LocalAddress { address, device } => write!(
                f,
                "the sentinel's address {address} is an address of {device} on this node: {OTHERS}"
            ),
            Conflict::NodeAddress { address } => write!(
                f,
                "the sentinel's address {address} is an address of this node's Node object: {OTHERS}"
            ),
            Conflict::Route {
                address,
                destination,
                device,
                table,
            } => write!(
                f,
                "the sentinel's address {address} lies where this node has a route of others, {destination} to {device} (table {table}): {OTHERS}, or remove the route"
            ),
            Conflict::PodCidr { address, cidr } => write!(
                f,
                "the sentinel's address {address} lies in this node's podCIDR {cidr}: {OTHERS}"
            ),
            Conflict::Service { address, service } => write!(
                f,
                "the sentinel's address {address} is an address of Service {service}: {OTHERS}"
            ),
            Conflict::Endpoint { address, service } => write!(
                f,
                "the sentinel's address {address} is an endpoint of Service {service}: {OTHERS}"
            ),
            Conflict::PodOutside { address, cidrs } => {
                let cidrs: Vec<_> = cidrs.iter().map(ToString::to_string).collect();
                let cidrs = match cidrs.as_slice() {
                    [] => "it has none of this family".to_owned(),
                    some => some.join(", "),
                };
                write!(
                    f,
                    "the sentinel's pod source {address} lies in no podCIDR of this node ({cidrs}): {RESERVE}"
                )
            }
            Conflict::PodReserved {
                address,
                cidr,
                what,
            } => write!(
                f,
                "the sentinel's pod source {address} is the {what} of {cidr}, which no pod can have: {RESERVE}"
            ),
            Conflict::PodNeighbour { address, device } => write!(
                f,
                "the sentinel's pod source {address} is in use, by a neighbour on {device}: {RESERVE}"
            ),
        }
    }
}

/// The first conflict of the sentinel's addresses in `families` with what the node and the cluster
/// have.
///
/// Routes conflict that use what we want: a route to one of our addresses alone, one into the
/// benchmarking range that it lies in and no wider than that, and for an address outside of those
/// ranges one to a network on a device of this node. A route that merely drops such a range (bogon
/// filters do) is no use of it: ours is narrower.
pub fn conflict(
    settings: &Settings,
    families: &[Family],
    known: Known<'_>,
    node: &NodeState,
) -> Option<Conflict> {
    let fixed: Vec<_> = (families.iter())
        .flat_map(|&family| [settings.client.of(family), settings.echo.of(family)])
        .collect();
    let pods: Vec<_> = (families.iter())
        .filter_map(|&family| settings.pod.of(family))
        .collect();
    let all: Vec<_> = fixed.iter().chain(&pods).copied().collect();
    local(&all, known.node_addresses, node)
        .or_else(|| fixed.iter().find_map(|&address| routed(address, node)))
        .or_else(|| in_pod_cidr(&fixed, known.pod_cidrs))
        .or_else(|| in_cluster(&all, known.services, known.endpoints))
        .or_else(|| {
            pods.iter()
                .find_map(|&address| pod_source(address, known.pod_cidrs, node))
        })
}

fn local(all: &[IpAddr], of_node: &[IpAddr], node: &NodeState) -> Option<Conflict> {
    for local in &node.addresses {
        if all.contains(&local.address) {
            return Some(Conflict::LocalAddress {
                address: local.address,
                device: local.device.clone(),
            });
        }
    }
    let address = *of_node.iter().find(|address| all.contains(address))?;
    Some(Conflict::NodeAddress { address })
}

fn routed(address: IpAddr, node: &NodeState) -> Option<Conflict> {
    let route = node.routes.iter().find(|route| takes(route, address))?;
    Some(Conflict::Route {
        address,
        destination: route.destination,
        device: route.device_name.clone(),
        table: route.table,
    })
}

fn takes(route: &Route, address: IpAddr) -> bool {
    if route.is_exactly(address) {
        return true;
    }
    let drops = matches!(
        route.kind,
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit | RouteType::Throw
    );
    if drops {
        return false;
    }
    let family = match address {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    };
    let range = benchmark_range(family);
    if range.contains(&address) {
        return range.contains(&route.destination);
    }
    let everything = route.destination.prefix_len() == 0;
    !everything && !route.gateway && route.destination.contains(&address)
}

fn in_pod_cidr(fixed: &[IpAddr], cidrs: &[IpNet]) -> Option<Conflict> {
    for &cidr in cidrs {
        if let Some(&address) = fixed.iter().find(|address| cidr.contains(*address)) {
            return Some(Conflict::PodCidr { address, cidr });
        }
    }
    None
}

fn in_cluster<'a>(
    all: &[IpAddr],
    mut services: impl Iterator<Item = (IpAddr, &'a ObjectName)>,
    mut endpoints: impl Iterator<Item = (IpAddr, &'a ObjectName)>,
) -> Option<Conflict> {
    if let Some((address, service)) = services.find(|(address, _)| all.contains(address)) {
        let service = service.clone();
        return Some(Conflict::Service { address, service });
    }
    let (address, service) = endpoints.find(|(address, _)| all.contains(address))?;
    let service = service.clone();
    Some(Conflict::Endpoint { address, service })
}

fn pod_source(address: IpAddr, cidrs: &[IpNet], node: &NodeState) -> Option<Conflict> {
    let Some(&cidr) = cidrs.iter().find(|cidr| cidr.contains(&address)) else {
        let mut cidrs = cidrs.to_vec();
        cidrs.retain(|cidr| cidr.addr().is_ipv4() == address.is_ipv4());
        return Some(Conflict::PodOutside { address, cidrs });
    };
    if let Some(what) = reserved(address, cidr) {
        return Some(Conflict::PodReserved {
            address,
            cidr,
            what,
        });
    }
    if let Some(route) = node.routes.iter().find(|route| route.is_exactly(address)) {
        return Some(Conflict::Route {
            address,
            destination: route.destination,
            device: route.device_name.clone(),
            table: route.table,
        });
    }
    let neighbour = (node.neighbours.iter()).find(|neighbour| neighbour.address == address)?;
    Some(Conflict::PodNeighbour {
        address,
        device: neighbour.device.clone(),
    })
}

/// What an address is to its podCIDR, where no pod can have it: IPAM leaves out the network
/// address and gives the first one to the gateway; IPv6 knows no broadcast.
fn reserved(address: IpAddr, cidr: IpNet) -> Option<&'static str> {
    if address == cidr.network() {
        return Some("network address");
    }
    if cidr.addr().is_ipv4() && address == cidr.broadcast() {
        return Some("broadcast address");
    }
    (cidr.hosts().nth(usize::from(cidr.addr().is_ipv6())) == Some(address))
        .then_some("first address, the gateway's")
}

#[cfg(test)]
mod tests;
