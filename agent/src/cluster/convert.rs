//! Kubernetes objects to facts, read as kube-proxy 1.36 reads them. The only place that knows
//! Kubernetes types.
//!
//! What the API server would have refused is refused here too, with the object, the field and the
//! value: a folder has no API server in front of it.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Node, NodeCondition, NodeStatus, Service, ServicePort as KubeServicePort, ServiceSpec,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use agent_core::cluster::{
    EndpointFacts, NodeFacts, ObjectName, Protocol, ServiceFacts, ServicePort, SliceFacts,
    SlicePort,
};
use agent_core::expect::node::address;

/// Another proxy than kube-proxy serves the object that has it.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Marks what belongs to a headless Service.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Names the Service of a slice.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Of Cilium's cluster mesh, now and before 1.13.
const GLOBAL_ANNOTATIONS: [&str; 2] = ["service.cilium.io/global", "io.cilium/global-service"];
/// The older form of `spec.loadBalancerSourceRanges`.
const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// A value that no such object may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name}: {field} {value}: {reason}")]
pub struct Invalid {
    /// Kind of the object.
    pub kind: &'static str,
    /// Its name, with the namespace where it has one.
    pub name: String,
    /// Path of the field.
    pub field: String,
    /// What stands there, quoted; `is missing` where nothing does.
    pub value: String,
    /// What may stand there.
    pub reason: &'static str,
}

/// Why an object is passed over. It is not wrong: it is not routed by this node's proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skipped {
    /// A Service without a cluster IP, or what belongs to one.
    Headless,
    /// A Service of type ExternalName.
    ExternalName,
    /// Another proxy serves it.
    OtherProxy,
    /// A slice of domain names.
    Fqdn,
    /// A slice of no Service.
    NoService,
    /// Another node.
    OtherNode,
}

impl Skipped {
    /// In words, for the count of what is ignored.
    pub fn words(self) -> &'static str {
        match self {
            Skipped::Headless => "headless",
            Skipped::ExternalName => "ExternalName",
            Skipped::OtherProxy => "served by another proxy",
            Skipped::Fqdn => "of domain names",
            Skipped::NoService => "of no Service",
            Skipped::OtherNode => "other nodes",
        }
    }
}

/// An object as facts, or why it is passed over.
pub type Converted<T> = Result<Result<T, Skipped>, Invalid>;

/// Whether the control plane says of the node that it does not hear its kubelet.
fn is_unheard(status: &NodeStatus) -> bool {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let unheard = |of: &NodeCondition| (&*of.type_, &*of.status) == ("Ready", "Unknown");
    conditions.iter().any(unheard)
}

/// Turns objects into facts. Keeps the strings that many objects share (namespaces, names of
/// ports) once.
#[derive(Debug, Default)]
pub struct Converter {
    node_name: String,
    shared: HashSet<Arc<str>>,
}

