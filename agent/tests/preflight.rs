//! `pathproof preflight` as a process, with a script in place of kubectl: the arguments that kubectl gets,
//! lists that are forbidden, and exit codes.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/kubectl");

/// Folders of `cat` and `sh`, which the script needs.
const SYSTEM: &str = "/usr/bin:/bin";

/// Runs the command with this search path.
fn run(canned: &TempDir, path: &str, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pathproof"));
    command.arg("preflight").args(words).env_clear();
    command.env("PATH", path).env("CANNED", canned.path());
    command.output().unwrap()
}

fn preflight(canned: &TempDir, words: &[&str]) -> Output {
    run(canned, &format!("{SCRIPT}:{SYSTEM}"), words)
}

fn put(canned: &TempDir, name: &str, content: &Value) {
    fs::write(canned.path().join(name), content.to_string()).unwrap();
}

fn node(kernel: &str) -> Value {
    let info = json!({
        "architecture": "amd64", "containerRuntimeVersion": "containerd://2.1.4",
        "kernelVersion": kernel, "osImage": "Debian GNU/Linux 13 (trixie)",
    });
    json!({ "items": [{ "metadata": { "name": "node-1" }, "status": { "nodeInfo": info } }] })
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_forbidden_list_is_unknown_and_names_the_right() {
    let canned = tempfile::tempdir().unwrap();
    put(&canned, "nodes", &node("6.12.48"));
    let words = ["--context", "prod", "--kubeconfig=admin.conf", "-o", "json"];
    let output = preflight(&canned, &words);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let document = document(&output);
    assert_eq!(document["result"], "unknown");
    let lines = document["lines"].as_array().unwrap();
    let kernel = lines.iter().find(|line| line["check"] == "kernel").unwrap();
    assert_eq!(kernel["verdict"], "ok");
    assert_eq!(kernel["objects"], json!(["node-1"]));
    // kubectl's message about the first list is not captured.
    let mut missing = lines.iter().filter(|line| line["check"] == "not read");
    let version = missing.next().unwrap()["sentence"].as_str().unwrap();
    assert!(version.starts_with("kubectl version failed (exit status: 1)"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("(Forbidden)"), "{said}");
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
    let arguments = fs::read_to_string(canned.path().join("arguments")).unwrap();
    let given = "--kubeconfig=admin.conf\n--context=prod\n";
    let ends = "--output=json\n--request-timeout=1m\n";
    let first =
        format!("version\n{given}{ends}get\n{given}nodes\n{ends}get\n{given}namespaces\n{ends}");
    assert!(arguments.starts_with(&first), "{arguments}");
}

#[test]
fn a_refusal_has_its_exit_code() {
    let canned = tempfile::tempdir().unwrap();
    put(&canned, "nodes", &node("5.14.0-570.el9.x86_64"));
    let output = preflight(&canned, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.starts_with("REFUSED  preflight: 1 refused, 7 unknown, "),
        "{page}"
    );
}

/// A server that cannot be reached is no missing right.
#[test]
fn another_failure_of_kubectl_ends_the_command() {
    let canned = tempfile::tempdir().unwrap();
    let output = preflight(&canned, &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    // The error of `cat` in the script.
    let reason = said.find("No such file").expect("kubectl's reason");
    let ours = said.find("kubectl get nodes failed (exit status: 1)");
    assert!(ours.is_some_and(|ours| reason < ours), "{said}");
    assert!(!said.contains("fleet-rbac"), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn without_kubectl_recorded_lists_can_be_read() {
    let canned = tempfile::tempdir().unwrap();
    let output = run(&canned, "/nowhere", &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("kubectl is not in PATH"), "{said}");
    put(&canned, "nodes.json", &node("6.12.48"));
    let folder = canned.path().to_str().unwrap();
    let output = run(&canned, "/nowhere", &["--from-files", folder]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.contains("● kernel        Linux 6.12.48: node-1.\n"),
        "{page}"
    );
}

#[test]
fn a_folder_and_a_cluster_are_a_wrong_option() {
    let canned = tempfile::tempdir().unwrap();
    let words = ["--from-files", ".", "--context", "prod"];
    assert_eq!(preflight(&canned, &words).status.code(), Some(64));
}
