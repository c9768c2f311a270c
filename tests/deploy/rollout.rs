//! docs/rollout.md says what is shipped: its queries are sound and name metrics that exist, and its
//! table of times is that of the chart's own settings.

use node_tests::deploy::{Chart, Tool};
use serde_json::{Value, json};

use crate::alerts::promtool;
use crate::references::{document, documented};

/// Nodes of the page's table.
const NODES: u64 = 2_000;

fn page() -> String {
    document("rollout.md")
}

/// Each line of a block of PromQL.
fn queries() -> Vec<String> {
    let page = page();
    let blocks = page.split("```promql\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap_or_default().lines());
    lines.map(str::to_owned).collect()
}

#[test]
fn queries_are_sound() {
    if Tool::Promtool.skip_without("queries_are_sound") {
        return;
    }
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

#[test]
fn metrics_of_the_queries_are_documented() {
    let documented = documented();
    for query in queries() {
        assert!(query.contains("by (cluster"), "{query}");
        let is_name = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
        let words = query.split(|sign| !is_name(sign));
        for name in words.filter(|word| word.starts_with("pathproof_")) {
            assert!(documented.contains_key(name), "docs/metrics.md: no {name}");
        }
    }
}

/// The least that a rollout takes: so many nodes at a time, each ready for so long.
#[test]
fn times_of_a_rollout_are_those_of_the_chart() {
    if Tool::Helm.skip_without("times_of_a_rollout_are_those_of_the_chart") {
        return;
    }
    let objects = Chart::default().render().expect("the chart");
    let agent = objects.iter().find(|object| object["kind"] == "DaemonSet");
    let spec = &agent.expect("an agent")["spec"];
    let update = &spec["updateStrategy"]["rollingUpdate"];
    let seconds = spec["minReadySeconds"].as_u64().expect("seconds");
    let surge = update["maxSurge"].as_u64().expect("a number");
    assert_eq!(update["maxUnavailable"], 0);
    let shipped =
        format!("`maxSurge: {surge}`, `maxUnavailable: 0` and `minReadySeconds: {seconds}`");
    assert!(page().contains(&shipped), "{shipped}");
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