impl Converter {
    /// For the node of that name.
    pub fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.to_owned(),
            shared: HashSet::new(),
        }
    }

    /// A Node; skipped unless it is this one.
    pub fn node(&self, node: &Node) -> Converted<NodeFacts> {
        let named = Named::cluster("Node", &node.metadata)?;
        if named.name != self.node_name {
            return Ok(Err(Skipped::OtherNode));
        }
        let mut facts = NodeFacts {
            name: named.name.as_str().into(),
            uid: node.metadata.uid.as_deref().unwrap_or_default().into(),
            deleting: node.metadata.deletion_timestamp.is_some(),
            unheard: node.status.as_ref().is_some_and(is_unheard),
            ..NodeFacts::default()
        };
        let addresses = node
            .status
            .as_ref()
            .and_then(|status| status.addresses.as_deref());
        for (at, entry) in addresses.unwrap_or_default().iter().enumerate() {
            if matches!(entry.type_.as_str(), "InternalIP" | "ExternalIP") {
                let ip = named.ip(&format!("status.addresses[{at}].address"), &entry.address)?;
                if !facts.addresses.contains(&ip) {
                    facts.addresses.push(ip);
                }
            }
        }
        let Some(spec) = &node.spec else {
            return Ok(Ok(facts));
        };
        let cidrs = spec.pod_cidrs.as_deref().filter(|cidrs| !cidrs.is_empty());
        for cidr in cidrs.unwrap_or(spec.pod_cidr.as_slice()) {
            let parsed: ipnet::IpNet = cidr.parse().map_err(|_| {
                named.invalid(
                    "spec.podCIDRs",
                    cidr,
                    "a CIDR such as 10.244.1.0/24 is wanted",
                )
            })?;
            facts.pod_cidrs.push(parsed.trunc());
        }
        let taints = spec.taints.as_deref().unwrap_or_default();
        facts.taints = taints
            .iter()
            .map(|taint| taint.key.as_str().into())
            .collect();
        Ok(Ok(facts))
    }

    /// A Service.
    pub fn service(&mut self, service: &Service) -> Converted<ServiceFacts> {
        let named = Named::namespaced("Service", &service.metadata)?;
        if has_label(&service.metadata, PROXY_NAME_LABEL) {
            return Ok(Err(Skipped::OtherProxy));
        }
        if has_label(&service.metadata, HEADLESS_LABEL) {
            return Ok(Err(Skipped::Headless));
        }
        let empty = ServiceSpec::default();
        let spec = service.spec.as_ref().unwrap_or(&empty);
        if spec.type_.as_deref() == Some("ExternalName") {
            return Ok(Err(Skipped::ExternalName));
        }
        let cluster_ips = cluster_ips(spec);
        if matches!(cluster_ips.first().copied(), None | Some("" | "None")) {
            return Ok(Err(Skipped::Headless));
        }
        let facts = ServiceFacts {
            name: self.object_name(&named),
            cluster_ips: named.ips("spec.clusterIPs", cluster_ips.into_iter())?,
            external_ips: named.ips("spec.externalIPs", strings(&spec.external_ips))?,
            load_balancer_ips: load_balancer_ips(service, &named)?,
            ports: self.service_ports(spec, &named)?,
            external_local: is_external(spec)
                && spec.external_traffic_policy.as_deref() == Some("Local"),
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            has_source_ranges: strings(&spec.load_balancer_source_ranges).next().is_some()
                || annotation(&service.metadata, SOURCE_RANGES_ANNOTATION).is_some(),
            is_global: GLOBAL_ANNOTATIONS
                .into_iter()
                .any(|key| annotation(&service.metadata, key) == Some("true")),
        };
        Ok(Ok(facts))
    }

    /// An EndpointSlice.
    pub fn slice(&mut self, slice: &EndpointSlice) -> Converted<SliceFacts> {
        let named = Named::namespaced("EndpointSlice", &slice.metadata)?;
        if has_label(&slice.metadata, PROXY_NAME_LABEL) {
            return Ok(Err(Skipped::OtherProxy));
        }
        if has_label(&slice.metadata, HEADLESS_LABEL) {
            return Ok(Err(Skipped::Headless));
        }
        let wants_v4 = match slice.address_type.as_str() {
            "IPv4" => true,
            "IPv6" => false,
            "FQDN" => return Ok(Err(Skipped::Fqdn)),
            other => {
                let reason = "IPv4, IPv6 or FQDN is wanted";
                return Err(named.invalid("addressType", other, reason));
            }
        };
        let Some(service) = label(&slice.metadata, SERVICE_NAME_LABEL) else {
            return Ok(Err(Skipped::NoService));
        };
        let listed = slice.endpoints.as_deref().unwrap_or_default();
        let mut endpoints = Vec::with_capacity(listed.len());
        for (at, endpoint) in listed.iter().enumerate() {
            if let Some(text) = endpoint.addresses.first() {
                let field = || format!("endpoints[{at}].addresses[0]");
                let ip = named.ip_lazily(field, text)?;
                if ip.is_ipv4() != wants_v4 {
                    let reason = "not of the slice's addressType";
                    return Err(named.invalid(&field(), text, reason));
                }
                endpoints.push(self.endpoint(endpoint, &ip));
            }
        }
        Ok(Ok(SliceFacts {
            name: self.object_name(&named),
            service: service.into(),
            ports: self.slice_ports(slice.ports.as_deref().unwrap_or_default(), &named)?,
            endpoints,
        }))
    }

    fn endpoint(&self, endpoint: &Endpoint, ip: &IpAddr) -> EndpointFacts {
        let conditions = endpoint.conditions.as_ref();
        EndpointFacts {
            address: address(ip),
            ready: conditions.and_then(|c| c.ready).unwrap_or(true),
            serving: conditions.and_then(|c| c.serving).unwrap_or(true),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
            local: !self.node_name.is_empty()
                && endpoint.node_name.as_deref() == Some(self.node_name.as_str()),
        }
    }

    fn service_ports(
        &mut self,
        spec: &ServiceSpec,
        named: &Named,
    ) -> Result<Vec<ServicePort>, Invalid> {
        let listed = spec.ports.as_deref().unwrap_or_default();
        let mut ports: Vec<ServicePort> = Vec::with_capacity(listed.len());
        for (at, port) in listed.iter().enumerate() {
            let next = self.service_port(port, at, named)?;
            for other in ports.iter().filter(|other| other.protocol == next.protocol) {
                let field = format!("spec.ports[{at}]");
                if other.name == next.name {
                    let reason = "another port of the Service has the same name";
                    return Err(named.invalid(&format!("{field}.name"), &next.name, reason));
                }
                if other.port == next.port {
                    let reason = "another port of the Service has the same number";
                    let value = next.port.to_string();
                    return Err(named.invalid(&format!("{field}.port"), &value, reason));
                }
            }
            ports.push(next);
        }
        Ok(ports)
    }

    fn service_port(
        &mut self,
        port: &KubeServicePort,
        at: usize,
        named: &Named,
    ) -> Result<ServicePort, Invalid> {
        let field = |name: &str| format!("spec.ports[{at}].{name}");
        let node_port = match port.node_port {
            None | Some(0) => None,
            Some(number) => Some(named.port(|| field("nodePort"), number)?),
        };
        Ok(ServicePort {
            name: self.share(port.name.as_deref().unwrap_or_default()),
            protocol: named.protocol(|| field("protocol"), port.protocol.as_deref())?,
            port: named.port(|| field("port"), port.port)?,
            node_port,
        })
    }

    fn slice_ports(
        &mut self,
        listed: &[EndpointPort],
        named: &Named,
    ) -> Result<Vec<SlicePort>, Invalid> {
        let mut ports = Vec::with_capacity(listed.len());
        for (at, port) in listed.iter().enumerate() {
            let field = |name: &str| format!("ports[{at}].{name}");
            // A port of no number means all ports, which kube-proxy does not serve.
            let Some(number) = port.port.filter(|number| *number != 0) else {
                continue;
            };
            ports.push(SlicePort {
                name: self.share(port.name.as_deref().unwrap_or_default()),
                protocol: named.protocol(|| field("protocol"), port.protocol.as_deref())?,
                port: named.port(|| field("port"), number)?,
            });
        }
        Ok(ports)
    }

    fn object_name(&mut self, named: &Named) -> ObjectName {
        ObjectName {
            namespace: self.share(&named.namespace),
            name: named.name.as_str().into(),
        }
    }

    fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.shared.get(text) {
            return Arc::clone(known);
        }
        // Names come and go: now and then drop those that nothing uses any more.
        if self.shared.len() == self.shared.capacity() {
            self.shared.retain(|known| Arc::strong_count(known) > 1);
        }
        let new: Arc<str> = text.into();
        self.shared.insert(Arc::clone(&new));
        new
    }
}

