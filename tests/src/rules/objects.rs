//! The Kubernetes objects, as far as the rules need them, and the folder's reading.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// Everything in the folder that matters.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) services: Vec<Service>,
    pub(super) slices: Vec<Slice>,
}

#[derive(Debug, Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) labels: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Service {
    pub(super) metadata: Metadata,
    pub(super) spec: ServiceSpec,
    #[serde(default)]
    pub(super) status: ServiceStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceSpec {
    #[serde(rename = "clusterIPs")]
    pub(super) cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs")]
    pub(super) external_ips: Vec<IpAddr>,
    pub(super) ports: Vec<ServicePort>,
    pub(super) external_traffic_policy: Policy,
    pub(super) internal_traffic_policy: Policy,
    pub(super) load_balancer_source_ranges: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(super) enum Policy {
    #[default]
    Cluster,
    Local,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServicePort {
    #[serde(default)]
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) node_port: Option<u16>,
    #[serde(default = "tcp")]
    pub(super) protocol: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ServiceStatus {
    pub(super) load_balancer: LoadBalancer,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LoadBalancer {
    pub(super) ingress: Vec<Ingress>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ingress {
    pub(super) ip: Option<IpAddr>,
    pub(super) ip_mode: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Slice {
    pub(super) metadata: Metadata,
    #[serde(default)]
    pub(super) ports: Vec<SlicePort>,
    #[serde(default)]
    pub(super) endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SlicePort {
    #[serde(default)]
    pub(super) name: String,
    pub(super) port: u16,
    #[serde(default = "tcp")]
    pub(super) protocol: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Endpoint {
    pub(super) addresses: Vec<IpAddr>,
    #[serde(default)]
    pub(super) conditions: Conditions,
    pub(super) node_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Conditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

fn tcp() -> String {
    "TCP".to_owned()
}

/// Reads every YAML file of the folder, in the order of names.
pub(super) fn read(dir: &Path) -> Result<Objects> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .with_context(|| format!("list {}", dir.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| file.extension().is_some_and(|x| x == "yaml" || x == "yml"));
    files.sort();
    let mut objects = Objects::default();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        objects
            .add(&text)
            .with_context(|| format!("in {}", file.display()))?;
    }
    Ok(objects)
}

impl Objects {
    fn add(&mut self, text: &str) -> Result<()> {
        for document in text
            .split("\n---\n")
            .filter(|document| !document.trim().is_empty())
        {
            let head: Head = serde_saphyr::from_str(document)?;
            match head.kind.as_str() {
                "Service" => self.services.push(serde_saphyr::from_str(document)?),
                "EndpointSlice" => self.slices.push(serde_saphyr::from_str(document)?),
                _ => {}
            }
        }
        Ok(())
    }
}
