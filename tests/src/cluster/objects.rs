//! Objects for the API out of YAML: the world's folder of manifests, and what only an API has.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Api, base};

/// The documents of a YAML text.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    text.split("\n---\n")
        .filter(|document| {
            document
                .lines()
                .any(|line| !line.is_empty() && !line.starts_with('#'))
        })
        .map(|document| Ok(serde_saphyr::from_str(document)?))
        .collect()
}

/// Brings an object to the API: makes it, or makes it so. A status goes its own way, as the
/// kubelet's or a cloud's would.
pub fn create(api: &Api, mut object: Value) -> Result<()> {
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let status = object
        .as_object_mut()
        .and_then(|object| object.remove("status"));
    if let Some(metadata) = object["metadata"].as_object_mut() {
        // The API gives these.
        metadata.remove("uid");
        metadata.remove("deletionTimestamp");
    }
    api.apply(&object)
        .with_context(|| format!("apply {} {name}", object["kind"]))?;
    if let Some(status) = status {
        api.apply_status(&object, &status)
            .with_context(|| format!("apply the status of {} {name}", object["kind"]))?;
    }
    Ok(())
}

/// The agent's pod on a node, as the DaemonSet's controller and the scheduler would leave it: the
/// token of a pod names its node.
pub fn node_pod(api: &Api, account: &str, node: &str) -> Result<Value> {
    let name = format!("{account}-{node}");
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": base::NAMESPACE },
        "spec": {
            "serviceAccountName": account,
            "nodeName": node,
            "hostNetwork": true,
            "containers": [{ "name": "agent", "image": "pathproof" }],
        },
    });
    api.apply(&pod)
}
