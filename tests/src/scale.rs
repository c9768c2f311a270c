//! A folder of manifests of any size, for `cargo xtask bench scale`: as a large cluster would have
//! them, with the metadata that `kubectl get -o yaml` shows.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::world::layout::{self, NODE_NAME};

/// Endpoints in a slice; the controller's default is 100, but Services have about 10.
const SLICE: usize = 10;
/// Services in a file.
const FILE: usize = 100;
/// Nodes that the endpoints are spread over; the first is the node itself.
const NODES: usize = 5_000;
/// Every so many Services has a node port.
pub(crate) const NODE_PORT_EVERY: usize = 10;

/// How many of what, as options of a program.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Size {
    /// Services
    #[arg(long, default_value_t = 10_000)]
    pub services: usize,
    /// Endpoints, all Services together
    #[arg(long, default_value_t = 100_000)]
    pub endpoints: usize,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub services: usize,
    /// Services with a node port.
    pub node_ports: usize,
    pub endpoints: usize,
    pub slices: usize,
    pub files: usize,
    /// Bytes of YAML.
    pub bytes: usize,
}

/// Writes a Node and `services` Services with `endpoints` endpoints in all, spread evenly, IPv4.
pub fn write(dir: &Path, services: usize, endpoints: usize) -> Result<Written> {
    ensure!(
        services <= 60_000,
        "at most 60,000 Services fit the ClusterIP range"
    );
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let mut written = Written {
        services,
        endpoints,
        ..Written::default()
    };
    put(dir, "node.yaml", &node(), &mut written)?;
    let mut next = 0;
    for (number, first) in (0..services).step_by(FILE).enumerate() {
        let mut text = String::new();
        for index in first..services.min(first + FILE) {
            // The endpoints that the Services up to this one have together.
            let until = endpoints * (index + 1) / services;
            write_service(&mut text, index, &mut written);
            write_slices(&mut text, index, next..until, &mut written);
            next = until;
        }
        put(
            dir,
            &format!("services-{number:04}.yaml"),
            &text,
            &mut written,
        )?;
    }
    Ok(written)
}

fn put(dir: &Path, name: &str, text: &str, written: &mut Written) -> Result<()> {
    let file = dir.join(name);
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    written.files += 1;
    written.bytes += text.len();
    Ok(())
}

fn node() -> String {
    let (v4, v6) = layout::NODE;
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {NODE_NAME}\n\
         spec:\n  podCIDR: 10.244.0.0/24\n  podCIDRs:\n  - 10.244.0.0/24\n\
         status:\n  addresses:\n  - address: {v4}\n    type: InternalIP\n  \
         - address: \"{v6}\"\n    type: InternalIP\n"
    )
}

/// Namespace and name of a Service.
pub(crate) fn name(index: usize) -> (String, String) {
    (
        format!("team-{:02}", index % 40),
        format!("service-{index:05}"),
    )
}

fn uid(kind: u32, index: usize) -> String {
    format!("{kind:08x}-3c2b-4f7e-9a51-{index:012x}")
}

pub(crate) fn cluster_ip(index: usize) -> Ipv4Addr {
    let host = u32::try_from(index + 10).unwrap_or(u32::MAX);
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + host)
}

fn write_service(out: &mut String, index: usize, written: &mut Written) {
    let (namespace, name) = name(index);
    let address = cluster_ip(index);
    let node_port = index
        .is_multiple_of(NODE_PORT_EVERY)
        .then(|| 30_000 + index / NODE_PORT_EVERY)
        .filter(|port| *port <= 32_767);
    let kind = if node_port.is_some() {
        "NodePort"
    } else {
        "ClusterIP"
    };
    if !out.is_empty() {
        out.push_str("---\n");
    }
    let _ = write!(
        out,
        "apiVersion: v1\nkind: Service\nmetadata:\n  annotations:\n    \
         meta.helm.sh/release-name: {name}\n    meta.helm.sh/release-namespace: {namespace}\n  \
         creationTimestamp: \"2026-03-02T09:14:31Z\"\n  labels:\n    app: {name}\n    \
         app.kubernetes.io/managed-by: Helm\n  name: {name}\n  namespace: {namespace}\n  \
         resourceVersion: \"{version}\"\n  uid: {uid}\nspec:\n  clusterIP: {address}\n  \
         clusterIPs:\n  - {address}\n",
        version = 180_000 + index,
        uid = uid(1, index),
    );
    if node_port.is_some() {
        out.push_str("  externalTrafficPolicy: Cluster\n");
        written.node_ports += 1;
    }
    out.push_str(
        "  internalTrafficPolicy: Cluster\n  ipFamilies:\n  - IPv4\n  ipFamilyPolicy: \
         SingleStack\n  ports:\n  - name: http\n",
    );
    if let Some(port) = node_port {
        let _ = writeln!(out, "    nodePort: {port}");
    }
    let _ = write!(
        out,
        "    port: 80\n    protocol: TCP\n    targetPort: 8080\n  selector:\n    app: {name}\n  \
         sessionAffinity: None\n  type: {kind}\nstatus:\n  loadBalancer: {{}}\n"
    );
}

