//! What an administrator and a kubelet bring to a new cluster: deploy/base, the Node, tokens of
//! ServiceAccounts.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Api, base, create, documents, kubeconfig, node_pod};
use crate::wait::until;
use crate::world::{NODE_NAME, World};

/// The API server makes its own namespaces a moment after it is ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Brings deploy/base, and the Node of a YAML file. Without the policies of [`reserve`]: what agents do
/// about claims is shown where nobody refuses them.
pub fn install(api: &Api, node: &Path) -> Result<()> {
    until(PATIENCE, || api.get("/api/v1/namespaces/default").ok())
        .context("a namespace default")?;
    create_where(api, |object| !is_reserving(object))?;
    install_node(api, node, NODE_NAME)
}

/// Brings the rest of deploy/base: the policies that refuse claims of what is pathproof's.
pub fn reserve(api: &Api) -> Result<()> {
    create_where(api, is_reserving)
}

fn create_where(api: &Api, filter: impl Fn(&Value) -> bool) -> Result<()> {
    for object in base::objects()?.into_iter().filter(filter) {
        create(api, object).context("deploy/base fits the API")?;
    }
    Ok(())
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
    api.patch(&format!("/api/v1/nodes/{name}"), &untainted)?;
    Ok(())
}

/// Brings every document of a YAML file.
pub fn put_file(api: &Api, file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    for object in documents(&text)? {
        create(api, object).with_context(|| format!("of {}", file.display()))?;
    }
    Ok(())
}

/// Makes a namespace.
pub fn namespace(api: &Api, name: &str) -> Result<()> {
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    create(api, object)
}

/// Writes a kubeconfig that leads to `server` as a ServiceAccount of deploy/base, with a token for
/// its pod on the node.
pub fn account_kubeconfig(
    world: &World,
    api: &Api,
    server: SocketAddr,
    ca: &str,
    account: &str,
) -> Result<PathBuf> {
    let pod = node_pod(api, account, world.node_name())?;
    let bearer = api.token(base::NAMESPACE, account, &pod)?;
    let token = world.dir().join(format!("{account}.token"));
    fs::write(&token, bearer)?;
    let config = kubeconfig(server, ca, &json!({ "tokenFile": token }));
    let file = world.dir().join(format!("{account}.kubeconfig"));
    fs::write(&file, config)?;
    Ok(file)
}
