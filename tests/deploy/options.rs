//! Values that users expect of any chart, and the fields of objects in which each appears.

use node_tests::deploy::{Chart, Tool, identity};
use node_tests::prelude::*;

use crate::find::named;

fn rendered(values: Value) -> Vec<Value> {
    let shown = values.to_string();
    let objects = Chart::with(values).render();
    objects.unwrap_or_else(|error| panic!("{shown}: {error:#}"))
}

/// Cases: values, object, field of the object, and the expected content of the field.
#[rstest]
#[case::pull_secrets(
    json!({ "imagePullSecrets": [{ "name": "a" }, { "name": "b" }] }),
    "DaemonSet/pathproof-agent", "/spec/template/spec/imagePullSecrets",
    json!([{ "name": "a" }, { "name": "b" }])
)]
#[case::pull_secrets_of_the_rotator(
    json!({ "imagePullSecrets": [{ "name": "a" }] }),
    "Deployment/pathproof-rotator", "/spec/template/spec/imagePullSecrets", json!([{ "name": "a" }])
)]
#[case::pull_secrets_of_echo(
    json!({ "imagePullSecrets": [{ "name": "a" }] }),
    "DaemonSet/pathproof-echo", "/spec/template/spec/imagePullSecrets", json!([{ "name": "a" }])
)]
#[case::pull_secrets_of_a_parent(
    json!({
        "imagePullSecrets": [{ "name": "c" }],
        "global": { "imagePullSecrets": ["a", { "name": "b" }] },
    }),
    "Deployment/pathproof-rotator", "/spec/template/spec/imagePullSecrets",
    json!([{ "name": "a" }, { "name": "b" }, { "name": "c" }])
)]
#[case::dns(
    json!({ "dnsConfig": { "options": [{ "name": "ndots", "value": "1" }] } }),
    "DaemonSet/pathproof-agent", "/spec/template/spec/dnsConfig",
    json!({ "options": [{ "name": "ndots", "value": "1" }] })
)]
#[case::hosts(
    json!({ "hostAliases": [{ "ip": "192.0.2.1", "hostnames": ["api"] }] }),
    "Deployment/pathproof-rotator", "/spec/template/spec/hostAliases",
    json!([{ "ip": "192.0.2.1", "hostnames": ["api"] }])
)]
#[case::on_delete(
    json!({ "agent": { "updateStrategy": { "type": "OnDelete" } } }),
    "DaemonSet/pathproof-agent", "/spec/updateStrategy", json!({ "type": "OnDelete" })
)]
#[case::surge(
    json!({ "agent": { "updateStrategy": { "rollingUpdate": { "maxSurge": "5%" } } } }),
    "DaemonSet/pathproof-agent", "/spec/updateStrategy/rollingUpdate",
    json!({ "maxUnavailable": 0, "maxSurge": "5%" })
)]
#[case::strategy_of_the_rotator(
    json!({ "rotator": { "updateStrategy": { "type": "Recreate" } } }),
    "Deployment/pathproof-rotator", "/spec/strategy", json!({ "type": "Recreate" })
)]
#[case::strategy_of_echo(
    json!({ "echo": { "updateStrategy": { "type": "OnDelete" } } }),
    "DaemonSet/pathproof-echo", "/spec/updateStrategy", json!({ "type": "OnDelete" })
)]
#[case::volume(
    json!({ "agent": { "extraVolumes": [{ "name": "ca", "hostPath": { "path": "/etc/ssl" } }] } }),
    "DaemonSet/pathproof-agent", "/spec/template/spec/volumes/3",
    json!({ "name": "ca", "hostPath": { "path": "/etc/ssl" } })
)]
#[case::mount(
    json!({ "agent": { "extraVolumeMounts": [{ "name": "ca", "mountPath": "/etc/ssl" }] } }),
    "DaemonSet/pathproof-agent", "/spec/template/spec/containers/0/volumeMounts/3",
    json!({ "name": "ca", "mountPath": "/etc/ssl" })
)]
#[case::volume_of_the_rotator(
    json!({ "rotator": { "extraVolumes": [{ "name": "ca", "emptyDir": {} }] } }),
    "Deployment/pathproof-rotator", "/spec/template/spec/volumes",
    json!([{ "name": "ca", "emptyDir": {} }])
)]
#[case::mount_of_the_rotator(
    json!({ "rotator": { "extraVolumeMounts": [{ "name": "ca", "mountPath": "/etc/ssl" }] } }),
    "Deployment/pathproof-rotator", "/spec/template/spec/containers/0/volumeMounts",
    json!([{ "name": "ca", "mountPath": "/etc/ssl" }])
)]
#[case::object(
    json!({ "extraObjects": [
        { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": { "a": "{{ b }}" } },
    ] }),
    "ConfigMap/a", "/data/a", json!("{{ b }}")
)]
#[case::object_of_a_template(
    json!({ "extraObjects": [
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: {{ .Release.Namespace }}}}",
    ] }),
    "ConfigMap/a", "/metadata/namespace", json!("pathproof")
)]
#[case::common_labels(
    json!({ "commonLabels": { "team": "net" } }),
    "ClusterRole/pathproof-agent", "/metadata/labels/team", json!("net")
)]
#[case::common_labels_of_pods(
    json!({ "commonLabels": { "team": "net" } }),
    "DaemonSet/pathproof-echo", "/spec/template/metadata/labels/team", json!("net")
)]
#[case::no_service_mesh(
    json!({}),
    "DaemonSet/pathproof-echo", "/spec/template/metadata/labels/istio.io~1dataplane-mode",
    json!("none")
)]
#[case::a_service_mesh_on_purpose(
    json!({ "echo": { "podAnnotations": { "linkerd.io/inject": "enabled" } } }),
    "DaemonSet/pathproof-echo", "/spec/template/metadata/annotations/linkerd.io~1inject",
    json!("enabled")
)]
#[case::common_annotations(
    json!({ "commonAnnotations": { "a": "b" } }),
    "Service/pathproof-sentinel", "/metadata/annotations/a", json!("b")
)]
#[case::pod_labels(
    json!({ "agent": { "podLabels": { "team": "net" } } }),
    "DaemonSet/pathproof-agent", "/spec/template/metadata/labels/team", json!("net")
)]
#[case::annotations(
    json!({ "agent": { "annotations": { "a": "b" } } }),
    "DaemonSet/pathproof-agent", "/metadata/annotations", json!({ "a": "b" })
)]
#[case::annotations_of_the_rotator(
    json!({ "rotator": { "annotations": { "a": "b" } } }),
    "Deployment/pathproof-rotator", "/metadata/annotations", json!({ "a": "b" })
)]
#[case::pod_annotations(
    json!({ "rotator": { "podAnnotations": { "a": "b" } } }),
    "Deployment/pathproof-rotator", "/spec/template/metadata/annotations", json!({ "a": "b" })
)]
#[case::account(
    json!({ "agent": { "serviceAccount": { "name": "mine", "annotations": { "a": "b" } } } }),
    "ServiceAccount/mine", "/metadata/annotations", json!({ "a": "b" })
)]
#[case::account_of_the_pods(
    json!({ "rotator": { "serviceAccount": { "name": "mine" } } }),
    "Deployment/pathproof-rotator", "/spec/template/spec/serviceAccountName", json!("mine")
)]
#[case::account_of_a_policy(
    json!({ "rotator": { "serviceAccount": { "name": "mine" } } }),
    "ValidatingAdmissionPolicy/pathproof-rotator", "/spec/matchConditions/0/expression",
    json!("request.userInfo.username == \"system:serviceaccount:pathproof:mine\"")
)]
#[case::name(
    json!({ "nameOverride": "net" }),
    "DaemonSet/net-agent", "/spec/template/spec/serviceAccountName", json!("net-agent")
)]
#[case::full_name(
    json!({ "nameOverride": "net", "fullnameOverride": "all" }),
    "ClusterRoleBinding/all-rotator", "/roleRef/name", json!("all-rotator")
)]
#[case::environment(
    json!({ "agent": { "extraEnv": [{ "name": "A", "value": "b" }] } }),
    "DaemonSet/pathproof-agent", "/spec/template/spec/containers/0/env/3",
    json!({ "name": "A", "value": "b" })
)]
#[case::environment_of_the_rotator(
    json!({ "rotator": { "extraEnv": [{ "name": "A", "value": "b" }] } }),
    "Deployment/pathproof-rotator", "/spec/template/spec/containers/0/env/2",
    json!({ "name": "A", "value": "b" })
)]
#[case::log_of_the_rotator(
    json!({ "rotator": { "logLevel": "debug" } }),
    "Deployment/pathproof-rotator", "/spec/template/spec/containers/0/args/1",
    json!("--log-filter=debug,kube_client=off")
)]
#[case::nodes_that_enforce(
    json!({ "agent": { "enforcement": "enforce", "enforceNodes": "pool=canary,!old" } }),
    "DaemonSet/pathproof-agent", "/spec/template/spec/containers/0/args/2",
    json!("--enforce-nodes=pool=canary,!old")
)]
#[case::failure_domains(
    json!({ "rotator": { "brakeBy": ["pool", "example.com/rack"] } }),
    "Deployment/pathproof-rotator", "/spec/template/spec/containers/0/args/1",
    json!("--brake-by=pool,example.com/rack")
)]
#[case::two_rotators(json!({}), "Deployment/pathproof-rotator", "/spec/replicas", json!(2))]
#[case::spread(
    json!({ "rotator": { "topologySpreadConstraints": [{ "maxSkew": 1 }] } }),
    "Deployment/pathproof-rotator", "/spec/template/spec/topologySpreadConstraints/0",
    json!({ "maxSkew": 1, "labelSelector": { "matchLabels": {
        "app.kubernetes.io/name": "pathproof", "app.kubernetes.io/component": "rotator",
    } } })
)]
#[case::budget(
    json!({ "rotator": { "replicas": 2, "podDisruptionBudget": { "enabled": true } } }),
    "PodDisruptionBudget/pathproof-rotator", "/spec/maxUnavailable", json!(1)
)]
#[case::minimum(
    json!({ "rotator": { "replicas": 2, "podDisruptionBudget": { "enabled": true, "minAvailable": "50%" } } }),
    "PodDisruptionBudget/pathproof-rotator", "/spec/minAvailable", json!("50%")
)]
#[case::network(
    json!({ "networkPolicy": { "enabled": true, "apiServerCidrs": ["192.0.2.0/24"] } }),
    "NetworkPolicy/pathproof-rotator", "/spec/egress/0/to",
    json!([{ "ipBlock": { "cidr": "192.0.2.0/24" } }])
)]
fn a_value_arrives(
    #[case] values: Value,
    #[case] object: &str,
    #[case] pointer: &str,
    #[case] expected: Value,
) {
    needs!(Tool::Helm.installed());
    let objects = rendered(values);
    let (kind, name) = object.split_once('/').expect("a kind and a name");
    let found = named(&objects, kind, name).pointer(pointer);
    assert_eq!(found, Some(&expected), "{object} {pointer}");
}

