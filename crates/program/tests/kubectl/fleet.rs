//! `kubectl pathproof`.

use std::fs;

use rstest::rstest;
use serde_json::{Value, json};

use crate::{Canned, NOWHERE, SCRIPT, Said};

fn lists(resource: &str, items: &Value) -> Canned {
    let canned = Canned::new();
    canned.put(
        resource,
        &json!({ "apiVersion": "v1", "kind": "List", "items": items }),
    );
    canned
}

fn plugin(canned: &Canned, words: &[&str]) -> Said {
    canned.run("kubectl-pathproof", SCRIPT, words)
}

fn node(name: &str, status: &str, reason: &str) -> Value {
    let now = pathproof::clock::wall();
    let mut since = now;
    since.0 -= 250_000_000_000;
    json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } },
        "spec": { "podCIDR": "10.1.0.0/24" },
        "status": { "conditions": [
            { "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it is" },
            {
                "type": "ServiceDatapathReady", "status": status, "reason": reason,
                "message": "what the agent wrote [pathproof 0.1.0, audit]", "lastHeartbeatTime": now.to_string(),
                "lastTransitionTime": since.to_string(),
            },
        ] },
    })
}

/// An agent's pod with this state of its container.
fn pod(name: &str, phase: &str, state: &Value) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "pathproof" },
        "spec": { "nodeName": "worker-3" },
        "status": { "phase": phase, "containerStatuses": [{ "name": "agent", "state": state }] },
    })
}

#[test]
fn the_list_is_made_of_conditions() {
    let mut leaving = node("worker-3", "False", "DatapathBrokenLeaked");
    leaving["spec"]["taints"] = json!([{ "key": "ToBeDeletedByClusterAutoscaler" }]);
    let mut windows = node("win-1", "True", "DatapathProven");
    windows["metadata"]["labels"]["kubernetes.io/os"] = "windows".into();
    windows["status"] = json!({});
    let nodes = json!([
        node("worker-1", "True", "DatapathProven"),
        windows,
        leaving,
        node("worker-2", "False", "DatapathBrokenLeaked"),
        { "metadata": { "name": "bare" } },
    ]);
    let canned = lists("nodes", &nodes);

    let said = plugin(
        &canned,
        &["--context", "prod", "--request-timeout=3s", "-l", "a=b"],
    );
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    let head = "NOT READY  5 nodes: 1 not ready, 1 uncertain, 1 leaving, 1 healthy, 1 not Linux\n";
    assert!(said.out.starts_with(head), "{}", said.out);
    let sick = "✗ worker-2  broken    leaked        4 min  0.1.0 audit  yes\n      What the agent wrote.\n";
    assert!(said.out.contains(sick), "{}", said.out);
    assert!(said.out.contains("kubectl pathproof why worker-2"));
    let expected = [
        "get",
        "--context=prod",
        "--request-timeout=3s",
        "nodes",
        "--output=json",
        "--selector=a=b",
    ];
    assert_eq!(said.arguments, expected);

    let said = plugin(&canned, &["-o", "json"]);
    let document: Value = serde_json::from_str(&said.out).unwrap();
    let nodes = document["nodes"].as_array().unwrap().iter();
    let nodes: Vec<&str> = nodes.map(|node| node["node"].as_str().unwrap()).collect();
    assert_eq!(nodes, ["worker-2", "bare", "worker-3", "worker-1", "win-1"]);
}

#[test]
fn a_command_runs_in_the_pod_of_the_nodes_agent() {
    let starts = json!({ "waiting": { "reason": "ContainerCreating" } });
    let pods = json!([
        pod("agent-new", "Pending", &starts),
        pod("agent-old", "Running", &json!({ "running": {} })),
    ]);
    let canned = lists("pods", &pods);
    let words = [
        "why",
        "worker-3",
        "-n",
        "net",
        "--context=prod",
        "-o",
        "json",
    ];
    let said = plugin(
        &canned,
        &[&words[..], &["--", "--admin-address", "127.0.0.1:1"]].concat(),
    );
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert_eq!(said.out, "from the agent\n");
    let expected = [
        "get",
        "--context=prod",
        "pods",
        "--output=json",
        "--namespace=net",
        "--selector=app.kubernetes.io/name=pathproof,app.kubernetes.io/component=agent",
        "--field-selector=spec.nodeName=worker-3",
        "exec",
        "--context=prod",
        "--namespace=net",
        "agent-old",
        "--container",
        "agent",
        "--",
        "/pathproof",
        "why",
        "--output=json",
        "--admin-address",
        "127.0.0.1:1",
    ];
    assert_eq!(said.arguments, expected);
}