/// An object's kind and name, for errors.
struct Named {
    kind: &'static str,
    namespace: String,
    name: String,
}

impl Named {
    fn cluster(kind: &'static str, metadata: &ObjectMeta) -> Result<Self, Invalid> {
        match metadata.name.as_deref() {
            Some(name) if !name.is_empty() => Ok(Self {
                kind,
                namespace: String::new(),
                name: name.to_owned(),
            }),
            _ => Err(Invalid {
                kind,
                name: "without a name".to_owned(),
                field: "metadata.name".to_owned(),
                value: "is missing".to_owned(),
                reason: "every object has a name",
            }),
        }
    }

    /// An object without a namespace is in `default`, as for `kubectl apply`.
    fn namespaced(kind: &'static str, metadata: &ObjectMeta) -> Result<Self, Invalid> {
        let namespace = metadata
            .namespace
            .as_deref()
            .filter(|namespace| !namespace.is_empty());
        let namespace = namespace.unwrap_or("default").to_owned();
        Ok(Self {
            namespace,
            ..Self::cluster(kind, metadata)?
        })
    }

    fn invalid(&self, field: &str, value: &str, reason: &'static str) -> Invalid {
        let name = match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        };
        let value = format!("is {value:?}");
        Invalid {
            kind: self.kind,
            name,
            field: field.to_owned(),
            value,
            reason,
        }
    }

    fn ips<'a>(
        &self,
        field: &str,
        texts: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<IpAddr>, Invalid> {
        texts
            .enumerate()
            .map(|(at, text)| self.ip_lazily(|| format!("{field}[{at}]"), text))
            .collect()
    }

    fn ip(&self, field: &str, text: &str) -> Result<IpAddr, Invalid> {
        self.ip_lazily(|| field.to_owned(), text)
    }

    fn ip_lazily(&self, field: impl Fn() -> String, text: &str) -> Result<IpAddr, Invalid> {
        match text.parse() {
            // In the maps it would be the IPv4 address that it means, in the wrong family.
            Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
                let reason = "an IPv4 address in IPv6 clothes; write it as IPv4";
                Err(self.invalid(&field(), text, reason))
            }
            Ok(ip) => Ok(ip),
            Err(_) => Err(self.invalid(&field(), text, "an IP address is wanted")),
        }
    }

    fn port(&self, field: impl Fn() -> String, number: i32) -> Result<u16, Invalid> {
        match u16::try_from(number) {
            Ok(port) if port != 0 => Ok(port),
            _ => Err(self.invalid(&field(), &number.to_string(), "a port is 1 to 65535")),
        }
    }

    fn protocol(
        &self,
        field: impl Fn() -> String,
        protocol: Option<&str>,
    ) -> Result<Protocol, Invalid> {
        match protocol {
            None | Some("" | "TCP") => Ok(Protocol::Tcp),
            Some("UDP") => Ok(Protocol::Udp),
            Some("SCTP") => Ok(Protocol::Sctp),
            Some(other) => Err(self.invalid(&field(), other, "TCP, UDP or SCTP is wanted")),
        }
    }
}

