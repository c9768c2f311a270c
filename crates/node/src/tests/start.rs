//! The start: the order of the effects, and what waits for what.

use pathproof_facts::cause::{State, Why};
use pathproof_facts::cluster::Change;
use pathproof_judge::eligibility::Eligibility;
use pathproof_plan::Installed;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::effect::Notice;
use crate::event::{Event, ViewUpdate};

#[test]
fn a_verdict_precedes_everything_else() {
    let mut scene = Scene::new();
    let effects = scene.feed(Event::Tick);
    assert_eq!(effects.names(), ["remember", "publish", "sample after"]);
    let verdict = &effects.verdict_update().verdict;
    assert_eq!(
        (verdict.state, verdict.why),
        (State::Unknown, Some(Why::NotSampled))
    );
}

#[test]
fn nothing_is_programmed_and_nothing_made_before_the_view_is_complete() {
    let mut scene = Scene::new();
    for changes in [services(), sentinel_objects(), vec![tainted(&["a"])]] {
        let effects = scene.view(changes);
        assert_eq!(effects.plan(), []);
        assert_eq!(effects.devices(), None);
        for name in ["read maps", "devices", "retarget", "start"] {
            assert!(!effects.has(name), "{name}");
        }
    }
    assert_eq!(scene.check().plan(), []);
    assert!(!scene.node.view().is_synced());
    scene.feed(Event::Hooks(hooks()));
    let verdict = scene.idle().verdict_update().verdict.clone();
    assert_eq!(verdict.why, Some(Why::ViewNotSynced));
}

#[test]
fn the_maps_are_read_before_they_are_programmed() {
    let mut scene = Scene::new();
    assert_eq!(scene.view(synced_services()).names(), ["read maps"]);
    let effects = scene.feed(Event::Installed(Installed::default()));
    assert_eq!(
        effects.names(),
        ["program", "devices", "retarget", "remember", "publish"]
    );
    assert!(!effects.plan().is_empty());
    assert!(
        scene.feed(Event::Tick).plan().is_empty(),
        "planned only once"
    );
}

#[test]
fn facts_wait_for_the_maps() {
    let mut scene = Scene::new();
    assert_eq!(scene.view(cluster()).names(), ["read maps"]);
    assert_eq!(scene.source(false).names(), NOTHING, "not judged");
    assert!(
        !scene.check().has("publish"),
        "a check does not pass them on either"
    );
    assert!(!scene.node.sentinel().unwrap().found().exists);
    let effects = scene.feed(Event::Installed(Installed::default()));
    assert!(effects.has("devices") && effects.has("publish"));
    assert!(scene.node.sentinel().unwrap().found().exists);
}

/// The first plan includes changes that arrived while the maps were read.
#[test]
fn the_first_plan_holds_the_whole_view() {
    let mut scene = Scene::new();
    scene.view(synced_services());
    let late = scene.view(vec![service("late", "10.96.0.2")]);
    assert_eq!(late.names(), NOTHING, "not planned by itself");
    scene.feed(Event::Installed(Installed::default()));
    for name in ["web", "dns", "late"] {
        scene.id(name);
    }
    assert_eq!(scene.node.planner().frontend_count(), 3);
}

#[test]
fn without_a_sentinel_nothing_is_made() {
    let mut scene = Scene::with(|settings, _| settings.sentinel = None);
    assert_eq!(scene.view(cluster()).names(), ["read maps"]);
    let effects = scene.feed(Event::Installed(Installed::default()));
    assert_eq!(effects.names(), ["program", "remember", "publish"]);
    assert!(scene.node.sentinel().is_none());
    for event in [
        Event::Sentinel(crate::event::SentinelEvent::Ready),
        Event::Trace(Box::new(passing(PATHS[0], 10))),
    ] {
        assert_eq!(scene.feed(event).names(), NOTHING);
    }
}

#[test]
fn problems_of_the_view_are_logged_once_each() {
    let mut scene = Scene::new();
    let mut with = |problems: &[&str]| {
        let update = ViewUpdate {
            problems: problems.iter().map(ToString::to_string).collect(),
            ignored: 3,
            ..ViewUpdate::default()
        };
        let effects = scene.feed(Event::View(Box::new(update)));
        let logged = effects.notices().into_iter().map(|notice| match notice {
            Notice::ViewProblem(problem) => problem.clone(),
            other => panic!("{other:?}"),
        });
        logged.collect::<Vec<_>>()
    };
    assert_eq!(with(&["a"]), ["a"]);
    assert_eq!(with(&["a", "b"]), ["b"]);
    assert!(with(&["b"]).is_empty());
    assert_eq!(with(&["a"]), ["a"], "the problem is back");
    let state = scene.node.view_state();
    assert_eq!(
        (&state.problems[..], state.ignored),
        (&["a".to_owned()][..], 3)
    );
}

#[test]
fn the_view_keeps_count_of_its_changes() {
    let mut scene = Scene::new();
    scene.at(7).view(cluster());
    let changes = cluster().len() as u64;
    scene.at(9).source(true);
    let state = scene.node.view_state();
    assert_eq!((state.changes, state.changed), (changes, Some(ms(7))));
    assert_eq!(scene.node.uid().as_deref(), Some("u-1"));
}

