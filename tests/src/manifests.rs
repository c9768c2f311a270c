//! The YAML folder that the agent and the rules both read. It contains one Node, and Services with their
//! EndpointSlices, as `kubectl get -o yaml` prints them. Files are changed by atomic rename.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::world::layout::{self, NODE_NAME, WORKER_NAME};
use crate::world::{Family, Place, Pod, World};

mod sentinel;

pub use sentinel::{SLICES as SENTINEL_SLICES, Sentinel};

/// The taint with which the cluster autoscaler marks a node for removal.
pub const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name of the pod, only for people who read the manifest.
    pub pod: String,
    pub addresses: [IpAddr; 2],
    /// Node of the pod.
    pub node: &'static str,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
}

impl From<&Pod> for Endpoint {
    fn from(pod: &Pod) -> Self {
        Self {
            pod: pod.name.clone(),
            addresses: [pod.v4.into(), pod.v6.into()],
            node: match pod.place {
                Place::Remote => WORKER_NAME,
                Place::Local | Place::Bridged => NODE_NAME,
            },
            ready: true,
            serving: true,
            terminating: false,
        }
    }
}

/// A dual-stack Service. By default it has one TCP port named "http" and is in the namespace "demo".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    pub namespace: &'static str,
    pub name: String,
    /// Index in the address plan, which determines ClusterIPs and load balancer addresses.
    pub index: u8,
    pub port_name: String,
    pub protocol: &'static str,
    /// Port that clients dial.
    pub port: u16,
    pub target_port: u16,
    /// Name and number of a second TCP port, with the same number at the endpoints.
    pub second: Option<(&'static str, u16)>,
    pub node_port: Option<u16>,
    /// Whether it has type LoadBalancer, with addresses of the plan.
    pub load_balancer: bool,
    /// Whether it has external IPs of the plan.
    pub external_ips: bool,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `healthCheckNodePort`.
    pub health_port: Option<u16>,
    /// `loadBalancerSourceRanges`.
    pub source_ranges: Vec<String>,
    pub endpoints: Vec<Endpoint>,
}

impl Service {
    /// A ClusterIP Service on port 80 to port 8080 of these pods.
    pub fn new<'a>(name: &str, index: u8, pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        Self {
            namespace: "demo",
            name: name.to_owned(),
            index,
            port_name: "http".to_owned(),
            protocol: "TCP",
            port: 80,
            target_port: 8080,
            endpoints: pods.into_iter().map(Endpoint::from).collect(),
            ..Self::default()
        }
    }

    /// Makes it a UDP Service with these ports.
    pub fn udp(mut self, name: &str, port: u16, target_port: u16) -> Self {
        self.port_name = name.to_owned();
        self.protocol = "UDP";
        self.port = port;
        self.target_port = target_port;
        self
    }

    pub fn node_port(mut self, port: u16) -> Self {
        self.node_port = Some(port);
        self
    }

    /// Type LoadBalancer, with a node port.
    pub fn load_balancer(mut self, node_port: u16) -> Self {
        self.load_balancer = true;
        self.node_port(node_port)
    }

    pub fn external_ips(mut self) -> Self {
        self.external_ips = true;
        self
    }

    pub fn external_local(mut self) -> Self {
        self.external_local = true;
        self
    }

    /// Sets `externalTrafficPolicy: Local` and this health check node port.
    pub fn health_port(mut self, port: u16) -> Self {
        self.health_port = Some(port);
        self.external_local()
    }

    pub fn cluster_ip(&self, family: Family) -> IpAddr {
        layout::pick(layout::cluster_ip(self.index), family)
    }

    pub fn load_balancer_ip(&self, family: Family) -> IpAddr {
        layout::pick(layout::vip(self.index), family)
    }

    pub fn external_ip(&self, family: Family) -> IpAddr {
        layout::pick(layout::vip(100 + self.index), family)
    }

    /// Name, protocol, port and target port of each port of the Service.
    fn ports(&self) -> impl Iterator<Item = (&str, &str, u16, u16)> {
        let name = self.port_name.as_str();
        let first = (name, self.protocol, self.port, self.target_port);
        let second = self.second.map(|(name, port)| (name, "TCP", port, port));
        [first].into_iter().chain(second)
    }

    fn object(&self) -> Value {
        let policy = |local| if local { "Local" } else { "Cluster" };
        let ports = self.ports().map(|(name, protocol, port, target)| {
            json!({ "name": name, "port": port, "protocol": protocol, "targetPort": target })
        });
        let mut ports: Vec<Value> = ports.collect();
        if let Some(port) = self.node_port {
            ports[0]["nodePort"] = json!(port);
        }
        let kind = match (self.load_balancer, self.node_port) {
            (true, _) => "LoadBalancer",
            (false, Some(_)) => "NodePort",
            (false, None) => "ClusterIP",
        };
        let is_external = self.node_port.is_some() || self.external_ips;
        let external_ips = || Family::ALL.map(|family| self.external_ip(family));
        let (v4, v6) = layout::cluster_ip(self.index);
        let spec = without_unset(json!({
            "type": kind,
            "clusterIP": v4,
            "clusterIPs": [v4, v6],
            "externalIPs": self.external_ips.then(external_ips),
            "externalTrafficPolicy": is_external.then(|| policy(self.external_local)),
            "healthCheckNodePort": self.health_port,
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "loadBalancerSourceRanges": self.source_ranges,
            "ports": ports,
            "selector": { "app": self.name },
        }));
        let mut object = service(self.namespace, &self.name, spec);
        if self.load_balancer {
            let ip = |family| json!({ "ip": self.load_balancer_ip(family), "ipMode": "VIP" });
            object["status"] = json!({ "loadBalancer": { "ingress": Family::ALL.map(ip) } });
        }
        object
    }

    fn slice(&self, family: Family) -> Value {
        let ports = self.ports().map(
            |(name, protocol, _, port)| json!({ "name": name, "port": port, "protocol": protocol }),
        );
        let ports: Vec<Value> = ports.collect();
        let endpoint = |endpoint: &Endpoint| {
            json!({
                "addresses": [endpoint.addresses[family as usize]],
                "conditions": {
                    "ready": endpoint.ready,
                    "serving": endpoint.serving,
                    "terminating": endpoint.terminating,
                },
                "nodeName": endpoint.node,
                "targetRef": { "kind": "Pod", "name": endpoint.pod, "namespace": self.namespace },
            })
        };
        let endpoints: Vec<Value> = self.endpoints.iter().map(endpoint).collect();
        let slice = slice(self.namespace, &self.name, family, &ports, &endpoints);
        managed(slice)
    }
}

