//! The address and labels with which the PodMonitor scrapes an agent's pod.

use std::fs;

use node_tests::deploy::{Chart, Tool, said};
use node_tests::needs;
use serde_json::{Map, Value, json};

use crate::find::of_kind;

/// Converts a relabeling from Prometheus Operator's field names to those of Prometheus.
fn native(relabeling: &Value) -> Value {
    let names = [
        ("sourceLabels", "source_labels"),
        ("targetLabel", "target_label"),
        ("regex", "regex"),
        ("replacement", "replacement"),
    ];
    let fields = relabeling.as_object().expect("a relabeling");
    let mut native = Map::new();
    for (name, value) in fields {
        let known = names.iter().find(|(theirs, _)| theirs == name);
        let (_, ours) = known.unwrap_or_else(|| panic!("{name} is not translated here"));
        native.insert((*ours).to_owned(), value.clone());
    }
    Value::Object(native)
}

/// The relevant parts of the scrape configuration that Prometheus Operator writes for a PodMonitor, but with
/// static pods. A pod that declares no port is one target without a port.
fn configuration(monitor: &Value, pods: &[(&str, &str)]) -> Value {
    let job = monitor["jobLabel"].as_str().expect("a job label");
    let job = format!(
        "__meta_kubernetes_pod_label_{}",
        job.replace(['.', '/'], "_")
    );
    let mut relabelings = vec![
        json!({ "source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace" }),
        json!({ "target_label": "job", "replacement": "pathproof/pathproof-agent" }),
        json!({ "source_labels": [job], "target_label": "job", "regex": "(.+)" }),
    ];
    let endpoint = &monitor["podMetricsEndpoints"][0];
    let of_ours = endpoint["relabelings"].as_array().expect("relabelings");
    relabelings.extend(of_ours.iter().map(native));
    let target = |(ip, node): &(&str, &str)| {
        let mut labels = Map::new();
        labels.insert("__meta_kubernetes_pod_ip".to_owned(), json!(ip));
        labels.insert("__meta_kubernetes_pod_node_name".to_owned(), json!(node));
        labels.insert("__meta_kubernetes_namespace".to_owned(), json!("pathproof"));
        labels.insert(job.clone(), json!("pathproof"));
        json!({ "targets": [ip], "labels": labels })
    };
    json!({ "scrape_configs": [{
        "job_name": "agents",
        "static_configs": pods.iter().map(target).collect::<Vec<_>>(),
        "relabel_configs": relabelings,
    }] })
}

/// A ServiceMonitor only sets the labels, because a headless Service already has the port.
#[test]
fn a_service_monitor_gives_the_same_labels() {
    needs!(Tool::Helm.installed());
    let monitor = |kind: &str, value: &str, endpoints: &str| {
        let objects = Chart::with(json!({
            "agent": { "admin": { "allowCidrs": ["10.0.0.0/8"] } },
            "metrics": { value: { "enabled": true } },
        }));
        let objects = objects.render().expect("the chart");
        let spec = &of_kind(&objects, kind)["spec"];
        let relabelings = spec[endpoints][0]["relabelings"].as_array().cloned();
        let mut relabelings = relabelings.expect("relabelings");
        relabelings.retain(|one| one["targetLabel"] != "__address__");
        (spec["jobLabel"].clone(), relabelings)
    };
    assert_eq!(
        monitor("ServiceMonitor", "serviceMonitor", "endpoints"),
        monitor("PodMonitor", "podMonitor", "podMetricsEndpoints")
    );
}

#[test]
fn agents_are_scraped_at_their_admin_port_by_the_nodes_name() {
    needs!(Tool::Helm.installed());
    needs!(Tool::Promtool.installed());
    let admin = json!({ "port": 19300, "allowCidrs": ["10.0.0.0/8"] });
    let values = json!({
        "agent": { "admin": admin },
        "metrics": { "podMonitor": { "enabled": true } },
    });
    let objects = Chart::with(values).render().expect("the chart");
    let pods = [("10.0.0.7", "node-1"), ("fd00::7", "node-2")];
    let text = configuration(&of_kind(&objects, "PodMonitor")["spec"], &pods);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("prometheus.yaml");
    fs::write(&file, text.to_string()).expect("write it");
    let mut command = Tool::Promtool.command().expect("promtool");
    // Limit the time: promtool waits for more targets until its timeout.
    command.args(["check", "service-discovery", "--timeout=2s"]);
    let told = said(command.arg(file).arg("agents")).expect("targets");
    let targets: Vec<Value> = serde_json::from_str(&told).expect("JSON");
    let of = |node: &str| {
        let found = targets
            .iter()
            .find(|target| target["labels"]["node"] == node);
        found.unwrap_or_else(|| panic!("no {node} in {told}"))["labels"].clone()
    };
    for (node, address) in [("node-1", "10.0.0.7:19300"), ("node-2", "[fd00::7]:19300")] {
        let labels = of(node);
        assert_eq!(labels["__address__"], address);
        assert_eq!(labels["job"], "pathproof");
        assert_eq!(labels["namespace"], "pathproof");
    }
}
