//! Which health check node ports the agent answers.

use std::sync::Arc;

use pathproof_facts::cluster::{Change, Protocol};
use pathproof_plan::Installed;

use super::scene::{Effects, Scene};
use super::world::{service, slice};
use crate::effect::Effect;
use crate::event::Event;

/// The ports of the last table among the effects.
fn steered(effects: &Effects) -> Option<Vec<u16>> {
    let mut tables = effects.0.iter().filter_map(|effect| match effect {
        Effect::HealthPorts(table) => Some(table.keys().copied().collect()),
        _ => None,
    });
    tables.next_back()
}

/// A Service with health check node port 30999.
fn balanced() -> Vec<Change> {
    let Change::Service(facts) = service("balanced", "10.96.0.60") else {
        unreachable!()
    };
    let mut facts = Arc::unwrap_or_clone(facts);
    (facts.external_local, facts.health_port) = (true, Some(30_999));
    vec![
        Change::Service(Arc::new(facts)),
        slice("balanced", Protocol::Tcp, &["10.2.0.9"]),
    ]
}

/// Without the API server, the proxy may still receive changes, so it answers. But it does not know the
/// health of the datapath, so the agent answers for a failing node.
#[test]
fn while_the_source_is_silent_the_proxy_answers_unless_the_node_fails() {
    let mut scene = Scene::probed();
    scene.later(11_000);
    assert_eq!(steered(&scene.view(balanced())), Some(vec![30_999]));
    assert_eq!(steered(&scene.source(true)), None);
    assert_eq!(
        steered(&scene.later(4_900).idle()),
        None,
        "the silence is still too short"
    );
    assert_eq!(steered(&scene.later(100).idle()), Some(vec![]));
    assert_eq!(steered(&scene.later(100).idle()), None);
    let effects = scene.fault();
    assert_eq!(effects.statuses(), [503, 503]);
    assert_eq!(steered(&effects), Some(vec![30_999]));
    assert_eq!(steered(&scene.later(100).source(false)), None);
    assert_eq!(steered(&scene.idle()), None);
}

#[test]
fn ports_are_answered_again_once_the_source_is_back() {
    let mut scene = Scene::probed();
    scene.view(balanced());
    scene.source(true);
    assert_eq!(steered(&scene.later(5_000).idle()), Some(vec![]));
    let effects = scene.view(vec![slice("web", Protocol::Tcp, &["10.2.0.1"])]);
    assert_eq!(steered(&effects), Some(vec![30_999]));
}

/// A port is steered only once it has an answer.
#[test]
fn nothing_is_answered_before_the_first_verdict_on_the_whole_view() {
    let mut scene = Scene::with(|_, _| ());
    let effects = scene.view(balanced());
    assert_eq!(steered(&effects), None, "the view is not complete");
    let effects = scene.view(vec![Change::Synced]);
    assert_eq!(steered(&effects), None, "the maps are not read");
    let effects = scene.feed(Event::Installed(Installed::default()));
    assert_eq!(steered(&effects), Some(vec![30_999]));
    let is = |matches: fn(&Effect) -> bool| effects.0.iter().position(matches);
    let published = is(|effect| matches!(effect, Effect::Publish(_)));
    assert!(published < is(|effect| matches!(effect, Effect::HealthPorts(_))));
}
