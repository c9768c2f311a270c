//! The sentinel's slices as the API has them.

use std::collections::BTreeMap;

use agent_common::service::Family;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::config::RotateConfig;
use agent_core::cluster::Protocol;
use agent_core::expect::node::address;
use agent_core::fleet::rotation::{SliceSeen, Wanted, slice_name};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Any other value, or none, and a controller of the cluster's may take the slice for its own.
const MANAGER: &str = "pathproof";

/// Selects the slices of a Service.
pub(super) fn selector(service: &str) -> String {
    format!("{SERVICE_NAME}={service}")
}

fn protocol(name: Option<&str>) -> Protocol {
    match name {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// A slice as it was read.
pub(super) fn seen(slice: &EndpointSlice) -> SliceSeen {
    let label = |key: &str| {
        slice
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(key))
    };
    let endpoints = slice.endpoints.as_deref().unwrap_or_default();
    let ready = |endpoint: &Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.is_none_or(|conditions| {
            conditions.ready != Some(false) && conditions.terminating != Some(true)
        })
    };
    let ports = slice.ports.as_deref().unwrap_or_default();
    SliceSeen {
        name: slice.metadata.name.clone().unwrap_or_default(),
        version: slice.metadata.resource_version.clone().unwrap_or_default(),
        family: Family::ALL
            .into_iter()
            .find(|family| slice.address_type == address_type(*family)),
        is_labelled: label(MANAGED_BY).is_some_and(|manager| manager == MANAGER),
        endpoints: (
            endpoints
                .iter()
                .flat_map(|one| one.addresses.clone())
                .collect(),
            endpoints.iter().all(ready),
        ),
        ports: ports
            .iter()
            .map(|port| {
                let number = port.port.and_then(|port| u16::try_from(port).ok());
                (
                    port.name.clone().unwrap_or_default(),
                    protocol(port.protocol.as_deref()),
                    number.unwrap_or(0),
                )
            })
            .collect(),
    }
}

/// What slices the Service needs, and how they are written.
pub(super) struct Shape {
    pub(super) wanted: Wanted,
}

impl Shape {
    pub(super) fn of(service: &Service, config: &RotateConfig) -> Self {
        let spec = service.spec.clone().unwrap_or_default();
        let ips = spec.cluster_ips.or(spec.cluster_ip.map(|ip| vec![ip]));
        let ips = ips.unwrap_or_default();
        let parsed = ips.iter().filter_map(|ip| ip.parse().ok());
        let held: Vec<Family> = parsed.map(|ip| Family::of(&address(&ip))).collect();
        let ports = spec.ports.unwrap_or_default().into_iter();
        Self {
            wanted: Wanted {
                service: config.service.name.to_string(),
                families: Family::ALL
                    .into_iter()
                    .filter(|family| held.contains(family))
                    .collect(),
                ports: ports
                    .map(|port| {
                        let protocol = protocol(port.protocol.as_deref());
                        (port.name.unwrap_or_default(), protocol)
                    })
                    .collect(),
                echo: config.echo,
            },
        }
    }

    /// A slice, to be created.
    pub(super) fn slice(&self, family: Family, generation: u16) -> EndpointSlice {
        EndpointSlice {
            address_type: address_type(family).to_owned(),
            metadata: ObjectMeta {
                name: Some(slice_name(&self.wanted.service, family)),
                labels: Some(self.labels()),
                ..ObjectMeta::default()
            },
            endpoints: Some(vec![self.endpoint(family)]),
            ports: Some(self.ports(generation)),
        }
    }

    /// What makes a slice the same again, if it is still at this version.
    pub(super) fn patch(&self, family: Family, generation: u16, version: &str) -> Value {
        json!({
            "metadata": { "resourceVersion": version, "labels": self.labels() },
            "endpoints": [self.endpoint(family)],
            "ports": self.ports(generation),
        })
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let service = self.wanted.service.clone();
        BTreeMap::from([
            (SERVICE_NAME.to_owned(), service),
            (MANAGED_BY.to_owned(), MANAGER.to_owned()),
        ])
    }

    fn endpoint(&self, family: Family) -> Endpoint {
        Endpoint {
            addresses: vec![self.wanted.echo[family as usize].to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                ..EndpointConditions::default()
            }),
            ..Endpoint::default()
        }
    }

    fn ports(&self, generation: u16) -> Vec<EndpointPort> {
        let ports = self.wanted.ports.iter();
        ports
            .map(|(name, protocol)| EndpointPort {
                name: Some(name.clone()),
                port: Some(i32::from(generation)),
                protocol: Some(protocol_name(*protocol).to_owned()),
                ..EndpointPort::default()
            })
            .collect()
    }
}
