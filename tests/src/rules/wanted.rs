//! What one family's rules have to do, before any syntax.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::objects::{Endpoint, Objects, Policy, Service, ServicePort, Slice};
use crate::world::Family;
use crate::world::layout::{self, NODE_NAME};

/// The rules of a family.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) family: Family,
    /// Addresses of pods: sources that are not masqueraded for ClusterIPs.
    pub(super) pods: &'static str,
    pub(super) ports: Vec<Port>,
}

/// One port of one Service.
#[derive(Debug)]
pub(super) struct Port {
    /// "namespace/name:port", for comments.
    pub(super) title: String,
    /// "tcp" or "udp".
    pub(super) protocol: String,
    pub(super) port: u16,
    pub(super) cluster_ips: Vec<IpAddr>,
    pub(super) node_port: Option<u16>,
    pub(super) load_balancer_ips: Vec<IpAddr>,
    pub(super) external_ips: Vec<IpAddr>,
    pub(super) source_ranges: Vec<String>,
    pub(super) external_local: bool,
    pub(super) internal_local: bool,
    /// Where the Cluster policy may send.
    pub(super) all: Vec<Target>,
    /// Where the Local policy may send.
    pub(super) local: Vec<Target>,
}

/// An endpoint: what the slice says, and where the rule sends (another place in a fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) endpoint: SocketAddr,
    pub(super) goes_to: SocketAddr,
}

/// What becomes of traffic to a frontend without an endpoint to send it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Reject,
    Drop,
}

impl Wanted {
    pub(super) fn of(
        objects: &Objects,
        family: Family,
        redirected: &BTreeMap<SocketAddr, SocketAddr>,
    ) -> Self {
        let (pods4, pods6) = layout::CLUSTER_CIDRS;
        let pods = if family == Family::V4 { pods4 } else { pods6 };
        let mut ports = Vec::new();
        for service in &objects.services {
            let slices: Vec<&Slice> = objects
                .slices
                .iter()
                .filter(|slice| belongs(slice, service))
                .collect();
            for port in &service.spec.ports {
                ports.extend(Port::of(service, port, &slices, family, redirected));
            }
        }
        Self {
            family,
            pods,
            ports,
        }
    }
}

impl Port {
    fn of(
        service: &Service,
        port: &ServicePort,
        slices: &[&Slice],
        family: Family,
        redirected: &BTreeMap<SocketAddr, SocketAddr>,
    ) -> Option<Self> {
        let spec = &service.spec;
        let ours = |address: &IpAddr| Family::of(*address) == family;
        let cluster_ips: Vec<IpAddr> = spec
            .cluster_ips
            .iter()
            .filter_map(|ip| ip.parse().ok())
            .filter(ours)
            .collect();
        if cluster_ips.is_empty() {
            return None;
        }
        let ingress = service.status.load_balancer.ingress.iter();
        let vips = ingress.filter(|entry| entry.ip_mode.as_deref().is_none_or(|m| m == "VIP"));
        let choose = |local: bool| {
            let pool = |wanted: fn(&Endpoint) -> bool| -> Vec<Target> {
                endpoints(slices, port, family)
                    .filter(|(endpoint, _)| wanted(endpoint))
                    .filter(|(endpoint, _)| !local || is_local(endpoint))
                    .map(|(_, address)| Target {
                        endpoint: address,
                        goes_to: redirected.get(&address).copied().unwrap_or(address),
                    })
                    .collect()
            };
            let ready = pool(is_ready);
            if ready.is_empty() {
                pool(is_serving_terminating)
            } else {
                ready
            }
        };
        Some(Self {
            title: format!(
                "{}/{}:{}",
                service.metadata.namespace, service.metadata.name, port.name
            ),
            protocol: port.protocol.to_lowercase(),
            port: port.port,
            cluster_ips,
            node_port: port.node_port,
            load_balancer_ips: vips.filter_map(|entry| entry.ip).filter(ours).collect(),
            external_ips: spec.external_ips.iter().copied().filter(ours).collect(),
            source_ranges: spec
                .load_balancer_source_ranges
                .iter()
                .filter(|range| range.contains(':') == (family == Family::V6))
                .cloned()
                .collect(),
            external_local: spec.external_traffic_policy == Policy::Local,
            internal_local: spec.internal_traffic_policy == Policy::Local,
            all: choose(false),
            local: choose(true),
        })
    }

    /// Whether the load balancer's address is open to some sources only.
    pub(super) fn is_restricted(&self) -> bool {
        !self.source_ranges.is_empty()
    }

    /// Refusal at the ClusterIP, where one is due.
    pub(super) fn internal_refusal(&self) -> Option<Refusal> {
        if self.all.is_empty() {
            Some(Refusal::Reject)
        } else {
            (self.internal_local && self.local.is_empty()).then_some(Refusal::Drop)
        }
    }

    /// Refusal at node port, load balancer and external addresses, where one is due.
    pub(super) fn external_refusal(&self) -> Option<Refusal> {
        if self.all.is_empty() {
            Some(Refusal::Reject)
        } else {
            (self.external_local && self.local.is_empty()).then_some(Refusal::Drop)
        }
    }
}

fn belongs(slice: &Slice, service: &Service) -> bool {
    slice.metadata.namespace == service.metadata.namespace
        && slice.metadata.labels.get("kubernetes.io/service-name") == Some(&service.metadata.name)
}

fn endpoints<'a>(
    slices: &'a [&Slice],
    port: &'a ServicePort,
    family: Family,
) -> impl Iterator<Item = (&'a Endpoint, SocketAddr)> {
    slices.iter().flat_map(move |slice| {
        let number = slice
            .ports
            .iter()
            .find(|candidate| candidate.name == port.name && candidate.protocol == port.protocol)
            .map(|candidate| candidate.port);
        slice.endpoints.iter().filter_map(move |endpoint| {
            let address = endpoint.addresses.first().copied()?;
            let fits = Family::of(address) == family;
            fits.then_some((endpoint, SocketAddr::new(address, number?)))
        })
    })
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.ready.unwrap_or(true)
}

fn is_serving_terminating(endpoint: &Endpoint) -> bool {
    let conditions = &endpoint.conditions;
    conditions.serving.unwrap_or_else(|| is_ready(endpoint))
        && conditions.terminating.unwrap_or(false)
}

fn is_local(endpoint: &Endpoint) -> bool {
    endpoint.node_name.as_deref() == Some(NODE_NAME)
}
