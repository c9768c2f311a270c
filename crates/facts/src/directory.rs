//! Lookup of Services by the ids in evidence, and numbers of entries missing from the kernel's maps.

use std::collections::BTreeMap;
use std::sync::Arc;

use pathproof_wire::service::Family;
use serde::{Deserialize, Serialize};

use crate::cluster::ObjectName;
use crate::time::Mono;

/// Numbers of entries that are missing from the maps. All zero is full coverage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Frontends, including those withheld because endpoints are missing.
    pub frontends: u64,
    pub endpoints: u64,
    pub sources: u64,
    /// Service ports without an id.
    pub services: u64,
}

/// Resolves the Service ids in evidence, read-only. `pathproof_plan::Planner` implements it.
pub trait Directory {
    /// The Service port and family of an id that is currently expected.
    fn service(&self, id: u32) -> Option<ServiceInfo>;
}

impl Directory for BTreeMap<u32, ServiceInfo> {
    fn service(&self, id: u32) -> Option<ServiceInfo> {
        self.get(&id).cloned()
    }
}

/// Facts about a Service port and family that evidence needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceInfo {
    pub name: ObjectName,
    /// Name of the port; empty if the Service has one unnamed port.
    pub port: Arc<str>,
    pub family: Family,
    pub endpoints: u32,
    /// Whether it is a UDP port. Its counts are reported, but never accuse a node.
    pub udp: bool,
    pub dns: bool,
    /// Whether it is the sentinel's Service. Its probes are judged separately; it has no real connections.
    pub sentinel: bool,
    /// Whether it is the pod probe's Service ([`ECHO_SERVICE`](crate::node_context::ECHO_SERVICE)). Each
    /// node has one pod of it, which accepts all clients.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub echo: bool,
    /// Whether some of its endpoints are the node itself, whose answers need no forwarding.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_host: bool,
    /// When another Service last began or ceased to use one of its frontends. Connections under way at that
    /// time may have gone to either Service.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "disputed")]
    pub conflict_changed: Option<Mono>,
    /// Since when all its frontends have been expected, with endpoints, as far as this agent knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Mono>,
}

impl ServiceInfo {
    /// The unnamed TCP port of a Service with one endpoint, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn plain(namespace: &str, name: &str, family: Family) -> Self {
        Self {
            name: ObjectName::new(namespace, name),
            port: "".into(),
            family,
            endpoints: 1,
            udp: false,
            dns: false,
            sentinel: false,
            echo: false,
            on_host: false,
            conflict_changed: None,
            since: None,
        }
    }

    /// `namespace/name`, with `:port` if the port has a name.
    pub fn label(&self) -> String {
        match &*self.port {
            "" => self.name.to_string(),
            port => format!("{}:{port}", self.name),
        }
    }
}
