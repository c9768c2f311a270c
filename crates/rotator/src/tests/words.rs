//! Every possible row of a node.

use std::fmt::Write as _;

use pathproof_facts::testing::{assert_words, in_json};

use super::*;

fn told(text: &mut String, row: &Row) {
    let leaving = row.leaving.as_ref().map(|why| format!(", leaves: {why}"));
    let (group, verdict) = (in_json(row.group), row.verdict);
    let sentence = row
        .sentence
        .as_ref()
        .map(|sentence| format!("; {sentence}"));
    let _ = writeln!(
        text,
        "{group}, {verdict} ({}){}{}",
        row.reason,
        leaving.unwrap_or_default(),
        sentence.unwrap_or_default()
    );
}

#[test]
fn every_node_has_its_row() {
    let mut text = String::new();
    let out = &mut text;
    let names = Reason::all().into_iter().map(Reason::name);
    for name in names.chain(["OfAnotherRelease".to_owned()]) {
        for status in Status::ALL {
            let _ = write!(out, "{} {name}: ", status.name());
            told(out, &row(&with(status, &name), NOW));
        }
    }
    let _ = write!(out, "no condition: ");
    told(out, &row(&node("worker-1"), NOW));
    let _ = write!(out, "another system: ");
    let windows = NodeSeen {
        foreign_os: Some("windows".to_owned()),
        ..node("win-1")
    };
    told(out, &row(&windows, NOW));
    for age in [Some(Duration::from_secs(7_200)), None] {
        let _ = write!(out, "no heartbeat, {age:?}: ");
        let mut old = with(Status::True, "DatapathProven");
        old.condition.as_mut().unwrap().heartbeat = age.map(before);
        told(out, &row(&old, NOW));
    }
    let mut leaving = with(Status::False, "DatapathBrokenLeaked");
    leaving.condition.as_mut().unwrap().message =
        "the Node object is being deleted. Its datapath: leaked".to_owned();
    told(out, &row(&leaving, NOW));
    leaving.taints = vec![
        "node.kubernetes.io/unschedulable".to_owned(),
        "ToBeDeletedByClusterAutoscaler".to_owned(),
    ];
    told(out, &row(&leaving, NOW));
    leaving.deleting = true;
    told(out, &row(&leaving, NOW));
    assert_words("fleet", &text);
}

/// At exactly the maximum age, a heartbeat still counts.
#[rstest]
#[case(Duration::ZERO, "proven")]
#[case(OUT_OF_DATE, "proven")]
#[case(OUT_OF_DATE + Duration::from_nanos(1), "out of date")]
fn a_heartbeat_counts_for_fifteen_minutes(#[case] age: Duration, #[case] expected: &str) {
    assert_eq!(OUT_OF_DATE, Duration::from_secs(900));
    let mut node = with(Status::True, "DatapathProven");
    node.condition.as_mut().unwrap().heartbeat = Some(before(age));
    let row = row(&node, NOW);
    assert_eq!(row.verdict, expected);
    let since = match expected {
        "proven" => before(Duration::from_secs(240)),
        _ => before(age),
    };
    assert_eq!(row.since, Some(since));
}

#[test]
fn rows_are_read_by_other_programs() {
    let mut odd = with(Status::Unknown, "DatapathUnknownIdle");
    odd.condition.as_mut().unwrap().transition = None;
    let json: Vec<serde_json::Value> = [with(Status::True, "DatapathProven"), odd]
        .iter()
        .map(|node| serde_json::to_value(row(node, NOW)).unwrap())
        .collect();
    assert_eq!(json[0]["since"], "2026-11-21T23:56:00Z");
    assert_eq!(json[0]["group"], "healthy");
    assert_eq!(json[1]["group"], "uncertain");
    assert_eq!(json[1]["since"], serde_json::Value::Null);
}
