use std::collections::BTreeSet;

use agent_core::cause::Cause;
use serde_json::json;

use super::*;

/// Anchors of the headings of a page in docs, as GitHub makes them; nothing where there is none.
fn anchors(page: &str) -> BTreeSet<String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/").to_owned() + page;
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// What Grafana would not complain of, and a reader would.
fn problems(dashboard: &Dashboard) -> Vec<String> {
    let (mut found, mut seen, mut cells) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for panel in dashboard.panels() {
        let title = text(&panel["title"]);
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
            (text(&panel["description"]).len() > 20, "has no description"),
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
            let anchors = anchors(page);
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
    // The table and the timeline of causes link to the cause's own entry.
    let anchors = anchors("operations.md");
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

#[test]
fn variables_are_replaced_whole() {
    let known = [("node", "n1"), ("node_name", "n2"), ("__range", "5m")];
    let known: Variables = known
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let text = "a{node=\"$node\", x=\"${node_name}\", y=\"$node_name\"}[$__range]";
    let expected = "a{node=\"n1\", x=\"n2\", y=\"n2\"}[5m]";
    assert_eq!(resolved(text, &known), expected);
}
