//! Expectations for a Service on this node: the frontends that clients may dial, the expected
//! handling by the source of a connection, and the endpoints that it may be sent to.
//!
//! The rules are kube-proxy's (1.36, `pkg/proxy/topology.go`, `serviceport.go`, `iptables/proxier.go`);
//! docs/expectations.md has them as a table. Pure: the same facts always give the same expectations. TCP
//! and UDP are followed, except the sentinel's UDP port, whose probes are followed one by one.

use std::sync::Arc;

use pathproof_facts::cluster::{EndpointFacts, Protocol, ServiceFacts, ServicePort, SliceFacts};
use pathproof_facts::node_context::{self, NodeContext};
use pathproof_facts::view::ServiceState;
use pathproof_wire::service::{
    Address, EndpointKey, EndpointValue, ExpectedHandling, Family, FrontendKey, FrontendKind,
    FrontendValue, PEER_SHIFT, Port, SOURCE_CLASSES, TCP, UDP, endpoint_flag, frontend_flag,
};

pub mod addresses;
pub mod conflicts;
mod demand;
pub mod sentinel;

pub use demand::{Demand, ENDPOINTS, FRONTENDS, IDS, KINDS, demand};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Address, port and protocol that clients dial.
    pub key: FrontendKey,
    /// Kind of the address, such as cluster IP or node port.
    pub kind: FrontendKind,
    /// Expected handling, by source class.
    pub handling: [ExpectedHandling; SOURCE_CLASSES],
    /// Bits of [`frontend_flag`].
    pub flags: u8,
}

impl Frontend {
    /// Value of the frontend's entry in the map, under a service id.
    pub fn value(&self, service: u32) -> FrontendValue {
        FrontendValue {
            service,
            kind: self.kind as u8,
            flags: self.flags,
            owed: self.handling.map(|handling| handling as u8),
            padding: [0; 3],
        }
    }
}

/// Expectation for one Service port in one family. Each has its own service id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortExpectation {
    /// Name of the Service port; empty for the single unnamed one.
    pub port: Arc<str>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Whether the port's number is 53 or its name is dns.
    pub dns: bool,
    pub family: Family,
    /// Frontends, unique and sorted by key.
    pub frontends: Vec<Frontend>,
    /// Endpoints of all frontends, unique and sorted.
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// By port and family, in the order of the Service's ports.
    pub ports: Vec<PortExpectation>,
}

/// An endpoint that connections may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub address: Address,
    /// Port, network order.
    pub port: Port,
    /// Whether the endpoint is a pod of this node.
    pub local: bool,
    /// Whether the endpoint belongs to a UDP port.
    pub udp: bool,
    /// Number of the endpoint's node, if that is another node; zero if unknown.
    pub peer: u16,
}

impl Endpoint {
    /// Key of the endpoint's entry in the map, under a service id.
    pub fn key(&self, service: u32) -> EndpointKey {
        EndpointKey {
            service,
            address: self.address,
            port: self.port,
            padding: [0; 2],
        }
    }

    /// Value of the endpoint's entry in the map.
    pub fn value(&self) -> EndpointValue {
        EndpointValue {
            flags: if self.local { endpoint_flag::LOCAL } else { 0 }
                | if self.udp { endpoint_flag::UDP } else { 0 }
                | u32::from(self.peer) << PEER_SHIFT,
        }
    }
}

/// The expectation for a Service on a node. It is empty if the Service is unknown, and has no node ports if
/// the node is unknown (an empty context). [`demand()`] counts its entries.
pub fn expectation(state: &ServiceState, node: &NodeContext) -> Expectation {
    let mut expectation = Expectation::default();
    let Some(service) = state.service.as_deref() else {
        return expectation;
    };
    for (at, port) in service.ports.iter().enumerate() {
        match port.protocol {
            Protocol::Udp if node.sentinel.as_ref() == Some(&service.name) => continue,
            Protocol::Tcp | Protocol::Udp => {}
            Protocol::Sctp => continue,
        }
        // Skip a port if a later one has its name: kube-proxy would serve the last. The API server rejects
        // such Services.
        let mut later = service.ports[at + 1..].iter();
        if later.any(|other| other.name == port.name && other.protocol == port.protocol) {
            continue;
        }
        for family in Family::ALL {
            let served = served(service, port, node, family);
            if !served.is_empty() {
                let expected = port_expectation(state, service, port, node, family, served);
                expectation.ports.push(expected);
            }
        }
    }
    expectation
}