fn write_slices(
    out: &mut String,
    index: usize,
    endpoints: std::ops::Range<usize>,
    written: &mut Written,
) {
    let (namespace, name) = name(index);
    for first in endpoints.clone().step_by(SLICE) {
        let _ = write!(
            out,
            "---\naddressType: IPv4\napiVersion: discovery.k8s.io/v1\nendpoints:\n"
        );
        for endpoint in first..endpoints.end.min(first + SLICE) {
            write_endpoint(out, endpoint, &namespace, &name);
        }
        let suffix = written.slices;
        let _ = write!(
            out,
            "kind: EndpointSlice\nmetadata:\n  annotations:\n    \
             endpoints.kubernetes.io/last-change-trigger-time: \"2026-03-02T09:15:02Z\"\n  \
             creationTimestamp: \"2026-03-02T09:14:31Z\"\n  generateName: {name}-\n  \
             generation: 3\n  labels:\n    app: {name}\n    \
             endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io\n    \
             kubernetes.io/service-name: {name}\n  name: {name}-{suffix:05x}\n  \
             namespace: {namespace}\n  ownerReferences:\n  - apiVersion: v1\n    \
             blockOwnerDeletion: true\n    controller: true\n    kind: Service\n    name: {name}\n    \
             uid: {owner}\n  resourceVersion: \"{version}\"\n  uid: {uid}\nports:\n- name: http\n  \
             port: 8080\n  protocol: TCP\n",
            owner = uid(1, index),
            version = 200_000 + suffix,
            uid = uid(2, suffix),
        );
        written.slices += 1;
    }
}

/// Address and node of an endpoint: pods of a node have addresses of its range, 10.128.0.0/9 in
/// blocks of 256.
pub(crate) fn endpoint_at(endpoint: usize) -> (Ipv4Addr, String) {
    let node = endpoint % NODES;
    let pod = u32::try_from(node * 256 + (endpoint / NODES) % 250 + 2).unwrap_or(u32::MAX);
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 0)) + pod);
    let node = if node == 0 {
        NODE_NAME.to_owned()
    } else {
        format!("worker-{node:04}")
    };
    (address, node)
}

fn write_endpoint(out: &mut String, endpoint: usize, namespace: &str, service: &str) {
    let (address, node) = endpoint_at(endpoint);
    let _ = write!(
        out,
        "- addresses:\n  - {address}\n  conditions:\n    ready: true\n    serving: true\n    \
         terminating: false\n  nodeName: {node}\n  targetRef:\n    kind: Pod\n    \
         name: {service}-7d9c5b8f6-{endpoint:05x}\n    namespace: {namespace}\n    uid: {uid}\n  \
         zone: zone-{zone}\n",
        uid = uid(3, endpoint),
        zone = ["a", "b", "c"][endpoint % 3],
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rules::read;

    #[test]
    fn a_folder_holds_what_was_asked_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let written = write(dir.path(), 110, 251).expect("write");
        assert_eq!((written.services, written.endpoints), (110, 251));
        assert_eq!(written.node_ports, 11);
        assert_eq!(written.files, 3, "the Node and two of Services");
        let objects = read(dir.path()).expect("read");
        let of_kind = |kind| objects.iter().filter(move |object| object["kind"] == kind);
        assert_eq!(of_kind("Service").count(), 110);
        assert_eq!(of_kind("EndpointSlice").count(), written.slices);
        let endpoints = of_kind("EndpointSlice").filter_map(|slice| slice["endpoints"].as_array());
        let addresses = endpoints
            .flatten()
            .map(|endpoint| endpoint["addresses"].to_string());
        let addresses: Vec<String> = addresses.collect();
        assert_eq!(addresses.len(), 251);
        let different: BTreeSet<&String> = addresses.iter().collect();
        assert_eq!(different.len(), 251, "all differ");
    }
}
