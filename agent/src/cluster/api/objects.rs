//! Objects as an API server serves them, cut down to what facts are made of.
//!
//! Most of an object is never looked at (who manages which field, images, zones, hints): what is
//! not named here is skipped while it is read. An object that is not of its kind is an error with
//! its name, and never a panic.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{
    Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Service, ServiceSpec, ServiceStatus,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::Kind;
use crate::cluster::yaml::Object;

/// Marks the end of what was there when a streaming list began.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// What every object says of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Meta {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) deletion_timestamp: Option<IgnoredAny>,
    pub(super) labels: Option<BTreeMap<String, Option<String>>>,
    pub(super) annotations: Option<BTreeMap<String, Option<String>>>,
}

/// An object of which nothing else matters, or nothing else is understood.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Stub {
    pub(super) metadata: Meta,
}

impl Stub {
    /// Whether it is the bookmark that ends a streaming list.
    pub(super) fn ends_list(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| annotations.contains_key(INITIAL_END))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SlimNode {
    metadata: Meta,
    spec: Option<NodeSpec>,
    status: Option<SlimNodeStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SlimNodeStatus {
    addresses: Option<Vec<NodeAddress>>,
    conditions: Option<Vec<SlimCondition>>,
}

/// Its times are left out: one that is odd would make the whole Node unreadable.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SlimCondition {
    #[serde(rename = "type")]
    kind: Option<String>,
    status: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SlimService {
    metadata: Meta,
    spec: Option<ServiceSpec>,
    status: Option<ServiceStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimSlice {
    metadata: Meta,
    address_type: Option<String>,
    endpoints: Option<Vec<SlimEndpoint>>,
    ports: Option<Vec<EndpointPort>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimEndpoint {
    addresses: Option<Vec<String>>,
    conditions: Option<EndpointConditions>,
    node_name: Option<String>,
}

/// An object that was read, with the version at which a watch goes on after it.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) object: Object,
    pub(super) version: Option<String>,
}

/// Reads an object.
///
/// # Errors
/// It is not of its kind.
pub(super) fn read(kind: Kind, text: &RawValue) -> Result<Read, serde_json::Error> {
    let (object, version) = match kind {
        Kind::Node => {
            let slim: SlimNode = serde_json::from_str(text.get())?;
            let (metadata, version) = slim.metadata.whole();
            let status = slim.status.map(|status| NodeStatus {
                addresses: status.addresses,
                conditions: status
                    .conditions
                    .map(|of| of.into_iter().map(SlimCondition::whole).collect()),
                ..NodeStatus::default()
            });
            let node = Node {
                metadata,
                spec: slim.spec,
                status,
            };
            (Object::Node(Box::new(node)), version)
        }
        Kind::Service => {
            let slim: SlimService = serde_json::from_str(text.get())?;
            let (metadata, version) = slim.metadata.whole();
            let service = Service {
                metadata,
                spec: slim.spec,
                status: slim.status,
            };
            (Object::Service(Box::new(service)), version)
        }
        Kind::Slice => {
            let slim: SlimSlice = serde_json::from_str(text.get())?;
            let (metadata, version) = slim.metadata.whole();
            let endpoints = slim.endpoints.map(|listed| {
                let whole = listed.into_iter().map(SlimEndpoint::whole);
                whole.collect()
            });
            let slice = EndpointSlice {
                metadata,
                address_type: slim.address_type.unwrap_or_default(),
                endpoints,
                ports: slim.ports,
            };
            (Object::Slice(Box::new(slice)), version)
        }
    };
    Ok(Read { object, version })
}

impl Meta {
    /// In the type that is converted, and the version.
    fn whole(self) -> (ObjectMeta, Option<String>) {
        let strings = |map: Option<BTreeMap<String, Option<String>>>| {
            let map = map?.into_iter();
            Some(
                map.map(|(key, value)| (key, value.unwrap_or_default()))
                    .collect(),
            )
        };
        let metadata = ObjectMeta {
            name: self.name,
            namespace: self.namespace,
            uid: self.uid,
            // That it is there matters, and not when it was.
            deletion_timestamp: self
                .deletion_timestamp
                .map(|_| Time(jiff::Timestamp::UNIX_EPOCH)),
            labels: strings(self.labels),
            annotations: strings(self.annotations),
            ..ObjectMeta::default()
        };
        (metadata, self.resource_version)
    }
}

impl SlimCondition {
    fn whole(self) -> NodeCondition {
        NodeCondition {
            type_: self.kind.unwrap_or_default(),
            status: self.status.unwrap_or_default(),
            ..NodeCondition::default()
        }
    }
}

impl SlimEndpoint {
    fn whole(self) -> Endpoint {
        Endpoint {
            addresses: self.addresses.unwrap_or_default(),
            conditions: self.conditions,
            node_name: self.node_name,
            ..Endpoint::default()
        }
    }
}

/// Addresses of a list of slices that are ready, with the port named https or else the first.
pub(super) fn addresses(list: &[u8]) -> Vec<SocketAddr> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Slices {
        items: Vec<SlimSlice>,
    }
    let slices: Slices = serde_json::from_slice(list).unwrap_or_default();
    let of_slice = |slice: SlimSlice| {
        let ports = slice.ports.unwrap_or_default();
        let https = ports
            .iter()
            .find(|port| port.name.as_deref() == Some("https"));
        let port = https.or(ports.first()).and_then(|port| port.port);
        let port = port
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port != 0);
        let endpoints = slice.endpoints.unwrap_or_default().into_iter();
        let ready = endpoints.filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready) != Some(false)
        });
        let texts = ready.flat_map(|endpoint| endpoint.addresses.unwrap_or_default());
        let ips = texts.filter_map(|text| text.parse::<IpAddr>().ok());
        let found = port.map(|port| ips.map(move |ip| SocketAddr::new(ip, port)));
        found.into_iter().flatten().collect::<Vec<_>>()
    };
    slices.items.into_iter().flat_map(of_slice).collect()
}

#[cfg(test)]
mod tests;
