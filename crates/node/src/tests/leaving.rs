//! Nodes that leave because of a label.

use std::collections::BTreeMap;
use std::sync::Arc;

use pathproof_facts::cluster::{Change, NodeFacts};
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_judge::eligibility::TerminatingMarks;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::event::Event;

fn labelled(value: &str) -> Change {
    Change::Node(Arc::new(NodeFacts {
        marks: BTreeMap::from([("label kured".into(), value.into())]),
        ..node_facts()
    }))
}

/// A node with the label answers 503, unless more nodes than the limit leave by such marks.
#[rstest]
#[case::alone("rebooting", 1, [503, 200])]
#[case::another_value("done", 1, [200, 200])]
#[case::all_nodes("rebooting", 200, [200, 200])]
fn a_marked_node(#[case] value: &str, #[case] leaving: u32, #[case] statuses: [u16; 2]) {
    let mut scene = Scene::probed_with(|settings, _| {
        settings.leaving_brake = Some(20);
        let mark = ("label kured".to_owned(), Some("rebooting".to_owned()));
        settings.terminating = TerminatingMarks::default().with([mark]);
    });
    let count = |leaving: u32, at: u32| {
        let text = format!(
            r#"{{"nodes":200,"unsound":{{}},"leaving":{leaving},"written":170000000{at}}}"#
        );
        counted(FIRST_GENERATION, Some(text.as_str()))
    };
    scene.view(vec![count(0, 0)]);
    let effects = scene.view(vec![labelled(value)]);
    assert_eq!(
        effects.statuses()[0] == 503,
        value == "rebooting",
        "at once"
    );
    let effects = scene.later(900).view(vec![count(leaving, 1)]);
    assert_eq!(effects.statuses(), statuses);
    let answers = &effects.verdict_update().answers;
    assert_eq!(answers.leaving_held.is_some(), leaving == 200);
    assert_eq!(answers.held, None, "the datapath works");
    // The next agent continues with the held answer, before it has read the slices.
    let mut heir = scene.heir(1, |settings, _| settings.leaving_brake = Some(20));
    assert_eq!(heir.feed(Event::Tick).statuses(), statuses);
    let effects = scene.view(vec![tainted(&[TAINT])]);
    assert_eq!(
        effects.statuses(),
        [503, 200],
        "the autoscaler is not held back"
    );
}