/// Removes fields that are null or empty lists, which an API server would omit.
fn without_unset(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && *value != json!([]));
    }
    object
}

pub fn service(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    })
}

/// Ports of a Service, named after their numbers. If `target` is set, the ports of its slices instead.
pub fn ports(
    numbers: impl IntoIterator<Item = u16>,
    protocol: &str,
    target: Option<u16>,
) -> Vec<Value> {
    let port = |port| {
        let (name, port) = (format!("p{port}"), target.unwrap_or(port));
        json!({ "name": name, "port": port, "protocol": protocol })
    };
    numbers.into_iter().map(port).collect()
}

/// Marks a slice as written by the EndpointSlice controller.
pub fn managed(mut slice: Value) -> Value {
    slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] =
        json!("endpointslice-controller.k8s.io");
    slice
}

pub fn slice(
    namespace: &str,
    service: &str,
    family: Family,
    ports: &[Value],
    endpoints: &[Value],
) -> Value {
    let (kind, suffix) = match family {
        Family::V4 => ("IPv4", "v4"),
        Family::V6 => ("IPv6", "v6"),
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-{suffix}"),
            "namespace": namespace,
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": kind,
        "ports": ports,
        "endpoints": endpoints,
    })
}

/// A YAML file with these objects.
pub fn yaml(objects: &[Value]) -> Result<String> {
    let documents = objects.iter().map(serde_saphyr::to_string);
    let documents: Vec<String> = documents.collect::<Result<_, _>>()?;
    Ok(documents.join("---\n"))
}

pub const NODE_FILE: &str = "node.yaml";
pub const SENTINEL_FILE: &str = "sentinel.yaml";

/// The folder and its objects.
#[derive(Debug, Default)]
pub struct Manifests {
    dir: PathBuf,
    services: Vec<Service>,
    taints: Vec<String>,
    deleting: bool,
    lacks_pod_cidrs: bool,
}

impl Manifests {
    /// Writes the Node and the Services into `manifests` in the world's folder.
    pub fn write(world: &World, services: Vec<Service>) -> Result<Self> {
        Self::write_to(world.dir().join("manifests"), services)
    }

