//! Converts Kubernetes objects to facts, as kube-proxy 1.36 reads them.
//!
//! Values that the API server would refuse are refused here too, because the objects of a folder did not pass
//! an API server. The error names the object, the field and the value.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{
    Node, NodeCondition, ServicePort as KubeServicePort, ServiceSpec,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pathproof_facts::cluster::{
    Change, EndpointFacts, NodeFacts, ObjectName, Protocol, ServiceFacts, ServicePort, SliceFacts,
    SlicePort,
};
use pathproof_facts::fleet_report::{FLEET, FLEET_LENGTH};
use pathproof_facts::node_context::address;
use pathproof_facts::switches::ENFORCEMENT;

use self::marks::marks;
pub(in crate::cluster) use self::marks::shuts_down;
use self::peers::PeerNumbers;
use super::facts::{Object, ObjectFacts, ServedService, ServedSlice, ServedStatus, object_names};

/// Labels of objects that kube-proxy does not serve, or leaves to another proxy. kube-proxy's selectors test
/// only whether the label exists.
pub(crate) const NOT_SERVED_LABELS: [&str; 2] = [
    "service.kubernetes.io/service-proxy-name",
    "service.kubernetes.io/headless",
];
/// kubelet's reason, in the message of its condition Ready, while no CNI plugin is configured.
const NO_NETWORK: &str = "NetworkPluginNotReady";
/// Label with the name of a slice's Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Annotations that make a Service global in Cilium's cluster mesh: the current name, and the name before
/// Cilium 1.13.
const GLOBAL_ANNOTATIONS: [&str; 2] = ["service.cilium.io/global", "io.cilium/global-service"];
/// Maximum number of endpoints of a slice in Kubernetes (pkg/apis/discovery/validation).
const MAX_ENDPOINTS: usize = 1_000;
/// Maximum number of ports of a slice in Kubernetes.
const MAX_PORTS: usize = 20_000;
/// The older form of `spec.loadBalancerSourceRanges`.
const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// A defect of an object: its name, a field, the field's value and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Invalid(String);

fn invalid(field: impl Display, value: &str, reason: &'static str) -> Invalid {
    Invalid(format!("{field} is {value:?}: {reason}"))
}

fn at_most(most: usize, field: &str, count: usize) -> Result<(), Invalid> {
    match count > most {
        true => Err(Invalid(format!(
            "{field} has {count} entries, and Kubernetes allows {most}: divide them among several \
             slices"
        ))),
        false => Ok(()),
    }
}

/// Facts of an object; `None` for a valid object that this node's proxy does not route.
type Converted = Result<Option<ObjectFacts>, Invalid>;

/// Converts objects to facts. Stores strings that many objects share (namespaces, names of ports) once.
#[derive(Debug, Default)]
pub(super) struct Converter {
    node_name: String,
    shared: HashSet<Arc<str>>,
    peers: PeerNumbers,
    /// An invalid value that the facts of the last converted object omit.
    pub(super) left_out: Option<Invalid>,
}

