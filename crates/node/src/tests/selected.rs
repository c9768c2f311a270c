//! Nodes that enforce by their labels (`--enforce-nodes`), while all others audit.

use std::collections::BTreeMap;
use std::sync::Arc;

use pathproof_facts::cluster::{Change, NodeFacts};
use pathproof_facts::switches::{AuditBy, LabelTerm, NodeSelector};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::Settings;
use crate::event::Event;

fn labelled(pool: &str) -> Change {
    Change::Node(Arc::new(NodeFacts {
        marks: BTreeMap::from([("label pool".into(), pool.into())]),
        ..node_facts()
    }))
}

fn select(settings: &mut Settings) {
    settings.enforce_nodes = Some(NodeSelector(vec![LabelTerm {
        mark: "label pool".to_owned(),
        value: Some("canary".to_owned()),
        wanted: true,
    }]));
}

#[rstest]
#[case::selected(Some("canary"), [503, 503], None)]
#[case::another_pool(Some("workers"), [200, 200], Some(AuditBy::Selector))]
#[case::without_a_label(None, [200, 200], Some(AuditBy::Selector))]
fn only_selected_nodes_enforce(
    #[case] pool: Option<&str>,
    #[case] statuses: [u16; 2],
    #[case] audit: Option<AuditBy>,
) {
    let mut scene = Scene::probed_with(|settings, _| select(settings));
    scene.view(pool.map(labelled).into_iter().collect());
    let effects = scene.fault();
    assert_eq!(effects.statuses(), statuses);
    assert_eq!(effects.verdict_update().answers.audit, audit);
}

/// A broken node gets the label, keeps it over a restart of its agent, and loses it.
#[test]
fn a_label_takes_effect_with_its_event() {
    let mut scene = Scene::probed_with(|settings, _| select(settings));
    assert_eq!(scene.fault().statuses(), [200, 200]);
    let effects = scene.view(vec![labelled("canary")]);
    assert_eq!(effects.statuses(), [503, 503]);
    let mut heir = scene.heir(1, |settings, _| select(settings));
    let effects = heir.feed(Event::Tick);
    assert_eq!(effects.verdict_update().answers.audit, None, "remembered");
    let effects = scene.view(vec![labelled("workers")]);
    assert_eq!(effects.statuses(), [200, 200]);
}