    /// Writes the Node and the Services into this folder.
    pub fn write_to(dir: PathBuf, services: Vec<Service>) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let manifests = Self {
            dir,
            services,
            ..Self::default()
        };
        manifests.write_node()?;
        for service in &manifests.services {
            manifests.write_service(service)?;
        }
        Ok(manifests)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn service_file(name: &str) -> String {
        format!("service-{name}.yaml")
    }

    /// A Service by name. Panics if there is none.
    pub fn service(&self, name: &str) -> &Service {
        let mut services = self.services.iter();
        let found = services.find(|service| service.name == name);
        found.unwrap_or_else(|| panic!("no Service {name}"))
    }

    pub fn services(&self) -> &[Service] {
        &self.services
    }

    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Service)) -> Result<()> {
        let mut services = self.services.iter_mut();
        let service = services.find(|service| service.name == name);
        change(service.with_context(|| format!("no Service {name}"))?);
        self.write_service(self.service(name))
    }

    pub fn add(&mut self, service: Service) -> Result<()> {
        self.write_service(&service)?;
        self.services.push(service);
        Ok(())
    }

    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.services.retain(|service| service.name != name);
        fs::remove_file(self.dir.join(Self::service_file(name)))
            .with_context(|| format!("remove Service {name}"))
    }

    pub fn put_sentinel(&self, sentinel: &Sentinel) -> Result<()> {
        self.write_file(SENTINEL_FILE, &sentinel.yaml())
    }

    pub fn remove_sentinel(&self) -> Result<()> {
        fs::remove_file(self.dir.join(SENTINEL_FILE)).context("remove the sentinel")
    }

    /// Replaces one pod by another in the slices of a Service.
    pub fn swap_endpoint(&mut self, service: &str, from: &str, to: &Pod) -> Result<()> {
        self.change(service, |service| {
            for endpoint in &mut service.endpoints {
                if endpoint.pod == from {
                    *endpoint = Endpoint::from(to);
                }
            }
        })
    }

    pub fn taint(&mut self, key: &str) -> Result<()> {
        self.taints.push(key.to_owned());
        self.write_node()
    }

    /// Removes all taints.
    pub fn untaint(&mut self) -> Result<()> {
        self.taints.clear();
        self.write_node()
    }

    pub fn set_deleting(&mut self, deleting: bool) -> Result<()> {
        self.deleting = deleting;
        self.write_node()
    }

    /// Removes the Node's podCIDRs: in a network that knows every pod itself, Nodes have none.
    pub fn remove_pod_cidrs(&mut self) -> Result<()> {
        self.lacks_pod_cidrs = true;
        self.write_node()
    }

    /// Writes a file into the folder atomically.
    pub fn write_file(&self, name: &str, text: &str) -> Result<()> {
        // The draft's name is hidden and has no manifest suffix, so that readers of the folder never read
        // half a file.
        let draft = self.dir.join(format!(".{name}.draft"));
        let file = self.dir.join(name);
        fs::write(&draft, text).with_context(|| format!("write {}", draft.display()))?;
        fs::rename(&draft, &file).with_context(|| format!("rename to {}", file.display()))
    }

    fn write_service(&self, service: &Service) -> Result<()> {
        let file = Self::service_file(&service.name);
        let [v4, v6] = Family::ALL.map(|family| service.slice(family));
        self.write_file(&file, &yaml(&[service.object(), v4, v6])?)
    }

    fn write_node(&self) -> Result<()> {
        let (v4, v6) = layout::NODE;
        let (pods4, pods6) = layout::NODE_POD_CIDRS;
        let has_pod_cidrs = !self.lacks_pod_cidrs;
        let taint = |key| json!({ "effect": "NoSchedule", "key": key, "value": "1" });
        let taints: Vec<Value> = self.taints.iter().map(taint).collect();
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": without_unset(json!({
                "name": NODE_NAME,
                "uid": "7a1c3f0e-52f4-4c57-9d6d-0d8f6d1f2a01",
                "deletionTimestamp": self.deleting.then_some("2026-01-01T00:00:00Z"),
            })),
            "spec": without_unset(json!({
                "podCIDR": has_pod_cidrs.then_some(pods4),
                "podCIDRs": has_pod_cidrs.then_some([pods4, pods6]),
                "taints": taints,
            })),
            "status": { "addresses": [
                { "address": v4, "type": "InternalIP" },
                { "address": v6, "type": "InternalIP" },
                { "address": NODE_NAME, "type": "Hostname" },
            ] },
        });
        self.write_file(NODE_FILE, &yaml(&[node])?)
    }
}
