//! `pathproof preflight`: lists that are forbidden, and exit codes.

use serde_json::{Value, json};

use crate::{Canned, NOWHERE, SCRIPT, Said};

/// Runs the command with this search path.
fn run(canned: &Canned, path: &str, words: &[&str]) -> Said {
    canned.run("pathproof", path, &[&["preflight"][..], words].concat())
}

fn preflight(canned: &Canned, words: &[&str]) -> Said {
    run(canned, SCRIPT, words)
}

fn node(kernel: &str) -> Value {
    let info = json!({
        "architecture": "amd64", "containerRuntimeVersion": "containerd://2.1.4",
        "kernelVersion": kernel, "osImage": "Debian GNU/Linux 13 (trixie)",
    });
    json!({ "items": [{ "metadata": { "name": "node-1" }, "status": { "nodeInfo": info } }] })
}

#[test]
fn a_forbidden_list_is_unknown_and_names_the_right() {
    let canned = Canned::new();
    canned.put("nodes", &node("6.12.48"));
    let words = ["--context", "prod", "--kubeconfig=admin.conf", "-o", "json"];
    let said = preflight(&canned, &words);
    assert_eq!(said.code, Some(3), "{said:?}");
    let document: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(document["result"], "unknown");
    let lines = document["lines"].as_array().unwrap();
    let kernel = lines.iter().find(|line| line["check"] == "kernel").unwrap();
    assert_eq!(kernel["verdict"], "ok");
    assert_eq!(kernel["objects"], json!(["node-1"]));
    // kubectl's message about the first list is not captured.
    let mut missing = lines.iter().filter(|line| line["check"] == "not read");
    let version = missing.next().unwrap()["sentence"].as_str().unwrap();
    assert!(version.starts_with("kubectl version failed (exit status: 1)"));
    assert!(said.err.contains("(Forbidden)"), "{}", said.err);
    let missing: Vec<&str> = missing
        .map(|line| line["sentence"].as_str().unwrap())
        .collect();
    let rights = [
        "list namespaces",
        "list services",
        "list endpointslices",
        "list daemonsets",
        "get configmaps",
        "list servicecidrs",
    ];
    assert_eq!(missing.len(), rights.len(), "{missing:#?}");
    for (sentence, right) in missing.iter().zip(rights) {
        let expected =
            format!("this right is missing: {right} (it is forbidden: User \"x\" cannot list it)");
        assert_eq!(*sentence, expected);
    }
    let given = "--kubeconfig=admin.conf\n--context=prod\n";
    let ends = "--output=json\n--request-timeout=1m\n";
    let first =
        format!("version\n{given}{ends}get\n{given}nodes\n{ends}get\n{given}namespaces\n{ends}");
    let arguments = said.arguments.join("\n");
    assert!(arguments.starts_with(&first), "{arguments}");
}

#[test]
fn a_refusal_has_its_exit_code() {
    let canned = Canned::new();
    canned.put("nodes", &node("5.14.0-570.el9.x86_64"));
    let said = preflight(&canned, &[]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let begin = "REFUSED  preflight: 1 refused, 7 unknown, ";
    assert!(said.out.starts_with(begin), "{}", said.out);
}

/// A server that cannot be reached is no missing right.
#[test]
fn another_failure_of_kubectl_ends_the_command() {
    let canned = Canned::new();
    let said = preflight(&canned, &[]);
    assert_eq!(said.code, Some(1));
    // The error of `cat` in the script.
    let reason = said.err.find("No such file").expect("kubectl's reason");
    let ours = said.err.find("kubectl get nodes failed (exit status: 1)");
    assert!(ours.is_some_and(|ours| reason < ours), "{}", said.err);
    assert!(!said.err.contains("fleet-rbac"), "{}", said.err);
    assert!(said.out.is_empty());
}

#[test]
fn without_kubectl_recorded_lists_can_be_read() {
    let canned = Canned::new();
    let said = run(&canned, NOWHERE, &[]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("kubectl is not in PATH"), "{}", said.err);
    canned.put("nodes.json", &node("6.12.48"));
    let folder = canned.0.path().to_str().unwrap();
    let said = run(&canned, NOWHERE, &["--from-files", folder]);
    assert_eq!(said.code, Some(3), "{said:?}");
    let kernel = "● kernel        Linux 6.12.48: node-1.\n";
    assert!(said.out.contains(kernel), "{}", said.out);
}

#[test]
fn a_folder_and_a_cluster_are_a_wrong_option() {
    let canned = Canned::new();
    let words = ["--from-files", ".", "--context", "prod"];
    assert_eq!(preflight(&canned, &words).code, Some(64));
}
