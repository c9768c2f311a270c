//! The metrics, labels, states and runbook entries that the alerts refer to exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use node_tests::cluster::documents;
use node_tests::deploy::folder;
use serde_json::Value;

/// The page to which the alerts link.
pub(crate) const RUNBOOKS: &str = concat!(
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/main/docs/operations.md"
);
/// Metrics that Prometheus and kube-state-metrics provide.
const FOREIGN: [&str; 3] = ["up", "ALERTS", "kube_node_info"];
pub(crate) const TARGET_LABELS: [&str; 3] = ["job", "node", "pod"];

pub(crate) fn document(name: &str) -> String {
    let path = folder().join("../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn all_rules() -> Vec<Value> {
    let file = folder().join("chart/files/alerts/prometheus-rule.yaml");
    let text = fs::read_to_string(file).expect("the rules");
    let objects = documents(&text).expect("YAML");
    let groups = objects[0]["spec"]["groups"].as_array().expect("groups");
    let of = |group: &Value| group["rules"].as_array().expect("rules").clone();
    groups.iter().flat_map(of).collect()
}

fn rules() -> Vec<Value> {
    let mut rules = all_rules();
    rules.retain(|rule| rule["record"].is_null());
    rules
}

fn name_of(rule: &Value) -> &str {
    let name = rule["alert"].as_str().or(rule["record"].as_str());
    name.expect("a name")
}

fn text<'a>(value: &'a Value, what: &str) -> &'a str {
    value.as_str().unwrap_or_else(|| panic!("no {what}"))
}

/// Kind and labels of each metric in docs/metrics.md.
pub(crate) fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let cells = |line: &str| -> Option<(String, (String, BTreeSet<String>))> {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let name = cells.next()?.trim().trim_end_matches('`');
        let kind = cells.next()?.trim();
        let labels = cells.next()?.split(',');
        let labels = labels.map(|label| label.trim().trim_matches('`').to_owned());
        Some((name.to_owned(), (kind.to_owned(), labels.collect())))
    };
    document("metrics.md").lines().filter_map(cells).collect()
}

/// The metrics of an expression, each with the labels in its selector.
pub(crate) fn selectors(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    let mut found = Vec::new();
    for (at, _) in expression.match_indices('{') {
        let before = &expression[..at];
        let start = before.rfind(|sign| !is_name(sign)).map_or(0, |at| at + 1);
        let inside = expression[at + 1..].split('}').next().unwrap_or_default();
        let label = |matcher: &str| -> Option<String> {
            let end = matcher.find(['=', '!'])?;
            Some(matcher[..end].trim().to_owned())
        };
        let labels = inside.split(',').filter_map(label).collect();
        found.push((before[start..].to_owned(), labels));
    }
    found
}

#[test]
fn metrics_of_the_rules_are_documented() {
    let documented = documented();
    assert!(documented.len() > 30, "{documented:?}");
    for rule in all_rules() {
        let alert = name_of(&rule);
        let expression = text(&rule["expr"], "expr");
        // Every metric needs a selector: without one, series of other jobs would be included.
        let named = expression.matches("pathproof_").count();
        let selectors = selectors(expression);
        let ours = |(name, _): &&(String, Vec<String>)| name.starts_with("pathproof_");
        assert_eq!(selectors.iter().filter(ours).count(), named, "{alert}");
        for (name, labels) in selectors {
            if FOREIGN.contains(&name.as_str()) {
                continue;
            }
            let base = ["_count", "_sum", "_bucket"].iter().find_map(|suffix| {
                let (kind, _) = documented.get(name.strip_suffix(suffix)?)?;
                (kind == "histogram").then(|| name.trim_end_matches(suffix).to_owned())
            });
            let base = base.unwrap_or(name);
            let Some((_, known)) = documented.get(&base) else {
                panic!("{alert}: docs/metrics.md does not know {base}");
            };
            assert!(
                labels.contains(&"job".to_owned()),
                "{alert}: {base} of any job"
            );
            for label in labels {
                let is_known = known.contains(&label) || TARGET_LABELS.contains(&label.as_str());
                assert!(is_known, "{alert}: {base} has no label {label}");
            }
        }
    }
}

#[test]
fn states_of_the_rules_are_documented() {
    let behaviour = document("behaviour.md");
    for rule in all_rules() {
        // Remove `alertstate`, which is no state of the datapath.
        let expression = text(&rule["expr"], "expr").replace("alertstate=", "");
        for part in expression.split("state=").skip(1) {
            let states = part.trim_start_matches('~').split('"').nth(1);
            for state in states.expect("states").split('|') {
                let row = format!("| `{state}` |");
                assert!(
                    behaviour.contains(&row),
                    "{state} is no state: {expression}"
                );
            }
        }
    }
}

/// Anchors of the headings, as GitHub generates them.
pub(crate) fn anchors(markdown: &str) -> BTreeSet<String> {
    let heading = |line: &str| -> Option<String> {
        let title = line
            .strip_prefix('#')?
            .trim_start_matches('#')
            .strip_prefix(' ')?;
        let kept = title.to_lowercase().replace(' ', "-");
        let is_kept = |sign: &char| sign.is_alphanumeric() || ['-', '_'].contains(sign);
        Some(kept.chars().filter(is_kept).collect())
    };
    markdown.lines().filter_map(heading).collect()
}