/// Kind, address and port of a frontend.
type Served = (FrontendKind, Address, u16);

/// The frontends of a Service port in one family. kube-proxy serves a family only if the Service
/// has a cluster IP in it, and uses the first (`GetClusterIPByFamily`). A load balancer address of
/// another family has no rules.
fn served(
    service: &ServiceFacts,
    port: &ServicePort,
    node: &NodeContext,
    family: Family,
) -> Vec<Served> {
    let of_family = |address: &Address| Family::of(address) == family;
    let mut served = Vec::new();
    let cluster_ips = service.cluster_ips.iter().map(node_context::address);
    let Some(cluster_ip) = cluster_ips.into_iter().find(of_family) else {
        return served;
    };
    served.push((FrontendKind::ClusterIp, cluster_ip, port.port));
    for (kind, ips) in [
        (FrontendKind::ExternalIp, &service.external_ips),
        (FrontendKind::LoadBalancer, &service.load_balancer_ips),
    ] {
        let addresses = ips.iter().map(node_context::address).filter(of_family);
        served.extend(addresses.map(|address| (kind, address, port.port)));
    }
    if let Some(node_port) = port.node_port {
        let addresses = node.addresses.iter().copied().filter(of_family);
        served.extend(addresses.map(|address| (FrontendKind::NodePort, address, node_port)));
    }
    served
}

fn port_expectation(
    state: &ServiceState,
    service: &ServiceFacts,
    port: &ServicePort,
    node: &NodeContext,
    family: Family,
    served: Vec<Served>,
) -> PortExpectation {
    // kube-proxy's `ExternallyAccessible`.
    let external = port.node_port.is_some() || served.len() > 1;
    let sets = EndpointSets::collect(
        &state.slices,
        (&port.name, port.protocol),
        family,
        !service.internal_local || external,
        service.internal_local || (service.external_local && external),
    );
    let mut flags = 0;
    let on_host = |endpoint: &Endpoint| node.addresses.contains(&endpoint.address);
    if sets.reachable.iter().any(on_host) {
        flags |= frontend_flag::HOST_ENDPOINT;
    }
    if node.sentinel.as_ref() == Some(&service.name) {
        flags |= frontend_flag::SENTINEL;
    }
    let udp = port.protocol == Protocol::Udp;
    let frontend = |(kind, address, port): Served| Frontend {
        key: frontend_key(address, port.to_be_bytes(), if udp { UDP } else { TCP }),
        kind,
        handling: expected_handling(service, kind, &sets),
        flags,
    };
    let mut frontends: Vec<Frontend> = served.into_iter().map(frontend).collect();
    merge_equal_keys(&mut frontends);
    PortExpectation {
        port: Arc::clone(&port.name),
        protocol: port.protocol,
        dns: port.port == 53 || &*port.name == "dns",
        family,
        frontends,
        endpoints: sets.reachable,
    }
}

pub(crate) fn frontend_key(address: Address, port: Port, protocol: u8) -> FrontendKey {
    FrontendKey {
        address,
        port,
        protocol,
        padding: 0,
    }
}

/// An address may be both a Service's external IP and its load balancer's. If the two have different
/// expected handling, nothing is expected.
fn merge_equal_keys(frontends: &mut Vec<Frontend>) {
    frontends.sort_by_key(|frontend| (frontend.key, frontend.kind));
    frontends.dedup_by(|next, kept| {
        if next.key != kept.key {
            return false;
        }
        for (kept, next) in kept.handling.iter_mut().zip(next.handling) {
            if *kept != next {
                *kept = ExpectedHandling::Nothing;
            }
        }
        true
    });
    frontends.shrink_to_fit();
}

