//! Node objects and their eligibility; taints and their errors.

use rstest::rstest;

use super::*;

fn node(taints: &[&str], deleting: bool) -> NodeFacts {
    let taints = taints.iter().map(|taint| (*taint).into()).collect();
    NodeFacts {
        name: "n1".into(),
        taints,
        deleting,
        ..NodeFacts::default()
    }
}

#[rstest]
#[case::plain(&[], &[], false, "eligible")]
#[case::deleted(&[], &[], true, "deleting")]
#[case::autoscaler(&[], &["ToBeDeletedByClusterAutoscaler"], false, "tainted")]
#[case::autoscaler_always_counts(&["karpenter"], &["ToBeDeletedByClusterAutoscaler"], false, "tainted")]
#[case::candidate_is_not_terminating(&[], &["DeletionCandidateOfClusterAutoscaler"], false, "eligible")]
#[case::cordoned_is_not_terminating(
    &["karpenter", "spot", "shutdown"], &["node.kubernetes.io/unschedulable"], false, "eligible"
)]
#[case::karpenter_not_asked_for(&[], &["karpenter.sh/disrupted"], false, "eligible")]
#[case::karpenter(&["karpenter"], &["karpenter.sh/disrupted"], false, "tainted")]
#[case::karpenter_beta(&["karpenter"], &["karpenter.sh/disruption"], false, "tainted")]
#[case::spot(&["spot"], &["aws-node-termination-handler/spot-itn"], false, "tainted")]
#[case::spot_rebalance_is_weak(
    &["spot"], &["aws-node-termination-handler/rebalance-recommendation"], false, "eligible"
)]
#[case::gke(&["spot"], &["cloud.google.com/impending-node-termination"], false, "tainted")]
#[case::shutdown(&["shutdown"], &["node.cloudprovider.kubernetes.io/shutdown"], false, "tainted")]
#[case::literal(&["example.com/leaving"], &["other", "example.com/leaving"], false, "tainted")]
#[case::not_a_prefix_match(&[], &["ToBeDeletedByClusterAutoscaler2"], false, "eligible")]
fn nodes(
    #[case] texts: &[&str],
    #[case] taints: &[&str],
    #[case] deleting: bool,
    #[case] expected: &str,
) {
    let terminating = TerminatingTaints::parse(texts).unwrap();
    assert_eq!(
        eligibility(Some(&node(taints, deleting)), &terminating).name(),
        expected
    );
}

#[test]
fn a_node_never_seen_is_neither() {
    assert_eq!(
        eligibility(None, &TerminatingTaints::default()),
        Eligibility::NeverSeen
    );
}

#[test]
fn reasons_are_words() {
    let tainted = node(&["ToBeDeletedByClusterAutoscaler"], false);
    assert_eq!(
        eligibility(Some(&tainted), &TerminatingTaints::default()).to_string(),
        "the node is about to be removed: taint ToBeDeletedByClusterAutoscaler"
    );
}

#[rstest]
#[case("", "terminating taint is empty")]
#[case(
    "karpenter.sh/disrupted:NoSchedule",
    "give only the key, \"karpenter.sh/disrupted\""
)]
#[case("dedicated=gpu:NoSchedule", "give only the key, \"dedicated\"")]
#[case("a/b/c", "more than one slash")]
#[case("Upper.example/x", "not a DNS name in lower case")]
#[case("/x", "not a DNS name in lower case")]
#[case("example.com/", "1 to 63 characters")]
#[case("example.com/-x", "begin and end with a letter or digit")]
#[case("two words", "begin and end with a letter or digit")]
fn bad_taints_are_named(#[case] text: &str, #[case] expected: &str) {
    let error = TerminatingTaints::parse([text]).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}
