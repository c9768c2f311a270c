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
    let page = &dashboard.0;
    let mut found = Vec::new();
    let mut expect = |holds: bool, place: &str, what: &str| {
        if !holds {
            found.push(format!("{place}: {what}"));
        }
    };
    // 38 is Grafana 10's; later ones migrate it by themselves.
    expect(
        page["schemaVersion"] == 38,
        "page",
        "not of Grafana 10's schema",
    );
    expect(page["refresh"] == "10s", "page", "is not refreshed");
    expect(page["uid"] == "pathproof", "page", "has no uid of its own");
    let (mut seen, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard.panels() {
        let title = text(&panel["title"]);
        expect(
            seen.insert(title.to_owned()),
            title,
            "a second one of this title",
        );
        expect(
            seen.insert(panel["id"].to_string()),
            title,
            "a second one of this id",
        );
        let grid = |name: &str| panel["gridPos"][name].as_u64().unwrap_or_default();
        let columns = grid("x")..grid("x") + grid("w");
        expect(columns.end <= 24, title, "beyond the right edge");
        for cell in
            (grid("y")..grid("y") + grid("h")).flat_map(|y| columns.clone().map(move |x| (x, y)))
        {
            expect(cells.insert(cell), title, "upon another one");
        }
        if panel["type"] == "row" {
            continue;
        }
        let defaults = &panel["fieldConfig"]["defaults"];
        let described = text(&panel["description"]).len() > 20;
        expect(described, title, "has no description");
        expect(defaults["unit"].is_string(), title, "has no unit");
        expect(
            defaults["thresholds"]["steps"].is_array(),
            title,
            "has no thresholds",
        );
        let targets = panel["targets"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let sources = targets
            .iter()
            .chain([panel])
            .map(|one| &one["datasource"]["uid"]);
        for source in sources {
            expect(
                source == "${datasource}",
                title,
                "is bound to a data source",
            );
        }
        let text = panel.to_string();
        for link in text.split("${docs}/").skip(1) {
            let link = link.split('"').next().unwrap_or_default();
            let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
            let anchors = anchors(page);
            let any = anchor.is_empty() || anchor.starts_with("${");
            let leads = !anchors.is_empty() && (any || anchors.contains(anchor));
            expect(leads, title, &format!("{link} leads nowhere"));
        }
        let linked = text.contains("${docs}/");
        expect(linked, title, "does not say what to do");
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
    let change = |path: &str, value: Value| {
        let mut wrong = right.clone();
        *wrong
            .pointer_mut(path)
            .unwrap_or_else(|| panic!("no {path}")) = value;
        problems(&Dashboard(wrong))
    };
    for (path, value, complaint) in [
        ("/schemaVersion", json!(16), "page: not of"),
        ("/uid", Value::Null, "page: has no uid of its own"),
        ("/refresh", json!(""), "page: is not refreshed"),
        (
            "/panels/1/title",
            json!("Broken"),
            "Broken: a second one of this title",
        ),
        (
            "/panels/1/id",
            right["panels"][2]["id"].clone(),
            "a second one of this id",
        ),
        ("/panels/1/gridPos/w", json!(6), "upon another one"),
        (
            "/panels/1/gridPos/x",
            json!(23),
            "Nodes: beyond the right edge",
        ),
        (
            "/panels/1/description",
            json!(""),
            "Nodes: has no description",
        ),
        (
            "/panels/1/fieldConfig/defaults/unit",
            Value::Null,
            "Nodes: has no unit",
        ),
        (
            "/panels/1/fieldConfig/defaults/thresholds",
            json!({}),
            "Nodes: has no thresholds",
        ),
        (
            "/panels/1/targets/0/datasource/uid",
            json!("prom"),
            "Nodes: is bound",
        ),
        ("/panels/1/links", json!([]), "Nodes: does not say"),
        (
            "/panels/1/links/0/url",
            json!("${docs}/operations.md#nowhere"),
            "#nowhere leads nowhere",
        ),
    ] {
        let found = change(path, value);
        assert!(
            found.iter().any(|one| one.contains(complaint)),
            "{path}: {found:?}"
        );
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
