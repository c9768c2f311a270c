//! docs/install.md lists the shipped workloads.

use std::collections::BTreeSet;

use node_tests::deploy::{Chart, Tool};
use node_tests::needs;

use crate::references::document;

#[test]
fn the_check_waits_for_every_workload() {
    const WAIT: &str = "kubectl -n pathproof rollout status ";
    needs!(Tool::Helm.installed());
    let page = document("install.md");
    let listed = page.lines().filter_map(|line| line.strip_prefix(WAIT));
    let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
    let objects = Chart::default().render().expect("the chart");
    let workloads = objects
        .iter()
        .filter(|object| object["spec"]["template"].is_object())
        .map(|object| {
            let text = |value: &serde_json::Value| value.as_str().expect("a name").to_owned();
            let kind = text(&object["kind"]).to_lowercase();
            format!("{kind}/{}", text(&object["metadata"]["name"]))
        });
    let workloads: BTreeSet<String> = workloads.collect();
    assert_eq!(workloads.len(), 3);
    assert_eq!(listed, workloads);
}
