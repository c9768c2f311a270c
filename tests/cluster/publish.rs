//! The Node's condition and Events, which the agent writes to a real API server with the shipped role.

use node_tests::prelude::*;

use crate::scene::{NODE, PATIENCE, Scene, flush};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

impl Scene {
    fn condition(&self) -> Option<Value> {
        let node = self.api.get(NODE).ok()?;
        let conditions = node["status"]["conditions"].as_array()?;
        let ours = |condition: &&Value| condition["type"] == "ServiceDatapathReady";
        conditions.iter().find(ours).cloned()
    }

    pub(crate) fn wait_condition(&self, status: &str, reason: &str) -> Value {
        let seen = until(PATIENCE, || {
            self.condition().filter(|condition| {
                let said = condition["reason"].as_str().unwrap_or_default();
                condition["status"] == status && said.starts_with(reason)
            })
        });
        seen.unwrap_or_else(|| panic!("never {status} {reason}: {:#?}", self.condition()))
    }
}

#[test]
fn the_nodes_condition_follows_the_datapath() {
    let mut scene = needs!(Scene::proven(Mode::Nftables, &[]));
    let foreign = serde_json::json!({ "conditions": [{
        "type": "Ready", "status": "True", "reason": "Kubelet", "message": "kept",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] });
    let written = scene.api.patch_node_status(NODE_NAME, &foreign);
    written.expect("kubelet's condition");

    let sound = scene.wait_condition("True", "DatapathProven");
    flush(&scene.world.node);
    let broken = scene.wait_condition("False", "DatapathBroken");
    assert_ne!(broken["lastTransitionTime"], sound["lastTransitionTime"]);
    let told = until(PATIENCE, || {
        let events = scene.api.get(EVENTS).ok()?;
        let warned = |event: &&Value| {
            event["type"] == "Warning"
                && event["reason"] == broken["reason"]
                && event["regarding"]["name"] == "node-1"
        };
        events["items"].as_array()?.iter().find(warned).cloned()
    });
    assert!(told.is_some(), "no Event: {}", scene.agent().log());

    // The next agent keeps the time of the condition's transition.
    scene.agent.take().expect("an agent").kill().expect("kill");
    scene.start_agent(&[]);
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    let kept = scene.wait_condition("False", "DatapathBroken");
    assert_eq!(kept["lastTransitionTime"], broken["lastTransitionTime"]);
    let node = scene.api.get(NODE).expect("the Node");
    let conditions = node["status"]["conditions"].as_array().expect("conditions");
    let ready = conditions
        .iter()
        .find(|condition| condition["type"] == "Ready");
    assert_eq!(ready.expect("kubelet's")["message"], "kept");
}
