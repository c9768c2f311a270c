//! docs/rollout.md matches the chart: its queries are valid and use existing metrics. The times in its table
//! follow from the chart's settings.

use std::collections::BTreeSet;

use node_tests::deploy::{Chart, Tool};
use node_tests::prelude::*;

use crate::alerts::promtool;
use crate::find::of_kind;
use crate::references::{TARGET_LABELS, document, documented, selectors};

const NODES: u64 = 2_000;

fn page() -> String {
    document("rollout.md")
}

/// The lines of all PromQL blocks.
fn queries() -> Vec<String> {
    let page = page();
    let blocks = page.split("```promql\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap_or_default().lines());
    lines.map(str::to_owned).collect()
}

#[test]
fn queries_are_sound() {
    let queries = queries();
    assert!(queries.len() > 8, "{queries:?}");
    let rule = |query: &String| json!({ "alert": "query", "expr": query });
    let rules: Vec<Value> = queries.iter().map(rule).collect();
    let groups = json!({ "groups": [{ "name": "page", "rules": rules }] });
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("queries.yaml");
    std::fs::write(&file, groups.to_string()).expect("write the queries");
    promtool(&["check", "rules"], &file);
}

/// Metrics of a query that are not documented, and labels that none of its metrics has. By such a label
/// Prometheus would merge all series without an error.
fn unknown(query: &str) -> Vec<String> {
    let documented = documented();
    let is_name = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    let words = query.split(|sign| !is_name(sign));
    let mut known: BTreeSet<&str> = ["cluster"].into_iter().chain(TARGET_LABELS).collect();
    let mut found = Vec::new();
    for name in words.filter(|word| word.starts_with("pathproof_")) {
        match documented.get(name) {
            Some((_, labels)) => known.extend(labels.iter().map(String::as_str)),
            None => found.push(name.to_owned()),
        }
    }
    let groups = query.split("by (").skip(1);
    let groups = groups.flat_map(|rest| rest.split(')').next().unwrap_or_default().split(", "));
    let matchers = selectors(query).into_iter().flat_map(|(_, labels)| labels);
    let labels = groups.map(str::to_owned).chain(matchers);
    found.extend(labels.filter(|label| !known.contains(label.as_str())));
    found
}

#[test]
fn metrics_and_labels_of_the_queries_are_documented() {
    for query in queries() {
        assert!(query.contains("by (cluster"), "{query}");
        assert_eq!(unknown(&query), [""; 0], "{query}");
    }
    let wrong =
        r#"sum by (cluster, endpoint) (pathproof_would_fail{checks="livez"}) - pathproof_no"#;
    assert_eq!(unknown(wrong), ["pathproof_no", "endpoint", "checks"]);
}

/// The minimum duration follows from the number of nodes that are updated at a time, the delay of the startup
/// probe and `minReadySeconds`.
#[test]
fn times_of_a_rollout_are_those_of_the_chart() {
    needs!(Tool::Helm.installed());
    let objects = Chart::default().render().expect("the chart");
    let spec = &of_kind(&objects, "DaemonSet")["spec"];
    let update = &spec["updateStrategy"]["rollingUpdate"];
    let seconds = spec["minReadySeconds"].as_u64().expect("seconds");
    let surge = update["maxSurge"].as_u64().expect("a number");
    assert_eq!(update["maxUnavailable"], 0);
    let shipped =
        format!("`maxSurge: {surge}`, `maxUnavailable: 0` and `minReadySeconds: {seconds}`");
    assert!(page().contains(&shipped), "{shipped}");
    let probe = &spec["template"]["spec"]["containers"][0]["startupProbe"];
    let seconds = seconds + probe["initialDelaySeconds"].as_u64().expect("seconds");
    for (value, at_once) in [
        ("1`, as shipped", surge),
        ("1%`", 20),
        ("5%`", 100),
        ("10%`", 200),
    ] {
        let minutes = (NODES / at_once * seconds).div_ceil(60);
        let least = match (minutes / 60, minutes % 60) {
            (0, minutes) => format!("{minutes} min"),
            (hours, minutes) => format!("{hours} h {minutes} min"),
        };
        let row = format!("| `{value} | {at_once} | {least} |");
        assert!(page().contains(&row), "no row {row}");
    }
}
