//! `pathproof preflight` at a real API server: before the installation, by a person without rights, and after
//! the installation.

use node_tests::prelude::*;
use node_tests::real_node::Desk;

use crate::scene::Scene;

#[test]
fn a_cluster_is_checked_before_and_after_the_installation() {
    let scene = needs!(Scene::bare());
    let desk = &scene.node.desk;
    let before = check(desk);
    for (check, verdict, words) in [
        ("kubernetes", "ok", "has ValidatingAdmissionPolicy"),
        ("namespace", "ok", "does not exist yet"),
        ("installation", "ok", "no agent"),
        ("kernel", "ok", "Linux "),
        ("runtime", "ok", "containerd "),
        ("architecture", "ok", "x86-64"),
        ("addresses", "ok", "the sentinel's ranges"),
        // kube-proxy is a process of the node here, not a DaemonSet.
        ("proxy", "unknown", "no known proxy"),
    ] {
        assert_line(&before, check, verdict, words);
    }

    let nobody = desk.of("nobody", &[]).expect("a desk");
    let refused = check(&nobody);
    for right in ["list nodes", "list services", "get configmaps"] {
        let words = format!("this right is missing: {right} (");
        assert_line(&refused, "not read", "unknown", &words);
    }
    assert_line(&refused, "kubernetes", "ok", "");

    scene.install_shipped();
    let after = check(desk);
    assert_line(&after, "namespace", "ok", "allows the agents");
    assert_line(
        &after,
        "installation",
        "warning",
        "pathproof/pathproof-agent",
    );
    // EndpointSlices of the sentinel have these addresses, and are no conflict.
    assert_line(&after, "addresses", "ok", "the sentinel's ranges");
}

/// Something is unknown in every case.
fn check(desk: &Desk) -> Value {
    let agent = agent_binary().expect("the agent's binary");
    let mut command = desk.command(agent);
    let output = command.args(["preflight", "--output=json"]).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[track_caller]
fn assert_line(document: &Value, check: &str, verdict: &str, words: &str) {
    let mut lines = document["lines"].as_array().into_iter().flatten();
    let found = lines.any(|line| {
        let sentence = line["sentence"].as_str().unwrap_or_default();
        line["check"] == check && line["verdict"] == verdict && sentence.contains(words)
    });
    assert!(found, "{check} {verdict} {words}: {document:#}");
}