/// Some objects keep their names, because agents and rotators find them by name.
#[test]
fn names_that_the_binary_knows_stay() {
    needs!(Tool::Helm.installed());
    let objects = rendered(json!({ "fullnameOverride": "net" }));
    for (kind, name) in [
        ("Service", "pathproof-sentinel"),
        ("Service", "pathproof-echo"),
    ] {
        named(&objects, kind, name);
    }
    let lease = named(&objects, "Role", "net-rotator").to_string();
    assert!(lease.contains("[\"pathproof-rotator\"]"), "{lease}");
    for object in objects.iter().filter(|object| object["kind"] != "Service") {
        let name = object["metadata"]["name"].as_str().expect("a name");
        assert!(name.starts_with("net-"), "{}", identity(object));
    }
}

#[test]
fn rights_and_accounts_can_be_created_elsewhere() {
    needs!(Tool::Helm.installed());
    let account = json!({ "create": false, "name": "theirs" });
    let objects = rendered(json!({
        "rbac": { "create": false },
        "agent": { "serviceAccount": account },
        "rotator": { "withdraw": "label" },
    }));
    let kinds: Vec<&str> = objects
        .iter()
        .filter_map(|one| one["kind"].as_str())
        .collect();
    assert!(!kinds.iter().any(|kind| kind.contains("Role")), "{kinds:?}");
    let accounts = kinds
        .iter()
        .filter(|kind| **kind == "ServiceAccount")
        .count();
    assert_eq!(accounts, 1, "{kinds:?}");
    // The policies must still restrict the accounts that the user created.
    let policy = named(&objects, "ValidatingAdmissionPolicy", "pathproof-agent").to_string();
    assert!(policy.contains(":theirs"), "{policy}");
}

