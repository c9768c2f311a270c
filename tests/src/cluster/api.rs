//! A blocking client of the cluster's API, inside a namespace of the world.

use anyhow::{Context, Result, ensure};
use http::{Method, Request};
use kube::client::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::control_plane::kubeconfig;
use crate::prelude::*;
use crate::traffic::runtime;

/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Field manager of everything that tests write.
const MANAGER: &str = "pathproof-tests";

/// A client with the rights of one token.
pub struct Api {
    ns: Namespace,
    runtime: Runtime,
    client: Client,
}

impl Api {
    /// Makes a client for `server` from a namespace; sends nothing yet.
    pub fn connect(ns: &Namespace, server: SocketAddr, ca: &str, token: &str) -> Result<Self> {
        let runtime = runtime()?;
        let text = kubeconfig(server, ca, &json!({ "token": token }));
        let client = runtime.block_on(async {
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(Kubeconfig::from_yaml(&text)?, &options);
            anyhow::Ok(Client::try_from(config.await?)?)
        })?;
        Ok(Self {
            ns: ns.clone(),
            runtime,
            client,
        })
    }

    /// Sends one request; the error is a [`kube::Error::Api`] if the server refuses it.
    pub fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<Value> {
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        self.request_bytes(method, path, content_type, bytes)
    }

    /// Like [`Self::request`], with a body in any format.
    pub fn request_bytes(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Value> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(body)?;
        let answer = async { timeout(PATIENCE, self.client.request_text(request)).await };
        // A socket belongs to the namespace of the thread that opens it.
        let answer = self.ns.run(|| self.runtime.block_on(answer));
        let late = || format!("no answer of the API server within {PATIENCE:?}");
        let text = answer
            .with_context(late)?
            .with_context(|| format!("ask for {path}"))?;
        Ok(serde_json::from_str(&text).unwrap_or_else(|_| text.into()))
    }

    pub fn is_ready(&self) -> bool {
        self.get("/readyz").is_ok()
    }

    /// Creates or changes an object (server-side apply), and returns the result.
    pub fn apply(&self, object: &Value) -> Result<Value> {
        let path = format!("{}?fieldManager={MANAGER}&force=true", path_of(object)?);
        self.request(Method::PATCH, &path, "application/apply-patch+yaml", object)
    }

    /// Changes fields of an object (JSON merge patch).
    pub fn patch(&self, path: &str, change: &Value) -> Result<Value> {
        self.request(Method::PATCH, path, "application/merge-patch+json", change)
    }

    /// Changes fields of a Node's status as its kubelet does, and keeps the fields of other writers
    /// (strategic merge patch).
    pub fn patch_node_status(&self, node: &str, status: &Value) -> Result<Value> {
        let path = format!("/api/v1/nodes/{node}/status");
        let strategic = "application/strategic-merge-patch+json";
        let change = json!({ "status": status });
        self.request(Method::PATCH, &path, strategic, &change)
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        self.request(Method::GET, path, "application/json", &Value::Null)
    }

    /// Creates an object in a collection.
    pub fn post(&self, path: &str, object: &Value) -> Result<Value> {
        self.request(Method::POST, path, "application/json", object)
    }

    pub fn delete(&self, path: &str) -> Result<Value> {
        self.request(Method::DELETE, path, "application/json", &Value::Null)
    }

    /// Deletes an object. Succeeds too if the object is already gone, because a controller was faster.
    pub fn delete_object(&self, object: &Value) -> Result<()> {
        match self.delete(&path_of(object)?) {
            Err(error) if refused(&error) != Some(404) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Status code with which the server refused a request.
pub fn refused(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

pub(super) fn path_of(object: &Value) -> Result<String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (word(&object["apiVersion"]), word(&object["kind"]));
    let name = word(&object["metadata"]["name"]);
    let is_whole = [&version, &kind, &name].iter().all(|word| !word.is_empty());
    ensure!(is_whole, "no object: {object}");
    let root = if version == "v1" { "api" } else { "apis" };
    let namespace = match object["metadata"]["namespace"].as_str() {
        None | Some("") => String::new(),
        Some(namespace) => format!("/namespaces/{namespace}"),
    };
    let resource = kind.to_lowercase();
    let resource = match resource.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{resource}s"),
    };
    Ok(format!("/{root}/{version}{namespace}/{resource}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        let path = |version: &str, kind: &str, namespace: Option<&str>| {
            let object = json!({
                "apiVersion": version,
                "kind": kind,
                "metadata": { "name": "x", "namespace": namespace },
            });
            path_of(&object).expect("a path")
        };
        assert_eq!(path("v1", "Node", None), "/api/v1/nodes/x");
        assert_eq!(path("v1", "Node", Some("")), "/api/v1/nodes/x");
        assert_eq!(
            path("discovery.k8s.io/v1", "EndpointSlice", Some("demo")),
            "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices/x"
        );
        let policy = path(
            "admissionregistration.k8s.io/v1",
            "ValidatingAdmissionPolicy",
            None,
        );
        assert!(
            policy.ends_with("/validatingadmissionpolicies/x"),
            "{policy}"
        );
        assert!(path_of(&json!({ "kind": "Node" })).is_err());
    }
}
