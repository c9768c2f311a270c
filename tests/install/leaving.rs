//! A node that is being removed answers 503 at /healthz and 200 at /livez, in whichever way it is removed.

use node_tests::prelude::*;
use serde_json::json;

use crate::scene::{NODE, Scene};

#[test]
fn a_node_that_is_taken_away_gets_no_new_connections() {
    let scene = needs!(Scene::installed());
    scene.kubectl("taint node node-1 ToBeDeletedByClusterAutoscaler=1:NoSchedule");
    scene.wait_codes(503, 200);
    scene.kubectl("taint node node-1 ToBeDeletedByClusterAutoscaler-");
    scene.wait_codes(200, 200);

    // Hold the Node by a finalizer, as Karpenter does.
    let held = json!({ "metadata": { "finalizers": ["example.com/drains"] } });
    scene.node.api.patch(NODE, &held).expect("a finalizer");
    scene.kubectl("delete node node-1 --wait=false");
    scene.wait_codes(503, 200);
    let freed = json!({ "metadata": { "finalizers": null } });
    scene.node.api.patch(NODE, &freed).expect("no finalizer");
    scene.wait("the Node is gone", || scene.node.node().is_err());
    scene.wait_codes(503, 200);
}
