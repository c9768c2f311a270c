//! Answers: eligibility, enforcement, and the answer to an unknown verdict.

use std::sync::Arc;

use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::answer::{Enforcement, UnknownPolicy};
use crate::cause::State;
use crate::cluster::{Change, NodeFacts};
use crate::eligibility::{Eligibility, TerminatingTaints};
use crate::event::Event;

fn deleting() -> Change {
    Change::Node(Arc::new(NodeFacts {
        deleting: true,
        ..node_facts()
    }))
}

#[rstest]
#[case::plain(tainted(&[]), "eligible", 200)]
#[case::terminating_taint(tainted(&[TAINT]), "tainted", 503)]
#[case::another_taint(tainted(&["somebody/else"]), "eligible", 200)]
#[case::configured_taint(tainted(&["ours/leaves"]), "tainted", 503)]
#[case::deleted(deleting(), "deleting", 503)]
fn a_node_that_leaves_is_answered_with_503(
    #[case] change: Change,
    #[case] name: &str,
    #[case] status: u16,
) {
    let taints = TerminatingTaints::parse(["ours/leaves"]).unwrap();
    let mut scene = Scene::probed_with(|settings, _| settings.taints = taints);
    let effects = scene.view(vec![change]);
    let judged = effects.judged();
    assert_eq!(judged.verdict.eligibility.name(), name);
    assert_eq!(judged.answers.healthz.node_eligible, Some(status == 200));
    assert_eq!(judged.answers.livez.node_eligible, None);
    assert_eq!(effects.statuses(), [status, 200], "it routes all the same");
    assert_eq!(judged.verdict.state, State::Proven);
    // The object is gone: what it last said holds.
    let effects = scene.view(vec![Change::NodeGone]);
    assert_eq!(effects.judged().verdict.eligibility.name(), name);
    assert_eq!(effects.statuses(), [status, 200]);
    assert_eq!(scene.view(vec![tainted(&[])]).statuses(), [200, 200]);
}

/// The Node object is judged before the view is complete: it comes first.
#[test]
fn a_taint_counts_before_the_view_is_complete() {
    let mut scene = Scene::new();
    let effects = scene.view(vec![tainted(&[TAINT])]);
    assert_eq!(effects.statuses()[0], 503);
    assert!(!scene.node.view().is_synced());
}

#[rstest]
#[case::open(UnknownPolicy::Open, [200, 200])]
#[case::closed(UnknownPolicy::Closed, [503, 503])]
fn an_unknown_verdict(#[case] policy: UnknownPolicy, #[case] statuses: [u16; 2]) {
    let mut scene = Scene::with(|settings, _| settings.unknown_policy = policy);
    let effects = scene.feed(Event::Tick);
    assert_eq!(effects.judged().verdict.eligibility, Eligibility::NeverSeen);
    assert_eq!(effects.statuses(), statuses);
    assert_eq!(
        effects.judged().answers.healthz.would_fail,
        statuses[1] == 503
    );
    scene.prove();
    assert_eq!(scene.rest(1_000).statuses(), [200, 200]);
}

#[rstest]
#[case::enforced(Enforcement::Enforce, [503, 503])]
#[case::audited(Enforcement::Audit, [200, 200])]
fn a_broken_node(#[case] enforcement: Enforcement, #[case] statuses: [u16; 2]) {
    let mut scene = Scene::probed_with(|settings, _| settings.enforcement = enforcement);
    let effects = scene.fault();
    assert_eq!(
        (effects.state(), effects.statuses()),
        (State::Broken, statuses)
    );
    let answers = &effects.judged().answers;
    assert!(answers.healthz.would_fail && answers.livez.would_fail);
    // Its eligibility is not the datapath's: audit does not keep it from leaving.
    let effects = scene.view(vec![tainted(&[TAINT])]);
    assert_eq!(effects.statuses()[0], 503);
}

#[test]
fn a_node_that_works_again_is_answered_with_200_a_second_later() {
    let mut scene = Scene::probed();
    scene.fault();
    for (after, status) in [(250, 503), (500, 503), (499, 503), (1, 200)] {
        let effects = scene.rest(after);
        assert_eq!(
            (effects.state(), effects.statuses()),
            (State::Proven, [status; 2])
        );
    }
}

/// Both families and the times of their proofs are in the answer.
#[test]
fn an_answer_names_the_families_and_when_they_were_proven() {
    let mut scene = Scene::probed();
    let effects = scene.idle();
    let families = &effects.judged().answers.healthz.families;
    assert_eq!(families.len(), 1);
    let proven = effects.judged().verdict.families[0].last_proof.unwrap();
    let anchor = scene.node.judge().anchor;
    assert_eq!(families[0].last_updated, Some(anchor.wall_of(proven)));
    assert_eq!(anchor.wall, start().wall);
}

/// Only what is worth a line in the log is a change.
#[test]
fn a_change_is_one_of_state_cause_or_reason_for_not_knowing() {
    let mut scene = Scene::probed();
    assert!(!scene.later(250).idle().judged().changed);
    assert!(!scene.view(vec![tainted(&[TAINT])]).judged().changed);
    assert!(scene.leak(PATHS[0]).judged().changed, "suspect");
    assert!(!scene.idle().judged().changed);
}

/// With a sentinel that never worked, a young boot is a start.
#[rstest]
#[case::young(20, State::Starting, [503, 200])]
#[case::old(121, State::Unknown, [200, 200])]
fn a_boot_in_which_nothing_was_proven(
    #[case] seconds: u64,
    #[case] state: State,
    #[case] statuses: [u16; 2],
) {
    use crate::time::Mono;
    let now = Mono(seconds * 1_000_000_000);
    let mut start = start();
    start.now = now;
    let mut node = crate::node::Node::new(settings(), start);
    for event in [
        Event::View(crate::event::ViewUpdate {
            changes: cluster(),
            ..Default::default()
        }),
        Event::Installed(Default::default()),
        Event::AddressesTaken(None),
        Event::Hooks(hooks()),
    ] {
        node.step(event, now);
    }
    let effects = Effects(node.step(Event::Sample(Default::default()), now));
    assert_eq!((effects.state(), effects.statuses()), (state, statuses));
}
