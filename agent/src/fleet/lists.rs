//! Lists from the API server, in pages, and what is read of their objects.

use std::time::Duration;

use hyper::Request;
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{FleetError, Right};
use agent_core::condition::{Status, TYPE};
use agent_core::fleet::{ConditionSeen, NodeSeen};
use agent_core::time::Wall;

/// Objects on a page, as with kubectl. A Node is 10 to 20 kB, and only a page is held at a time.
const PAGE: u32 = 500;
/// The API server keeps a list's state for 5 min; whoever is slower begins again, so often.
const ATTEMPTS: u32 = 3;
/// 410: the state that the next page belongs to is gone.
const GONE: u16 = 410;

/// The agents' pods, as deploy/base labels them.
const AGENTS: &str = "app.kubernetes.io/name=pathproof,app.kubernetes.io/component=agent";

/// A pod of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodSeen {
    pub(super) name: String,
    /// Empty before it is scheduled.
    pub(super) node: String,
    pub(super) running: bool,
    pub(super) ready: bool,
    pub(super) deleting: bool,
    /// Its phase, and what its container waits for.
    pub(super) looks: String,
}

impl PodSeen {
    /// Of two pods of a node, as in an update, the one that is rather asked has more.
    pub(super) fn promise(&self) -> (bool, bool, bool) {
        (self.running, self.ready, !self.deleting)
    }
}

/// All Nodes of a selector. Tells how many were read so far.
pub(super) async fn nodes(
    client: &Client,
    selector: Option<&str>,
    timeout: Duration,
    progress: impl Fn(usize),
) -> Result<Vec<NodeSeen>, FleetError> {
    let mut path = format!("/api/v1/nodes?limit={PAGE}");
    if let Some(selector) = selector {
        path.push_str("&labelSelector=");
        path.push_str(&escaped(selector));
    }
    let right = Right {
        verb: "list",
        resource: "nodes",
        namespace: None,
    };
    let list = Listing {
        client,
        path,
        what: "list nodes",
        right,
        timeout,
    };
    list.all(node_seen, progress).await
}

/// The pods of agents, of one node or of all.
pub(super) async fn pods(
    client: &Client,
    namespace: &str,
    node: Option<&str>,
    timeout: Duration,
) -> Result<Vec<PodSeen>, FleetError> {
    let mut path = format!(
        "/api/v1/namespaces/{}/pods?limit={PAGE}&labelSelector={}",
        escaped(namespace),
        escaped(AGENTS)
    );
    if let Some(node) = node {
        path.push_str("&fieldSelector=");
        path.push_str(&escaped(&format!("spec.nodeName={node}")));
    }
    let right = Right {
        verb: "list",
        resource: "pods",
        namespace: Some(namespace.to_owned()),
    };
    let list = Listing {
        client,
        path,
        what: "list pods",
        right,
        timeout,
    };
    list.all(pod_seen, |_| {}).await
}

/// What is listed.
struct Listing<'a> {
    client: &'a Client,
    path: String,
    what: &'static str,
    right: Right,
    timeout: Duration,
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

impl Listing<'_> {
    async fn all<T: DeserializeOwned, U>(
        &self,
        read: impl Fn(T) -> U,
        progress: impl Fn(usize),
    ) -> Result<Vec<U>, FleetError> {
        for _ in 0..ATTEMPTS {
            let mut found = Vec::new();
            let mut next: Option<String> = None;
            loop {
                let page: Page<T> = match self.page(next.as_deref()).await {
                    Err(FleetError::Refused { code: GONE, .. }) if next.is_some() => break,
                    page => page?,
                };
                found.extend(page.items.into_iter().map(&read));
                progress(found.len());
                next = page.metadata.next.filter(|token| !token.is_empty());
                if next.is_none() {
                    return Ok(found);
                }
            }
        }
        Err(FleetError::Endless)
    }

    async fn page<T: DeserializeOwned>(&self, after: Option<&str>) -> Result<Page<T>, FleetError> {
        let mut url = self.path.clone();
        if let Some(token) = after {
            url.push_str("&continue=");
            url.push_str(&escaped(token));
        }
        let what = self.what;
        let request =
            Request::get(url)
                .body(Vec::new())
                .map_err(|error| FleetError::Unreachable {
                    what,
                    why: error.to_string(),
                })?;
        match tokio::time::timeout(self.timeout, self.client.request(request)).await {
            Ok(answer) => answer.map_err(|error| FleetError::of(error, what, self.right.clone())),
            Err(_) => Err(FleetError::Timeout {
                what,
                timeout: self.timeout,
            }),
        }
    }
}

#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    deletion_timestamp: Option<String>,
    #[serde(default)]
    labels: Option<Labels>,
}

#[derive(Default, Deserialize)]
struct Labels {
    #[serde(default, rename = "kubernetes.io/os")]
    os: Option<String>,
}

#[derive(Default, Deserialize)]
struct NodeSpec {
    #[serde(default)]
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize)]
struct Taint {
    key: String,
}

#[derive(Default, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    r#type: String,
    status: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    last_heartbeat_time: Option<String>,
    #[serde(default)]
    last_transition_time: Option<String>,
}

fn node_seen(node: Node) -> NodeSeen {
    let conditions = node.status.conditions.unwrap_or_default();
    let ours = conditions.into_iter().find(|of| of.r#type == TYPE);
    let os = node.metadata.labels.and_then(|labels| labels.os);
    NodeSeen {
        name: node.metadata.name,
        deleting: node.metadata.deletion_timestamp.is_some(),
        taints: node
            .spec
            .taints
            .unwrap_or_default()
            .into_iter()
            .map(|taint| taint.key)
            .collect(),
        foreign_os: os.filter(|os| os != "linux"),
        condition: ours.map(|of| ConditionSeen {
            status: Status::parse(&of.status).unwrap_or(Status::Unknown),
            reason: of.reason.unwrap_or_default(),
            message: of.message.unwrap_or_default(),
            transition: of.last_transition_time.as_deref().and_then(time),
            heartbeat: of.last_heartbeat_time.as_deref().and_then(time),
        }),
    }
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    node_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    #[serde(default)]
    phase: Option<String>,
    #[serde(default)]
    container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Deserialize)]
struct ContainerStatus {
    #[serde(default)]
    ready: bool,
    #[serde(default)]
    state: ContainerState,
}

#[derive(Default, Deserialize)]
struct ContainerState {
    #[serde(default)]
    waiting: Option<Waiting>,
}

#[derive(Deserialize)]
struct Waiting {
    #[serde(default)]
    reason: Option<String>,
}

fn pod_seen(pod: Pod) -> PodSeen {
    let containers = pod.status.container_statuses.unwrap_or_default();
    let ready = !containers.is_empty() && containers.iter().all(|of| of.ready);
    let waits = containers
        .into_iter()
        .find_map(|of| of.state.waiting?.reason);
    let phase = pod.status.phase.unwrap_or_default();
    PodSeen {
        name: pod.metadata.name,
        node: pod.spec.node_name.unwrap_or_default(),
        // A container that waits has no process, whatever the pod's phase.
        running: phase == "Running" && waits.is_none(),
        ready,
        deleting: pod.metadata.deletion_timestamp.is_some(),
        looks: match waits {
            Some(waits) => format!("{phase}, {waits}"),
            None => phase,
        },
    }
}

fn time(text: &str) -> Option<Wall> {
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Wall(i64::try_from(at.as_nanosecond()).ok()?))
}

/// A value in a URL's query.
pub(super) fn escaped(text: &str) -> String {
    let mut url = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
    url
}
