//! kubectl as a child process: the only way to the API server, and to a node's agent. kubectl
//! writes its messages to standard error itself.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};

use pathproof_facts::time::Wall;
use pathproof_report::condition::{Status, TYPE};
use pathproof_rotator::{ConditionSeen, NodeSeen};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::args::{FleetArgs, Output};

/// Labels of the agents' pods, as deploy/base and the chart set them.
const AGENTS: &str = "app.kubernetes.io/name=pathproof,app.kubernetes.io/component=agent";
const CONTAINER: &str = "agent";
/// The binary in the image, which has no PATH.
const BINARY: &str = "/pathproof";

#[derive(Debug, Error)]
pub(super) enum KubectlError {
    #[error("kubectl is not in PATH: install it, or add its folder to PATH")]
    Missing,
    #[error("kubectl cannot be started")]
    Start(#[source] io::Error),
    #[error(
        "kubectl get {0} failed ({1}), see its message above; deploy/examples/fleet-rbac.yaml \
         grants the rights it needs"
    )]
    Failed(&'static str, ExitStatus),
    #[error("kubectl get {0} did not print a list in JSON")]
    Unreadable(&'static str, #[source] serde_json::Error),
    #[error(
        "there is no agent pod on node {0} in namespace {1}: check the name with kubectl get \
         nodes, or give pathproof's namespace with --namespace"
    )]
    NoAgent(String, String),
    #[error(
        "the agent's pod {0} is not running ({1}): kubectl describe pod --namespace {2} {0} shows why"
    )]
    NotRunning(String, String, String),
}

/// Lists the Nodes that the selector matches.
pub(super) fn nodes(said: &FleetArgs) -> Result<Vec<NodeSeen>, KubectlError> {
    let selector = said.selector.iter();
    let words: Vec<String> = selector.map(|text| format!("--selector={text}")).collect();
    let nodes = get(said, "nodes", &words)?;
    Ok(nodes.iter().map(node_seen).collect())
}

/// Name of the pod of that node's agent.
pub(super) fn agent_pod(said: &FleetArgs, node: &str) -> Result<String, KubectlError> {
    let namespace = said.namespace.clone();
    let words = [
        format!("--namespace={namespace}"),
        format!("--selector={AGENTS}"),
        format!("--field-selector=spec.nodeName={node}"),
    ];
    let pods = get(said, "pods", &words)?.into_iter();
    // During an update a node may have two pods.
    let best = pods.max_by_key(|pod| (waits(pod).is_none(), !is_deleted(pod)));
    let Some(pod) = best else {
        return Err(KubectlError::NoAgent(node.to_owned(), namespace));
    };
    let name = text(&pod["metadata"]["name"]);
    match waits(&pod) {
        None => Ok(name),
        Some(phase) => Err(KubectlError::NotRunning(name, phase, namespace)),
    }
}

/// Replaces this process by kubectl, which runs the agent's binary in that pod. Standard streams,
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

fn get(said: &FleetArgs, what: &'static str, words: &[String]) -> Result<Vec<Value>, KubectlError> {
    let mut command = kubectl("get", said);
    command.args([what, "--output=json"]).args(words);
    // A credential plugin may prompt for a password.
    command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
    let output = command.output().map_err(not_started)?;
    let status = output.status;
    if !status.success() {
        return Err(KubectlError::Failed(what, status));
    }
    let list: List = serde_json::from_slice(&output.stdout)
        .map_err(|source| KubectlError::Unreadable(what, source))?;
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
        _ => KubectlError::Start(source),
    }
}

/// Output of `kubectl get` for several objects.
#[derive(Deserialize)]
struct List {
    items: Vec<Value>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn is_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Reason why a pod has no running process; `None` if it has one. A crashed container waits in any
/// phase of the pod.
fn waits(pod: &Value) -> Option<String> {
    let status = &pod["status"];
    let phase = text(&status["phase"]);
    let states = each(&status["containerStatuses"]).map(|container| &container["state"]);
    let mut waiting = states.filter_map(|state| state.get("waiting"));
    match waiting.next() {
        Some(waiting) => Some(format!("{phase}, {}", text(&waiting["reason"]))),
        None => (phase != "Running").then_some(phase),
    }
}

fn node_seen(node: &Value) -> NodeSeen {
    let metadata = &node["metadata"];
    let os = metadata["labels"]["kubernetes.io/os"].as_str();
    let mut conditions = each(&node["status"]["conditions"]);
    NodeSeen {
        name: text(&metadata["name"]),
        deleting: is_deleted(node),
        taints: each(&node["spec"]["taints"])
            .map(|taint| text(&taint["key"]))
            .collect(),
        foreign_os: os.filter(|os| *os != "linux").map(str::to_owned),
        condition: conditions
            .find(|condition| condition["type"] == TYPE)
            .map(|condition| {
                let status = condition["status"].as_str().unwrap_or_default();
                ConditionSeen {
                    status: Status::parse(status).unwrap_or(Status::Unknown),
                    reason: text(&condition["reason"]),
                    message: text(&condition["message"]),
                    transition: condition["lastTransitionTime"]
                        .as_str()
                        .and_then(Wall::parse),
                    heartbeat: condition["lastHeartbeatTime"]
                        .as_str()
                        .and_then(Wall::parse),
                }
            }),
    }
}
