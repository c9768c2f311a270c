//! Whether the cluster uses an address of the sentinel. Conflicts on the node itself are found
//! elsewhere in the agent.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pathproof_facts::cluster::Protocol;
use pathproof_facts::view::ClusterView;
use pathproof_wire::service::Family;

use super::sentinel::SentinelRule;

/// Remedy for an address that is in use.
pub const OTHERS: &str = "choose other sentinel addresses";
/// Remedy for an unsuitable pod source.
pub const RESERVE: &str = "give another address of the podCIDR that IPAM never assigns, or none";
/// Ports at which each of the sentinel's addresses is tried: the kubelet's, and one that hardly anybody listens
/// on, so that a machine without a filter refuses. Not 80 or 443, where transparent proxies answer for every
/// address.
const PORTS: [u16; 2] = [10_250, 9];
/// Maximum number of endpoints at the sentinel's addresses that the agent tries to connect to.
const CLAIMS: usize = 4;

/// Benchmarking range of `family` (RFC 2544, RFC 5180), which has the sentinel's default addresses: never
/// routed on the internet, and not used by Kubernetes.
pub fn benchmark_range(family: Family) -> IpNet {
    match family {
        Family::V4 => Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15).into(),
        Family::V6 => Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48).into(),
    }
}

/// Finds a use of the sentinel's addresses in the cluster: this node's podCIDRs and Node object,
/// cluster IPs of other Services. Returns a sentence with the remedy.
///
/// Anybody with write access to one namespace can set external IPs and endpoints. So external IPs do not
/// count, and endpoints count only against the pod source, which is an address that a pod may get. See also
/// [`tries`].
///
/// It visits every Service and, if there are pod sources, every endpoint: see `ViewPlanner::search`.
pub fn in_cluster(rule: &SentinelRule, view: &ClusterView) -> Option<String> {
    let fixed = [&rule.clients[..], &rule.echo].concat();
    let is_ours = |address: &IpAddr| fixed.contains(address) || rule.pods.contains(address);
    let node = view.node();
    let cidrs = node.map_or(&[][..], |node| &node.pod_cidrs);
    let mut addresses = node.into_iter().flat_map(|node| &node.addresses);
    if let Some(address) = addresses.find(|address| is_ours(address)) {
        return Some(format!(
            "the sentinel's address {address} is an address of this node's Node object: {OTHERS}"
        ));
    }
    for cidr in cidrs {
        if let Some(address) = fixed.iter().find(|address| cidr.contains(*address)) {
            return Some(format!(
                "the sentinel's address {address} is in this node's podCIDR {cidr}: {OTHERS}"
            ));
        }
    }
    let others = view.states().filter(|(name, _)| **name != rule.service);
    for (name, state) in others {
        let services = state.service.iter();
        let mut cluster_ips = services.flat_map(|service| &service.cluster_ips).copied();
        let endpoints = state.slices.iter().flat_map(|slice| &slice.endpoints);
        let mut endpoints = endpoints.map(|endpoint| IpAddr::from(endpoint.address).to_canonical());
        let taken = cluster_ips.find(is_ours).map(|ip| ("a cluster IP", ip));
        let is_source = |ip: &IpAddr| rule.pods.contains(ip);
        let has_sources = !rule.pods.is_empty();
        let mut source = || has_sources.then(|| endpoints.find(is_source)).flatten();
        let taken = taken.or_else(|| Some(("an endpoint", source()?)));
        if let Some((what, address)) = taken {
            return Some(format!(
                "the sentinel's address {address} is {what} of Service {name}: {OTHERS}"
            ));
        }
    }
    rule.pods.iter().find_map(|pod| pod_source(*pod, cidrs))
}

/// Where a TCP connection shows whether somebody else has one of the sentinel's addresses: at usual ports, and
/// at endpoints of other Services with such an address. These may be wrong, since anybody with write access to
/// one namespace can set them, so they must answer to count.
///
/// Not where a Service has an external address: the proxy would lead the connection to an endpoint of that
/// Service, whose answer would look like one of the address.
pub fn tries(rule: &SentinelRule, view: &ClusterView) -> Vec<SocketAddr> {
    let ours = [&rule.clients[..], &rule.echo].concat();
    let (mut claimed, mut translated) = (BTreeSet::new(), BTreeSet::new());
    for (_, state) in view.states().filter(|(name, _)| **name != rule.service) {
        for slice in &state.slices {
            let addresses = slice.endpoints.iter().map(|endpoint| endpoint.address);
            let addresses = addresses.map(|address| IpAddr::from(address).to_canonical());
            let ports = slice.ports.iter().map(|port| (port.protocol, port.port));
            claimed.extend(tcp(addresses.filter(|ip| ours.contains(ip)), ports));
        }
        if let Some(service) = &state.service {
            let addresses = service
                .external_ips
                .iter()
                .chain(&service.load_balancer_ips);
            let ports = service.ports.iter().map(|port| (port.protocol, port.port));
            translated.extend(tcp(
                addresses.copied().filter(|ip| ours.contains(ip)),
                ports,
            ));
        }
    }
    let usual = ours
        .iter()
        .flat_map(|ip| PORTS.map(|port| SocketAddr::new(*ip, port)));
    let usual: BTreeSet<SocketAddr> = usual.collect();
    let claimed = claimed.difference(&translated).take(CLAIMS);
    let tries: BTreeSet<_> = usual.difference(&translated).chain(claimed).collect();
    tries.into_iter().copied().collect()
}

/// The TCP ports at each address.
fn tcp(
    addresses: impl Iterator<Item = IpAddr>,
    ports: impl Iterator<Item = (Protocol, u16)> + Clone,
) -> impl Iterator<Item = SocketAddr> {
    let ports = ports.filter(|(protocol, _)| *protocol == Protocol::Tcp);
    addresses.flat_map(move |ip| {
        ports
            .clone()
            .map(move |(_, port)| SocketAddr::new(ip, port))
    })
}

/// Why a pod source is not a possible pod address of this node.
fn pod_source(address: IpAddr, cidrs: &[IpNet]) -> Option<String> {
    let Some(cidr) = cidrs.iter().find(|cidr| cidr.contains(&address)) else {
        let same = |cidr: &&IpNet| cidr.addr().is_ipv4() == address.is_ipv4();
        let cidrs: Vec<_> = cidrs.iter().filter(same).map(IpNet::to_string).collect();
        let cidrs = match cidrs.as_slice() {
            [] => "it has no podCIDR of this family".to_owned(),
            some => some.join(", "),
        };
        return Some(format!(
            "the sentinel's pod address {address} is in no podCIDR of this node ({cidrs}): \
             {RESERVE}"
        ));
    };
    // IPAM does not assign the network address, and the gateway gets the first one; IPv6 has no broadcast.
    let is_v4 = cidr.addr().is_ipv4();
    let what = if address == cidr.network() {
        "network address"
    } else if is_v4 && address == cidr.broadcast() {
        "broadcast address"
    } else if cidr.hosts().nth(usize::from(!is_v4)) == Some(address) {
        "first address, the gateway's"
    } else {
        return None;
    };
    Some(format!(
        "the sentinel's pod address {address} is the {what} of {cidr}, which no pod can have: \
         {RESERVE}"
    ))
}

#[cfg(test)]
mod tests;