impl Converter {
    pub(super) fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.to_owned(),
            ..Self::default()
        }
    }

    /// The sentence that no Node has the agent's name.
    pub(super) fn missing_node(&self) -> String {
        let name = &self.node_name;
        format!(
            "no Node is named {name}, so a taint or deletion that announces its removal would not be \
             seen; set --node-name to this node's name in `kubectl get nodes`"
        )
    }

    /// Converts an object. Returns `None` for other Nodes, for headless, ExternalName and foreign-proxied
    /// Services, and for slices of domain names or without a Service.
    pub(super) fn facts(&mut self, object: Object) -> Converted {
        let title = object.kind().title(object.metadata());
        let named = |Invalid(what)| Invalid(format!("{title}: {what}"));
        if object_names(object.metadata()).1.is_empty() {
            let what = "metadata.name is missing: every object has a name";
            return Err(named(Invalid(what.to_owned())));
        }
        let facts = match object {
            Object::Node(node) => self.node(*node),
            Object::Service(service) => self.service(*service),
            Object::Slice(slice) => self.slice(*slice),
        };
        self.left_out = self.left_out.take().map(named);
        facts.map_err(named)
    }

    /// Omits invalid addresses and podCIDRs instead of refusing the Node. The API server does not check
    /// addresses, and a pending deletion must count even if a cloud has written invalid ones.
    fn node(&mut self, node: Node) -> Converted {
        let name = node.metadata.name.unwrap_or_default();
        if name != self.node_name {
            return Ok(None);
        }
        let spec = node.spec.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let mut addresses = Vec::new();
        let of_node = || status.addresses.iter().flatten().enumerate();
        // InternalIPs come first, because they are on the node itself. An ExternalIP may be translated
        // outside the node.
        for kind in ["InternalIP", "ExternalIP"] {
            for (at, entry) in of_node().filter(|(_, entry)| entry.type_ == kind) {
                let field = format_args!("status.addresses[{at}].address");
                match ip(field, &entry.address) {
                    Ok(ip) if addresses.contains(&ip) => {}
                    Ok(ip) => addresses.push(ip),
                    Err(invalid) => self.left_out = Some(invalid),
                }
            }
        }
        let cidrs = spec.pod_cidrs.filter(|cidrs| !cidrs.is_empty());
        let cidrs = cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect());
        let mut pod_cidrs = Vec::new();
        for text in &cidrs {
            match text.parse::<IpNet>() {
                Ok(net) => pod_cidrs.push(net.trunc()),
                Err(_) => {
                    let reason = "a CIDR such as 10.244.1.0/24 is wanted";
                    self.left_out = Some(invalid("spec.podCIDRs", text, reason));
                }
            }
        }
        let taints = spec.taints.into_iter().flatten();
        let is_silent = |condition: &NodeCondition| {
            (&*condition.type_, &*condition.status) == ("Ready", "Unknown")
        };
        Ok(Some(ObjectFacts::Node(Arc::new(NodeFacts {
            name: name.into(),
            uid: node.metadata.uid.unwrap_or_default().into(),
            addresses,
            pod_cidrs,
            taints: taints.map(|taint| taint.key.into()).collect(),
            deleting: node.metadata.deletion_timestamp.is_some(),
            kubelet_silent: status.conditions.iter().flatten().any(is_silent),
            network: status.conditions.iter().flatten().find_map(lacks_network),
            enforcement: lookup(&node.metadata.annotations, ENFORCEMENT).map(|text| cut(text, 40)),
            marks: marks(&status.conditions, &node.metadata.labels),
        }))))
    }

    fn service(&mut self, service: ServedService) -> Converted {
        let metadata = &service.metadata;
        let spec = service.spec.unwrap_or_default();
        if is_not_served(metadata) || spec.type_.as_deref() == Some("ExternalName") {
            return Ok(None);
        }
        // A handwritten Service may have only `clusterIP`.
        let mut cluster_ips: Vec<&str> = strings(&spec.cluster_ips).collect();
        if cluster_ips.is_empty() {
            cluster_ips.extend(spec.cluster_ip.as_deref());
        }
        if matches!(cluster_ips.first().copied(), None | Some("" | "None")) {
            return Ok(None);
        }
        let external_local =
            is_external(&spec) && spec.external_traffic_policy.as_deref() == Some("Local");
        Ok(Some(ObjectFacts::Service(Arc::new(ServiceFacts {
            name: self.object_name(metadata),
            cluster_ips: ips("spec.clusterIPs", cluster_ips.into_iter())?,
            external_ips: ips("spec.externalIPs", strings(&spec.external_ips))?,
            load_balancer_ips: load_balancer_ips(service.status)?,
            ports: self.service_ports(spec.ports.as_deref().unwrap_or_default())?,
            external_local,
            health_port: health_port(&spec).transpose()?.filter(|_| external_local),
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            has_source_ranges: strings(&spec.load_balancer_source_ranges).next().is_some()
                || lookup(&metadata.annotations, SOURCE_RANGES_ANNOTATION).is_some(),
            is_global: GLOBAL_ANNOTATIONS
                .into_iter()
                .any(|key| lookup(&metadata.annotations, key) == Some("true")),
            enforcement: lookup(&metadata.annotations, ENFORCEMENT).map(|text| cut(text, 40)),
        }))))
    }

    fn slice(&mut self, slice: ServedSlice) -> Converted {
        let wants_v4 = match slice.address_type.as_deref().unwrap_or_default() {
            _ if is_not_served(&slice.metadata) => return Ok(None),
            "FQDN" => return Ok(None),
            "IPv4" => true,
            "IPv6" => false,
            other => {
                let reason = "IPv4, IPv6 or FQDN is wanted";
                return Err(invalid("addressType", other, reason));
            }
        };
        let Some(service) = lookup(&slice.metadata.labels, SERVICE_NAME_LABEL) else {
            return Ok(None);
        };
        let listed = slice.endpoints.as_deref().unwrap_or_default();
        let ports = slice.ports.as_deref().unwrap_or_default();
        at_most(MAX_ENDPOINTS, "endpoints", listed.len())?;
        at_most(MAX_PORTS, "ports", ports.len())?;
        let mut endpoints = Vec::with_capacity(listed.len());
        for (at, endpoint) in listed.iter().enumerate() {
            if let Some(text) = endpoint.addresses.first() {
                let field = format_args!("endpoints[{at}].addresses[0]");
                let ip = ip(field, text)?;
                if ip.is_ipv4() != wants_v4 {
                    return Err(invalid(field, text, "not of the slice's addressType"));
                }
                endpoints.push(self.endpoint(endpoint, &ip));
            }
        }
        endpoints.shrink_to_fit();
        Ok(Some(ObjectFacts::Slice(Arc::new(SliceFacts {
            name: self.object_name(&slice.metadata),
            service: service.into(),
            ports: self.slice_ports(ports)?,
            endpoints,
            fleet: lookup(&slice.metadata.annotations, FLEET).map(|text| cut(text, FLEET_LENGTH)),
        }))))
    }

    /// Nodes numbered since the last call. Deliver them before the slices that refer to them.
    pub(super) fn new_peers(&mut self) -> Option<Change> {
        let new = std::mem::take(&mut self.peers.new);
        (!new.is_empty()).then_some(Change::Peers(new))
    }

    fn endpoint(&mut self, endpoint: &Endpoint, ip: &IpAddr) -> EndpointFacts {
        let conditions = endpoint.conditions.as_ref();
        let node = endpoint.node_name.as_deref().unwrap_or_default();
        let local = !node.is_empty() && node == self.node_name;
        EndpointFacts {
            address: address(ip),
            ready: conditions.and_then(|c| c.ready).unwrap_or(true),
            serving: conditions.and_then(|c| c.serving).unwrap_or(true),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
            local,
            peer: if local || node.is_empty() {
                0
            } else {
                self.peers.number(node)
            },
        }
    }

    fn service_ports(&mut self, listed: &[KubeServicePort]) -> Result<Vec<ServicePort>, Invalid> {
        let mut ports = Vec::with_capacity(listed.len());
        let (mut names, mut numbers) = (HashSet::new(), HashSet::new());
        for (at, listed_port) in listed.iter().enumerate() {
            let field = format!("spec.ports[{at}]");
            let node_port = listed_port.node_port.filter(|number| *number != 0);
            let next = ServicePort {
                name: self.share(listed_port.name.as_deref().unwrap_or_default()),
                protocol: protocol(&field, listed_port.protocol.as_deref())?,
                port: port(format_args!("{field}.port"), listed_port.port)?,
                node_port: node_port
                    .map(|number| port(format_args!("{field}.nodePort"), number))
                    .transpose()?,
            };
            if !names.insert((next.protocol, Arc::clone(&next.name))) {
                let reason = "another port of the Service has the same name";
                return Err(invalid(field + ".name", &next.name, reason));
            }
            if !numbers.insert((next.protocol, next.port)) {
                let reason = "another port of the Service has the same number";
                return Err(invalid(field + ".port", &next.port.to_string(), reason));
            }
            ports.push(next);
        }
        Ok(ports)
    }

    fn slice_ports(&mut self, listed: &[EndpointPort]) -> Result<Vec<SlicePort>, Invalid> {
        let mut ports = Vec::with_capacity(listed.len());
        for (at, listed_port) in listed.iter().enumerate() {
            // A port without a number means all ports, which kube-proxy does not serve.
            if let Some(number) = listed_port.port.filter(|number| *number != 0) {
                let field = format!("ports[{at}]");
                ports.push(SlicePort {
                    name: self.share(listed_port.name.as_deref().unwrap_or_default()),
                    protocol: protocol(&field, listed_port.protocol.as_deref())?,
                    port: port(format_args!("{field}.port"), number)?,
                });
            }
        }
        // The budget charges only for ports with a number, so room for others must not stay.
        ports.shrink_to_fit();
        Ok(ports)
    }

    fn object_name(&mut self, metadata: &ObjectMeta) -> ObjectName {
        let (namespace, name) = object_names(metadata);
        ObjectName {
            namespace: self.share(namespace),
            name: name.into(),
        }
    }

    fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.shared.get(text) {
            return Arc::clone(known);
        }
        // When the set is full, drop the names that are no longer used.
        if self.shared.len() == self.shared.capacity() {
            self.shared.retain(|known| Arc::strong_count(known) > 1);
        }
        let new: Arc<str> = text.into();
        self.shared.insert(Arc::clone(&new));
        new
    }
}

