//! This Node in the API: reads and writes one condition of its status, and nothing else of it.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ACCEPT, HeaderValue};
use kube::Client;
use kube::api::{GetParams, Patch, PatchParams, Request};
use serde::{Deserialize, Serialize};

use super::fault::Fault;
use agent_core::condition::{Reason, Status, TYPE, Written};
use agent_core::time::Wall;

/// Nodes in the API.
const NODES: &str = "/api/v1/nodes";
/// Who wrote it, in `managedFields`.
const MANAGER: &str = "pathproof";
/// A Node is tens of kilobytes, and nothing of it is needed in an answer to a write.
const METADATA_ALONE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) status: Status,
    pub(super) reason: Reason,
    pub(super) message: String,
    pub(super) heartbeat: Wall,
    pub(super) transition: Wall,
}

/// The part of a Node that matters here.
#[derive(Debug, Serialize, Deserialize)]
struct Node {
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    conditions: Vec<NodeCondition>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeCondition {
    r#type: String,
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    last_heartbeat_time: Option<String>,
    #[serde(default)]
    last_transition_time: Option<String>,
}

/// One Node.
#[derive(Clone)]
pub(super) struct NodeApi {
    client: Client,
    name: Arc<str>,
    patience: Duration,
}

impl NodeApi {
    pub(super) fn new(client: Client, name: Arc<str>, patience: Duration) -> Self {
        Self {
            client,
            name,
            patience,
        }
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// What an agent before wrote.
    pub(super) async fn read(&self) -> Result<Option<Written>, Fault> {
        let request = Request::new(NODES)
            .get(&self.name, &GetParams::default())
            .map_err(kube::Error::BuildRequest)?;
        let node: Node = self.patient(self.client.request(request)).await?;
        let ours = |of: &&NodeCondition| of.r#type == TYPE;
        Ok(node.status.conditions.iter().find(ours).and_then(written))
    }

    /// Sets our condition. A strategic merge patch by the conditions' merge key: no other condition
    /// is touched, and nothing is read before.
    pub(super) async fn write(&self, words: &Words) -> Result<(), Fault> {
        let patch = Node {
            status: NodeStatus {
                conditions: vec![NodeCondition {
                    r#type: TYPE.to_owned(),
                    status: words.status.name().to_owned(),
                    reason: words.reason.name(),
                    message: words.message.clone(),
                    last_heartbeat_time: Some(time(words.heartbeat)),
                    last_transition_time: Some(time(words.transition)),
                }],
            },
        };
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let mut request = Request::new(NODES)
            .patch_subresource("status", &self.name, &params, &Patch::Strategic(patch))
            .map_err(kube::Error::BuildRequest)?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(METADATA_ALONE));
        self.patient(self.client.request_text(request)).await?;
        Ok(())
    }

    /// Waits for an answer as long as is reasonable.
    pub(super) async fn patient<T>(
        &self,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Fault> {
        let patience = self.patience;
        match tokio::time::timeout(patience, answer).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Fault::Timeout { patience }),
        }
    }
}

/// `None` for what no agent of ours wrote.
fn written(condition: &NodeCondition) -> Option<Written> {
    let at: jiff::Timestamp = condition.last_transition_time.as_ref()?.parse().ok()?;
    Some(Written {
        status: Status::parse(&condition.status)?,
        reason: Reason::parse(&condition.reason),
        transition: Wall(i64::try_from(at.as_nanosecond()).ok()?),
    })
}

/// As `metav1.Time`: whole seconds.
fn time(at: Wall) -> String {
    Wall(at.0 - at.0.rem_euclid(1_000_000_000)).to_string()
}
