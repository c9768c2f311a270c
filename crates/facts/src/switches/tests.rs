//! Which switch is in force, and what invalid values do.

use std::collections::BTreeMap;

use rstest::rstest;

use super::*;

#[rstest]
#[case("enforce", None, None, None)]
#[case("enforce", Some("enforce"), Some("enforce"), None)]
#[case("enforce", Some("audit"), None, Some(AuditBy::Node))]
#[case("enforce", None, Some("audit"), Some(AuditBy::Cluster))]
#[case("enforce", Some("enforce"), Some("audit"), Some(AuditBy::Cluster))]
#[case("enforce", Some("audit"), Some("enforce"), Some(AuditBy::Node))]
#[case("audit", Some("enforce"), Some("enforce"), Some(AuditBy::Flag))]
#[case("enforce", Some("Audit"), Some("off"), None)]
fn the_most_lenient_wins(
    #[case] flag: &str,
    #[case] node: Option<&str>,
    #[case] cluster: Option<&str>,
    #[case] expected: Option<AuditBy>,
) {
    let mut switches = Switches::default();
    switches.read(Some(node), Some(cluster));
    let flag = said("", Some(flag), &mut Vec::new()).unwrap();
    assert_eq!(switches.audit(flag), expected);
}

fn term(key: &str, value: Option<&str>, wanted: bool) -> LabelTerm {
    LabelTerm {
        mark: format!("label {key}"),
        value: value.map(str::to_owned),
        wanted,
    }
}

#[rstest]
#[case::none(&[], true)]
#[case::value(&[term("pool", Some("canary"), true)], true)]
#[case::another_value(&[term("pool", Some("can"), true)], false)]
#[case::any_value(&[term("pool", None, true)], true)]
#[case::no_label(&[term("zone", None, true)], false)]
#[case::not_that_value(&[term("pool", Some("workers"), false)], true)]
#[case::absent_is_not_that_value(&[term("zone", Some("a"), false)], true)]
#[case::without_the_label(&[term("pool", None, false)], false)]
#[case::one_of_two(&[term("pool", None, true), term("zone", None, true)], false)]
fn nodes_are_selected_by_their_labels(#[case] terms: &[LabelTerm], #[case] expected: bool) {
    let marks = BTreeMap::from([("label pool".into(), "canary".into())]);
    assert_eq!(NodeSelector(terms.to_vec()).matches(&marks), expected);
}

/// A node that joins audits, and one that was selected stays so while its Node is not read.
#[test]
fn nodes_audit_until_they_are_selected() {
    let canary = NodeSelector(vec![term("pool", Some("canary"), true)]);
    let canary = Some(&canary);
    let mut switches = Switches::default().selecting(canary);
    assert_eq!(
        switches.audit(Enforcement::Enforce),
        Some(AuditBy::Selector)
    );
    switches.select(true);
    assert_eq!(switches.audit(Enforcement::Enforce), None);
    let stored = serde_json::to_string(&switches).unwrap();
    let heir: Switches = serde_json::from_str(&stored).unwrap();
    let heir = heir.selecting(canary);
    assert_eq!(heir.audit(Enforcement::Enforce), None);
    let narrower = NodeSelector(vec![term("pool", Some("canary-2"), true)]);
    let narrowed = heir.clone().selecting(Some(&narrower));
    assert_eq!(
        narrowed.audit(Enforcement::Enforce),
        Some(AuditBy::Selector)
    );
    let renamed = heir.without_node().selecting(canary);
    assert_eq!(renamed.audit(Enforcement::Enforce), Some(AuditBy::Selector));
    switches.select(false);
    let everywhere = switches.selecting(None);
    assert_eq!(everywhere.audit(Enforcement::Enforce), None);
}

#[test]
fn invalid_values_are_reported_once_and_ignored() {
    let mut switches = Switches::default();
    assert!(switches.read(Some(Some("yes")), Some(Some(&"x".repeat(9_000)))));
    assert!(!switches.read(Some(Some("yes")), Some(Some(&"x".repeat(9_000)))));
    assert_eq!(switches.audit(Enforcement::Enforce), None);
    let [node, cluster] = &switches.ignored[..] else {
        panic!("{:?}", switches.ignored)
    };
    assert_eq!(
        node,
        "the annotation pathproof.io/enforcement of the Node is \"yes\" and is ignored: set \
         it to audit or enforce"
    );
    assert!(cluster.len() < 200);
    assert!(switches.read(Some(None), Some(None)) && switches.ignored.is_empty());
}

#[test]
fn switches_of_unknown_objects_stay() {
    let mut switches = Switches::default();
    switches.read(Some(Some("audit")), Some(Some("audit")));
    switches.read(None, None);
    assert_eq!(switches.audit(Enforcement::Enforce), Some(AuditBy::Cluster));
    switches.read(Some(None), Some(None));
    assert_eq!(switches.audit(Enforcement::Enforce), None);
}
