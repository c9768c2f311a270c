//! From the view to the maps: what is programmed, and what the maps have no room for.

use std::collections::BTreeMap;
use std::sync::Arc;

use pathproof_facts::cluster::{Change, ObjectName, Protocol, ServiceFacts};
use pathproof_plan::{Installed, MapChange};
use pathproof_wire::abi::MAX_SERVICES;
use pathproof_wire::service::{EndpointKey, EndpointValue, FrontendKey, FrontendValue};
use pathproof_witness::evidence::CoverageLoss;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::event::Event;

/// The kernel's maps with limited room. Tests of the planner check the order of changes.
#[derive(Default)]
struct Maps {
    frontends: BTreeMap<FrontendKey, FrontendValue>,
    endpoints: BTreeMap<EndpointKey, EndpointValue>,
    /// Room for frontends and endpoints.
    room: [usize; 2],
}

impl Maps {
    fn new(room: [usize; 2]) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Applies a plan, and returns the changes for which there was no room.
    fn run(&mut self, plan: &[MapChange]) -> Vec<MapChange> {
        let [frontends, endpoints] = self.room;
        let has_no_room = |change: &&MapChange| match **change {
            MapChange::PutFrontend { key, value } => {
                !put(&mut self.frontends, frontends, key, value)
            }
            MapChange::PutEndpoint { key, value }
            | MapChange::UpdateEndpoint { key, value }
            | MapChange::RetireEndpoint { key, value } => {
                !put(&mut self.endpoints, endpoints, key, value)
            }
            MapChange::DeleteFrontend { key } => {
                self.frontends.remove(&key);
                false
            }
            MapChange::DeleteEndpoint { key } => {
                self.endpoints.remove(&key);
                false
            }
            MapChange::ResetCounts { .. }
            | MapChange::PutSource { .. }
            | MapChange::DeleteSource { .. } => false,
        };
        plan.iter().filter(has_no_room).copied().collect()
    }

    fn installed(&self) -> Installed {
        Installed {
            frontends: self.frontends.iter().map(|(k, v)| (*k, *v)).collect(),
            endpoints: self.endpoints.iter().map(|(k, v)| (*k, *v)).collect(),
            ..Installed::default()
        }
    }
}

fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, room: usize, key: K, value: V) -> bool {
    let fits = map.len() < room || map.contains_key(&key);
    if fits {
        map.insert(key, value);
    }
    fits
}

/// Applies a plan and the plans that follow from it. Returns their number.
fn settle(maps: &mut Maps, scene: &mut Scene, effects: Effects) -> usize {
    let mut full = maps.run(&effects.plan());
    let mut rounds = 1;
    while !full.is_empty() {
        let effects = scene.feed(Event::Full(full));
        assert_eq!(effects.names()[0], "program");
        assert!(effects.has("publish"), "missing entries are judged");
        full = maps.run(&effects.plan());
        rounds += 1;
        assert!(rounds < 20, "the plans must converge");
    }
    rounds
}

fn without_sentinel() -> Scene {
    Scene::with(|settings, _| settings.sentinel = None)
}

#[rstest]
#[case::room_for_all(9, 9, 1, [0, 0])]
#[case::one_frontend_too_many(1, 9, 2, [1, 0])]
#[case::no_frontend_at_all(0, 9, 2, [2, 0])]
fn what_found_no_place_is_planned_again_until_nothing_is_full(
    #[case] frontends: usize,
    #[case] endpoints: usize,
    #[case] rounds: usize,
    #[case] missing: [u64; 2],
) {
    let mut scene = without_sentinel();
    let mut maps = Maps::new([frontends, endpoints]);
    scene.view(synced_services());
    let effects = scene.feed(Event::Installed(Installed::default()));
    assert_eq!(settle(&mut maps, &mut scene, effects), rounds);
    let found = scene.node.planner().missing();
    assert_eq!([found.frontends, found.endpoints], missing);
    assert_eq!(maps.frontends.len(), frontends.min(2));
}

/// A frontend with missing endpoints must not be in the map: its connections would count as misrouted.
#[test]
fn a_service_without_room_for_its_endpoints_is_withheld() {
    let mut scene = without_sentinel();
    let mut maps = Maps::new([9, 1]);
    scene.view(synced_services());
    let effects = scene.feed(Event::Installed(Installed::default()));
    settle(&mut maps, &mut scene, effects);
    let missing = scene.node.planner().missing();
    assert!(missing.endpoints > 0, "{missing:?}");
    let losses = scene
        .later(3_000)
        .idle()
        .verdict_update()
        .verdict
        .coverage
        .clone();
    assert!(losses.misrouted_suspended);
    let endpoints = missing.endpoints;
    let has = |loss: CoverageLoss| losses.losses.contains(&loss);
    assert!(has(CoverageLoss::EndpointsFull { missing: endpoints }));
}

