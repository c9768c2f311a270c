//! The folder of YAML that the agent and the rules both read: one Node and some Services with their
//! EndpointSlices, written as `kubectl get -o yaml` would, changed by atomic rename.

use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::world::layout::{self, NODE_NAME, WORKER_NAME};
use crate::world::{Family, Place, Pod, World};

mod sentinel;

pub use sentinel::Sentinel;

/// The taint by which the cluster autoscaler marks a node that it removes.
pub const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// An endpoint of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name of the pod, for the reader.
    pub pod: String,
    /// Address of each family.
    pub addresses: [IpAddr; 2],
    /// Node it lives on.
    pub node: &'static str,
    /// Condition `ready`.
    pub ready: bool,
    /// Condition `serving`.
    pub serving: bool,
    /// Condition `terminating`.
    pub terminating: bool,
}

impl From<&Pod> for Endpoint {
    fn from(pod: &Pod) -> Self {
        Self {
            pod: pod.name.clone(),
            addresses: [pod.v4.into(), pod.v6.into()],
            node: if pod.place == Place::Remote {
                WORKER_NAME
            } else {
                NODE_NAME
            },
            ready: true,
            serving: true,
            terminating: false,
        }
    }
}

/// A dual-stack Service with one port, of TCP and named "http" at first, in the namespace "demo" if no
/// other is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub namespace: &'static str,
    pub name: String,
    /// Its place in the address plan: ClusterIPs, load balancer addresses.
    pub index: u8,
    pub port_name: String,
    /// TCP or UDP.
    pub protocol: &'static str,
    /// Port that clients dial.
    pub port: u16,
    /// Port of the endpoints.
    pub target_port: u16,
    /// A second TCP port, the same at the endpoints, and its name.
    pub second: Option<(&'static str, u16)>,
    pub node_port: Option<u16>,
    /// Whether it is of type LoadBalancer, with addresses of the plan.
    pub load_balancer: bool,
    /// Whether it has external IPs, of the plan.
    pub external_ips: bool,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `healthCheckNodePort`.
    pub health_port: Option<u16>,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
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
            second: None,
            node_port: None,
            load_balancer: false,
            external_ips: false,
            external_local: false,
            health_port: None,
            internal_local: false,
            source_ranges: Vec::new(),
            endpoints: pods.into_iter().map(Endpoint::from).collect(),
        }
    }

    /// Of UDP, at these ports.
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

    /// Of type LoadBalancer, with a node port.
    pub fn load_balancer(mut self, node_port: u16) -> Self {
        self.load_balancer = true;
        self.node_port(node_port)
    }

    pub fn external_ips(mut self) -> Self {
        self.external_ips = true;
        self
    }

    /// With `externalTrafficPolicy: Local`.
    pub fn external_local(mut self) -> Self {
        self.external_local = true;
        self
    }

    /// With `externalTrafficPolicy: Local` and this health check node port.
    pub fn health_port(mut self, port: u16) -> Self {
        self.health_port = Some(port);
        self.external_local()
    }

    /// With `internalTrafficPolicy: Local`.
    pub fn internal_local(mut self) -> Self {
        self.internal_local = true;
        self
    }

    /// ClusterIP of a family.
    pub fn cluster_ip(&self, family: Family) -> IpAddr {
        layout::pick(layout::cluster_ip(self.index), family)
    }

    /// Load balancer address of a family.
    pub fn load_balancer_ip(&self, family: Family) -> IpAddr {
        layout::pick(layout::vip(self.index), family)
    }

    pub fn external_ip(&self, family: Family) -> IpAddr {
        layout::pick(layout::vip(100 + self.index), family)
    }

    fn yaml(&self) -> String {
        let mut text = String::new();
        self.write_service(&mut text);
        for family in Family::ALL {
            self.write_slice(&mut text, family);
        }
        text
    }

    fn write_service(&self, out: &mut String) {
        let Self {
            namespace,
            name,
            port_name,
            protocol,
            port,
            target_port,
            ..
        } = self;
        let (v4, v6) = layout::cluster_ip(self.index);
        let kind = match (self.load_balancer, self.node_port) {
            (true, _) => "LoadBalancer",
            (false, Some(_)) => "NodePort",
            (false, None) => "ClusterIP",
        };
        let internal = if self.internal_local {
            "Local"
        } else {
            "Cluster"
        };
        let _ = write!(
            out,
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: {namespace}\nspec:\n  \
             type: {kind}\n  clusterIP: {v4}\n  clusterIPs:\n  - {v4}\n  - {v6}\n  \
             internalTrafficPolicy: {internal}\n  ipFamilies:\n  - IPv4\n  - IPv6\n  \
             ipFamilyPolicy: RequireDualStack\n  ports:\n  - name: {port_name}\n    port: {port}\n    \
             protocol: {protocol}\n    targetPort: {target_port}\n"
        );
        if let Some(node_port) = self.node_port {
            let _ = writeln!(out, "    nodePort: {node_port}");
        }
        if let Some((name, port)) = self.second {
            let _ = writeln!(
                out,
                "  - name: {name}\n    port: {port}\n    protocol: TCP\n    targetPort: {port}"
            );
        }
        let _ = writeln!(out, "  selector:\n    app: {name}");
        if self.external_ips {
            let (v4, v6) = layout::vip(100 + self.index);
            let _ = writeln!(out, "  externalIPs:\n  - {v4}\n  - {v6}");
        }
        if self.node_port.is_some() || self.external_ips {
            let policy = if self.external_local {
                "Local"
            } else {
                "Cluster"
            };
            let _ = writeln!(out, "  externalTrafficPolicy: {policy}");
        }
        if let Some(port) = self.health_port {
            let _ = writeln!(out, "  healthCheckNodePort: {port}");
        }
        if !self.source_ranges.is_empty() {
            let _ = writeln!(out, "  loadBalancerSourceRanges:");
            for range in &self.source_ranges {
                let _ = writeln!(out, "  - {range}");
            }
        }
        if self.load_balancer {
            let (v4, v6) = layout::vip(self.index);
            let _ = writeln!(
                out,
                "status:\n  loadBalancer:\n    ingress:\n    - ip: {v4}\n      ipMode: VIP\n    \
                 - ip: {v6}\n      ipMode: VIP"
            );
        }
    }

    fn write_slice(&self, out: &mut String, family: Family) {
        let Self {
            namespace,
            name,
            port_name,
            protocol,
            target_port,
            ..
        } = self;
        let (kind, suffix, index) = match family {
            Family::V4 => ("IPv4", "v4", 0),
            Family::V6 => ("IPv6", "v6", 1),
        };
        let _ = write!(
            out,
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  \
             name: {name}-{suffix}\n  namespace: {namespace}\n  labels:\n    \
             kubernetes.io/service-name: {name}\n    \
             endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io\n\
             addressType: {kind}\nports:\n- name: {port_name}\n  port: {target_port}\n  protocol: {protocol}\n"
        );
        if let Some((name, port)) = self.second {
            let _ = writeln!(out, "- name: {name}\n  port: {port}\n  protocol: TCP");
        }
        if self.endpoints.is_empty() {
            out.push_str("endpoints: []\n");
            return;
        }
        out.push_str("endpoints:\n");
        for endpoint in &self.endpoints {
            let Endpoint {
                pod,
                node,
                ready,
                serving,
                terminating,
                ..
            } = endpoint;
            let address = endpoint.addresses[index];
            let _ = write!(
                out,
                "- addresses:\n  - \"{address}\"\n  conditions:\n    ready: {ready}\n    \
                 serving: {serving}\n    terminating: {terminating}\n  nodeName: {node}\n  \
                 targetRef:\n    kind: Pod\n    name: {pod}\n    namespace: {namespace}\n"
            );
        }
    }
}