#[test]
fn every_alert_has_a_description_and_a_runbook_entry() {
    let anchors = anchors(&document("operations.md"));
    let rules = rules();
    assert!(rules.len() > 10);
    for rule in &rules {
        let alert = text(&rule["alert"], "alert");
        let severity = text(&rule["labels"]["severity"], "severity");
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{alert}: {severity}"
        );
        let annotations = &rule["annotations"];
        let summary = text(&annotations["summary"], "summary");
        let description = text(&annotations["description"], "description");
        assert!(
            !summary.contains('\n') && description.ends_with('.'),
            "{alert}"
        );
        // An alert about single nodes must name the node. An alert about the fleet must not.
        let by_node = text(&rule["expr"], "expr").starts_with("max by (cluster, node");
        for words in [summary, description] {
            assert!(
                !by_node || words.contains("{{ $labels.node }}"),
                "{alert}: {words}"
            );
        }
        let runbook = text(&annotations["runbook_url"], "runbook_url");
        let (page, anchor) = runbook.split_once('#').expect("an anchor");
        assert_eq!(page, RUNBOOKS, "{alert}");
        assert_eq!(anchor, alert.to_lowercase(), "{alert}");
        assert!(
            anchors.contains(anchor),
            "docs/operations.md has no entry {alert}"
        );
    }
    let names: BTreeSet<&str> = rules
        .iter()
        .filter_map(|rule| rule["alert"].as_str())
        .collect();
    assert_eq!(names.len(), rules.len(), "an alert is there twice");
}

/// Each cluster is judged separately: no expression aggregates or matches across clusters.
#[test]
fn every_expression_keeps_the_cluster() {
    for rule in all_rules() {
        let alert = name_of(&rule);
        let expression = text(&rule["expr"], "expr");
        let merged = merges_clusters(expression);
        assert_eq!(merged, Vec::<&str>::new(), "{alert}: {expression}");
        assert!(expression.contains("by (cluster"), "{alert}: {expression}");
    }
}

/// Aggregations and matchings of an expression that do not have the label `cluster`. `or on ()` is allowed,
/// because it only replaces an empty left side.
fn merges_clusters(expression: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for operator in ["max", "min", "sum", "count", "avg", "group", "topk", "on"] {
        let is_word = |at: usize, end: usize| {
            let is_part = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
            !expression[..at].ends_with(is_part) && !expression[end..].starts_with(is_part)
        };
        for (at, _) in expression.match_indices(operator) {
            let end = at + operator.len();
            let after = expression[end..].trim_start();
            let keeps = match operator {
                "on" => after.starts_with("(cluster") || expression[..end].ends_with("or on"),
                _ => after.starts_with("by (cluster"),
            };
            if is_word(at, end) && !keeps {
                found.push(&expression[at..]);
            }
        }
    }
    found
}

#[test]
fn a_merged_cluster_is_found() {
    for wrong in [
        "max by (node) (a) == 1",
        "sum(rate(a[5m]))",
        "max by (cluster, node) (a) unless on (node) max by (cluster, node) (b)",
        "max by (cluster) (a) and on () max by (cluster) (b)",
    ] {
        assert_eq!(merges_clusters(wrong).len(), 1, "{wrong}");
    }
    let right = "max by (cluster, node) (changes(a[5m])) >= 3 \
                 unless on (cluster) count by (cluster) (b) or on () max by (cluster) (absent(c))";
    let found = merges_clusters(right);
    assert_eq!(found, Vec::<&str>::new());
}

/// Every recorded series has the labels by which the dashboard selects it, and a panel uses it.
#[test]
fn records_and_dashboard_fit_together() {
    let file = folder().join("chart/files/dashboard.json");
    let dashboard = fs::read_to_string(file).expect("the dashboard");
    let mut records = BTreeSet::new();
    for rule in all_rules() {
        let Some(record) = rule["record"].as_str() else {
            continue;
        };
        let expression = text(&rule["expr"], "expr");
        assert!(expression.contains("by (cluster, job, "), "{expression}");
        assert!(dashboard.contains(record), "no panel reads {record}");
        records.insert(record.to_owned());
    }
    assert!(records.len() > 3);
    let is_part = |sign: char| sign.is_ascii_alphanumeric() || ['_', ':'].contains(&sign);
    for word in dashboard.split(|sign| !is_part(sign)) {
        let is_record = word.contains(":pathproof_");
        assert!(
            !is_record || records.contains(word),
            "no rule records {word}"
        );
    }
}

#[test]
fn alerts_that_suppress_others_come_first() {
    const BY: &str = "ALERTS{alertname=\"";
    let mut before = BTreeSet::new();
    let mut held = 0;
    for rule in rules() {
        let expression = text(&rule["expr"], "expr");
        for part in expression.split(BY).skip(1) {
            let by = part.split('"').next().unwrap_or_default();
            assert!(before.contains(by), "{by} is not there yet: {expression}");
            held += 1;
        }
        before.insert(text(&rule["alert"], "alert").to_owned());
    }
    assert!(held > 0);
}

#[test]
fn selectors_are_found() {
    let expression = "max by (node) (a_b{job=\"x\", state=~\"c|d\"}) == 1 and c{}";
    let found = selectors(expression);
    let labels = vec!["job".to_owned(), "state".to_owned()];
    assert_eq!(
        found,
        [("a_b".to_owned(), labels), ("c".to_owned(), vec![])]
    );
    assert_eq!(
        anchors("## The Node's condition\n### A-b\ntext # no"),
        ["the-nodes-condition", "a-b"].map(str::to_owned).into()
    );
}
