//! Which health check node ports the agent answers at.

use std::sync::Arc;

use super::scene::{Effects, Scene};
use super::world::{service, slice};
use crate::cluster::{Change, Protocol};
use crate::effect::Effect;

/// The ports of the last table among the effects.
fn steered(effects: &Effects) -> Option<Vec<u16>> {
    let mut tables = effects.0.iter().filter_map(|effect| match effect {
        Effect::HealthPorts(table) => Some(table.keys().copied().collect()),
        _ => None,
    });
    tables.next_back()
}

/// A Service whose load balancer asks at port 30999.
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

/// The Service's proxy may receive changes that this agent does not.
#[test]
fn while_the_source_is_silent_the_proxy_answers() {
    let mut scene = Scene::probed();
    assert_eq!(steered(&scene.view(balanced())), Some(vec![30_999]));
    assert_eq!(steered(&scene.later(1_000).source(true)), Some(vec![]));
    assert_eq!(steered(&scene.later(1_000).source(true)), None);
    let effects = scene.later(1_000).source(false);
    assert_eq!(steered(&effects), Some(vec![30_999]));
    scene.source(true);
    let effects = scene.view(vec![slice("web", Protocol::Tcp, &["10.2.0.1"])]);
    assert_eq!(steered(&effects), Some(vec![30_999]), "back with a change");
}
