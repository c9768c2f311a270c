//! No change that a user makes to a rendering disables the policies that reserve pathproof's addresses, and no
//! error in a policy refuses a write of another user.

use std::fs;

use node_tests::cluster::documents;
use node_tests::deploy::{Chart, Tool, overlay, overlay_folder, said};
use node_tests::prelude::*;

use crate::find::named;

const POLICY: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// Objects of an overlay, with fields added to the user's kustomization.
fn overlay_with(fields: &Value) -> Vec<Value> {
    let dir = overlay_folder("beside-kube-proxy", &["enforce"]).expect("a folder");
    let file = dir.path().join("kustomization.yaml");
    let text = fs::read_to_string(&file).expect("a kustomization");
    let mut kustomization: Value = serde_json::from_str(&text).expect("JSON");
    for (name, value) in fields.as_object().expect("fields") {
        kustomization[name] = value.clone();
    }
    fs::write(&file, kustomization.to_string()).expect("write");
    let mut command = Tool::Kubectl.command().expect("kubectl");
    let text = said(command.arg("kustomize").arg(dir.path())).expect("an overlay");
    documents(&text).expect("YAML")
}

/// The API server skips a binding whose parameters it does not find. One binding therefore has no parameter,
/// and the others name theirs.
#[rstest]
#[case::unchanged(json!({}), "pathproof")]
#[case::common_labels(json!({ "commonLabels": { "app.kubernetes.io/name": "shop" } }), "shop")]
#[case::labels(
    json!({ "labels": [{ "pairs": { "app.kubernetes.io/name": "shop" }, "includeSelectors": true }] }),
    "shop"
)]
fn labels_of_users_disable_no_policy(#[case] fields: Value, #[case] label: &str) {
    needs!(Tool::Kubectl.installed());
    let objects = overlay_with(&fields);
    let mut found = Vec::new();
    for binding in objects.iter().filter(|object| object["kind"] == BINDING) {
        let spec = &binding["spec"];
        if spec["policyName"] != "pathproof-reserved-services" {
            continue;
        }
        let param = &spec["paramRef"];
        assert!(param["selector"].is_null(), "{param}");
        let name = param["name"].as_str();
        if let Some(name) = name {
            let service = named(&objects, "Service", name);
            let metadata = &service["metadata"];
            assert_eq!(param["namespace"], metadata["namespace"]);
            assert_eq!(metadata["labels"]["app.kubernetes.io/name"], label);
        }
        found.push(name);
    }
    found.sort_unstable();
    let expected = [None, Some("pathproof-echo"), Some("pathproof-sentinel")];
    assert_eq!(found, expected);
}

/// A policy with failurePolicy Fail concerns one account of pathproof. All others ignore errors, and refuse
/// nothing if a parameter is missing.
#[test]
fn errors_of_policies_refuse_no_other_users_writes() {
    needs!(Tool::Helm.installed());
    needs!(Tool::Kubectl.installed());
    let values = json!({ "rotator": { "withdraw": "label" } });
    let chart = Chart::with(values).render().expect("the chart");
    let overlay = overlay("beside-kube-proxy", &["withdraw"]).expect("an overlay");
    for objects in [chart, overlay] {
        let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        let mut ignoring = 0;
        for policy in of(POLICY) {
            let spec = &policy["spec"];
            match spec["failurePolicy"].as_str() {
                Some("Ignore") => ignoring += 1,
                Some("Fail") => {
                    let who = spec["matchConditions"][0]["expression"].as_str();
                    let account = who.expect("an expression").strip_prefix(
                        "request.userInfo.username == \"system:serviceaccount:pathproof:",
                    );
                    let accounts = ["pathproof-agent\"", "pathproof-rotator\""];
                    assert!(
                        account.is_some_and(|one| accounts.contains(&one)),
                        "{who:?}"
                    );
                    assert!(spec["paramKind"].is_null(), "{policy}");
                }
                other => panic!("{other:?}: {policy}"),
            }
        }
        assert_eq!(ignoring, 2);
        for binding in of(BINDING) {
            let param = &binding["spec"]["paramRef"];
            let missing = &param["parameterNotFoundAction"];
            assert!(param.is_null() || missing == "Allow", "{binding}");
        }
    }
}
