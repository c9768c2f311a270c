//! Values of the chart: consistent ones are rendered, and contradictory ones are refused with a message
//! that names both sides and the remedy.

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

#[track_caller]
fn refused(values: Value, words: &[&str]) {
    let error = match Chart::with(values.clone()).render() {
        Ok(_) => panic!("rendered: {values}"),
        Err(error) => format!("{error:#}"),
    };
    for word in words {
        assert!(error.contains(word), "{word} is not in: {error}");
    }
}

#[rstest]
#[case::loopback_metrics(
    json!({ "metrics": { "podMonitor": { "enabled": true } } }),
    &["metrics.podMonitor.enabled=true", "agent.admin.allowCidrs", "needs agent.admin.allowCidrs"]
)]
#[case::pods_of_rke1(
    json!({ "profile": "rke1", "metrics": { "podMonitor": { "enabled": true } } }),
    &["metrics.podMonitor.enabled=true", "profile=rke1", "ScrapeConfig"]
)]
#[case::rke1_steers(
    json!({ "profile": "rke1", "agent": { "portTakeover": "steer" } }),
    &["agent.portTakeover=steer", "profile=rke1", "cluster.yml"]
)]
#[case::rke1_declares(
    json!({ "profile": "rke1", "agent": { "datapath": "none" } }),
    &["agent.datapath=none", "profile=rke1", "cluster.yml"]
)]
#[case::rke1_enforces(
    json!({ "profile": "rke1", "agent": { "enforcement": "enforce" } }),
    &["agent.enforcement=enforce", "profile=rke1", "cluster.yml"]
)]
#[case::rke1_arguments(
    json!({ "profile": "rke1", "agent": { "extraArgs": ["--attach=tcx"] } }),
    &["agent.extraArgs", "profile=rke1", "cluster.yml"]
)]
#[case::rke1_metrics(
    json!({ "profile": "rke1", "agent": { "admin": { "allowCidrs": ["10.0.0.0/8"] } } }),
    &["agent.admin.allowCidrs", "profile=rke1", "cluster.yml"]
)]
#[case::rke1_updates(
    json!({ "profile": "rke1", "agent": { "updateStrategy": { "type": "OnDelete" } } }),
    &["agent.updateStrategy.type=OnDelete", "profile=rke1", "cluster.yml"]
)]
#[case::services_of_rke1(
    json!({ "profile": "rke1", "metrics": { "serviceMonitor": { "enabled": true } } }),
    &["metrics.serviceMonitor.enabled=true", "profile=rke1", "ScrapeConfig"]
)]
#[case::rke1_of_nothing(
    json!({ "profile": "rke1", "sentinel": { "enabled": false } }),
    &["profile=rke1", "sentinel.enabled=false", "installs nothing"]
)]
#[case::kube_proxy_has_the_port(
    json!({ "agent": { "portTakeover": "bind" } }),
    &["agent.portTakeover=bind", "profile=beside-kube-proxy", "profile=standalone"]
)]
#[case::nobody_has_the_port(
    json!({ "profile": "standalone", "agent": { "portTakeover": "steer" } }),
    &["agent.portTakeover=steer", "profile=standalone", "profile=cilium"]
)]
#[case::nobody_withdraws(
    json!({ "rotator": { "withdraw": "label" }, "sentinel": { "enabled": false } }),
    &["rotator.withdraw=label", "sentinel.enabled=false", "set rotator.withdraw=off"]
)]
#[case::nothing_to_view(
    json!({ "agent": { "view": "sentinel" }, "sentinel": { "enabled": false } }),
    &["agent.view=sentinel", "sentinel.enabled=false", "set agent.view=full"]
)]
#[case::one_port_for_both(
    json!({ "agent": { "admin": { "port": 10256 } } }),
    &["agent.healthzBindAddress=0.0.0.0:10256", "agent.admin.port=10256", "another port"]
)]
#[case::default_port_for_both(
    json!({ "agent": { "healthzBindAddress": "::", "admin": { "port": 10256 } } }),
    &["agent.healthzBindAddress=::", "agent.admin.port=10256"]
)]
#[case::one_address_for_both(
    json!({ "sentinel": { "clientIPv4": "198.18.0.2" } }),
    &["sentinel.endpointIPv4", "sentinel.clientIPv4", "different addresses"]
)]
#[case::said_twice(
    json!({ "agent": { "extraArgs": ["--enforcement=audit"] } }),
    &["--enforcement", "agent.enforcement sets", "remove it from agent.extraArgs"]
)]
#[case::loopback_services(
    json!({ "metrics": { "serviceMonitor": { "enabled": true } } }),
    &["metrics.serviceMonitor.enabled=true", "agent.admin.allowCidrs", "needs agent.admin.allowCidrs"]
)]
#[case::scraped_twice(
    json!({
        "agent": { "admin": { "allowCidrs": ["10.0.0.0/8"] } },
        "metrics": { "podMonitor": { "enabled": true }, "serviceMonitor": { "enabled": true } },
    }),
    &["metrics.podMonitor.enabled=true", "metrics.serviceMonitor.enabled=true", "scraped twice"]
)]
#[case::variable_said_twice(
    json!({ "agent": { "extraEnv": [{ "name": "PATHPROOF_ENFORCEMENT", "value": "enforce" }] } }),
    &["agent.extraEnv", "PATHPROOF_ENFORCEMENT", "agent.enforcement sets"]
)]
#[case::variable_of_the_pod(
    json!({ "agent": { "extraEnv": [{ "name": "NODE_NAME", "value": "a" }] } }),
    &["agent.extraEnv", "NODE_NAME", "spec.nodeName"]
)]
#[case::variable_of_the_rotator(
    json!({ "rotator": { "extraEnv": [{ "name": "PATHPROOF_WITHDRAW", "value": "label" }] } }),
    &["rotator.extraEnv", "PATHPROOF_WITHDRAW", "rotator.withdraw sets"]
)]
#[case::label_of_the_selector(
    json!({ "commonLabels": { "app.kubernetes.io/name": "net" } }),
    &["commonLabels", "app.kubernetes.io/name", "the chart sets itself"]
)]
#[case::label_of_the_pods(
    json!({ "agent": { "podLabels": { "app.kubernetes.io/component": "net" } } }),
    &["agent.podLabels", "app.kubernetes.io/component", "the chart sets itself"]
)]
#[case::nobodys_account(
    json!({ "agent": { "serviceAccount": { "create": false } } }),
    &["agent.serviceAccount.create=false", "needs agent.serviceAccount.name"]
)]
#[case::one_account_for_both(
    json!({
        "agent": { "serviceAccount": { "name": "one" } },
        "rotator": { "serviceAccount": { "name": "one" } },
    }),
    &["agent.serviceAccount.name", "rotator.serviceAccount.name", "both one", "different"]
)]
#[case::a_budget_that_blocks(
    json!({ "rotator": { "podDisruptionBudget": { "enabled": true, "minAvailable": 1 } } }),
    &["podDisruptionBudget.minAvailable=1", "rotator.replicas=1", "maxUnavailable"]
)]
#[case::a_percentage_that_blocks(
    json!({ "rotator": { "replicas": 2, "podDisruptionBudget": { "enabled": true, "minAvailable": "51%" } } }),
    &["podDisruptionBudget.minAvailable=51%", "rotator.replicas=2", "maxUnavailable"]
)]
#[case::nobody_may_be_away(
    json!({ "rotator": { "replicas": 2, "podDisruptionBudget": { "enabled": true, "maxUnavailable": 0 } } }),
    &["podDisruptionBudget.maxUnavailable=0:", "at least 1"]
)]
#[case::no_percentage_may_be_away(
    json!({ "rotator": { "replicas": 2, "podDisruptionBudget": { "enabled": true, "maxUnavailable": "0%" } } }),
    &["podDisruptionBudget.maxUnavailable=0%:", "at least 1"]
)]
#[case::scraped_too_rarely(
    json!({
        "agent": { "admin": { "allowCidrs": ["10.0.0.0/8"] } },
        "metrics": {
            "podMonitor": { "enabled": true, "interval": "2m1s" }, "prometheusRule": { "enabled": true },
        },
    }),
    &["metrics.podMonitor.interval=2m1s", "metrics.prometheusRule.enabled=true", "at most 2m"]
)]
#[case::no_such_alert(
    json!({ "metrics": { "prometheusRule": { "enabled": true, "overrides": { "Other": {} } } } }),
    &["metrics.prometheusRule.overrides", "Other", "PathproofDatapathBroken"]
)]
#[case::values_of_an_earlier_chart(
    json!({ "extraObjects": null }),
    &["extraObjects is missing", "--reuse-values", "--reset-then-reuse-values"]
)]
#[case::null(
    json!({ "agent": { "admin": null } }),
    &["agent.admin is missing", "remove the null"]
)]
#[case::no_registry(
    json!({ "image": { "pullPolicy": "Always" } }),
    &["image.repository=pathproof", "set image.registry", "image.pullPolicy=Never"]
)]
#[case::a_volume_of_the_chart(
    json!({ "agent": { "extraVolumes": [{ "name": "state", "emptyDir": {} }] } }),
    &["agent.extraVolumes", "state", "another name"]
)]
#[case::sentinel_said_twice(
    json!({ "agent": { "extraArgs": ["--sentinel-client-address=192.0.2.1"] } }),
    &["--sentinel-client-address", "sentinel.clientIPv4"]
)]
fn values_that_contradict_each_other(#[case] values: Value, #[case] words: &[&str]) {
    needs!(Tool::Helm.installed());
    refused(values, words);
}

