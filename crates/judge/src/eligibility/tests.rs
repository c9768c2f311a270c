//! Node objects and their eligibility; taints and their errors.

use pathproof_facts::switches::LabelTerm;
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
#[case::cordon(&["cordon"], &["node.kubernetes.io/unschedulable"], false, "tainted")]
#[case::literal(&["example.com/leaving"], &["other", "example.com/leaving"], false, "tainted")]
#[case::not_a_prefix_match(&[], &["ToBeDeletedByClusterAutoscaler2"], false, "eligible")]
fn nodes(
    #[case] texts: &[&str],
    #[case] taints: &[&str],
    #[case] deleting: bool,
    #[case] expected: &str,
) {
    let terminating = TerminatingMarks::of(texts.iter().copied());
    assert_eq!(
        eligibility(Some(&node(taints, deleting)), &terminating).name(),
        expected
    );
}

fn marked(marks: &[(&str, &str)]) -> NodeFacts {
    let marks = marks
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()));
    NodeFacts {
        marks: marks.collect(),
        ..node(&[], false)
    }
}

fn terminating() -> TerminatingMarks {
    let mark = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
    TerminatingMarks::of(["karpenter"]).with([
        mark("condition Terminating", Some("True")),
        mark("label kured", Some("rebooting")),
        mark("label kured", Some("draining")),
        mark("label example.com/leaves", None),
    ])
}

#[rstest]
#[case::condition(&[("condition Terminating", "True")], Some("condition Terminating=True"))]
#[case::condition_that_is_false(&[("condition Terminating", "False")], None)]
#[case::another_condition(&[("condition Ready", "True")], None)]
#[case::label_of_the_same_name(&[("label Terminating", "True")], None)]
#[case::label(&[("label kured", "rebooting")], Some("label kured=rebooting"))]
#[case::second_value(&[("label kured", "draining")], Some("label kured=draining"))]
#[case::another_value(&[("label kured", "done")], None)]
#[case::any_value(&[("label example.com/leaves", "soon")], Some("label example.com/leaves"))]
#[case::without_a_value(&[("label example.com/leaves", "")], Some("label example.com/leaves"))]
fn a_mark_announces_a_removal(#[case] marks: &[(&str, &str)], #[case] expected: Option<&str>) {
    let found = eligibility(Some(&marked(marks)), &terminating());
    let mark = expected.map(|mark| Eligibility::Marked {
        mark: mark.to_owned(),
    });
    assert_eq!(found, mark.unwrap_or(Eligibility::Eligible));
    assert_eq!(
        (found.is_leaving(), found.is_limited()),
        (expected.is_some(), expected.is_some())
    );
    // Without the option.
    let default = eligibility(Some(&marked(marks)), &TerminatingMarks::default());
    assert_eq!(default, Eligibility::Eligible);
}

/// KEP-3836's two are not limited, whatever other marks the node has.
#[test]
fn deletion_and_the_autoscalers_taint_come_first() {
    let mark = ("label kured", "rebooting");
    let both = ["karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"];
    for (taints, deleting, limited) in [
        (&both[..1], false, true),
        (&both[..], false, false),
        (&both[..1], true, false),
    ] {
        let facts = NodeFacts {
            marks: marked(&[mark]).marks,
            ..node(taints, deleting)
        };
        let found = eligibility(Some(&facts), &terminating());
        assert!(found.is_leaving());
        assert_eq!(found.is_limited(), limited, "{found}");
    }
}

/// The machine goes in any case. The negative controls are marks of programs that drain nodes.
#[rstest]
#[case::spot(&["aws-node-termination-handler/spot-itn"], &[], false)]
#[case::shutdown(&["node.cloudprovider.kubernetes.io/shutdown"], &[], false)]
#[case::kubelet(&[], &[("condition kubelet-shutdown", "True")], false)]
#[case::both(&["karpenter.sh/disrupted", "node.cloudprovider.kubernetes.io/shutdown"], &[], false)]
#[case::kubelet_and_kured(
    &[], &[("condition kubelet-shutdown", "True"), ("condition Terminating", "True")], false
)]
#[case::karpenter_and_kubelet(
    &["karpenter.sh/disrupted"], &[("condition kubelet-shutdown", "True")], false
)]
#[case::karpenter(&["karpenter.sh/disrupted"], &[], true)]
#[case::kured(&[], &[("condition Terminating", "True")], true)]
#[case::longer_name(&[], &[("condition kubelet-shutdown-planned", "True")], true)]
#[case::longer_name_of_any_value(&[], &[("condition kubelet-shutdown2", "True")], true)]
fn machines_that_go_in_any_case_are_not_limited(
    #[case] taints: &[&str],
    #[case] marks: &[(&str, &str)],
    #[case] limited: bool,
) {
    let chosen = TerminatingMarks::of(["karpenter", "spot", "shutdown"]).with([
        ("condition Terminating".to_owned(), None),
        ("condition kubelet-shutdown".to_owned(), None),
        (
            "condition kubelet-shutdown-planned".to_owned(),
            Some("True".to_owned()),
        ),
        ("condition kubelet-shutdown2".to_owned(), None),
    ]);
    let facts = NodeFacts {
        marks: marked(marks).marks,
        ..node(taints, false)
    };
    let found = eligibility(Some(&facts), &chosen);
    assert!(found.is_leaving());
    assert_eq!(found.is_limited(), limited, "{found}");
}

#[test]
fn recordings_get_no_other_marks() {
    let facts = marked(&[
        ("label kured", "x"),
        ("label owner", "me"),
        ("condition Ready", "True"),
    ]);
    assert_eq!(
        terminating().relevant(facts, None),
        marked(&[("label kured", "x")])
    );
}

#[test]
fn recordings_get_the_labels_of_the_selector() {
    let selector = NodeSelector(vec![LabelTerm {
        mark: "label owner".to_owned(),
        value: None,
        wanted: true,
    }]);
    let facts = marked(&[("label owner", "me"), ("label pool", "x")]);
    let relevant = terminating().relevant(facts, Some(&selector));
    assert_eq!(relevant, marked(&[("label owner", "me")]));
}

#[test]
fn a_node_never_seen_is_neither() {
    assert_eq!(
        eligibility(None, &TerminatingMarks::default()),
        Eligibility::NeverSeen
    );
}

#[test]
fn reasons_are_words() {
    let tainted = node(&["ToBeDeletedByClusterAutoscaler"], false);
    assert_eq!(
        eligibility(Some(&tainted), &TerminatingMarks::default()).to_string(),
        "the node is about to be removed: taint ToBeDeletedByClusterAutoscaler"
    );
}

#[rstest]
#[case::too_many_slashes("a/b/c")]
#[case::no_dns_name("Upper.example/x")]
#[case::no_prefix("/x")]
#[case::no_name("example.com/")]
#[case::begins_with_a_dash("example.com/-x")]
#[case::ends_with_a_dot("x.")]
#[case::a_blank("two words")]
fn bad_keys_are_explained(#[case] text: &str) {
    let problem = key_problem(text).unwrap();
    assert!(problem.contains("one slash before it"), "{problem}");
}

#[test]
fn good_keys_have_no_problem() {
    let (longest, longer) = ("x".repeat(63), "x".repeat(64));
    for text in [
        "leaving",
        "karpenter.sh/disrupted",
        "a.b-c_d",
        longest.as_str(),
    ] {
        assert_eq!(key_problem(text), None, "{text}");
    }
    assert!(key_problem(&longer).is_some());
}