/// The port at which load balancers check the health of a Service.
fn health_port(spec: &ServiceSpec) -> Option<Result<u16, Invalid>> {
    let number = spec.health_check_node_port.filter(|number| *number != 0)?;
    let is_balanced = spec.type_.as_deref() == Some("LoadBalancer");
    is_balanced.then(|| port("spec.healthCheckNodePort", number))
}

fn ips<'a>(field: &str, texts: impl Iterator<Item = &'a str>) -> Result<Vec<IpAddr>, Invalid> {
    let texts = texts.enumerate();
    let ips = texts.map(|(at, text)| ip(format_args!("{field}[{at}]"), text));
    let mut ips = ips.collect::<Result<Vec<IpAddr>, Invalid>>()?;
    ips.shrink_to_fit();
    Ok(ips)
}

/// Parses an address, also an IPv4 address in a form that older API servers accepted (leading zeros,
/// IPv4-mapped IPv6), as kube-proxy does. If the Service were left out instead, kube-proxy would still serve
/// it, and the agent would not know which addresses it uses. The same holds for the endpoints of a slice.
fn ip(field: impl Display, text: &str) -> Result<IpAddr, Invalid> {
    let parsed = text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let parsed = parsed.or_else(|| with_leading_zeros(text));
    parsed.ok_or_else(|| invalid(field, text, "must be an IP address"))
}

