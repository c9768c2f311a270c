//! Values of the chart that are consistent, and what they render.

use std::collections::BTreeSet;

use node_tests::deploy::{Chart, Tool};
use node_tests::prelude::*;

use crate::find::{named, of_kind};

/// Value of `agent.publishWithoutPolicy` with which agents write about Nodes although no policy restricts
/// them.
const WORDS: &str = "every agent may write about every Node";

fn kinds(objects: &[Value]) -> BTreeSet<String> {
    let named = |object: &Value| {
        let text = |value: &Value| value.as_str().expect("a name").to_owned();
        [&object["kind"], &object["metadata"]["name"]]
            .map(text)
            .join("/")
    };
    objects.iter().map(named).collect()
}

/// Negative controls of the refused values: each is rendered, with the objects that it adds or omits.
#[rstest]
#[case(
    json!({}),
    &["DaemonSet/pathproof-agent", "Deployment/pathproof-rotator", "Service/pathproof-sentinel"],
    &["PodMonitor", "EndpointSlice"]
)]
#[case(json!({ "profile": "rke1" }), &["Deployment/pathproof-rotator", "Service/", "DaemonSet/pathproof-echo"], &["pathproof-agent"])]
#[case(json!({ "profile": "cilium", "agent": { "portTakeover": "bind" } }), &["DaemonSet"], &[])]
#[case(
    json!({ "sentinel": { "enabled": false } }),
    &["DaemonSet"],
    &["Service/", "echo", "Deployment", "Role/pathproof-rotator"]
)]
#[case(json!({ "echo": { "enabled": false } }), &["DaemonSet/pathproof-agent"], &["echo"])]
#[case(json!({ "agent": { "view": "sentinel" } }), &["DaemonSet/pathproof-agent"], &["echo"])]
#[case(json!({ "policy": { "enabled": false } }), &["DaemonSet"], &["ValidatingAdmissionPolicy"])]
#[case(
    json!({ "policy": { "reserve": false } }),
    &["ValidatingAdmissionPolicy/pathproof-agent", "ValidatingAdmissionPolicy/pathproof-rotator"],
    &["reserved"]
)]
#[case(
    json!({ "profile": "rke1" }),
    &["ValidatingAdmissionPolicy/pathproof-rotator", "ValidatingAdmissionPolicy/pathproof-reserved-services"],
    &["pathproof-agent"]
)]
#[case(
    json!({ "agent": { "publishCondition": false } }),
    &["Role/pathproof-agent-events"],
    &[]
)]
#[case(json!({ "agent": { "publishEvents": false } }), &["DaemonSet"], &["Role/pathproof-agent-events", "RoleBinding/pathproof-agent-events"])]
#[case(json!({ "resourceQuota": { "enabled": false } }), &["DaemonSet"], &["ResourceQuota"])]
#[case(json!({ "profile": "rke1", "metrics": { "prometheusRule": { "enabled": true } } }), &["PrometheusRule"], &[])]
fn consistent_values_are_rendered(
    #[case] values: Value,
    #[case] there: &[&str],
    #[case] absent: &[&str],
) {
    needs!(Tool::Helm.installed());
    let objects = Chart::with(values).render().expect("the chart");
    let kinds = kinds(&objects);
    let has = |part: &str| kinds.iter().any(|kind| kind.contains(part));
    for part in there {
        assert!(has(part), "no {part} in {kinds:?}");
    }
    for part in absent {
        assert!(!has(part), "{part} in {kinds:?}");
    }
}

const ENFORCES: &str = "Enforce mode: broken nodes answer 503";
const WARNS: &str = "warns of Services and EndpointSlices";
const LATER: &str = "and refuses them once you enforce";
const REFUSES: &str = "refuses Services and EndpointSlices";

