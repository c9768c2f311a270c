//! Uncached reads of the sentinel: if a watch lags, an edit of the sentinel must not accuse the node.

use pathproof_facts::cause::State;
use pathproof_facts::cluster::Change;
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::trace::ProbePath;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::effect::Notice;
use crate::event::Event;

const PATH: ProbePath = ProbePath::OffCluster;

fn reread(scene: &mut Scene, found: Option<Vec<Change>>) -> Effects {
    let now = ms(scene.now());
    scene.feed(Event::Reread(now, found))
}

fn moved() -> Option<Vec<Change>> {
    Some(vec![
        sentinel_service(30_081),
        sentinel_slice(FIRST_GENERATION),
    ])
}

#[rstest]
#[case::the_same(Some(sentinel_objects()), false)]
#[case::rotated(Some(vec![sentinel_service(30_080), sentinel_slice(FIRST_GENERATION + 3)]), false)]
#[case::no_answer(None, false)]
#[case::another_node_port(moved(), true)]
#[case::altered(Some(vec![sentinel_service(30_080), alteration()]), true)]
#[case::gone(Some(vec![]), true)]
fn a_sentinel_that_differs_accuses_nobody(
    #[case] found: Option<Vec<Change>>,
    #[case] differs: bool,
) {
    let mut scene = Scene::probed();
    scene.leak(PATH);
    scene.sound();
    let effects = reread(&mut scene, found);
    let logged = matches!(effects.notices()[..], [Notice::Rechecked(Some(_))]);
    assert_eq!(logged, differs);
    assert!(effects.has("publish"));
    for _ in 0..4 {
        scene.later(250).leak(PATH);
        scene.sound();
    }
    let expected = match differs {
        true => [State::Proven, State::Proven],
        false => [State::Broken, State::Broken],
    };
    assert_eq!([scene.state(), scene.idle().state()], expected);
}

/// The result of an uncached read is valid until the next one, or until the watches report a change.
#[test]
fn a_difference_ends_with_the_next_reading() {
    let mut scene = Scene::probed();
    reread(&mut scene, moved());
    let again = reread(&mut scene, moved());
    assert!(again.notices().is_empty(), "logged once");
    let effects = scene.reread_same();
    assert_eq!(effects.notices(), [&Notice::Rechecked(None)]);
    scene.rest(11_000);
    assert_eq!(scene.fault().state(), State::Broken);
}

/// The uncached read found a slice deleted that was created again at once. The watches report neither
/// change, so only another read can end the difference.
#[test]
fn a_difference_is_read_again_while_probes_fail() {
    let mut scene = Scene::probed();
    reread(&mut scene, moved());
    assert!(!scene.rest(11_000).has("read sentinel"));
    let asked = (0..44).filter(|_| scene.later(250).leak(PATH).has("read sentinel"));
    assert_eq!(asked.count(), 2, "in 11 s");
    scene.reread_same();
    scene.rest(11_000);
    assert_eq!(scene.fault().state(), State::Broken);
}

/// If watches lag on all nodes, all of them read from the same API server. So the reads become rarer.
#[test]
fn a_difference_that_stays_is_read_ever_less_often() {
    let mut scene = Scene::probed();
    reread(&mut scene, moved());
    scene.rest(11_000);
    let mut asked = Vec::new();
    for quarter in 0..2_400 {
        if scene.later(250).leak(PATH).has("read sentinel") {
            asked.push(quarter / 4);
            reread(&mut scene, moved());
        }
    }
    let pauses: Vec<u32> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses, [10, 20, 40, 80, 160, 160], "seconds");
    // Passing probes end the back-off.
    scene.rest(11_000);
    assert!(scene.leak(PATH).has("read sentinel"));
}

/// Without an answer of the API server the difference stays.
#[test]
fn a_difference_outlasts_readings_without_an_answer() {
    let mut scene = Scene::probed();
    reread(&mut scene, moved());
    scene.rest(11_000);
    for _ in 0..100 {
        if scene.later(250).leak(PATH).has("read sentinel") {
            let effects = reread(&mut scene, None);
            assert!(effects.notices().is_empty(), "{:?}", effects.notices());
        }
        scene.sound();
    }
    assert_ne!(scene.idle().state(), State::Broken);
    scene.reread_same();
    scene.rest(11_000);
    assert_eq!(scene.fault().state(), State::Broken);
}

/// Only a report about the sentinel ends a difference.
#[test]
fn a_difference_ends_with_what_the_watches_report() {
    let mut scene = Scene::probed();
    reread(&mut scene, moved());
    scene.view(vec![tainted(&["x"])]);
    assert!(reread(&mut scene, moved()).notices().is_empty(), "still so");
    scene.view(vec![sentinel_service(30_081)]);
    let effects = reread(&mut scene, moved());
    assert!(effects.notices().is_empty(), "it was over before");
    scene.rest(11_000);
    scene.leak(PATH);
    scene.sound();
    reread(&mut scene, moved());
    for _ in 0..4 {
        scene.later(250).leak(PATH);
    }
    assert_eq!(scene.idle().state(), State::Broken);
}

/// A recording has the result of an uncached read instead of the objects.
#[rstest]
#[case::differs(Some(true), State::Proven)]
#[case::same(Some(false), State::Broken)]
#[case::no_answer(None, State::Broken)]
fn a_recorded_answer_means_the_same(#[case] differs: Option<bool>, #[case] state: State) {
    let mut scene = Scene::probed();
    scene.leak(PATH);
    scene.sound();
    let effects = scene.feed(Event::Rechecked(ms(PROBED), differs));
    assert!(effects.has("publish"));
    for _ in 0..4 {
        scene.later(250).leak(PATH);
        scene.sound();
    }
    assert_eq!(scene.idle().state(), state);
}