#[test]
fn time_that_goes_back_counts_as_the_latest() {
    let mut scene = Scene::new();
    scene.at(5_000).feed(Event::Tick);
    let verdict = scene
        .at(1_000)
        .feed(Event::Tick)
        .verdict_update()
        .verdict
        .clone();
    assert_eq!(verdict.at, ms(5_000));
    assert_eq!(verdict.since, ms(5_000), "the state began then");
    assert_eq!(
        scene
            .at(5_001)
            .feed(Event::Tick)
            .verdict_update()
            .verdict
            .at,
        ms(5_001)
    );
    assert_eq!(scene.node.judge().anchor.mono, ms(0));
}

/// All effects of a start, in one list.
#[test]
fn an_agent_that_starts_on_a_sound_node() {
    let mut scene = Scene::new();
    scene.feed(Event::Tick);
    assert_eq!(
        scene.synced().names(),
        ["program", "devices", "retarget", "publish"]
    );
    scene.feed(Event::Hooks(hooks()));
    assert_eq!(scene.started().names(), ["retarget", "publish"]);
    assert_eq!(scene.sound().names(), ["read topology"]);
    assert_eq!(scene.topology().names(), ["log", "retarget"]);
    assert_eq!(scene.idle().state(), State::Unknown);
    scene.at(PROBED - 250);
    for effects in scene.pass() {
        assert_eq!(effects.names(), ["probed"]);
    }
    let effects = scene.at(PROBED).idle();
    assert_eq!(effects.told(), (State::Proven, [200, 200]));
    assert!(effects.has("remember"));
}

const MISSING: &str = "no Node is named here";

/// A delivery of a source that has no object of this node.
fn without_node(changes: Vec<Change>) -> Event {
    Event::View(Box::new(ViewUpdate {
        changes,
        missing_node: Some(MISSING.to_owned()),
        ..ViewUpdate::default()
    }))
}

fn no_node() -> Vec<Change> {
    let mut changes = cluster();
    changes.retain(|change| !matches!(change, Change::Node(_)));
    changes
}

/// The missing Node, the problems of the view, and the lines that the last event logged.
fn missing(scene: &mut Scene, event: Event) -> (bool, usize, usize) {
    let effects = scene.feed(event);
    let of_view = |notice: &&&Notice| matches!(notice, Notice::ViewProblem(_));
    let logged = effects.notices().iter().filter(of_view).count();
    let node = &scene.node;
    (
        node.missing_node().is_some(),
        node.view_problems().count(),
        logged,
    )
}

/// `--node-name` names a Node that does not exist. A kubelet that starts creates its Node seconds later.
#[test]
fn a_missing_node_is_a_problem_after_two_minutes() {
    let mut scene = Scene::new();
    assert_eq!(
        missing(&mut scene, Event::Tick),
        (false, 0, 0),
        "not synced"
    );
    assert_eq!(missing(&mut scene, without_node(no_node())), (true, 0, 0));
    scene.feed(Event::Installed(Installed::default()));
    scene.at(119_000);
    assert_eq!(missing(&mut scene, without_node(Vec::new())), (true, 0, 0));
    scene.at(120_000);
    assert_eq!(missing(&mut scene, Event::Check), (true, 1, 1));
    assert_eq!(
        missing(&mut scene, Event::Check),
        (true, 1, 0),
        "logged once"
    );
    let effects = scene.feed(Event::Tick);
    assert_eq!(
        effects.verdict_update().verdict.eligibility,
        Eligibility::NeverSeen
    );
    assert_eq!(effects.statuses(), [200, 200], "kube-proxy answers 200 too");
    scene.view(vec![tainted(&[])]);
    assert_eq!(missing(&mut scene, Event::Check), (false, 0, 0));
    assert_eq!(
        scene.feed(Event::Tick).verdict_update().verdict.eligibility,
        Eligibility::Eligible
    );
}

#[test]
fn a_deleted_node_is_not_missing() {
    let mut scene = Scene::new();
    scene.synced();
    scene.at(300_000);
    let gone = without_node(vec![Change::NodeGone]);
    assert_eq!(missing(&mut scene, gone), (false, 0, 0));
}

/// The former agent's eligibility is that of the Node that it knew.
#[rstest]
#[case::of_another_node("other", Eligibility::NeverSeen)]
#[case::of_this_node("here", Eligibility::Eligible)]
#[case::of_an_older_agent("", Eligibility::Eligible)]
fn the_remembered_eligibility_is_that_of_a_name(#[case] name: &str, #[case] expected: Eligibility) {
    let mut before = Scene::new();
    before.synced();
    before.later(1_000).feed(Event::Tick);
    let mut after = before.heir(500, |_, start| {
        start.persisted.as_mut().unwrap().node = name.to_owned();
    });
    after.feed(without_node(no_node()));
    let effects = after.feed(Event::Tick);
    assert_eq!(effects.verdict_update().verdict.eligibility, expected);
    assert_eq!(
        after.node.missing_node().is_some(),
        expected == Eligibility::NeverSeen
    );
}
