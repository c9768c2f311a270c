//! Objects for the API: from YAML files, and those that an administrator or a kubelet creates in a new
//! cluster.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::api::path_of;
use super::{Api, base};
use crate::manifests::{Manifests, NODE_FILE, SENTINEL_SLICES};
use crate::prelude::*;

/// Timeout of the wait for the namespaces that the API server creates a moment after it is ready.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn documents(text: &str) -> Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple(text)?)
}

pub fn read_documents(file: &Path) -> Result<Vec<Value>> {
    let of = || format!("read {}", file.display());
    documents(&fs::read_to_string(file).with_context(of)?).with_context(of)
}

/// Applies every document of a YAML file.
pub fn put_file(api: &Api, file: &Path) -> Result<()> {
    let mut objects = read_documents(file)?.into_iter();
    objects.try_for_each(|object| create(api, object))
}

/// Creates or changes an object. Its status is a separate request, as for a kubelet or cloud controller.
pub fn create(api: &Api, mut object: Value) -> Result<()> {
    let what = format!("apply {} {}", object["kind"], object["metadata"]["name"]);
    let fields = object.as_object_mut().context("no object")?;
    let status = fields.remove("status");
    if let Some(metadata) = object["metadata"].as_object_mut() {
        // The API server assigns these fields.
        metadata.remove("uid");
        metadata.remove("deletionTimestamp");
    }
    api.apply(&object).with_context(|| what.clone())?;
    if let Some(status) = status {
        let path = format!("{}/status", path_of(&object)?);
        let written = api.patch(&path, &json!({ "status": status }));
        written.with_context(|| format!("{what}: its status"))?;
    }
    Ok(())
}

pub fn namespace(api: &Api, name: &str) -> Result<()> {
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    create(api, object)
}

/// Applies deploy/base, the slices that its rotator would create, and the Node and Services of the manifests.
/// The policies of [`reserve`] are left out, so that tests can show what agents do when others claim pathproof's
/// names and addresses.
pub fn install(api: &Api, manifests: &Manifests) -> Result<()> {
    until(PATIENCE, || api.get("/api/v1/namespaces/default").ok())
        .context("a namespace default")?;
    create_where(api, |object| !is_reserving(object))?;
    let mut slices = documents(SENTINEL_SLICES)?.into_iter();
    slices.try_for_each(|slice| create(api, slice))?;
    install_node(api, &manifests.dir().join(NODE_FILE), NODE_NAME)?;
    namespace(api, "demo")?;
    for service in manifests.services() {
        namespace(api, service.namespace)?;
        let file = Manifests::service_file(&service.name);
        put_file(api, &manifests.dir().join(file))?;
    }
    Ok(())
}

/// Applies the rest of deploy/base: the policies that refuse claims of pathproof's names and addresses. They
/// are set to Deny, as in the component `enforce`.
pub fn reserve(api: &Api) -> Result<()> {
    create_where(api, is_reserving)?;
    reserve_by(api, &["Deny"])
}

/// Sets the `validationActions` of these policies: what happens to a claim of pathproof's names and
/// addresses.
pub fn reserve_by(api: &Api, actions: &[&str]) -> Result<()> {
    let change = json!({ "spec": { "validationActions": actions } });
    let objects = base::objects()?.into_iter();
    let is_binding = |object: &Value| object["kind"] == "ValidatingAdmissionPolicyBinding";
    for binding in objects.filter(|object| is_reserving(object) && is_binding(object)) {
        api.patch(&path_of(&binding)?, &change)?;
    }
    Ok(())
}

fn create_where(api: &Api, filter: impl Fn(&Value) -> bool) -> Result<()> {
    let mut objects = base::objects()?.into_iter().filter(filter);
    objects.try_for_each(|object| create(api, object))
}

fn is_reserving(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str();
    name.is_some_and(|name| name.starts_with("pathproof-reserved-"))
}

/// Applies the Node of a YAML file.
pub fn install_node(api: &Api, file: &Path, name: &str) -> Result<()> {
    put_file(api, file)?;
    // The API server taints a new Node, and no controller here removes the taint.
    let untainted = json!({ "spec": { "taints": null } });
    api.patch(&format!("/api/v1/nodes/{name}"), &untainted)
        .map(drop)
}

/// Creates the pod of a ServiceAccount of deploy/base on a node, as the DaemonSet controller and the
/// scheduler would. The pod's token then names its node.
pub fn node_pod(api: &Api, account: &str, node: &str) -> Result<Value> {
    api.apply(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("{account}-{node}"), "namespace": base::NAMESPACE },
        "spec": {
            "serviceAccountName": account,
            "nodeName": node,
            "hostNetwork": true,
            "containers": [{ "name": "agent", "image": "pathproof" }],
        },
    }))
}

/// Requests a token for this pod, as its kubelet would.
pub fn node_token(api: &Api, account: &str, node: &str) -> Result<String> {
    let pod = node_pod(api, account, node)?;
    let (namespace, metadata) = (base::NAMESPACE, &pod["metadata"]);
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": 3600,
            "boundObjectRef": {
                "apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"],
            },
        },
    });
    let answer = api.post(&path, &request)?;
    let token = answer["status"]["token"].as_str();
    Ok(token.context("a token")?.to_owned())
}
