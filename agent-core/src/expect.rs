//! What is owed: from the facts of a Service and of this node to the frontends that clients may
//! dial here, what the datapath owes each of them by the source of a connection, and the
//! endpoints that it may send them to.
//!
//! The rules are kube-proxy's (1.36, `pkg/proxy/topology.go`, `serviceport.go`,
//! `iptables/proxier.go`); docs/expectations.md has them as a table. Pure: the same facts always
//! give the same expectations. TCP and UDP are followed, but for the sentinel's UDP port, whose probes
//! are followed one by one.

use std::sync::Arc;

use agent_common::service::{
    Address, EndpointKey, EndpointValue, Family, FrontendKey, FrontendKind, FrontendValue, Owed,
    Port, SOURCE_CLASSES, TCP, UDP, endpoint_flag, frontend_flag,
};

use crate::cluster::{Protocol, ServiceFacts, ServicePort};
use crate::view::ServiceState;

mod endpoints;
pub mod node;
pub mod sentinel;

pub use endpoints::Endpoint;
use endpoints::EndpointSets;
pub use node::{NodeContext, SourcePrefix};

/// A frontend and what is owed to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// What clients dial.
    pub key: FrontendKey,
    /// Which of the Service's addresses it is.
    pub kind: FrontendKind,
    /// What is owed, by source class.
    pub owed: [Owed; SOURCE_CLASSES],
    /// Bits of [`frontend_flag`].
    pub flags: u8,
}

impl Frontend {
    /// As the map holds it, under a service id.
    pub fn value(&self, service: u32) -> FrontendValue {
        FrontendValue {
            service,
            kind: self.kind as u8,
            flags: self.flags,
            owed: self.owed.map(|owed| owed as u8),
            padding: [0; 3],
        }
    }
}

/// What is expected of one Service port in one family: what a service id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortExpectation {
    /// Name of the Service port; empty for the single unnamed one.
    pub port: Arc<str>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its number is 53, or its name says dns.
    pub dns: bool,
    /// Family.
    pub family: Family,
    /// Frontends, each key once, in the order of their keys.
    pub frontends: Vec<Frontend>,
    /// Endpoints that any of the frontends may be sent to, each once, in order.
    pub endpoints: Vec<Endpoint>,
}

/// What is expected of a Service on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// By port and family, in the order of the Service's ports.
    pub ports: Vec<PortExpectation>,
    /// Ports of other protocols than TCP and UDP, which are not followed.
    pub not_followed: u32,
}

impl Endpoint {
    /// As the map's key, under a service id.
    pub fn key(&self, service: u32) -> EndpointKey {
        EndpointKey {
            service,
            address: self.address,
            port: self.port,
            padding: [0; 2],
        }
    }

    /// As the map's value.
    pub fn value(&self) -> EndpointValue {
        EndpointValue {
            flags: if self.local { endpoint_flag::LOCAL } else { 0 }
                | if self.udp { endpoint_flag::UDP } else { 0 },
        }
    }
}

/// What is expected of a Service on a node. Without the Service nothing is; without the node
/// (an empty context) there are no node ports.
pub fn expectation(state: &ServiceState, node: &NodeContext) -> Expectation {
    let mut expectation = Expectation::default();
    let Some(service) = state.service.as_deref() else {
        return expectation;
    };
    for (at, port) in service.ports.iter().enumerate() {
        match port.protocol {
            Protocol::Tcp => {}
            Protocol::Udp if node.sentinel.as_ref() == Some(&service.name) => continue,
            Protocol::Udp => {}
            Protocol::Sctp => {
                expectation.not_followed += 1;
                continue;
            }
        }
        // The API server refuses two ports of one name; of those kube-proxy serves the last.
        let mut later = service.ports[at + 1..].iter();
        if later.any(|other| other.name == port.name && other.protocol == port.protocol) {
            continue;
        }
        for family in Family::ALL {
            // kube-proxy serves a family only where the Service has a cluster IP of it: a load
            // balancer's address of the other family has no rules.
            if let Some(cluster_ip) = cluster_ip(service, family) {
                let addresses = Addresses::new(service, port, node, family, cluster_ip);
                expectation
                    .ports
                    .push(port_expectation(state, service, port, node, &addresses));
            }
        }
    }
    expectation
}

/// The addresses that a Service port is served at in one family.
struct Addresses {
    family: Family,
    cluster_ip: Address,
    external_ips: Vec<Address>,
    load_balancer_ips: Vec<Address>,
    /// Of this node; empty without a node port.
    node_addresses: Vec<Address>,
    node_port: Port,
    port: Port,
    has_node_port: bool,
}