/// Expected handling of connections for a kind of frontend, by source class.
fn expected_handling(
    service: &ServiceFacts,
    kind: FrontendKind,
    sets: &EndpointSets,
) -> [ExpectedHandling; SOURCE_CLASSES] {
    // The endpoints of a global Service may be in other clusters, where the agent cannot see them.
    if service.is_global {
        return [ExpectedHandling::Nothing; SOURCE_CLASSES];
    }
    if !sets.has_any {
        return [ExpectedHandling::Reject; SOURCE_CLASSES];
    }
    let local = if sets.has_local {
        ExpectedHandling::LocalOnly
    } else {
        ExpectedHandling::Nothing
    };
    match kind {
        FrontendKind::ClusterIp if service.internal_local => [local; SOURCE_CLASSES],
        FrontendKind::ClusterIp => [ExpectedHandling::Forward; SOURCE_CLASSES],
        // Whether a source is admitted depends on its address, and a source class does not show addresses.
        FrontendKind::LoadBalancer if service.has_source_ranges => {
            [ExpectedHandling::Nothing; SOURCE_CLASSES]
        }
        // kube-proxy treats connections of pods and of the node itself to an external address as if
        // they came from outside: they may go to all endpoints of the cluster, whatever the policy.
        _ if service.external_local => {
            [ExpectedHandling::Forward, ExpectedHandling::Forward, local]
        }
        _ => [ExpectedHandling::Forward; SOURCE_CLASSES],
    }
}

/// The endpoints of one Service port and family, by use: kube-proxy's `CategorizeEndpoints`.
///
/// Topology hints are ignored on purpose: they only narrow the choice among ready endpoints, and an
/// endpoint of another zone is still an endpoint of the Service.
struct EndpointSets {
    /// Whether any endpoint in the cluster is usable.
    has_any: bool,
    /// Whether a local traffic policy has a usable endpoint.
    has_local: bool,
    /// Endpoints for cluster and local traffic policy together, unique and sorted.
    reachable: Vec<Endpoint>,
}

impl EndpointSets {
    /// Collects the endpoints of `port` and `family` from a Service's slices. `uses_cluster` and
    /// `uses_local` are the traffic policies that apply to the port.
    fn collect(
        slices: &[Arc<SliceFacts>],
        port: (&str, Protocol),
        family: Family,
        uses_cluster: bool,
        uses_local: bool,
    ) -> Self {
        let usable = || usable(slices, port, family);
        let local = || usable().filter(|(facts, _)| facts.local);
        // Serving endpoints that terminate are used only while none is ready.
        let cluster_ready = usable().any(|(facts, _)| facts.ready);
        let local_ready = local().any(|(facts, _)| facts.ready);
        let chosen = |(facts, _): &(&EndpointFacts, u16)| {
            (uses_cluster && facts.ready == cluster_ready)
                || (uses_local && facts.local && facts.ready == local_ready)
        };
        let endpoint = |(facts, number): (&EndpointFacts, u16)| Endpoint {
            address: facts.address,
            port: number.to_be_bytes(),
            local: facts.local,
            udp: port.1 == Protocol::Udp,
            peer: facts.peer,
        };
        let mut reachable = Vec::with_capacity(usable().count());
        reachable.extend(usable().filter(chosen).map(endpoint));
        // An endpoint that moves may be in two slices; kube-proxy prefers the local entry.
        reachable.sort_unstable_by_key(|e| (e.address, e.port, !e.local));
        reachable.dedup_by_key(|e| (e.address, e.port));
        Self {
            has_any: usable().next().is_some(),
            has_local: uses_local && local().next().is_some(),
            reachable,
        }
    }
}

/// Usable endpoints, with the port number.
fn usable<'a>(
    slices: &'a [Arc<SliceFacts>],
    (name, protocol): (&'a str, Protocol),
    family: Family,
) -> impl Iterator<Item = (&'a EndpointFacts, u16)> {
    let usable = |facts: &EndpointFacts| facts.ready || (facts.serving && facts.terminating);
    slices.iter().flat_map(move |slice| {
        let ports = slice.ports.iter();
        let ports = ports.filter(move |port| port.protocol == protocol && &*port.name == name);
        ports.flat_map(move |port| {
            let endpoints = slice.endpoints.iter();
            let of_family = move |facts: &&EndpointFacts| Family::of(&facts.address) == family;
            let endpoints = endpoints
                .filter(of_family)
                .filter(move |facts| usable(facts));
            endpoints.map(move |facts| (facts, port.port))
        })
    })
}

#[cfg(test)]
mod tests;
