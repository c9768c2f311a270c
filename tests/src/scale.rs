//! A folder of manifests of any size, for `cargo xtask bench scale`: the objects of a large cluster, with the
//! metadata that `kubectl get -o yaml` shows.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::manifests::{self, Manifests, NODE_FILE, managed, yaml};
use crate::world::{Family, NODE_NAME};

/// Number of Services and endpoints that the design promises to support.
pub const SERVICES: usize = 10_000;
/// Endpoints of all Services together.
pub const ENDPOINTS: usize = 100_000;
/// Endpoints of a Service, in one slice.
const EACH: usize = ENDPOINTS / SERVICES;
/// Services in a file.
const FILE: usize = 100;
/// Number of nodes that endpoints are on; the first is the node under test.
const NODES: usize = 5_000;
/// One of this many Services has a node port.
const NODE_PORT_EVERY: usize = 10;

/// Writes a Node and this many IPv4 Services with their endpoints. Returns the number of bytes of YAML.
pub fn write(dir: &Path, services: usize) -> Result<u64> {
    let manifests = Manifests::write_to(dir.to_owned(), Vec::new())?;
    let mut bytes = fs::metadata(dir.join(NODE_FILE))?.len();
    for first in (0..services).step_by(FILE) {
        let those = first..services.min(first + FILE);
        let objects: Vec<Value> = those
            .flat_map(|index| [service(index), shown_slice(index)])
            .collect();
        let text = yaml(&objects)?;
        manifests.write_file(&format!("services-{first:05}.yaml"), &text)?;
        bytes += text.len() as u64;
    }
    Ok(bytes)
}

pub(crate) fn name(index: usize) -> (String, String) {
    (
        format!("team-{:02}", index % 40),
        format!("service-{index:05}"),
    )
}

fn uid(kind: u32, index: usize) -> String {
    format!("{kind:08x}-3c2b-4f7e-9a51-{index:012x}")
}

/// The address that is `behind` places after `first`.
pub fn address(first: [u8; 4], behind: usize) -> Ipv4Addr {
    let behind = u32::try_from(behind).unwrap_or(u32::MAX);
    Ipv4Addr::from(u32::from(Ipv4Addr::from(first)) + behind)
}

pub(crate) fn service(index: usize) -> Value {
    let (namespace, name) = name(index);
    let address = address([10, 96, 0, 10], index);
    let mut spec = json!({
        "clusterIP": address, "clusterIPs": [address], "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        "ports": [{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080 }],
        "selector": { "app": name }, "sessionAffinity": "None", "type": "ClusterIP",
    });
    if index.is_multiple_of(NODE_PORT_EVERY) {
        spec["type"] = json!("NodePort");
        spec["externalTrafficPolicy"] = json!("Cluster");
        spec["ports"][0]["nodePort"] = json!(30_000 + index / NODE_PORT_EVERY);
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "annotations": {
                "meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace,
            },
            "creationTimestamp": "2026-03-02T09:14:31Z",
            "labels": { "app": name, "app.kubernetes.io/managed-by": "Helm" },
            "name": name, "namespace": namespace,
            "resourceVersion": (180_000 + index).to_string(), "uid": uid(1, index),
        },
        "spec": spec,
        "status": { "loadBalancer": {} },
    })
}

/// The slice of a Service, with the fields that its controller writes.
pub(crate) fn slice(index: usize) -> Value {
    let (namespace, service) = name(index);
    let first = index * EACH;
    let endpoints: Vec<Value> = (first..first + EACH)
        .map(|number| endpoint(number, &namespace, &service))
        .collect();
    let ports = [json!({ "name": "http", "port": 8080, "protocol": "TCP" })];
    let slice = manifests::slice(&namespace, &service, Family::V4, &ports, &endpoints);
    managed(slice)
}

/// The slice of a Service with the metadata that `kubectl get -o yaml` shows.
fn shown_slice(index: usize) -> Value {
    let (_, service) = name(index);
    let first = index * EACH;
    let mut slice = slice(index);
    slice["metadata"]["labels"]["app"] = json!(service);
    let metadata = json!({
        "annotations": {
            "endpoints.kubernetes.io/last-change-trigger-time": "2026-03-02T09:15:02Z",
        },
        "creationTimestamp": "2026-03-02T09:14:31Z",
        "generateName": format!("{service}-"), "generation": 3,
        "name": format!("{service}-{first:05x}"),
        "ownerReferences": [{
            "apiVersion": "v1", "blockOwnerDeletion": true, "controller": true,
            "kind": "Service", "name": service, "uid": uid(1, index),
        }],
        "resourceVersion": (200_000 + first).to_string(), "uid": uid(2, first),
    });
    for (field, value) in metadata.as_object().into_iter().flatten() {
        slice["metadata"][field] = value.clone();
    }
    slice
}

/// An endpoint in a Service's slice. Pods of a node have addresses of the node's range, which is a block of
/// 256 in 10.128.0.0/9.
fn endpoint(number: usize, namespace: &str, service: &str) -> Value {
    let node = number % NODES;
    let address = address([10, 128, 0, 0], node * 256 + (number / NODES) % 250 + 2);
    let node = match node {
        0 => NODE_NAME.to_owned(),
        _ => format!("worker-{node:04}"),
    };
    json!({
        "addresses": [address],
        "conditions": { "ready": true, "serving": true, "terminating": false },
        "nodeName": node,
        "targetRef": {
            "kind": "Pod", "name": format!("{service}-7d9c5b8f6-{number:05x}"),
            "namespace": namespace, "uid": uid(3, number),
        },
        "zone": format!("zone-{}", ["a", "b", "c"][number % 3]),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rules::read;

    #[test]
    fn a_folder_has_the_requested_size() {
        let dir = tempfile::tempdir().expect("a folder");
        let bytes = write(dir.path(), 110).expect("write");
        let files = fs::read_dir(dir.path()).expect("list").flatten();
        let sizes: Vec<u64> = files
            .map(|file| file.metadata().expect("its size").len())
            .collect();
        assert_eq!(sizes.len(), 3, "the Node's file and two of Services");
        assert_eq!(sizes.iter().sum::<u64>(), bytes);
        let objects = read(dir.path()).expect("read");
        let of_kind = |kind| objects.iter().filter(move |object| object["kind"] == kind);
        assert_eq!(of_kind("Service").count(), 110);
        assert_eq!(of_kind("EndpointSlice").count(), 110);
        let endpoints = of_kind("EndpointSlice").filter_map(|slice| slice["endpoints"].as_array());
        let addresses: Vec<String> = endpoints
            .flatten()
            .map(|endpoint| endpoint["addresses"].to_string())
            .collect();
        assert_eq!(addresses.len(), 1_100);
        let different: BTreeSet<&String> = addresses.iter().collect();
        assert_eq!(different.len(), 1_100, "all differ");
    }
}
