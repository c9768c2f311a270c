//! Changes of endpoints, from the view to the wire.

use std::sync::Arc;

use pathproof_facts::cluster::{Change, Protocol};

use super::scene::Scene;
use super::world::slice;
use crate::effect::{Effect, MapEffect};

#[test]
fn a_new_endpoint_is_read_with_each_sample() {
    let mut scene = Scene::probed();
    let endpoints = ["10.2.0.1", "10.2.0.2", "10.2.0.3"];
    let effects = scene.view(vec![slice("web", Protocol::Tcp, &endpoints)]);
    let keys = effects.0.iter().find_map(|effect| match effect {
        Effect::Maps(MapEffect::ReadEndpoints(keys)) => Some(keys),
        _ => None,
    });
    assert_eq!(keys.map(Vec::len), Some(1), "{keys:?}");
}

/// The pod's node becomes known later than its address. This changes no rule.
#[test]
fn an_endpoint_with_new_facts_is_not_new() {
    let mut scene = Scene::probed();
    let Change::Slice(facts) = slice("web", Protocol::Tcp, &["10.2.0.1", "10.2.0.2"]) else {
        unreachable!()
    };
    let mut facts = Arc::unwrap_or_clone(facts);
    for endpoint in &mut facts.endpoints {
        endpoint.local = true;
    }
    let effects = scene.view(vec![Change::Slice(Arc::new(facts))]);
    assert_eq!(effects.plan().len(), 2);
    assert!(!effects.has("read endpoints"));
}