/// The notes say whether the policies on addresses and ports only warn, as they do until the agents enforce.
#[rstest]
#[case::audit(json!({}), &[WARNS, LATER], &["Warn", "Audit"])]
#[case::refused(json!({ "policy": { "refuse": true } }), &[], &["Deny"])]
#[case::enforce(json!({ "agent": { "enforcement": "enforce" } }), &[ENFORCES, REFUSES], &["Deny"])]
fn the_notes_say_what_the_policies_do(
    #[case] values: Value,
    #[case] expected: &[&str],
    #[case] actions: &[&str],
) {
    needs!(Tool::Helm.installed());
    let chart = Chart::with(values);
    let notes = chart.notes().expect("the notes");
    let words: Vec<&str> = notes.split_whitespace().collect();
    let text = words.join(" ");
    let found = [ENFORCES, WARNS, LATER, REFUSES].map(|said| text.contains(said).then_some(said));
    let found: Vec<&str> = found.into_iter().flatten().collect();
    assert_eq!(found, expected, "{notes}");
    let objects = chart.render().expect("the chart");
    for name in [
        "services",
        "services-sentinel",
        "services-echo",
        "endpoints",
    ] {
        let name = format!("pathproof-reserved-{name}");
        let binding = named(&objects, "ValidatingAdmissionPolicyBinding", &name);
        assert_eq!(binding["spec"]["validationActions"], json!(actions));
    }
}

/// For older clusters, fields that their API server does not know are replaced by older ones, or omitted.
#[test]
fn older_clusters_get_only_fields_they_know() {
    needs!(Tool::Helm.installed());
    let key = "container.apparmor.security.beta.kubernetes.io/agent";
    for (version, is_new) in [("1.29.5", false), ("1.30.0", true), ("1.36.3-gke.1", true)] {
        let objects = Chart::default().kubernetes(version).render();
        let objects = objects.expect("the chart");
        assert_eq!(
            kinds(&objects).contains("ValidatingAdmissionPolicy/pathproof-agent"),
            is_new,
            "{version}"
        );
        // These policies need a function that exists only since 1.31.
        for name in ["rotator", "reserved-services", "reserved-endpoints"] {
            let kind = format!("ValidatingAdmissionPolicy/pathproof-{name}");
            let is_there = kinds(&objects).contains(&kind);
            assert_eq!(is_there, is_new && version != "1.30.0", "{version} {name}");
        }
        let template = &of_kind(&objects, "DaemonSet")["spec"]["template"];
        let context = &template["spec"]["containers"][0]["securityContext"];
        assert_eq!(context["appArmorProfile"].is_null(), !is_new, "{version}");
        let annotation = &template["metadata"]["annotations"][key];
        assert_eq!(annotation == "unconfined", !is_new, "{version}");
    }
    let error = Chart::default()
        .kubernetes("1.24.0")
        .render()
        .expect_err("too old");
    assert!(format!("{error:#}").contains("1.25.0"), "{error:#}");
}

/// If no policy can restrict each agent to its Node, agents do not write about Nodes, unless the user
/// explicitly allows it.
#[rstest]
#[case("1.36.3", json!({}), true)]
#[case("1.30.0", json!({}), true)]
#[case("1.36.3", json!({ "policy": { "reserve": false } }), true)]
#[case("1.29.5", json!({}), false)]
#[case("1.28.0", json!({}), false)]
#[case("1.36.3", json!({ "policy": { "enabled": false } }), false)]
#[case("1.29.5", json!({ "agent": { "publishWithoutPolicy": WORDS } }), true)]
#[case(
    "1.36.3",
    json!({ "policy": { "enabled": false }, "agent": { "publishWithoutPolicy": WORDS } }),
    true
)]
fn without_a_policy_agents_write_nothing(
    #[case] version: &'static str,
    #[case] values: Value,
    #[case] publishes: bool,
) {
    needs!(Tool::Helm.installed());
    let objects = Chart::with(values).kubernetes(version).render();
    let objects = objects.expect("the chart");
    let role = named(&objects, "ClusterRole", "pathproof-agent");
    let may_patch = role.to_string().contains("nodes/status");
    assert_eq!(may_patch, publishes, "{role}");
    for kind in ["Role", "RoleBinding"] {
        let events = format!("{kind}/pathproof-agent-events");
        assert_eq!(kinds(&objects).contains(&events), publishes, "{kind}");
    }
    let agent = named(&objects, "DaemonSet", "pathproof-agent");
    let args = &agent["spec"]["template"]["spec"]["containers"][0]["args"];
    let args = args.as_array().expect("arguments");
    for option in ["--publish-condition=off", "--publish-events=off"] {
        assert_eq!(args.iter().any(|arg| arg == option), !publishes, "{args:?}");
    }
}