/// Both monitors set the labels that the alerts need, and then apply the user's relabelings.
#[rstest]
#[case("podMonitor", "PodMonitor", "podMetricsEndpoints")]
#[case("serviceMonitor", "ServiceMonitor", "endpoints")]
fn monitors_have_what_prometheus_operator_offers(
    #[case] value: &str,
    #[case] kind: &str,
    #[case] endpoints: &str,
) {
    needs!(Tool::Helm.installed());
    let relabeling = json!({ "targetLabel": "cluster", "replacement": "east" });
    let dropped = json!({ "action": "drop", "regex": "x" });
    let monitor = json!({
        "enabled": true, "interval": "60s", "scrapeTimeout": "20s",
        "labels": { "release": "prometheus" }, "annotations": { "a": "b" },
        "relabelings": [relabeling], "metricRelabelings": [dropped],
    });
    let objects = rendered(json!({
        "agent": { "admin": { "port": 19300, "allowCidrs": ["10.0.0.0/8"] } },
        "metrics": { value: monitor },
    }));
    let object = named(&objects, kind, "pathproof-agent");
    assert_eq!(object["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(object["metadata"]["annotations"], json!({ "a": "b" }));
    assert_eq!(object["spec"]["jobLabel"], "app.kubernetes.io/name");
    let endpoint = &object["spec"][endpoints][0];
    assert_eq!(endpoint["interval"], "60s");
    assert_eq!(endpoint["scrapeTimeout"], "20s");
    assert_eq!(endpoint["metricRelabelings"], json!([dropped]));
    let relabelings = endpoint["relabelings"].as_array().expect("relabelings");
    assert_eq!(relabelings.last(), Some(&relabeling));
    let node =
        json!({ "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node" });
    assert!(relabelings.contains(&node), "{relabelings:?}");
    if kind == "ServiceMonitor" {
        let service = named(&objects, "Service", "pathproof-agent-metrics");
        assert_eq!(service["spec"]["clusterIP"], "None");
        assert_eq!(service["spec"]["ports"][0]["port"], 19300);
        assert_eq!(service["spec"]["ports"][0]["name"], endpoint["port"]);
        let selector = &object["spec"]["selector"]["matchLabels"];
        assert_eq!(service["spec"]["selector"], *selector);
        for (label, value) in selector.as_object().expect("labels") {
            assert_eq!(service["metadata"]["labels"][label], *value);
        }
    }
}

/// Alerts of the chart with these values for the PrometheusRule.
fn alerts(rule: Value) -> Vec<Value> {
    let objects = rendered(json!({ "metrics": { "prometheusRule": rule } }));
    let rule = named(&objects, "PrometheusRule", "pathproof");
    let groups = rule["spec"]["groups"].as_array().expect("groups");
    let of = |group: &Value| group["rules"].as_array().expect("rules").clone();
    let rules = groups.iter().flat_map(of);
    rules.filter(|rule| rule["alert"].is_string()).collect()
}

#[test]
fn severities_and_times_of_alerts_are_values() {
    needs!(Tool::Helm.installed());
    let shipped = alerts(json!({ "enabled": true }));
    let ours = alerts(json!({
        "enabled": true,
        "alertLabels": { "team": "net" },
        "severities": { "warning": "ticket" },
        "overrides": {
            "PathproofRulesLag": { "severity": "none", "for": "17m" },
            "PathproofNothingKnown": { "enabled": false },
            "PathproofAgentDown": { "labels": { "team": "oncall" }, "annotations": { "a": "b" } },
        },
    }));
    assert_eq!(ours.len(), shipped.len() - 1);
    for before in &shipped {
        let Some(after) = ours.iter().find(|rule| rule["alert"] == before["alert"]) else {
            assert_eq!(before["alert"], "PathproofNothingKnown");
            continue;
        };
        assert_eq!(after["expr"], before["expr"]);
        let alert = before["alert"].as_str().expect("a name");
        let severity = match (alert, before["labels"]["severity"].as_str()) {
            ("PathproofRulesLag", _) => Some("none"),
            (_, Some("warning")) => Some("ticket"),
            (_, severity) => severity,
        };
        assert_eq!(after["labels"]["severity"].as_str(), severity, "{alert}");
        let team = match alert {
            "PathproofAgentDown" => "oncall",
            _ => "net",
        };
        assert_eq!(after["labels"]["team"], team, "{alert}");
        let is_later = alert == "PathproofRulesLag";
        assert_eq!(after["for"] == "17m", is_later, "{alert}");
        assert!(is_later || after["for"] == before["for"], "{alert}");
        let summary = &before["annotations"]["summary"];
        assert_eq!(after["annotations"]["summary"], *summary, "{alert}");
    }
}