#[rstest]
#[case::enforcement(json!({ "agent": { "enforcement": "warn" } }), "enforcement")]
#[case::profile(json!({ "profile": "calico" }), "profile")]
#[case::plain_pull_secret(json!({ "imagePullSecrets": ["registry"] }), "imagePullSecrets")]
#[case::unknown(json!({ "agent": { "enforced": "audit" } }), "enforced")]
#[case::unknown_at_the_top(json!({ "agents": {} }), "agents")]
#[case::no_surge(
    json!({ "agent": { "updateStrategy": { "rollingUpdate": { "maxSurge": 0 } } } }),
    "maxSurge"
)]
#[case::no_surge_in_percent(
    json!({ "agent": { "updateStrategy": { "rollingUpdate": { "maxSurge": "0%" } } } }),
    "maxSurge"
)]
#[case::no_agent_meanwhile(
    json!({ "agent": { "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } } } }),
    "maxUnavailable"
)]
#[case::too_hasty(json!({ "agent": { "minReadySeconds": 5 } }), "minReadySeconds")]
#[case::secret_of_a_parent(json!({ "global": { "imagePullSecrets": [1] } }), "imagePullSecrets")]
#[case::mount_of_nothing(
    json!({ "rotator": { "extraVolumeMounts": [{ "name": "ca" }] } }),
    "extraVolumeMounts"
)]
#[case::text_for_a_number(json!({ "rotator": { "interval": "60" } }), "interval")]
#[case::text_for_a_switch(json!({ "policy": { "enabled": "yes" } }), "enabled")]
#[case::one_port(json!({ "agent": { "healthCheckNodePorts": "30000" } }), "healthCheckNodePorts")]
#[case::one_for_many(json!({ "agent": { "healthzAllowCidrs": "10.0.0.0/8" } }), "healthzAllowCidrs")]
#[case::no_cidr(json!({ "agent": { "admin": { "allowCidrs": ["pods"] } } }), "allowCidrs")]
#[case::port(json!({ "agent": { "admin": { "port": 70000 } } }), "port")]
#[case::other_words(json!({ "agent": { "publishWithoutPolicy": "yes" } }), "publishWithoutPolicy")]
#[case::digest(json!({ "image": { "digest": "latest" } }), "digest")]
#[case::no_option(json!({ "agent": { "extraArgs": ["attach=tcx"] } }), "extraArgs")]
#[case::two_words(json!({ "agent": { "extraArgs": ["--attach tcx"] } }), "extraArgs")]
fn the_schema_refuses(#[case] values: Value, #[case] name: &str) {
    needs!(Tool::Helm.installed());
    refused(
        values,
        &["values don't meet the specifications of the schema", name],
    );
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
