//! deploy/base as kustomize reads it: the files that kustomization.yaml names.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::read_documents;
use crate::deploy;

/// Namespace of all objects of deploy/base.
pub const NAMESPACE: &str = "pathproof";
/// ServiceAccount of the agent.
pub const AGENT: &str = "pathproof-agent";
/// ServiceAccount of the rotator.
pub const ROTATOR: &str = "pathproof-rotator";
/// API path of the sentinel's IPv4 slice.
pub const SLICE: &str =
    "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices/pathproof-sentinel-ipv4";

pub fn folder() -> PathBuf {
    deploy::folder().join("base")
}

/// Every object, in the order of the files.
pub fn objects() -> Result<Vec<Value>> {
    let kustomization = read_documents(&folder().join("kustomization.yaml"))?;
    let files = kustomization[0]["resources"].as_array();
    let mut objects = Vec::new();
    for file in files.context("kustomization.yaml names resources")? {
        let file = file.as_str().context("a resource is a file")?;
        objects.extend(read_documents(&folder().join(file))?);
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_named() {
        let file = folder().join("kustomization.yaml");
        let kustomization = read_documents(&file).expect("a kustomization");
        let named = kustomization[0]["resources"].as_array();
        let named = named.expect("resources");
        for entry in std::fs::read_dir(folder()).expect("list deploy/base") {
            let name = entry.expect("an entry").file_name();
            let name = name.to_str().expect("a name");
            let known = named.iter().any(|file| file == name);
            assert!(known || name == "kustomization.yaml", "{name}");
        }
    }

    #[test]
    fn the_agent_has_four_capabilities_and_no_other_power() {
        let objects = objects().expect("deploy/base");
        let agent = objects
            .iter()
            .find(|object| {
                object["kind"] == "DaemonSet" && object["metadata"]["name"] == "pathproof-agent"
            })
            .expect("the agent's DaemonSet");
        let pod = &agent["spec"]["template"]["spec"];
        let context = &pod["containers"][0]["securityContext"];
        assert_eq!(
            context["capabilities"],
            serde_json::json!({
                "drop": ["ALL"],
                "add": ["BPF", "NET_ADMIN", "PERFMON", "NET_RAW"],
            })
        );
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["privileged"], false);
        assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
        assert!(pod["hostPID"].is_null() && pod["containers"][0]["ports"].is_null());
    }
}
