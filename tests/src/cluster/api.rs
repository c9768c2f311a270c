//! The API of the cluster: a client that waits for each answer, inside a namespace of the world.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use http::{Method, Request};
use kube::client::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::control_plane::kubeconfig;
use crate::world::Namespace;

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Who owns the fields that tests write.
const MANAGER: &str = "pathproof-tests";

/// The server said no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Status code, such as 403.
    pub code: u16,
    /// What it said.
    pub message: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refused {}

/// A client with the rights of one token.
pub struct Api {
    ns: Namespace,
    runtime: Runtime,
    client: Client,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Api {
    /// Speaks to `server` from a namespace; nothing is sent yet.
    pub fn connect(ns: &Namespace, server: SocketAddr, ca: &str, token: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
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

    /// Sockets belong to the namespace of the thread that opens them.
    fn wait<T: Send>(&self, work: impl Future<Output = T> + Send) -> Result<T> {
        self.ns
            .run(|| {
                self.runtime
                    .block_on(async { tokio::time::timeout(PATIENCE, work).await })
            })
            .with_context(|| format!("no answer of the API server within {PATIENCE:?}"))
    }

    /// One request; the error is a [`Refused`] where the server said no.
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
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(bytes)?;
        match self.wait(self.client.request_text(request))? {
            Ok(text) if text.is_empty() => Ok(Value::Null),
            Ok(text) => Ok(serde_json::from_str(&text).unwrap_or(Value::String(text))),
            Err(kube::Error::Api(status)) => Err(anyhow!(Refused {
                code: status.code,
                message: status.message.clone(),
            })),
            Err(error) => Err(error).with_context(|| format!("ask for {path}")),
        }
    }

    /// Whether the server is ready.
    pub fn is_ready(&self) -> bool {
        self.request(Method::GET, "/readyz", "application/json", &Value::Null)
            .is_ok()
    }

    /// Makes an object, or makes it so (server-side apply). Gives it as it is then.
    pub fn apply(&self, object: &Value) -> Result<Value> {
        let path = format!("{}?fieldManager={MANAGER}&force=true", path_of(object)?);
        self.request(Method::PATCH, &path, "application/apply-patch+yaml", object)
    }

    /// Writes the status of an object.
    pub fn apply_status(&self, object: &Value, status: &Value) -> Result<Value> {
        let path = format!("{}/status?fieldManager={MANAGER}", path_of(object)?);
        self.request(
            Method::PATCH,
            &path,
            "application/merge-patch+json",
            &json!({ "status": status }),
        )
    }

    /// Changes fields of an object (JSON merge patch).
    pub fn patch(&self, path: &str, change: &Value) -> Result<Value> {
        self.request(Method::PATCH, path, "application/merge-patch+json", change)
    }

    /// Reads an object or a list.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.request(Method::GET, path, "application/json", &Value::Null)
    }

    /// Makes an object in a collection.
    pub fn post(&self, path: &str, object: &Value) -> Result<Value> {
        self.request(Method::POST, path, "application/json", object)
    }

    /// Deletes an object.
    pub fn delete(&self, path: &str) -> Result<Value> {
        self.request(Method::DELETE, path, "application/json", &Value::Null)
    }

    /// Deletes this object, unless it is gone: a controller may have been faster.
    pub fn delete_object(&self, object: &Value) -> Result<()> {
        match self.delete(&path_of(object)?) {
            Err(error)
                if error
                    .downcast_ref::<Refused>()
                    .is_none_or(|no| no.code != 404) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// A token of a ServiceAccount, bound to a pod as the kubelet's are.
    pub fn token(&self, namespace: &str, account: &str, pod: &Value) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "expirationSeconds": 3600,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod["metadata"]["name"],
                    "uid": pod["metadata"]["uid"],
                },
            },
        });
        let answer = self.post(&path, &request)?;
        let token = answer["status"]["token"].as_str();
        token
            .map(str::to_owned)
            .with_context(|| format!("no token in {answer}"))
    }
}

/// Where an object lives.
fn path_of(object: &Value) -> Result<String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (word(&object["apiVersion"]), word(&object["kind"]));
    let (name, namespace) = (
        word(&object["metadata"]["name"]),
        word(&object["metadata"]["namespace"]),
    );
    if version.is_empty() || kind.is_empty() || name.is_empty() {
        bail!("no object: {object}");
    }
    let root = if version == "v1" { "api" } else { "apis" };
    let resource = kind.to_lowercase();
    let resource = match resource.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{resource}s"),
    };
    Ok(if namespace.is_empty() {
        format!("/{root}/{version}/{resource}/{name}")
    } else {
        format!("/{root}/{version}/namespaces/{namespace}/{resource}/{name}")
    })
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
