//! `pathproof rotate --withdraw=label`: only nodes that fail get the label that withdraws them from load
//! balancers without health checks. Rights and policy are those of deploy/components/withdraw.
//!
//! This is the slowest test. Its module has this name because libtest starts tests in the order of their
//! names.

use std::path::Path;

use node_tests::cluster::{base, node_token, put_file};
use node_tests::prelude::*;

use crate::scene::{NODE, PATIENCE, Scene, flush};

const LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

impl Scene {
    fn label(&self, node: &str) -> Value {
        let node = self.api.get(node).expect("a Node");
        node["metadata"]["labels"][LABEL].clone()
    }

    fn labelled(&self, node: &str, value: &Value, what: &str) {
        let seen = until(2 * PATIENCE, || (self.label(node) == *value).then_some(()));
        assert!(seen.is_some(), "{what}: {}", self.label(node));
    }
}

#[test]
fn nodes_that_fail_are_withdrawn_and_given_back() {
    let scene = needs!(Scene::proven(Mode::Nftables, &[]));
    scene.fleet(1);
    // An administrator withdrew peer-2 by hand.
    let theirs = json!({ "metadata": { "labels": { LABEL: "" } } });
    let peers = ["/api/v1/nodes/peer-1", "/api/v1/nodes/peer-2"];
    scene.api.patch(peers[1], &theirs).expect("a label");

    let way = ["--withdraw", "label", "--withdraw-after", "2s"];
    let without = scene.rotator("without-rights", &way);
    let log = || without.log();
    let refused = until(PATIENCE, || {
        log().contains("refuses to label node peer-1").then_some(())
    });
    assert!(refused.is_some(), "the refusal is not logged: {}", log());
    let component =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/components/withdraw/withdraw.yaml");
    put_file(&scene.api, &component).expect("the component's objects");

    let ours = json!("pathproof");
    scene.labelled(peers[0], &ours, "a node that fails");
    scene.peers(0);
    scene.labelled(NODE, &Value::Null, "a sound one");
    // Make this node fail, so that its condition is False. Only one node of five may be withdrawn at a time.
    scene.labelled(peers[0], &Value::Null, "a node that works again");
    let rules = flush(&scene.world.node);
    scene.labelled(NODE, &ours, "this node fails");
    // Audit mode for the whole cluster removes the label.
    let sentinel = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
    for (value, label) in [(json!("audit"), &Value::Null), (Value::Null, &ours)] {
        let switch =
            json!({ "metadata": { "annotations": { "pathproof.io/enforcement": value } } });
        scene.api.patch(sentinel, &switch).expect("an annotation");
        scene.labelled(NODE, label, "it still fails");
    }
    scene.peers(2);
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(scene.label(peers[0]), Value::Null, "beyond the share");
    scene.peers(0);
    scene.world.node.nft(&rules).expect("the rules again");
    scene.labelled(NODE, &Value::Null, "this node works again");
    assert_eq!(scene.label(peers[1]), json!(""), "somebody else's stays");
    // A rotator that exits after SIGTERM releases its lease, so the next one leads at once.
    without.signal(libc::SIGTERM);

    // A rotator without `--withdraw` logs which labels are left, and the command that removes them.
    scene
        .api
        .patch(
            peers[0],
            &json!({ "metadata": { "labels": { LABEL: ours } } }),
        )
        .expect("a label");
    let off = scene.rotator("off", &[]);
    let told = until(2 * PATIENCE, || {
        off.log().contains("kubectl label nodes -l").then_some(())
    });
    assert!(told.is_some(), "{}", off.log());
    assert_eq!(scene.label(peers[0]), ours);
    the_policy_keeps_the_right_to_one_label(&scene);
}

/// RBAC can only allow to patch whole Nodes. The policy narrows this to one label.
fn the_policy_keeps_the_right_to_one_label(scene: &Scene) {
    let token = node_token(&scene.api, base::ROTATOR, NODE_NAME);
    let rotator = scene
        .control
        .api_as(&token.expect("a token"))
        .expect("a client");
    let patch = |change: &Value| {
        rotator
            .patch(NODE, change)
            .map_err(|error| format!("{error:#}"))
    };
    let label = |value: Value| json!({ "metadata": { "labels": { LABEL: value } } });
    let other = json!({ "metadata": { "labels": { "example.com/other": "x" } } });
    let denied = until(PATIENCE, || {
        let undo = json!({ "metadata": { "labels": { "example.com/other": null } } });
        scene.api.patch(NODE, &undo).expect("undo");
        patch(&other)
            .err()
            .filter(|error| error.contains("may change only the label"))
    });
    assert!(denied.is_some(), "another label");
    for change in [
        json!({ "spec": { "unschedulable": true } }),
        json!({ "spec": { "taints": [{ "key": "x", "effect": "NoExecute" }] } }),
        json!({ "metadata": { "annotations": { "pathproof.io/enforcement": "audit" } } }),
        json!({ "metadata": { "finalizers": ["example.com/x"] } }),
        label(json!("theirs")),
    ] {
        let error = patch(&change).expect_err("refused");
        assert!(error.contains("pathproof's rotator"), "{change}: {error}");
    }
    patch(&label(json!("pathproof"))).expect("the label");
    patch(&label(Value::Null)).expect("and off");
    scene
        .api
        .patch(NODE, &label(json!("")))
        .expect("an administrator's");
    for value in [json!("pathproof"), Value::Null] {
        let error = patch(&label(value)).expect_err("somebody else's");
        assert!(error.contains("another client set"), "{error}");
    }
}
