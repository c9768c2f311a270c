//! Users can change the labels `job` and `cluster` of rules, dashboard and scrapes. The rotator has another job
//! than the agents.

use std::fs;

use node_tests::deploy::{Chart, Tool};
use node_tests::prelude::*;

use crate::alerts::promtool;
use crate::find::{named, of_kind};

const JOB: &str = "net/pathproof";
const LABEL: &str = "k8s_cluster";

/// Everything about metrics, with these values too.
fn rendered(mut metrics: Value, port: u16) -> Vec<Value> {
    for kind in ["podMonitor", "prometheusRule", "dashboard"] {
        metrics[kind] = json!({ "enabled": true });
    }
    let chart = Chart::with(json!({
        "agent": { "admin": { "allowCidrs": ["10.0.0.0/8"] } },
        "rotator": { "metricsPort": port },
        "networkPolicy": { "enabled": true },
        "metrics": metrics,
    }));
    chart.render().expect("the chart")
}

fn job_of(objects: &[Value], monitor: &str) -> Value {
    let spec = &named(objects, "PodMonitor", monitor)["spec"];
    let relabelings = spec["podMetricsEndpoints"][0]["relabelings"].as_array();
    let mut relabelings = relabelings.expect("relabelings").iter();
    let of_job = relabelings.find(|relabeling| relabeling["targetLabel"] == "job");
    of_job.map_or(Value::Null, |relabeling| relabeling["replacement"].clone())
}

#[test]
fn job_and_cluster_are_the_users() {
    needs!(Tool::Helm.installed());
    let ours = rendered(json!({}), 19256);
    let theirs = rendered(json!({ "job": JOB, "clusterLabel": LABEL }), 19256);
    let rules = |objects: &[Value]| of_kind(objects, "PrometheusRule")["spec"].to_string();
    let dashboard = |objects: &[Value]| {
        let map = named(objects, "ConfigMap", "pathproof-dashboard");
        let json = map["data"]["pathproof.json"].as_str();
        json.expect("a dashboard").to_owned()
    };
    for (text, original) in [
        (rules(&theirs), rules(&ours)),
        (dashboard(&theirs), dashboard(&ours)),
    ] {
        for left in [
            "by (cluster",
            "on (cluster",
            "{cluster=",
            ", cluster)",
            "$labels.cluster",
            "\"cluster\": ",
            "job=\\\"pathproof",
        ] {
            assert!(!text.contains(left), "{left}");
        }
        let back = text.replace(LABEL, "cluster").replace(JOB, "pathproof");
        assert!(back == original, "something else changed");
        assert!(text.contains(&format!("by ({LABEL}")));
    }
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("rules.yaml");
    fs::write(&path, rules(&theirs)).expect("write the rules");
    promtool(&["check", "rules"], &path);
}

#[test]
fn the_scrapes_set_the_job() {
    needs!(Tool::Helm.installed());
    let ours = rendered(json!({}), 19256);
    assert_eq!(job_of(&ours, "pathproof-agent"), Value::Null);
    assert_eq!(job_of(&ours, "pathproof-rotator"), "pathproof-rotator");
    let theirs = rendered(json!({ "job": JOB }), 19256);
    assert_eq!(job_of(&theirs, "pathproof-agent"), JOB);
    let expected = format!("{JOB}-rotator");
    assert_eq!(job_of(&theirs, "pathproof-rotator"), expected);
}

/// Monitor, pod, option and network policy have the same port; without one they have none.
#[rstest]
#[case::on(19300)]
#[case::off(0)]
fn the_rotators_port_is_one(#[case] port: u16) {
    needs!(Tool::Helm.installed());
    let objects = rendered(json!({}), port);
    let pod = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let args = container["args"].to_string();
    let option = format!("--metrics-bind-address=0.0.0.0:{port}");
    let policy = &named(&objects, "NetworkPolicy", "pathproof-rotator")["spec"]["ingress"];
    let is_scraped = objects.iter().any(|object| {
        object["kind"] == "PodMonitor" && object["metadata"]["name"] == "pathproof-rotator"
    });
    if port == 0 {
        assert!(!args.contains("--metrics-bind-address"), "{args}");
        assert!(container["ports"].is_null() && container["livenessProbe"].is_null());
        assert_eq!(*policy, json!([]));
        assert!(!is_scraped);
        return;
    }
    assert!(args.contains(&option), "{args}");
    assert_eq!(container["ports"][0]["containerPort"], port);
    let name = &container["ports"][0]["name"];
    assert_eq!(container["livenessProbe"]["httpGet"]["port"], *name);
    assert_eq!(policy[0]["ports"][0]["port"], port);
    let monitor = &named(&objects, "PodMonitor", "pathproof-rotator")["spec"];
    assert_eq!(monitor["podMetricsEndpoints"][0]["port"], *name);
    let template = &of_kind(&objects, "Deployment")["spec"]["template"];
    for (label, value) in monitor["selector"]["matchLabels"]
        .as_object()
        .expect("labels")
    {
        assert_eq!(template["metadata"]["labels"][label], *value);
    }
}

/// By Services, Prometheus finds the same ports under the same jobs.
#[test]
fn a_service_monitor_scrapes_the_rotator_too() {
    needs!(Tool::Helm.installed());
    let chart = Chart::with(json!({
        "agent": { "admin": { "allowCidrs": ["10.0.0.0/8"] } },
        "metrics": { "serviceMonitor": { "enabled": true } },
    }));
    let objects = chart.render().expect("the chart");
    let monitor = &named(&objects, "ServiceMonitor", "pathproof-rotator")["spec"];
    let service = named(&objects, "Service", "pathproof-rotator-metrics");
    let endpoint = &monitor["endpoints"][0];
    let job = json!([{ "targetLabel": "job", "replacement": "pathproof-rotator" }]);
    assert_eq!(endpoint["relabelings"], job);
    assert_eq!(service["spec"]["ports"][0]["name"], endpoint["port"]);
    let selector = &monitor["selector"]["matchLabels"];
    assert_eq!(service["spec"]["selector"], *selector);
    for (label, value) in selector.as_object().expect("labels") {
        assert_eq!(service["metadata"]["labels"][label], *value);
    }
}