fn with_leading_zeros(text: &str) -> Option<IpAddr> {
    let parts = text.split('.').map(|part| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u8>().ok().filter(|_| digits)
    });
    let octets: Vec<u8> = parts.collect::<Option<_>>()?;
    <[u8; 4]>::try_from(octets).ok().map(IpAddr::from)
}

fn port(field: impl Display, number: i32) -> Result<u16, Invalid> {
    let port = u16::try_from(number).ok().filter(|port| *port != 0);
    port.ok_or_else(|| invalid(field, &number.to_string(), "must be a port, 1 to 65535"))
}

fn protocol(path: &str, name: Option<&str>) -> Result<Protocol, Invalid> {
    match name {
        None | Some("" | "TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => {
            let field = format_args!("{path}.protocol");
            Err(invalid(field, other, "must be TCP, UDP or SCTP"))
        }
    }
}

/// Whether the Service is what kube-proxy calls `ExternallyAccessible`. The external traffic policy has no
/// effect on other Services.
fn is_external(spec: &ServiceSpec) -> bool {
    matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"))
        || strings(&spec.external_ips).next().is_some()
}

/// Load balancer addresses that this node serves. Addresses with `ipMode: Proxy` are left to the load
/// balancer.
fn load_balancer_ips(status: Option<ServedStatus>) -> Result<Vec<IpAddr>, Invalid> {
    let balancer = status.and_then(|status| status.load_balancer);
    let ingress = balancer.and_then(|balancer| balancer.ingress);
    let mut ips = Vec::new();
    for (at, entry) in ingress.iter().flatten().enumerate() {
        let field = format!("status.loadBalancer.ingress[{at}]");
        match entry.ip_mode.as_deref() {
            None | Some("VIP") => {}
            Some("Proxy") => continue,
            Some(other) => {
                return Err(invalid(field + ".ipMode", other, "must be VIP or Proxy"));
            }
        }
        if let Some(text) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) {
            ips.push(ip(field + ".ip", text)?);
        }
    }
    Ok(ips)
}

fn strings(list: &Option<Vec<String>>) -> impl Iterator<Item = &str> {
    list.iter().flatten().map(String::as_str)
}

/// Truncates a text from an annotation, because every agent would store it. Anybody who may edit one
/// namespace may annotate its Services and slices.
fn cut(text: &str, most: usize) -> Box<str> {
    text[..text.floor_char_boundary(most)].into()
}

/// The text of a condition that reports a node without a pod network; `None` for other conditions. Two
/// conditions count: kubelet's Ready, and NetworkUnavailable, which clouds' route controllers and some CNIs
/// set.
fn lacks_network(condition: &NodeCondition) -> Option<Box<str>> {
    let message = condition.message.as_deref().unwrap_or_default();
    let said = match (&*condition.type_, &*condition.status) {
        ("Ready", "False") if message.contains(NO_NETWORK) => message,
        ("NetworkUnavailable", "True") if message.is_empty() => condition.reason.as_deref()?,
        ("NetworkUnavailable", "True") => message,
        _ => return None,
    };
    let said: String = said.chars().filter(|c| !c.is_control()).collect();
    Some(cut(&said, 200))
}

/// The value of a label or annotation, unless it is empty.
fn lookup<'a>(map: &'a Option<BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    let value = map.as_ref()?.get(key)?;
    Some(&**value).filter(|value| !value.trim().is_empty())
}

fn is_not_served(metadata: &ObjectMeta) -> bool {
    let mut labels = metadata.labels.iter().flatten();
    labels.any(|(label, _)| NOT_SERVED_LABELS.contains(&&**label))
}

mod marks;
mod peers;
#[cfg(test)]
mod tests;