/// The journals of all nodes make one page. A node whose agent does not answer is named.
#[test]
fn the_report_has_the_journals_of_all_agents() {
    let running = json!({ "running": {} });
    let mut ill = pod("agent-ill", "Running", &running);
    let journal = json!([{
        "schema": 1, "node": "worker-3", "boot_id": "x", "at": 7,
        "observed_ns": { "2026-11-20": 3_600_000_000_000_u64 }, "episodes": [], "deleted": 0,
    }]);
    let canned = |ill: &Value| {
        let pods = json!([pod("agent-1", "Running", &running), ill]);
        let canned = lists("pods", &pods);
        canned.put("journal", &journal);
        canned
    };
    // Both pods are on one node, as during an update.
    let said = plugin(&canned(&ill), &["report", "--context=prod"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    assert!(
        said.out.starts_with("REPORT  1 node, 2026-11-20"),
        "{}",
        said.out
    );
    assert!(said.out.contains("0 wrong in 1 node-hours"), "{}", said.out);
    let expected = ["--", "/pathproof", "report", "--output=json"];
    assert_eq!(said.arguments[said.arguments.len() - 4..], expected);

    ill["spec"]["nodeName"] = "worker-4".into();
    let said = plugin(&canned(&ill), &["report", "-o", "json"]);
    assert_eq!(said.code, Some(1));
    assert_eq!(serde_json::from_str::<Value>(&said.out).unwrap(), journal);
    let said = plugin(&canned(&ill), &["report"]);
    let line = "not read        worker-4: exit status: 3.\n";
    assert!(said.out.contains(line), "{}", said.out);
}

/// A pod without a node is listed as missing. If a node does not answer, no further command is run there.
#[test]
fn a_bundle_is_written_whatever_pods_are_there() {
    let away = pod("agent-away", "Running", &json!({ "running": {} }));
    let pending = json!({ "metadata": { "name": "agent-x" }, "status": { "phase": "Pending" } });
    let canned = lists("pods", &json!([pending, away]));
    canned.put(
        "nodes",
        &json!({ "items": [node("worker-3", "True", "DatapathProven")] }),
    );
    canned.put("version", &json!({}));
    let file = canned.0.path().join("bundle");
    let words = ["bundle", "--all", "--file", file.to_str().unwrap()];
    let said = plugin(&canned, &words);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let missing = |file: &str, why: &str| format!("missing: {file}: {why}\n");
    for line in [
        missing(
            "not-scheduled/agent-x/agent.log",
            "the pod does not run (Pending)",
        ),
        missing(
            "worker-3/agent-away/agent.log",
            "dial tcp 198.18.0.1:10250: i/o timeout (exit status: 1)",
        ),
        missing(
            "worker-3/agent-away/verdict.json",
            "not tried, because the node does not answer",
        ),
    ] {
        assert!(said.err.contains(&line), "{line} in {}", said.err);
    }
    assert!(!said.arguments.contains(&"exec".to_owned()));
    assert!(fs::metadata(&file).unwrap().len() > 0);
}

#[rstest]
#[case(json!([]), "there is no agent pod on node worker-3 in namespace pathproof")]
#[case(
    json!([pod("agent-x", "Running", &json!({ "waiting": { "reason": "CrashLoopBackOff" } }))]),
    "the agent's pod agent-x is not running (Running, CrashLoopBackOff): kubectl describe pod"
)]
#[case(
    json!([{ "metadata": { "name": "agent-x" }, "status": { "phase": "Pending" } }]),
    "the agent's pod agent-x is not running (Pending)"
)]
fn a_node_without_a_running_agent_is_an_error(#[case] pods: Value, #[case] sentence: &str) {
    let said = plugin(&lists("pods", &pods), &["status", "worker-3"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains(sentence), "{}", said.err);
    assert!(!said.arguments.contains(&"exec".to_owned()));
}

#[rstest]
#[case(&[], "kubectl get nodes failed (exit status: 1)")]
#[case(&["why", "worker-3"], "kubectl get pods failed (exit status: 1)")]
fn kubectl_gives_its_own_reason(#[case] words: &[&str], #[case] sentence: &str) {
    let said = plugin(&Canned::new(), words);
    assert_eq!(said.code, Some(1));
    // The error of `cat` in the script.
    let reason = said.err.find("No such file").unwrap();
    let ours = said
        .err
        .find(sentence)
        .unwrap_or_else(|| panic!("{}", said.err));
    assert!(reason < ours, "{}", said.err);
}

#[test]
fn output_that_is_no_list_is_an_error() {
    let canned = Canned::new();
    fs::write(canned.0.path().join("nodes"), "Warning: something\n").unwrap();
    let said = plugin(&canned, &[]);
    assert_eq!(said.code, Some(1));
    let sentence = "kubectl get nodes did not print a list in JSON";
    assert!(said.err.contains(sentence), "{}", said.err);
}

#[rstest]
#[case(&[])]
#[case(&["why", "worker-3"])]
fn without_kubectl_there_is_one_sentence(#[case] words: &[&str]) {
    let said = Canned::new().run("kubectl-pathproof", NOWHERE, words);
    assert_eq!(said.code, Some(1));
    let sentence = "pathproof: kubectl is not in PATH: install it, or add its folder to PATH\n";
    assert_eq!(said.err, sentence);
}
