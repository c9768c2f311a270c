//! kubectl as a child process: the only way to the API server, and to a node's agent. What kubectl
//! has to say it writes to standard error itself.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};

use serde::Deserialize;
use thiserror::Error;

use crate::args::{FleetArgs, Output};
use agent_core::condition::{Status, TYPE};
use agent_core::fleet::{ConditionSeen, NodeSeen};
use agent_core::time::Wall;

/// Labels of the agents' pods, as deploy/base and the chart set them.
const AGENTS: &str = "app.kubernetes.io/name=pathproof,app.kubernetes.io/component=agent";
/// The agent's container there.
const CONTAINER: &str = "agent";
/// The binary in the image, which has no PATH to find it by.
const BINARY: &str = "/pathproof";

/// Why kubectl was of no help.
#[derive(Debug, Error)]
pub(super) enum KubectlError {
    #[error("kubectl is not in PATH: install it, or add its folder to PATH")]
    Missing,
    #[error("kubectl cannot be started")]
    Start { source: io::Error },
    #[error(
        "kubectl get {what} failed ({status}), for the reason it printed; the rights it needs are in deploy/examples/fleet-rbac.yaml"
    )]
    Failed {
        what: &'static str,
        status: ExitStatus,
    },
    #[error("kubectl get {what} did not print a list in JSON")]
    Unreadable {
        what: &'static str,
        source: serde_json::Error,
    },
    #[error(
        "no pod of an agent is on node {node} in namespace {namespace}: compare the name with kubectl get nodes, or give --namespace if pathproof is installed in another"
    )]
    NoAgent { node: String, namespace: String },
    #[error(
        "the agent's pod {pod} is not running ({phase}): kubectl describe pod --namespace {namespace} {pod} shows why"
    )]
    NotRunning {
        pod: String,
        phase: String,
        namespace: String,
    },
}

/// The Nodes of the selector.
pub(super) fn nodes(said: &FleetArgs) -> Result<Vec<NodeSeen>, KubectlError> {
    let selector = said.selector.iter();
    let words: Vec<String> = selector.map(|text| format!("--selector={text}")).collect();
    let nodes = get(said, "nodes", &words)?;
    Ok(nodes.into_iter().map(node_seen).collect())
}

/// The name of the pod of that node's agent.
pub(super) fn agent_pod(said: &FleetArgs, node: &str) -> Result<String, KubectlError> {
    let namespace = said.namespace.clone();
    let words = [
        format!("--namespace={namespace}"),
        format!("--selector={AGENTS}"),
        format!("--field-selector=spec.nodeName={node}"),
    ];
    let pods = get(said, "pods", &words)?.into_iter();
    // An update has two pods on a node for a while.
    let best = pods.max_by_key(|pod| (pod.waits().is_none(), pod.metadata.deleted.is_none()));
    let node = node.to_owned();
    let Some(pod) = best else {
        return Err(KubectlError::NoAgent { node, namespace });
    };
    match pod.waits() {
        None => Ok(pod.metadata.name),
        Some(phase) => Err(KubectlError::NotRunning {
            pod: pod.metadata.name,
            phase,
            namespace,
        }),
    }
}

/// Becomes kubectl, which runs a command of the agent's own binary in that pod: standard streams,
/// signals and exit code are then kubectl's. Returns only if kubectl cannot be started.
pub(super) fn exec(said: &FleetArgs, pod: &str, run: &str, options: &[String]) -> KubectlError {
    let mut command = kubectl("exec", said);
    command
        .arg(format!("--namespace={}", said.namespace))
        .args([pod, "--container", CONTAINER, "--", BINARY, run]);
    if said.output == Output::Json {
        command.arg("--output=json");
    }
    not_started(command.args(options).exec())
}

fn get(
    said: &FleetArgs,
    what: &'static str,
    words: &[String],
) -> Result<Vec<Object>, KubectlError> {
    let mut command = kubectl("get", said);
    command.args([what, "--output=json"]).args(words);
    // A credential plugin may ask for a password.
    command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
    let output = command.output().map_err(not_started)?;
    let status = output.status;
    if !status.success() {
        return Err(KubectlError::Failed { what, status });
    }
    let list: List = serde_json::from_slice(&output.stdout)
        .map_err(|source| KubectlError::Unreadable { what, source })?;
    Ok(list.items)
}

fn kubectl(verb: &str, said: &FleetArgs) -> Command {
    let mut command = Command::new("kubectl");
    command.arg(verb).args(&said.kubectl.0);
    command
}

fn not_started(source: io::Error) -> KubectlError {
    match source.kind() {
        io::ErrorKind::NotFound => KubectlError::Missing,
        _ => KubectlError::Start { source },
    }
}

#[derive(Deserialize)]
struct List {
    items: Vec<Object>,
}

/// A Node or a Pod.
#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: ObjectStatus,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(rename = "deletionTimestamp")]
    deleted: Option<String>,
    #[serde(default)]
    labels: Labels,
}

#[derive(Default, Deserialize)]
struct Labels {
    #[serde(rename = "kubernetes.io/os")]
    os: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Vec<Taint>,
}

#[derive(Deserialize)]
struct Taint {
    key: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectStatus {
    conditions: Vec<Condition>,
    phase: String,
    container_statuses: Vec<Container>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
    last_heartbeat_time: Option<jiff::Timestamp>,
    last_transition_time: Option<jiff::Timestamp>,
}

#[derive(Deserialize)]
struct Container {
    state: ContainerState,
}

#[derive(Deserialize)]
struct ContainerState {
    waiting: Option<Waiting>,
}

#[derive(Deserialize)]
struct Waiting {
    #[serde(default)]
    reason: String,
}

impl Object {
    /// Why a pod has no process; nothing if it has one. A container that crashed waits, whatever the
    /// pod's phase.
    fn waits(&self) -> Option<String> {
        let ObjectStatus {
            phase,
            container_statuses,
            ..
        } = &self.status;
        let waiting =
            |container: &Container| Some(container.state.waiting.as_ref()?.reason.clone());
        match container_statuses.iter().find_map(waiting) {
            Some(reason) => Some(format!("{phase}, {reason}")),
            None => (phase != "Running").then(|| phase.clone()),
        }
    }
}

fn node_seen(node: Object) -> NodeSeen {
    let mut conditions = node.status.conditions.into_iter();
    let taints = node.spec.taints.into_iter();
    NodeSeen {
        name: node.metadata.name,
        deleting: node.metadata.deleted.is_some(),
        taints: taints.map(|taint| taint.key).collect(),
        foreign_os: node.metadata.labels.os.filter(|os| os != "linux"),
        condition: conditions
            .find(|of| of.r#type == TYPE)
            .map(|of| ConditionSeen {
                status: Status::parse(&of.status).unwrap_or(Status::Unknown),
                reason: of.reason,
                message: of.message,
                transition: of.last_transition_time.and_then(wall),
                heartbeat: of.last_heartbeat_time.and_then(wall),
            }),
    }
}

fn wall(at: jiff::Timestamp) -> Option<Wall> {
    i64::try_from(at.as_nanosecond()).ok().map(Wall)
}
