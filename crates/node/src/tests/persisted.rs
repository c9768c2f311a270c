//! The persisted state: its content, and how often it is written. A killed agent must lose little.

use pathproof_facts::cause::State;
use pathproof_judge::eligibility::Eligibility;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::event::Event;

/// Times of writes, for ticks every 250 ms.
fn times(scene: &mut Scene, until: u64, mut each: impl FnMut(&mut Scene) -> Effects) -> Vec<u64> {
    let begin = scene.now();
    let mut found = Vec::new();
    for at in (250..=until).step_by(250) {
        if each(scene.at(begin + at)).has("remember") {
            found.push(at);
        }
    }
    found
}

#[test]
fn a_node_that_is_well_is_written_down_every_ten_seconds() {
    let mut scene = Scene::probed();
    let written = times(&mut scene, 25_000, |scene| {
        scene.pass();
        scene.idle()
    });
    assert_eq!(written, [10_000, 20_000]);
}

#[test]
fn a_node_in_trouble_is_written_down_every_second() {
    let mut scene = Scene::probed();
    scene.fault();
    let written = times(&mut scene, 3_500, |scene| scene.leak_and_sample());
    assert_eq!(written, [1_000, 2_000, 3_000]);
}

#[test]
fn an_unknown_node_is_written_down_every_second() {
    let mut scene = Scene::new();
    assert!(scene.feed(Event::Tick).has("remember"), "at once");
    let written = times(&mut scene, 2_500, |scene| scene.feed(Event::Tick));
    assert_eq!(written, [1_000, 2_000]);
}

/// Failing probes shorten the interval even before they change the verdict.
#[test]
fn a_node_whose_probes_fail_is_written_down_every_second() {
    let mut scene = Scene::probed();
    scene.later(250).leak(PATHS[0]);
    scene.sound();
    let written = times(&mut scene, 2_000, |scene| scene.idle());
    assert_eq!(written, [1_000, 2_000]);
}

#[rstest]
#[case::a_state(|scene: &mut Scene| scene.leak(PATHS[0]))]
#[case::an_answer(|scene: &mut Scene| scene.view(vec![tainted(&[TAINT])]))]
fn a_change_is_written_down_at_once(#[case] event: fn(&mut Scene) -> Effects) {
    let mut scene = Scene::probed();
    assert!(!scene.later(10).idle().has("remember"));
    let effects = event(&mut scene);
    let names = effects.names();
    let place = |name| names.iter().position(|effect| *effect == name);
    assert!(place("remember").is_some(), "{names:?}");
    assert!(
        place("remember") < place("publish"),
        "before anyone is told"
    );
    assert!(!scene.later(10).idle().has("remember"), "once");
}

#[test]
fn a_taint_that_changes_no_answer_can_wait() {
    let mut scene = Scene::probed();
    assert!(
        !scene
            .view(vec![tainted(&["somebody/else"])])
            .has("remember")
    );
}

#[test]
fn what_is_written_is_what_is_answered_now() {
    let mut scene = Scene::probed();
    scene.view(vec![tainted(&[TAINT])]);
    let effects = scene.fault();
    let persisted = effects.persisted().unwrap();
    assert_eq!(persisted.verdict.state, State::Broken);
    assert_eq!(
        persisted.verdict.since,
        effects.verdict_update().verdict.since
    );
    let taint = TAINT.to_owned();
    assert_eq!(persisted.eligibility, Eligibility::Tainted { taint });
    assert_eq!(persisted.written, ms(scene.now()));
    let text = serde_json::to_string(persisted).unwrap();
    assert_eq!(
        serde_json::from_str::<crate::effect::PersistedState>(&text).unwrap(),
        *persisted
    );
}
