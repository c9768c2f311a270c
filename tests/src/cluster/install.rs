//! What an administrator and a kubelet bring to a new cluster: deploy/base, the Node, Services.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Api, base, create, namespace, put_file};
use crate::manifests::{Manifests, NODE_FILE};
use crate::wait::until;
use crate::world::NODE_NAME;

/// The API server makes its own namespaces a moment after it is ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Brings deploy/base, and the Node and the Services of the manifests. Without the policies of
/// [`reserve`]: what agents do about claims is shown where nobody refuses them.
pub fn install(api: &Api, manifests: &Manifests) -> Result<()> {
    until(PATIENCE, || api.get("/api/v1/namespaces/default").ok())
        .context("a namespace default")?;
    create_where(api, |object| !is_reserving(object))?;
    install_node(api, &manifests.dir().join(NODE_FILE), NODE_NAME)?;
    namespace(api, "demo")?;
    for service in manifests.services() {
        let file = Manifests::service_file(&service.name);
        put_file(api, &manifests.dir().join(file))?;
    }
    Ok(())
}

/// Brings the rest of deploy/base: the policies that refuse claims of what is pathproof's.
pub fn reserve(api: &Api) -> Result<()> {
    create_where(api, is_reserving)
}

fn create_where(api: &Api, filter: impl Fn(&Value) -> bool) -> Result<()> {
    let mut objects = base::objects()?.into_iter().filter(filter);
    objects.try_for_each(|object| create(api, object))
}

fn is_reserving(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str();
    name.is_some_and(|name| name.starts_with("pathproof-reserved-"))
}

/// Brings the Node of a YAML file.
pub fn install_node(api: &Api, file: &Path, name: &str) -> Result<()> {
    put_file(api, file)?;
    // The API server taints a Node that is new; nobody here takes that back.
    let untainted = json!({ "spec": { "taints": null } });
    api.patch(&format!("/api/v1/nodes/{name}"), &untainted)
        .map(drop)
}
