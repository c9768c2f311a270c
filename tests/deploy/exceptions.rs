//! The samples of exceptions in deploy/examples allow what the agent's pod has, and no more.

use std::collections::BTreeSet;
use std::fs;

use node_tests::cluster::documents;
use node_tests::deploy::folder;
use node_tests::prelude::*;

use crate::find::of_kind;

fn read(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder().join(file)).expect("a file");
    documents(&text).expect("YAML")
}

fn agent() -> Value {
    let objects = read("base/agent.yaml");
    of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"].clone()
}

fn context(pod: &Value) -> &Value {
    &pod["containers"][0]["securityContext"]
}

/// A list of texts, in any order.
fn set(list: &Value) -> BTreeSet<&str> {
    let list = list.as_array().expect("a list");
    list.iter().filter_map(Value::as_str).collect()
}

fn host_paths(pod: &Value) -> BTreeSet<&str> {
    let volumes = pod["volumes"].as_array().expect("volumes");
    let paths = volumes.iter();
    let paths = paths.map(|volume| volume["hostPath"]["path"].as_str());
    paths.map(|path| path.expect("a host path")).collect()
}

#[test]
fn gatekeeper_allows_what_the_agent_has() {
    let constraints = read("examples/gatekeeper-constraints.yaml");
    for constraint in &constraints {
        let namespaces = &constraint["spec"]["match"]["namespaces"];
        assert_eq!(*namespaces, json!(["pathproof"]), "{constraint}");
    }
    let parameters = |kind: &str| &of_kind(&constraints, kind)["spec"]["parameters"];
    let pod = agent();
    let asked = context(&pod);
    let capabilities = parameters("K8sPSPCapabilities");
    assert_eq!(
        set(&capabilities["allowedCapabilities"]),
        set(&asked["capabilities"]["add"])
    );
    let paths = parameters("K8sPSPHostFilesystem")["allowedHostPaths"].as_array();
    let paths = paths.expect("paths").iter();
    let paths: BTreeSet<&str> = paths
        .filter_map(|path| path["pathPrefix"].as_str())
        .collect();
    assert_eq!(paths, host_paths(&pod));
    assert_eq!(
        parameters("K8sPSPHostNetworkingPorts")["hostNetwork"],
        pod["hostNetwork"]
    );
    assert_eq!(
        parameters("K8sPSPSELinuxV2")["allowedSELinuxOptions"],
        json!([asked["seLinuxOptions"]])
    );
    let users = &parameters("K8sPSPAllowedUsers")["runAsUser"]["ranges"];
    assert_eq!(users[0]["min"], asked["runAsUser"]);
}

#[test]
fn kyverno_exempts_the_agent_alone() {
    let exception = read("examples/kyverno-exception.yaml").remove(0);
    let matched = exception["spec"]["match"]["any"].as_array();
    let matched = matched.expect("matches");
    assert_eq!(matched.len(), 2);
    let resources = &matched[0]["resources"];
    assert_eq!(resources["namespaces"], json!(["pathproof"]));
    let objects = read("base/agent.yaml");
    let name = &of_kind(&objects, "DaemonSet")["metadata"]["name"];
    let name = name.as_str().expect("a name");
    assert_eq!(resources["names"], json!(["*-agent*"]));
    assert!(name.ends_with("-agent"), "{name}");
    // Pods have the name of their DaemonSet: no other workload has one like that.
    for file in ["base/rotator.yaml", "base/echo.yaml"] {
        for object in read(file) {
            let other = object["metadata"]["name"].as_str().expect("a name");
            assert!(!other.contains("-agent"), "{other}");
        }
    }
    let objects = read("cleanup/cleanup.yaml");
    let cleanup = &of_kind(&objects, "DaemonSet")["metadata"];
    let resources = &matched[1]["resources"];
    assert_eq!(resources["namespaces"], json!([cleanup["namespace"]]));
    assert_eq!(resources["names"], json!(["pathproof-cleanup*"]));
    assert_eq!(cleanup["name"], "pathproof-cleanup");
    let exceptions = exception["spec"]["exceptions"].as_array();
    assert_eq!(exceptions.expect("exceptions").len(), 9);
}
