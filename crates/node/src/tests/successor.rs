//! Two agents at once: which one maintains the maps, and what the older one no longer touches.

use pathproof_facts::cause::State;
use pathproof_facts::cluster::{Change, ObjectName, Protocol};
use pathproof_facts::directory::Directory as _;
use pathproof_plan::{Installed, MapChange};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::event::{Event, Successor};

fn edit(endpoint: &str) -> Vec<Change> {
    vec![slice("web", Protocol::Tcp, &[endpoint])]
}

#[rstest]
#[case::none(Successor::None, true)]
#[case::it_has_the_hooks(Successor::Observes, true)]
#[case::it_has_the_maps(Successor::Plans, false)]
fn a_successor_that_plans_is_left_the_maps(#[case] successor: Successor, #[case] programs: bool) {
    let mut scene = Scene::probed();
    assert_eq!(scene.succeed(successor).names(), NOTHING);
    let effects = scene.view(edit("10.2.0.9"));
    assert_eq!(effects.has("program"), programs);
    assert_eq!(effects.plan().is_empty(), !programs);
    assert!(!effects.has("read maps"));
    assert!(effects.has("publish"), "the view is judged all the same");
    assert_eq!(scene.later(5_000).check().has("program"), programs);
}

#[derive(Clone, Copy, Debug)]
enum Next {
    View,
    Check,
}

#[rstest]
#[case::the_view_changes(Next::View, Successor::None)]
#[case::a_check_is_due(Next::Check, Successor::None)]
#[case::it_only_observes_now(Next::Check, Successor::Observes)]
fn maps_of_a_successor_that_died_are_read_again(#[case] next: Next, #[case] now: Successor) {
    let mut scene = Scene::probed();
    scene.succeed(Successor::Plans);
    scene.view(edit("10.2.0.9"));
    scene.succeed(now);
    let effects = match next {
        Next::View => scene.view(edit("10.2.0.10")),
        Next::Check => scene.check(),
    };
    assert!(effects.has("read maps") && !effects.has("program"));
    for name in ["program", "read maps"] {
        assert!(!scene.check().has(name), "{name} before they were read");
    }
    let plan = scene.feed(Event::Installed(Installed::default())).plan();
    let puts = |change: &&MapChange| matches!(change, MapChange::PutFrontend { .. });
    assert_eq!(
        plan.iter().filter(puts).count(),
        scene.node.planner().frontend_count(),
        "all of them: the maps were empty"
    );
    let effects = scene.check();
    assert!(effects.has("program") && !effects.has("read maps"), "once");
}

/// A check is enough to learn that the successor plans, even without a change of the view.
#[test]
fn maps_are_read_again_also_where_nothing_changed() {
    let mut scene = Scene::probed();
    scene.succeed(Successor::Plans);
    scene.check();
    scene.succeed(Successor::None);
    assert!(scene.check().has("read maps"));
}

/// The successor started and ended before any other event.
#[test]
fn maps_of_a_successor_that_stayed_for_a_moment_are_read_again() {
    let mut scene = Scene::probed();
    scene.succeed(Successor::Plans);
    scene.succeed(Successor::None);
    assert!(scene.check().has("read maps"));
}

/// A Service is deleted while the successor maintains the maps. Then this agent reads the maps, which lack
/// it.
#[test]
fn a_service_that_went_meanwhile_is_forgotten() {
    let mut scene = Scene::probed();
    let before = scene.node.planner().frontend_count();
    scene.succeed(Successor::Plans);
    let web = ObjectName::new("default", "web");
    scene.view(vec![Change::ServiceGone(web)]);
    scene.succeed(Successor::None);
    scene.check();
    scene.feed(Event::Installed(Installed::default()));
    assert_eq!(scene.node.planner().frontend_count(), before - 1);
    let left = (0..8).filter_map(|id| scene.node.planner().service(id));
    assert!(left.into_iter().all(|info| &*info.name.name != "web"));
}

/// The successor has its own ids: entries are adopted with the id that they have in the maps.
#[test]
fn the_ids_of_the_successor_are_adopted() {
    let mut scene = Scene::new();
    scene.view(cluster());
    let first = scene.feed(Event::Installed(Installed::default())).plan();
    let web = scene.id("web");
    scene.succeed(Successor::Plans);
    scene.check();
    scene.succeed(Successor::None);
    scene.check();
    let frontends = first.iter().filter_map(|change| match change {
        MapChange::PutFrontend { key, value } => Some((*key, *value)),
        _ => None,
    });
    let moved = frontends.map(|(key, mut value)| {
        value.service += 100;
        (key, value)
    });
    let frontends = moved.collect();
    scene.feed(Event::Installed(Installed {
        frontends,
        ..Installed::default()
    }));
    let info = scene.node.planner().service(web + 100);
    assert_eq!(
        info.map(|info| info.name.to_string()).as_deref(),
        Some("default/web")
    );
}

#[rstest]
#[case::observes(Successor::Observes)]
#[case::plans(Successor::Plans)]
fn nothing_is_remembered_over_what_a_successor_wrote(#[case] successor: Successor) {
    let mut scene = Scene::probed();
    scene.succeed(successor);
    let broken = scene.fault();
    assert_ne!(broken.state(), State::Proven, "which is a change");
    assert!(!broken.has("remember"));
    assert!(!scene.later(20_000).idle().has("remember"));
    scene.succeed(Successor::None);
    assert!(scene.feed(Event::Tick).has("remember"));
}

#[test]
fn the_sentinels_parts_and_the_api_server_are_left_alone() {
    let mut scene = Scene::probed();
    scene.succeed(Successor::Observes);
    let effects = scene.later(250).leak(PATHS[0]);
    assert!(!effects.has("check parts") && !effects.has("read sentinel"));
    scene.succeed(Successor::None);
    let effects = scene.later(250).leak(PATHS[0]);
    assert!(effects.has("check parts") && effects.has("read sentinel"));
}

/// If the cluster took the devices' addresses, the successor removes the devices.
#[test]
fn addresses_are_not_searched_for_beside_a_successor() {
    let mut scene = Scene::probed();
    scene.succeed(Successor::Observes);
    assert!(!scene.taken(true).has("stop"));
    scene.succeed(Successor::None);
    assert!(scene.check().has("stop"));
}
