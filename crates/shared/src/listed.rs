//! Nodes and pods in a list as `kubectl get --output=json` prints it, and a Node's condition as
//! agents publish it.

use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pathproof_facts::time::Wall;
use pathproof_report::condition::{Status, TYPE};
use pathproof_rotator::{ConditionSeen, NodeSeen};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A pod that may run an agent.
#[derive(Debug)]
pub struct PodSeen {
    pub name: String,
    /// Empty if it is not scheduled yet.
    pub node: String,
    pub deleting: bool,
    /// Why no process of the pod runs; `None` if one runs.
    pub waits: Option<String>,
}

/// Reads a list of Nodes.
pub fn nodes(list: &[u8]) -> serde_json::Result<Vec<NodeSeen>> {
    Ok(items(list)?.into_iter().map(node).collect())
}

/// Reads a list of pods.
pub fn pods(list: &[u8]) -> serde_json::Result<Vec<PodSeen>> {
    Ok(items(list)?.into_iter().map(pod).collect())
}

fn items<T: DeserializeOwned>(list: &[u8]) -> serde_json::Result<Vec<T>> {
    #[derive(Deserialize)]
    struct List<T> {
        items: Vec<T>,
    }
    serde_json::from_slice(list).map(|list: List<T>| list.items)
}

fn node(node: Node) -> NodeSeen {
    let os = node.metadata.labels.unwrap_or_default();
    let os = os.get("kubernetes.io/os").filter(|os| *os != "linux");
    let taints = node.spec.and_then(|spec| spec.taints);
    let conditions = node.status.and_then(|status| status.conditions);
    NodeSeen {
        name: node.metadata.name.unwrap_or_default(),
        deleting: node.metadata.deletion_timestamp.is_some(),
        taints: taints
            .into_iter()
            .flatten()
            .map(|taint| taint.key)
            .collect(),
        foreign_os: os.cloned(),
        condition: condition(conditions.as_deref().unwrap_or_default()),
    }
}

/// The condition that agents publish.
pub fn condition(all: &[NodeCondition]) -> Option<ConditionSeen> {
    let ours = all.iter().find(|condition| condition.type_ == TYPE)?;
    let at = |time: &Time| Wall::of(time.0);
    Some(ConditionSeen {
        // An unknown status does not count as failing.
        status: Status::parse(&ours.status).unwrap_or(Status::Unknown),
        reason: ours.reason.clone().unwrap_or_default(),
        message: ours.message.clone().unwrap_or_default(),
        transition: ours.last_transition_time.as_ref().and_then(at),
        heartbeat: ours.last_heartbeat_time.as_ref().and_then(at),
    })
}

fn pod(pod: Pod) -> PodSeen {
    let status = pod.status.unwrap_or_default();
    let phase = status.phase.unwrap_or_default();
    // A pod in any phase may have a crashed container, whose state is `waiting`.
    let mut containers = status.container_statuses.into_iter().flatten();
    let waits = match containers.find_map(|container| container.state?.waiting) {
        Some(waiting) => Some(format!("{phase}, {}", waiting.reason.unwrap_or_default())),
        None => (phase != "Running").then_some(phase),
    };
    PodSeen {
        name: pod.metadata.name.unwrap_or_default(),
        node: pod.spec.and_then(|spec| spec.node_name).unwrap_or_default(),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        waits,
    }
}
