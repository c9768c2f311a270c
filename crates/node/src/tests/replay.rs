//! A recording drives the same judge: its events lead to the same verdicts.

use pathproof_facts::cause::{Failure, State};
use pathproof_facts::cluster::Protocol;
use pathproof_facts::directory::Directory as _;
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::SourceClass;

use super::scene::*;
use super::world::*;
use crate::event::{Event, KernelSample, Service};
use crate::replay::replay;
use crate::{Judge, Node};

/// The judge as stored in a recording.
fn copied(judge: &Judge) -> Judge {
    serde_json::from_str(&serde_json::to_string(judge).unwrap()).unwrap()
}

/// The Services behind the scene's ids.
fn names(scene: &Scene) -> Event {
    let known = |id| {
        let info = scene.node.planner().service(id)?;
        Some(Service {
            id,
            known: Some(info),
        })
    };
    Event::Services((0..8).filter_map(known).collect())
}

/// A connection to `web` leaks.
fn sampled(scene: &Scene, at: u64) -> Event {
    let mut failed_connection = scene.failed_connection(Failure::Leaked);
    (failed_connection.at, failed_connection.arrived) = (ms(at), ms(at));
    Event::Sample(Box::new(KernelSample {
        counts: vec![delta(scene.id("web"), &[Outcome::Arrived, Outcome::Leaked])],
        failed_connections: vec![failed_connection],
        ..KernelSample::default()
    }))
}

/// The view is not recorded, so a check cannot derive facts from it.
#[test]
fn facts_of_a_recording_stay() {
    let scene = Scene::probed();
    let mut replay = Node::replay(copied(scene.node.judge()));
    replay.step(Event::Services(Vec::new()), ms(PROBED));
    replay.step(Event::Check, ms(PROBED + 10));
    let effects = Effects(replay.step(Event::Tick, ms(PROBED + 20)));
    assert_eq!(effects.state(), State::Proven);
    assert!(replay.sentinel().unwrap().found().exists);
}

#[test]
fn an_id_that_was_given_up_stands_for_nothing() {
    let scene = Scene::probed();
    let mut replay = Node::replay(copied(scene.node.judge()));
    replay.step(names(&scene), ms(PROBED));
    let mut troubles = |event: Event, at: u64| {
        replay.step(event, ms(at));
        let effects = Effects(replay.step(sampled(&scene, at), ms(at)));
        effects.verdict_update().verdict.services.len()
    };
    let gone = Event::Services(vec![Service {
        id: scene.id("web"),
        known: None,
    }]);
    assert_eq!(troubles(gone, PROBED + 10), 0);
    assert_eq!(troubles(names(&scene), PROBED + 20), 1);
}

/// Recorded facts replace those of the view, and are judged at once.
#[test]
fn recorded_facts_are_judged_like_those_of_the_view() {
    let scene = Scene::probed();
    let mut live = Scene::probed();
    live.view(vec![tainted(&[TAINT]), alteration()]);
    let facts = live.node.judge().facts.clone();
    let mut replay = Node::replay(copied(scene.node.judge()));
    let effects = Effects(replay.step(Event::Facts(facts), ms(PROBED)));
    assert_eq!(effects.statuses(), [503, 200]);
    assert_eq!(replay.sentinel().unwrap().condition(), live.condition());
}

/// A Service that failed loses its endpoints. No later sample has its id, but the judge still follows it,
/// so the recording must contain the change.
#[test]
fn services_that_are_followed_are_named_as_they_change() {
    let mut scene = Scene::probed();
    for outcome in [Outcome::Proven, Outcome::Leaked, Outcome::Leaked] {
        let mut delta = delta(scene.id("web"), &[Outcome::Arrived, outcome]);
        delta.class = SourceClass::External;
        scene.later(600).sample(KernelSample {
            counts: vec![delta],
            ..KernelSample::default()
        });
    }
    assert_eq!(scene.node.judge().ledger.external_failures.ids().count(), 1);
    scene.view(vec![slice("web", Protocol::Tcp, &[])]);
    for _ in 0..130 {
        scene.later(1_000).idle();
    }
    assert_eq!(scene.node.judge().ledger.external_failures.ids().count(), 0);
    let replayed = replay(&scene.node.recording(), None).unwrap();
    assert_eq!(replayed.differs, None);
}
