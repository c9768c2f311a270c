//! Facts about the cluster that matter for routing, as plain types: Node, Services, EndpointSlices.
//! Kubernetes types must not be used here: the agent's `cluster::convert` turns them into these facts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    /// Namespace; empty for a Node.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ObjectName {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    pub name: Arc<str>,
    /// `metadata.uid`; empty if there is none (a Node from a folder need not have one).
    pub uid: Arc<str>,
    /// `status.addresses` of type InternalIP and ExternalIP.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`, or `spec.podCIDR`.
    pub pod_cidrs: Vec<IpNet>,
    /// Keys of `spec.taints`. The effect is ignored, as kube-proxy does.
    pub taints: Vec<Arc<str>>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether condition `Ready` is Unknown: the control plane gets no reports from the kubelet.
    #[serde(rename = "unheard")]
    pub kubelet_silent: bool,
    /// Network problem of the node's pods, quoted from the Node's conditions.
    pub network: Option<Box<str>>,
    /// The raw value of the annotation [`ENFORCEMENT`](crate::switches::ENFORCEMENT).
    pub enforcement: Option<Box<str>>,
    /// Values of labels and statuses of conditions, by `label KEY` or `condition TYPE`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub marks: BTreeMap<Arc<str>, Arc<str>>,
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP: the observer follows it.
    Tcp,
    /// UDP: followed, and judged separately.
    Udp,
    /// SCTP: not followed.
    Sctp,
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// Port that clients dial.
    pub port: u16,
    /// Node port, if there is one.
    pub node_port: Option<u16>,
}

/// Facts about a Service. There are none for headless and ExternalName Services, and for those of another
/// proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFacts {
    pub name: ObjectName,
    /// `spec.clusterIPs`, or `spec.clusterIP`.
    pub cluster_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` whose ipMode is VIP or unset.
    pub load_balancer_ips: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    /// `spec.externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `spec.internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// Whether `spec.loadBalancerSourceRanges` (or its annotation) restricts sources.
    pub has_source_ranges: bool,
    /// Whether endpoints may be in other clusters, which have no slice here (Cilium's cluster mesh).
    pub is_global: bool,
    /// `spec.healthCheckNodePort` of a load balancer's Service with `externalTrafficPolicy: Local`.
    pub health_port: Option<u16>,
    /// The raw value of the annotation [`ENFORCEMENT`](crate::switches::ENFORCEMENT).
    pub enforcement: Option<Box<str>>,
}

/// One port of a slice, resolved: named target ports are numbers here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the Service port it belongs to.
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// Port at the endpoint.
    pub port: u16,
}

/// One address of a slice. It must stay small: each agent of a large cluster stores 100,000 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointFacts {
    pub address: pathproof_wire::service::Address,
    /// Condition `ready`; unset means true.
    pub ready: bool,
    /// Condition `serving`; unset means true (kube-proxy reads it if `ready` is false).
    pub serving: bool,
    /// Condition `terminating`; unset means false.
    pub terminating: bool,
    /// Whether `nodeName` is this node.
    pub local: bool,
    /// Number of the node in `nodeName`, as assigned by [`Change::Peers`]; zero for this node and for a
    /// node without a number.
    pub peer: u16,
}

/// Facts of an EndpointSlice of address type IPv4 or IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceFacts {
    pub name: ObjectName,
    /// Name of the Service it belongs to (label `kubernetes.io/service-name`), same namespace.
    pub service: Arc<str>,
    pub ports: Vec<SlicePort>,
    /// One entry for each of `endpoints`, with its first address (kube-proxy uses no other).
    pub endpoints: Vec<EndpointFacts>,
    /// The rotator's count of the cluster's nodes: the raw value of the annotation
    /// [`FLEET`](crate::fleet_report::FLEET).
    pub fleet: Option<Box<str>>,
}

/// One change of the view, from a folder or from the API server. Sources deliver batches, and a batch is
/// applied whole. Facts are in an `Arc`, because the source also stores them, to detect the next change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// This node's object was added or changed.
    Node(Arc<NodeFacts>),
    NodeGone,
    Service(Arc<ServiceFacts>),
    /// A Service is gone, or became headless, ExternalName or another proxy's.
    ServiceGone(ObjectName),
    Slice(Arc<SliceFacts>),
    SliceGone {
        slice: ObjectName,
        service: Arc<str>,
    },
    /// New numbers of other nodes, from 1 to `PEERS`. A number is never reused for another node.
    Peers(Vec<(u16, Arc<str>)>),
    /// The initial view was delivered completely.
    Synced,
}

impl Change {
    /// Estimate of the memory that this change takes, in ports or endpoints.
    pub fn size(&self) -> usize {
        const OBJECT: usize = 10;
        OBJECT
            + match self {
                Change::Service(facts) => facts.ports.len(),
                Change::Slice(facts) => facts.ports.len() + facts.endpoints.len(),
                _ => 0,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_large_object_weighs_as_many_small_ones() {
        let slice = |ports: usize| SliceFacts {
            name: ObjectName::new("n", "web-1"),
            service: "web".into(),
            ports: vec![
                SlicePort {
                    name: "http".into(),
                    protocol: Protocol::Tcp,
                    port: 80,
                };
                ports
            ],
            endpoints: Vec::new(),
            fleet: None,
        };
        let size = |ports| Change::Slice(Arc::new(slice(ports))).size();
        assert_eq!(size(20_000), 20_000 + 10);
        assert_eq!(size(1) + Change::NodeGone.size(), 21);
    }
}
