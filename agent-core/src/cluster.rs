//! Facts about the cluster, in our own types: what the node, a Service and an EndpointSlice say
//! that matters for routing. No Kubernetes type comes here; `cluster::convert` makes these.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::time::Wall;

/// Namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    /// Namespace; empty for a Node.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectName {
    /// Name of a namespaced object.
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

/// Facts of this node's Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`; empty where there is none (a folder's Node need not have one).
    pub uid: Arc<str>,
    /// `status.addresses` of type InternalIP and ExternalIP.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`, or `spec.podCIDR`.
    pub pod_cidrs: Vec<IpNet>,
    /// Keys of `spec.taints`; kube-proxy ignores the effect, and so do we.
    pub taints: Vec<Arc<str>>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Condition `Ready` is Unknown: the control plane does not hear the node's kubelet.
    pub unheard: bool,
    /// What the Node's conditions say is wrong with its pods' network, in their words.
    #[serde(default)]
    pub network: Option<Box<str>>,
    /// The annotation [`ENFORCEMENT`](crate::switches::ENFORCEMENT), as it stands there.
    #[serde(default)]
    pub enforcement: Option<Box<str>>,
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP: what the observer follows.
    Tcp,
    /// UDP: followed, and judged apart.
    Udp,
    /// SCTP: not followed.
    Sctp,
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name; empty for the single unnamed port.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Port that clients dial.
    pub port: u16,
    /// Node port, where there is one.
    pub node_port: Option<u16>,
}

/// Facts of a Service. Headless, ExternalName and foreign-proxied Services have none: they are
/// skipped before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFacts {
    /// Namespace and name.
    pub name: ObjectName,
    /// `spec.clusterIPs`, or `spec.clusterIP`.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` whose ipMode is VIP or unset.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `spec.internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// Whether `spec.loadBalancerSourceRanges` (or its annotation) restricts sources.
    pub has_source_ranges: bool,
    /// Its endpoints may lie in other clusters, which no slice here tells of (Cilium's cluster mesh).
    pub is_global: bool,
    /// `spec.healthCheckNodePort` of a load balancer's Service with `externalTrafficPolicy: Local`.
    pub health_port: Option<u16>,
    /// The annotation [`ENFORCEMENT`](crate::switches::ENFORCEMENT), as it stands there.
    pub enforcement: Option<Box<str>>,
}

/// One port of a slice, resolved: named target ports are numbers here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the Service port it belongs to.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Port at the endpoint.
    pub port: u16,
}

/// One address of a slice. Kept small: a large cluster has 100,000 of them on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointFacts {
    /// Mapped address (`agent_common::service::Address`).
    pub address: agent_common::service::Address,
    /// Condition `ready`; unset means true.
    pub ready: bool,
    /// Condition `serving`; unset means true (kube-proxy asks for it where `ready` is false).
    pub serving: bool,
    /// Condition `terminating`; unset means false.
    pub terminating: bool,
    /// `nodeName` is this node.
    pub local: bool,
    /// Number of the other node that `nodeName` is, by [`Change::Peers`]; zero where there is none.
    pub peer: u16,
}

/// Facts of an EndpointSlice of address type IPv4 or IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceFacts {
    /// Namespace and name.
    pub name: ObjectName,
    /// Name of the Service it belongs to (label `kubernetes.io/service-name`), same namespace.
    pub service: Arc<str>,
    /// `ports`.
    pub ports: Vec<SlicePort>,
    /// `endpoints`, one entry for the first address of each (kube-proxy uses no other).
    pub endpoints: Vec<EndpointFacts>,
    /// The rotator's count of the cluster's nodes, as text: the annotation
    /// [`FLEET`](crate::brake::FLEET).
    pub fleet: Option<Box<str>>,
    /// Time of the event for which the control plane last changed its endpoints: the annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time`. Pods' readiness has whole seconds.
    pub triggered: Option<Wall>,
}

/// One change of the view, from a folder or from the API server. Sources deliver them in batches;
/// a batch is applied whole. Facts are shared: a source keeps them to tell what changed next.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// This node's object is now so.
    Node(Arc<NodeFacts>),
    /// This node's object is gone.
    NodeGone,
    /// A Service is now so.
    Service(Arc<ServiceFacts>),
    /// A Service is gone (or became headless, ExternalName or foreign).
    ServiceGone(ObjectName),
    /// A slice is now so.
    Slice(Arc<SliceFacts>),
    /// A slice is gone, of the Service named.
    SliceGone {
        /// The slice.
        slice: ObjectName,
        /// Name of its Service, same namespace.
        service: Arc<str>,
    },
    /// Numbers of other nodes, from 1 to [`PEERS`](crate::peers::PEERS), each given once.
    Peers(Vec<(u16, Arc<str>)>),
    /// Everything that was there at the start has been delivered.
    Synced,
}