impl Addresses {
    fn new(
        service: &ServiceFacts,
        port: &ServicePort,
        node: &NodeContext,
        family: Family,
        cluster_ip: Address,
    ) -> Self {
        let of_family = |addresses: &[std::net::IpAddr]| -> Vec<Address> {
            addresses
                .iter()
                .map(node::address)
                .filter(|a| Family::of(a) == family)
                .collect()
        };
        let node_addresses = match port.node_port {
            Some(_) => node
                .addresses
                .iter()
                .copied()
                .filter(|a| Family::of(a) == family)
                .collect(),
            None => Vec::new(),
        };
        Self {
            family,
            cluster_ip,
            external_ips: of_family(&service.external_ips),
            load_balancer_ips: of_family(&service.load_balancer_ips),
            node_addresses,
            node_port: port.node_port.unwrap_or(0).to_be_bytes(),
            port: port.port.to_be_bytes(),
            has_node_port: port.node_port.is_some(),
        }
    }

    /// kube-proxy's `ExternallyAccessible`.
    fn are_external(&self) -> bool {
        self.has_node_port || !self.load_balancer_ips.is_empty() || !self.external_ips.is_empty()
    }
}

/// kube-proxy's `GetClusterIPByFamily`: the first of the family.
fn cluster_ip(service: &ServiceFacts, family: Family) -> Option<Address> {
    service
        .cluster_ips
        .iter()
        .map(node::address)
        .find(|a| Family::of(a) == family)
}

fn port_expectation(
    state: &ServiceState,
    service: &ServiceFacts,
    port: &ServicePort,
    node: &NodeContext,
    addresses: &Addresses,
) -> PortExpectation {
    let external = addresses.are_external();
    let sets = EndpointSets::collect(
        &state.slices,
        (&port.name, port.protocol),
        addresses.family,
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
    PortExpectation {
        port: Arc::clone(&port.name),
        protocol: port.protocol,
        dns: port.port == 53 || &*port.name == "dns",
        family: addresses.family,
        frontends: frontends(service, port.protocol, addresses, &sets, flags),
        endpoints: sets.reachable,
    }
}

fn frontends(
    service: &ServiceFacts,
    protocol: Protocol,
    addresses: &Addresses,
    sets: &EndpointSets,
    flags: u8,
) -> Vec<Frontend> {
    let protocol = if protocol == Protocol::Udp { UDP } else { TCP };
    let mut frontends = Vec::new();
    let mut add = |address: Address, port: Port, kind: FrontendKind| {
        let key = FrontendKey {
            address,
            port,
            protocol,
            padding: 0,
        };
        frontends.push(Frontend {
            key,
            kind,
            owed: owed(service, kind, sets),
            flags,
        });
    };
    add(
        addresses.cluster_ip,
        addresses.port,
        FrontendKind::ClusterIp,
    );
    for &address in &addresses.external_ips {
        add(address, addresses.port, FrontendKind::ExternalIp);
    }
    for &address in &addresses.load_balancer_ips {
        add(address, addresses.port, FrontendKind::LoadBalancer);
    }
    for &address in &addresses.node_addresses {
        add(address, addresses.node_port, FrontendKind::NodePort);
    }
    merge_equal_keys(&mut frontends);
    frontends
}

/// One address may be a Service's external IP and its load balancer's: where the two are owed
/// different things, nothing is owed for certain.
fn merge_equal_keys(frontends: &mut Vec<Frontend>) {
    frontends.sort_by_key(|frontend| (frontend.key, frontend.kind));
    frontends.dedup_by(|next, kept| {
        if next.key != kept.key {
            return false;
        }
        for (kept, next) in kept.owed.iter_mut().zip(next.owed) {
            if *kept != next {
                *kept = Owed::Nothing;
            }
        }
        true
    });
    frontends.shrink_to_fit();
}

/// What is owed to connections for a kind of frontend, by source class.
fn owed(service: &ServiceFacts, kind: FrontendKind, sets: &EndpointSets) -> [Owed; SOURCE_CLASSES] {
    // Where they go cannot be checked, nor that they go anywhere.
    if service.is_global {
        return [Owed::Nothing; SOURCE_CLASSES];
    }
    if !sets.has_any {
        return [Owed::Reject; SOURCE_CLASSES];
    }
    let local = if sets.has_local {
        Owed::LocalOnly
    } else {
        Owed::Nothing
    };
    match kind {
        FrontendKind::ClusterIp if service.internal_local => [local; SOURCE_CLASSES],
        FrontendKind::ClusterIp => [Owed::Forward; SOURCE_CLASSES],
        // Who is let in depends on the source, in finer grain than a class.
        FrontendKind::LoadBalancer if service.has_source_ranges => [Owed::Nothing; SOURCE_CLASSES],
        // kube-proxy treats what pods and the node itself send to an external address as if it
        // had gone out and come in again: the whole cluster's endpoints, whatever the policy.
        _ if service.external_local => [Owed::Forward, Owed::Forward, local],
        _ => [Owed::Forward; SOURCE_CLASSES],
    }
}

#[cfg(test)]
mod tests;
