//! Which switch is in force, and what invalid values do.

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
