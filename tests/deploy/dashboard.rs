//! The Grafana dashboard has no mistake that Grafana would accept silently.

use std::collections::BTreeSet;

use node_tests::dashboard::Dashboard;
use pathproof_facts::cause::Cause;
use serde_json::{Value, json};

use crate::references::{anchors, document};

fn words(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Mistakes that Grafana accepts without an error, but that confuse readers.
fn problems(dashboard: &Dashboard) -> Vec<String> {
    let (mut found, mut seen, mut cells) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for panel in dashboard.panels() {
        let title = words(&panel["title"]);
        let mut wrong = |what: &str| found.push(format!("{title}: {what}"));
        if !seen.insert(title.to_owned()) {
            wrong("a second one of this title");
        }
        if !seen.insert(panel["id"].to_string()) {
            wrong("a second one of this id");
        }
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64());
        let [x, y, w, h] = [x, y, w, h].map(|number| number.expect("a place"));
        let mut place = (y..y + h).flat_map(|y| (x..x + w).map(move |x| (x, y)));
        if x + w > 24 {
            wrong("beyond the right edge");
        } else if !place.all(|cell| cells.insert(cell)) {
            wrong("upon another one");
        }
        if panel["type"] == "row" {
            continue;
        }
        let defaults = &panel["fieldConfig"]["defaults"];
        let targets = panel["targets"].as_array().into_iter().flatten();
        let mut sources = targets.chain([panel]).map(|one| &one["datasource"]["uid"]);
        let whole = panel.to_string();
        for (holds, what) in [
            (
                words(&panel["description"]).len() > 20,
                "has no description",
            ),
            (defaults["unit"].is_string(), "has no unit"),
            (
                defaults["thresholds"]["steps"].is_array(),
                "has no thresholds",
            ),
            (
                sources.all(|uid| uid == "${datasource}"),
                "is bound to a data source",
            ),
            (whole.contains("${docs}/"), "does not say what to do"),
        ] {
            if !holds {
                wrong(what);
            }
        }
        for link in whole.split("${docs}/").skip(1) {
            let link = link.split('"').next().unwrap_or_default();
            let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
            let anchors = anchors(&document(page));
            let any = anchor.is_empty() || anchor.starts_with("${");
            if anchors.is_empty() || !(any || anchors.contains(anchor)) {
                wrong(&format!("{link} leads nowhere"));
            }
        }
    }
    found
}

#[test]
fn the_dashboard_is_sound() {
    let dashboard = Dashboard::read().expect("the dashboard");
    assert_eq!(problems(&dashboard), [""; 0]);
    // The table and the timeline link to the entry of each cause, so each entry must exist.
    let anchors = anchors(&document("operations.md"));
    for cause in Cause::ALL {
        assert!(
            anchors.contains(cause.name()),
            "operations.md lacks {}",
            cause.name()
        );
    }
}

#[test]
fn each_mistake_is_found() {
    let right = Dashboard::read().expect("the dashboard").0;
    let taken = right["panels"][2]["id"].clone();
    let nowhere = json!("${docs}/operations.md#nowhere");
    for (path, value, complaint) in [
        (
            "title",
            json!("Broken"),
            "Broken: a second one of this title",
        ),
        ("id", taken, "a second one of this id"),
        ("gridPos/w", json!(6), "upon another one"),
        ("gridPos/x", json!(23), "Nodes: beyond the right edge"),
        ("description", json!(""), "Nodes: has no description"),
        ("fieldConfig/defaults/unit", json!(0), "Nodes: has no unit"),
        (
            "fieldConfig/defaults/thresholds",
            json!({}),
            "no thresholds",
        ),
        ("targets/0/datasource/uid", json!("prom"), "Nodes: is bound"),
        ("links", json!([]), "Nodes: does not say"),
        ("links/0/url", nowhere, "#nowhere leads nowhere"),
    ] {
        let mut wrong = right.clone();
        let place = wrong["panels"][1].pointer_mut(&format!("/{path}"));
        *place.unwrap_or_else(|| panic!("no {path}")) = value;
        let found = problems(&Dashboard(wrong));
        let is_found = found.iter().any(|one| one.contains(complaint));
        assert!(is_found, "{path}: {found:?}");
    }
}
