//! A DaemonSet rollout that Kubernetes' controller does not finish because it forgot to sync again
//! (docs/upgrade.md).

use serde_json::Value;

/// Whether a DaemonSet's pods on one node show the state that the controller leaves if it forgets to sync
/// again: an older pod that is not deleted, and a newer one that is ready. Other causes of a stuck rollout
/// leave another state.
pub fn is_forgotten(pods: &[Value]) -> bool {
    let made = |pod: &&Value| pod["metadata"]["creationTimestamp"].to_string();
    let stays = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
    let newest = pods.iter().max_by_key(made);
    pods.len() == 2 && pods.iter().all(stays) && newest.is_some_and(is_ready)
}

/// Whether all containers of a pod are ready.
pub fn is_ready(pod: &Value) -> bool {
    let all = pod["status"]["containerStatuses"].as_array();
    all.is_some_and(|all| !all.is_empty() && all.iter().all(|one| one["ready"] == true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(made: &str, ready: bool) -> Value {
        json!({
            "metadata": { "creationTimestamp": made },
            "status": { "containerStatuses": [{ "ready": ready }] },
        })
    }

    #[test]
    fn two_pods_of_which_the_newer_is_ready_were_forgotten() {
        let (old, new) = (
            pod("2026-11-26T07:00:00Z", true),
            pod("2026-11-26T07:01:00Z", true),
        );
        assert!(is_forgotten(&[old.clone(), new.clone()]));
        assert!(is_forgotten(&[new, old]));
    }

    #[test]
    fn a_rollout_that_hangs_otherwise_was_not_forgotten() {
        let old = pod("2026-11-26T07:00:00Z", true);
        let starting = pod("2026-11-26T07:01:00Z", false);
        let mut ending = old.clone();
        ending["metadata"]["deletionTimestamp"] = json!("2026-11-26T07:02:00Z");
        let new = pod("2026-11-26T07:01:00Z", true);
        for pods in [
            vec![],
            vec![old.clone()],
            vec![old, starting],
            vec![ending, new],
        ] {
            assert!(!is_forgotten(&pods), "{pods:?}");
        }
    }
}
