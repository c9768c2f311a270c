//! Contradictory values of the chart are refused with a message that names both sides and the remedy.

use node_tests::deploy::{Chart, Tool};
use node_tests::prelude::*;

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
    json!({ "rotator": { "podDisruptionBudget": { "enabled": true, "minAvailable": 2 } } }),
    &["podDisruptionBudget.minAvailable=2", "rotator.replicas=2", "maxUnavailable"]
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
#[case::canary_of_the_same_name(
    json!({ "shared": { "create": false }, "agent": { "nodeSelector": { "pool": "canary" } } }),
    &["shared.create=false", "another release name", "fullnameOverride"]
)]
#[case::canary_on_every_node(
    json!({ "shared": { "create": false }, "fullnameOverride": "canary" }),
    &["shared.create=false", "needs agent.nodeSelector or agent.affinity", "first release"]
)]
#[case::canary_of_nothing(
    json!({ "shared": { "create": false }, "profile": "rke1", "fullnameOverride": "canary" }),
    &["shared.create=false", "profile=rke1", "set shared.create=true"]
)]
#[case::a_volume_of_the_chart(
    json!({ "agent": { "extraVolumes": [{ "name": "state", "emptyDir": {} }] } }),
    &["agent.extraVolumes", "state", "another name"]
)]
#[case::the_journal(
    json!({ "agent": { "extraVolumeMounts": [{ "name": "journal", "mountPath": "/a" }] } }),
    &["agent.extraVolumeMounts", "journal", "another name"]
)]
#[case::a_variable_of_the_chart(
    json!({ "agent": { "extraEnv": [{ "name": "PATHPROOF_JOURNAL_DIR", "value": "/a" }] } }),
    &["agent.extraEnv", "PATHPROOF_JOURNAL_DIR", "remove it"]
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
