//! Changes of endpoints, from the view to the wire.

use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::cluster::{Change, Protocol};
use pathproof_facts::time::Wall;
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::{EndpointKey, SourceClass};
use pathproof_witness::evidence::CountDelta;

use super::scene::{Effects, Scene, ms};
use super::world::slice;
use crate::effect::{Effect, MapEffect, Measurement};
use crate::event::{Event, KernelSample, ViewUpdate};
use crate::programming::{EndpointChange, Latency, Programmed};

const RECEIVED: Wall = Wall(1_800_000_000_000_000_000);

fn programmed(effects: &Effects) -> Vec<Programmed> {
    let done = effects.0.iter().filter_map(|effect| match effect {
        Effect::Measure(Measurement::Programmed(programmed)) => Some(*programmed),
        _ => None,
    });
    done.collect()
}

/// A change of `web`'s slice that was triggered `seconds` before its receipt.
fn triggered(endpoints: &[&str], seconds: i64) -> Event {
    let Change::Slice(facts) = slice("web", Protocol::Tcp, endpoints) else {
        unreachable!()
    };
    let mut facts = Arc::unwrap_or_clone(facts);
    facts.triggered = Some(Wall(RECEIVED.0 - seconds * 1_000_000_000));
    Event::View(Box::new(ViewUpdate {
        changes: vec![Change::Slice(Arc::new(facts))],
        received: Some(RECEIVED),
        ..ViewUpdate::default()
    }))
}

/// The endpoints that are read from now on.
fn read(effects: &Effects) -> Vec<EndpointKey> {
    let keys = effects.0.iter().find_map(|effect| match effect {
        Effect::Maps(MapEffect::ReadEndpoints(keys)) => Some(keys.clone()),
        _ => None,
    });
    keys.expect("changed endpoints are read")
}

/// A sample after half a second: 60 connections to `web`, the first one to this endpoint 400 ms
/// after the change.
fn met(scene: &mut Scene, key: EndpointKey) -> Vec<Programmed> {
    let mut counts = [0; OUTCOMES];
    counts[Outcome::Forwarded as usize] = 60;
    let sample = KernelSample {
        counts: vec![CountDelta {
            service: key.service,
            class: SourceClass::Pod,
            counts,
            lost: 0,
        }],
        met: vec![(key, ms(scene.now() + 400))],
        ..KernelSample::default()
    };
    programmed(&scene.later(500).sample(sample))
}

fn added_after(trigger: Option<u64>) -> Programmed {
    Programmed {
        change: EndpointChange::Added,
        latency: Some(Latency {
            since_receipt: Duration::from_millis(400),
            since_trigger: trigger.map(Duration::from_millis),
        }),
    }
}

#[test]
fn a_new_endpoint_is_measured_from_its_trigger_and_its_receipt() {
    let mut scene = Scene::probed();
    scene.later(1_000);
    let effects = scene.feed(triggered(&["10.2.0.1", "10.2.0.2", "10.2.0.3"], 2));
    let keys = read(&effects);
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert_eq!(met(&mut scene, keys[0]), [added_after(Some(2_400))]);
}

/// The trigger's annotation stays in the slice when something else in it changes.
#[test]
fn a_trigger_counts_once() {
    let mut scene = Scene::probed();
    scene.feed(triggered(&["10.2.0.1", "10.2.0.2"], 2));
    let effects = scene.feed(triggered(&["10.2.0.1", "10.2.0.2", "10.2.0.3"], 2));
    assert_eq!(met(&mut scene, read(&effects)[0]), [added_after(None)]);
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
