//! Labels and conditions of the agent's Node, which may announce its removal.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeCondition;
use pathproof_judge::eligibility::KUBELET_SHUTDOWN;

/// kubelet's text in the message of its condition Ready, during its graceful node shutdown. It shows that
/// nowhere else.
const SHUTS_DOWN: &str = "node is shutting down";

/// Whether this is kubelet's condition Ready during its graceful node shutdown.
pub(in crate::cluster) fn shuts_down(condition: &NodeCondition) -> bool {
    let message = condition.message.as_deref().unwrap_or_default();
    condition.type_ == "Ready" && message.contains(SHUTS_DOWN)
}

/// See [`NodeFacts::marks`](pathproof_facts::cluster::NodeFacts::marks).
pub(super) fn marks(
    conditions: &Option<Vec<NodeCondition>>,
    labels: &Option<BTreeMap<String, String>>,
) -> BTreeMap<Arc<str>, Arc<str>> {
    let mut marks = BTreeMap::<Arc<str>, Arc<str>>::new();
    for condition in conditions.iter().flatten() {
        if shuts_down(condition) {
            marks.insert(KUBELET_SHUTDOWN.into(), "True".into());
        }
        let key = format!("condition {}", condition.type_);
        marks.insert(key.into(), condition.status.as_str().into());
    }
    for (key, value) in labels.iter().flatten() {
        marks.insert(format!("label {key}").into(), value.as_str().into());
    }
    marks
}