/// `spec.clusterIPs`, or `spec.clusterIP` where a hand-written Service has only that.
fn cluster_ips(spec: &ServiceSpec) -> Vec<&str> {
    let listed: Vec<&str> = strings(&spec.cluster_ips).collect();
    if listed.is_empty() {
        spec.cluster_ip.as_deref().into_iter().collect()
    } else {
        listed
    }
}

/// kube-proxy's `ExternallyAccessible` of a whole Service: elsewhere the policy says nothing.
fn is_external(spec: &ServiceSpec) -> bool {
    match spec.type_.as_deref() {
        Some("NodePort" | "LoadBalancer") => true,
        _ => strings(&spec.external_ips).next().is_some(),
    }
}

/// Addresses that this node itself serves: those of mode Proxy are the load balancer's own.
fn load_balancer_ips(service: &Service, named: &Named) -> Result<Vec<IpAddr>, Invalid> {
    let status = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let ingress = status
        .and_then(|status| status.ingress.as_deref())
        .unwrap_or_default();
    let mut ips = Vec::new();
    for (at, entry) in ingress.iter().enumerate() {
        let field = |name: &str| format!("status.loadBalancer.ingress[{at}].{name}");
        match entry.ip_mode.as_deref() {
            None | Some("VIP") => {}
            Some("Proxy") => continue,
            Some(other) => {
                return Err(named.invalid(&field("ipMode"), other, "VIP or Proxy is wanted"));
            }
        }
        if let Some(ip) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) {
            ips.push(named.ip(&field("ip"), ip)?);
        }
    }
    Ok(ips)
}

fn strings(list: &Option<Vec<String>>) -> impl Iterator<Item = &str> {
    list.iter().flatten().map(String::as_str)
}

fn lookup<'a>(map: &'a Option<BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    map.as_ref()?.get(key).map(String::as_str)
}

fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    lookup(&metadata.labels, key).filter(|value| !value.is_empty())
}

fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    lookup(&metadata.annotations, key).filter(|value| !value.trim().is_empty())
}

/// Whether a label is there, whatever its value: kube-proxy's selectors ask no more.
fn has_label(metadata: &ObjectMeta, key: &str) -> bool {
    lookup(&metadata.labels, key).is_some()
}

#[cfg(test)]
mod tests;