/// Of the Node.
pub const NODE_FILE: &str = "node.yaml";
/// Of the sentinel's Service and slices.
pub const SENTINEL_FILE: &str = "sentinel.yaml";

/// The folder, and what is written in it.
#[derive(Debug)]
pub struct Manifests {
    dir: PathBuf,
    services: Vec<Service>,
    taints: Vec<String>,
    deleting: bool,
}

impl Manifests {
    /// Writes the Node and the Services into `manifests` in the world's folder.
    pub fn write(world: &World, services: Vec<Service>) -> Result<Self> {
        Self::write_to(world.dir().join("manifests"), services)
    }

    /// Writes them into a folder.
    pub fn write_to(dir: PathBuf, services: Vec<Service>) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let manifests = Self {
            dir,
            services,
            taints: Vec::new(),
            deleting: false,
        };
        manifests.write_node()?;
        for service in &manifests.services {
            manifests.write_service(service)?;
        }
        Ok(manifests)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Name of the file of a Service and its slices.
    pub fn service_file(name: &str) -> String {
        format!("service-{name}.yaml")
    }

    /// A Service by name. Panics where there is none.
    pub fn service(&self, name: &str) -> &Service {
        self.services
            .iter()
            .find(|service| service.name == name)
            .unwrap_or_else(|| panic!("no Service {name}"))
    }

    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// Changes a Service and writes it.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Service)) -> Result<()> {
        let service = self
            .services
            .iter_mut()
            .find(|service| service.name == name)
            .with_context(|| format!("no Service {name}"))?;
        change(service);
        self.write_service(self.service(name))
    }

    pub fn add(&mut self, service: Service) -> Result<()> {
        self.write_service(&service)?;
        self.services.push(service);
        Ok(())
    }

    /// Removes a Service with its slices.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.services.retain(|service| service.name != name);
        fs::remove_file(self.dir.join(Self::service_file(name)))
            .with_context(|| format!("remove Service {name}"))
    }

    /// Writes the sentinel's Service and slices.
    pub fn put_sentinel(&self, sentinel: &Sentinel) -> Result<()> {
        self.write_file(SENTINEL_FILE, &sentinel.yaml())
    }

    /// Removes the sentinel's Service and slices.
    pub fn remove_sentinel(&self) -> Result<()> {
        fs::remove_file(self.dir.join(SENTINEL_FILE)).context("remove the sentinel")
    }

    /// Puts one pod in another's place in the slices of a Service.
    pub fn swap_endpoint(&mut self, service: &str, from: &str, to: &Pod) -> Result<()> {
        self.change(service, |service| {
            for endpoint in &mut service.endpoints {
                if endpoint.pod == from {
                    *endpoint = Endpoint::from(to);
                }
            }
        })
    }

    /// Taints the node.
    pub fn taint(&mut self, key: &str) -> Result<()> {
        self.taints.push(key.to_owned());
        self.write_node()
    }

    /// Takes all taints away.
    pub fn untaint(&mut self) -> Result<()> {
        self.taints.clear();
        self.write_node()
    }

    /// Sets or clears the Node's deletionTimestamp.
    pub fn set_deleting(&mut self, deleting: bool) -> Result<()> {
        self.deleting = deleting;
        self.write_node()
    }

    /// Writes any file into the folder, in one step.
    pub fn write_file(&self, name: &str, text: &str) -> Result<()> {
        // Hidden, and without the ending of a manifest: a reader of the folder never sees half.
        let draft = self.dir.join(format!(".{name}.draft"));
        let file = self.dir.join(name);
        fs::write(&draft, text).with_context(|| format!("write {}", draft.display()))?;
        fs::rename(&draft, &file).with_context(|| format!("rename to {}", file.display()))
    }

    fn write_service(&self, service: &Service) -> Result<()> {
        self.write_file(&Self::service_file(&service.name), &service.yaml())
    }

    fn write_node(&self) -> Result<()> {
        self.write_file(NODE_FILE, &self.node_yaml())
    }

    fn node_yaml(&self) -> String {
        let (v4, v6) = layout::NODE;
        let (pods4, pods6) = layout::NODE_POD_CIDRS;
        let mut text = format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: {NODE_NAME}\n  \
             uid: 7a1c3f0e-52f4-4c57-9d6d-0d8f6d1f2a01\n"
        );
        if self.deleting {
            text.push_str("  deletionTimestamp: \"2026-01-01T00:00:00Z\"\n");
        }
        let _ = write!(
            text,
            "spec:\n  podCIDR: {pods4}\n  podCIDRs:\n  - {pods4}\n  - {pods6}\n"
        );
        if !self.taints.is_empty() {
            text.push_str("  taints:\n");
            for key in &self.taints {
                let _ = write!(
                    text,
                    "  - effect: NoSchedule\n    key: {key}\n    value: \"1\"\n"
                );
            }
        }
        let _ = write!(
            text,
            "status:\n  addresses:\n  - address: {v4}\n    type: InternalIP\n  - address: \
             \"{v6}\"\n    type: InternalIP\n  - address: {NODE_NAME}\n    type: Hostname\n"
        );
        text
    }
}
