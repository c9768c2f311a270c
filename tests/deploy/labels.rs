//! Users can change the labels `job` and `cluster` of rules, dashboard and scrapes. The rotator has another job
//! than the agents.

use std::fs;
use std::process::Command;

use node_tests::cluster::documents;
use node_tests::deploy::{Chart, Tool, folder, overlay_folder, said};
use node_tests::prelude::*;

use crate::alerts::promtool;
use crate::find::{named, of_kind};

const JOB: &str = "net/pathproof";
const LABEL: &str = "k8s_cluster";

/// Everything about metrics, with these values too.
fn rendered(mut metrics: Value, port: u16) -> Vec<Value> {
    for kind in ["podMonitor", "prometheusRule", "dashboard"] {
        metrics[kind]["enabled"] = json!(true);
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
    let mut relabelings = relabelings.expect("relabelings").iter().rev();
    // The last one wins.
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

/// The command in deploy/README.md gives users of kustomize what these values give users of the chart.
#[test]
fn the_command_for_kustomize_changes_the_same() {
    needs!(Tool::Helm.installed());
    needs!(Tool::Kubectl.installed());
    let readme = fs::read_to_string(folder().join("README.md")).expect("the page");
    let (_, script) = readme.split_once("| sed -E '").expect("the command");
    let (script, _) = script.split_once('\'').expect("its end");
    let script = script.replace("JOB", "ours").replace("LABEL", LABEL);
    let dir = overlay_folder("beside-kube-proxy", &["alerts", "dashboard"]).expect("a folder");
    let mut command = Tool::Kubectl.command().expect("kubectl");
    let text = said(command.arg("kustomize").arg(dir.path())).expect("kustomize");
    let path = dir.path().join("rendered.yaml");
    fs::write(&path, text).expect("write the objects");
    let mut command = Command::new("sed");
    let text = said(command.args(["-E", &script]).arg(&path)).expect("sed");
    let by_sed = documents(&text).expect("YAML");
    let by_chart = rendered(json!({ "job": "ours", "clusterLabel": LABEL }), 19256);
    let parts = |objects: &[Value]| {
        let mut maps = objects
            .iter()
            .filter_map(|object| object["data"].get("pathproof.json"));
        let dashboard = maps.next().expect("a dashboard").clone();
        (
            of_kind(objects, "PrometheusRule")["spec"].clone(),
            dashboard,
        )
    };
    assert_eq!(parts(&by_sed), parts(&by_chart));
}

#[test]
fn the_scrapes_set_the_job() {
    needs!(Tool::Helm.installed());
    let ours = rendered(json!({}), 19256);
    assert_eq!(job_of(&ours, "pathproof-agent"), Value::Null);
    assert_eq!(job_of(&ours, "pathproof-rotator"), "pathproof-rotator");
    let own = json!([{ "targetLabel": "job", "replacement": "a" }, { "targetLabel": "job", "replacement": "b" }]);
    let theirs = rendered(
        json!({ "job": JOB, "podMonitor": { "relabelings": own } }),
        19256,
    );
    assert_eq!(job_of(&theirs, "pathproof-agent"), "b");
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