/// Only the agent's folder of pins is mounted from bpffs, or no folder at all.
#[rstest]
#[case(true, json!("/sys/fs/bpf"), json!("/sys/fs/bpf/pathproof"))]
#[case(false, json!("none"), Value::Null)]
fn the_folder_of_the_pins_alone_is_mounted(
    #[case] pins: bool,
    #[case] option: Value,
    #[case] mounted: Value,
) {
    needs!(Tool::Helm.installed());
    let objects = Chart::with(json!({ "agent": { "pins": pins } })).render();
    let objects = objects.expect("the chart");
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let of = |list: &Value, key: &str, value: &str| {
        let mut entries = list.as_array().into_iter().flatten();
        entries
            .find(|entry| entry[key] == value)
            .cloned()
            .unwrap_or_default()
    };
    let variable = of(&container["env"], "name", "PATHPROOF_PIN_DIR");
    assert_eq!(variable["value"], option);
    let mount = of(&container["volumeMounts"], "name", "bpffs");
    assert_eq!(mount.is_null(), !pins, "{mount}");
    assert!(!pins || mount["mountPath"] == option, "{mount}");
    let volume = of(&pod["volumes"], "name", "bpffs");
    assert_eq!(volume["hostPath"]["path"], mounted, "{volume}");
}

#[test]
fn an_image_is_named_by_registry_and_tag_or_digest() {
    needs!(Tool::Helm.installed());
    let digest = format!("sha256:{}", "0".repeat(64));
    let other = json!({ "repository": "example.com/p", "tag": "2" });
    let exact = json!({ "registry": "example.com", "tag": "2", "digest": digest });
    let loaded = json!({ "pullPolicy": "Never" });
    let parent = json!({ "imageRegistry": "example.com:5000/mirror" });
    for (image, global, wanted) in [
        (
            exact.clone(),
            json!({}),
            &*format!("example.com/pathproof@{digest}"),
        ),
        (other, json!({}), "example.com/p:2"),
        (loaded, json!({}), "pathproof:0.1.0"),
        (
            exact,
            parent.clone(),
            &format!("example.com:5000/mirror/pathproof@{digest}"),
        ),
        (json!({}), parent, "example.com:5000/mirror/pathproof:0.1.0"),
    ] {
        let objects = Chart::with(json!({ "image": image, "global": global })).render();
        for object in objects.expect("the chart") {
            let container = &object["spec"]["template"]["spec"]["containers"][0];
            assert!(
                container.is_null() || container["image"] == wanted,
                "{container}"
            );
        }
    }
}

fn alerts(values: &Value) -> String {
    let objects = Chart::with(values.clone()).render().expect("the chart");
    of_kind(&objects, "PrometheusRule").to_string()
}

/// Alerts that would always or never fire with this configuration are omitted. The runbook's address is a
/// value, which `pathproof why` uses too.
#[test]
fn alerts_follow_the_values() {
    needs!(Tool::Helm.installed());
    let rotation = "PathproofRotationStopped";
    let mut values = json!({ "metrics": { "prometheusRule": { "enabled": true } } });
    assert!(alerts(&values).contains(rotation));
    values["rotator"] = json!({ "interval": 600 });
    assert!(alerts(&values).contains(rotation));
    values["rotator"] = json!({ "interval": 601 });
    assert!(!alerts(&values).contains(rotation));
    values["sentinel"] = json!({ "enabled": false });
    let missing = "PathproofAgentMissing";
    assert!(alerts(&values).contains(missing));
    for (name, value) in [
        ("nodeSelector", json!({ "pool": "canary" })),
        ("affinity", json!({ "nodeAffinity": null })),
    ] {
        values["agent"] = json!({ name: value });
        assert!(!alerts(&values).contains(missing), "{name}");
    }
    let runbooks = "https://wiki.example/pathproof";
    values["metrics"]["prometheusRule"]["runbooks"] = json!(runbooks);
    values["metrics"]["prometheusRule"]["labels"] = json!({ "release": "prometheus" });
    let text = alerts(&values);
    assert!(
        !text.contains(rotation) && !text.contains("github.com"),
        "{text}"
    );
    assert!(
        text.contains(&format!("{runbooks}#pathproofagentdown")),
        "{text}"
    );
    assert!(text.contains("\"release\":\"prometheus\""), "{text}");
    let objects = Chart::with(values).render().expect("the chart");
    let agent = of_kind(&objects, "DaemonSet").to_string();
    let variable = json!({ "name": "PATHPROOF_DOCS_URL", "value": runbooks }).to_string();
    assert!(agent.contains(&variable), "{agent}");
}