/// An id is not used again for some time after its Service is gone. The check that frees the id also
/// updates the number of missing entries.
#[test]
fn an_id_that_rested_is_used_at_a_check() {
    let mut scene = without_sentinel();
    // As many Services as can be followed. Each namespace has few ids that are not yet free again.
    let name = |n: u32| ObjectName::new(&format!("n{:03}", n % 256), &format!("s{n:05}"));
    let made = |n: u32| {
        let [_, _, high, low] = n.to_be_bytes();
        match service("", &format!("10.96.{high}.{low}")) {
            Change::Service(facts) => Change::Service(Arc::new(ServiceFacts {
                name: name(n),
                ..(*facts).clone()
            })),
            other => other,
        }
    };
    let reserve = MAX_SERVICES / 16;
    let mut changes: Vec<Change> = (reserve..MAX_SERVICES).map(made).collect();
    changes.push(Change::Synced);
    scene.view(changes);
    let effects = scene.feed(Event::Installed(Installed::default()));
    assert_eq!(effects.names(), ["program", "remember", "publish"]);
    let missing = |scene: &mut Scene| {
        let losses = scene
            .idle()
            .verdict_update()
            .verdict
            .coverage
            .losses
            .clone();
        let lost = |loss: &CoverageLoss| matches!(loss, CoverageLoss::ServicesFull { missing: 1 });
        losses.iter().any(lost)
    };
    assert!(!missing(&mut scene));
    scene.topology();
    let others = (0..=reserve).map(|n| Change::ServiceGone(name(reserve + n)));
    let new = (0..reserve).chain([MAX_SERVICES]).map(made);
    scene.view(others.chain(new).collect());
    assert_eq!(scene.at(299_999).check().plan(), []);
    assert!(missing(&mut scene));
    scene.topology();
    let effects = scene.at(300_000).check();
    let frontends = |change: &MapChange| matches!(change, MapChange::PutFrontend { .. });
    assert!(effects.plan().iter().any(frontends));
    assert!(effects.has("publish"));
    assert!(!missing(&mut scene));
    assert!(
        !scene.later(5_000).check().has("publish"),
        "nothing changed"
    );
}

#[test]
fn later_changes_program_what_differs() {
    let mut scene = Scene::new();
    scene.synced();
    let effects = scene.view(vec![slice("web", Protocol::Tcp, &["10.2.0.1", "10.2.0.3"])]);
    assert_eq!(effects.names()[0], "program", "before it is judged");
    let plan = effects.plan();
    assert!(
        matches!(
            plan[..],
            [
                MapChange::PutEndpoint { .. },
                MapChange::RetireEndpoint { .. }
            ]
        ),
        "{plan:?}"
    );
    assert_eq!(scene.view(vec![tainted(&["x"])]).plan(), []);
}

/// A restart finds its maps unchanged: nothing is written twice, and ids stay.
#[test]
fn maps_that_fit_the_view_are_adopted() {
    let mut before = without_sentinel();
    let mut maps = Maps::new([usize::MAX; 2]);
    before.view(synced_services());
    let effects = before.feed(Event::Installed(Installed::default()));
    settle(&mut maps, &mut before, effects);

    let mut after = without_sentinel();
    let mut changes = services();
    changes.insert(1, service("earlier", "10.96.0.3"));
    changes.push(Change::Synced);
    after.view(changes);
    let plan = after.feed(Event::Installed(maps.installed())).plan();
    let untouched = |change: &&MapChange| match change {
        MapChange::PutFrontend { key, .. } => !maps.frontends.contains_key(key),
        MapChange::PutEndpoint { .. } | MapChange::DeleteEndpoint { .. } => false,
        MapChange::DeleteFrontend { .. } | MapChange::RetireEndpoint { .. } => false,
        _ => true,
    };
    assert!(plan.iter().all(|change| untouched(&change)), "{plan:?}");
    assert_eq!(after.id("web"), before.id("web"));
    assert_eq!(after.id("dns"), before.id("dns"));
}

#[test]
fn what_left_long_ago_is_forgotten_at_a_check() {
    let mut scene = Scene::new();
    scene.synced();
    scene.view(vec![slice("web", Protocol::Tcp, &["10.2.0.1"])]);
    assert_eq!(scene.at(299_999).check().plan(), []);
    let plan = scene.at(300_000).check().plan();
    assert!(
        matches!(plan[..], [MapChange::DeleteEndpoint { .. }]),
        "{plan:?}"
    );
}
