//! Obstacles in the kernel's routes and neighbour tables, and lookups that accuse no node.

use pathproof_facts::cause::{Cause, Failure, State};
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{Family, FrontendKind, SourceClass};
use pathproof_witness::evidence::{Client, Lookup, Place, Success, Way};
use rstest::rstest;

use super::scene::{Scene, ms};
use super::world::ip;
use crate::effect::{Effect, ReadEffect};
use crate::event::{Event, KernelSample};

const DEVICE: u32 = 2;

fn client(address: &str) -> Client {
    Client {
        address: ip(address),
        class: SourceClass::Pod,
        device: DEVICE,
    }
}

/// A pod was served through this interface.
fn served(device: u32) -> Scene {
    let mut scene = Scene::probed();
    scene.topology();
    scene.later(250).counted("web", &[Outcome::Proven; 5]);
    let served = Success {
        family: Family::V4,
        class: SourceClass::Pod,
        kind: FrontendKind::ClusterIp,
        place: Place::Near,
        at: ms(0),
        answered: None,
        data_answered: None,
        client: Some((ip("10.1.0.7"), device)),
    };
    let effects = scene.sample(KernelSample {
        successes: vec![served],
        ..KernelSample::default()
    });
    assert!(effects.has("look up"), "{:?}", effects.names());
    scene
}

/// The kernel showed an open path, and then connections fail.
fn losing() -> Scene {
    let mut scene = served(DEVICE);
    scene.feed(Event::Lookups(vec![ways("10.1.0.7", &[Way::Open])]));
    for _ in 0..5 {
        lose(&mut scene);
    }
    scene
}

fn lose(scene: &mut Scene) -> Vec<Client> {
    let lost = scene.later(500).failed_connection(Failure::Lost);
    let effects = scene.sighted(lost).0;
    let asked = effects.into_iter().filter_map(|effect| match effect {
        Effect::Read(ReadEffect::LookUp(clients)) => Some(clients),
        _ => None,
    });
    asked.flatten().collect()
}

/// These lookup results, repeated for 4 s.
fn shown(scene: &mut Scene, lookups: &[Lookup]) -> State {
    for _ in 0..8 {
        lose(scene);
        scene.feed(Event::Lookups(lookups.to_vec()));
    }
    scene.state()
}

fn ways(address: &str, ways: &[Way]) -> Lookup {
    let ways = ways.iter().map(|way| (vec!["demo"], *way));
    Lookup::of(client(address), ways)
}

const SILENT: Way = Way::Blocked(Cause::NoNeighbour);
const CUT: Way = Way::Blocked(Cause::NoRoute);

#[rstest]
#[case::all(&[CUT, CUT], State::Broken)]
#[case::most(&[SILENT, SILENT, Way::Unclear], State::Broken)]
#[case::a_single_endpoint(&[CUT], State::Suspect)]
#[case::another_is_open(&[SILENT, SILENT, SILENT, Way::Open], State::Suspect)]
#[case::as_many_are_quiet(&[SILENT, SILENT, Way::Unclear, Way::Unclear], State::Suspect)]
#[case::the_kernel_does_not_show_it(&[Way::Unclear, Way::Unclear], State::Suspect)]
fn what_the_kernel_shows(#[case] found: &[Way], #[case] expected: State) {
    let mut scene = losing();
    assert_eq!(shown(&mut scene, &[ways("10.1.0.7", found)]), expected);
}

#[rstest]
#[case::as_it_dials(DEVICE, State::Broken)]
#[case::of_another_interface(3, State::Suspect)]
fn a_reverse_path_worked_before(#[case] device: u32, #[case] expected: State) {
    let mut scene = served(device);
    scene.feed(Event::Lookups(vec![ways("10.1.0.7", &[Way::Open])]));
    let filtered = ways("10.1.0.7", &[Way::Blocked(Cause::ReversePath); 2]);
    assert_eq!(shown(&mut scene, &[filtered]), expected);
}

#[test]
fn every_client_has_to_be_blocked() {
    let mut scene = losing();
    let both = [
        ways("10.1.0.7", &[CUT, CUT]),
        ways("10.1.0.8", &[CUT, Way::Open]),
    ];
    assert_eq!(shown(&mut scene, &both), State::Suspect);
}

/// An operator may give unknown clients no route, and anybody can forge source addresses.
#[test]
fn a_client_that_was_never_served_accuses_nobody() {
    let mut scene = losing();
    let stranger = ways("10.1.0.9", &[CUT, CUT]);
    assert_eq!(shown(&mut scene, &[stranger]), State::Suspect);
}

/// Packet marks may select other routes than a lookup finds. So lookups count only if they showed open
/// paths before.
#[test]
fn lookups_count_only_if_they_showed_open_ways_before() {
    let mut scene = served(DEVICE);
    scene.feed(Event::Lookups(vec![ways("10.1.0.7", &[CUT, CUT])]));
    assert_eq!(
        shown(&mut scene, &[ways("10.1.0.7", &[CUT, CUT])]),
        State::Suspect
    );
}

/// Clients outside arrive by another interface, and may not depend on netfilter at a bridge. So a
/// successful lookup for them does not show that lookups for pods succeed.
#[rstest]
#[case::of_the_same_class(SourceClass::Pod, State::Broken)]
#[case::of_another_class(SourceClass::External, State::Suspect)]
fn open_ways_speak_for_one_class_of_clients(#[case] class: SourceClass, #[case] expected: State) {
    let mut scene = served(DEVICE);
    let mut open = ways("10.1.0.7", &[Way::Open]);
    open.client.class = class;
    scene.feed(Event::Lookups(vec![open]));
    let unfiltered = ways("10.1.0.7", &[Way::Blocked(Cause::BridgeFilter); 2]);
    assert_eq!(shown(&mut scene, &[unfiltered]), expected);
}

#[test]
fn a_neighbour_may_need_a_moment() {
    let mut scene = losing();
    scene.feed(Event::Lookups(vec![ways("10.1.0.7", &[SILENT, SILENT])]));
    scene.later(900).idle();
    assert_eq!(scene.state(), State::Suspect);
    scene.feed(Event::Lookups(vec![ways("10.1.0.7", &[SILENT, Way::Open])]));
    scene.later(900).idle();
    assert_eq!(scene.state(), State::Suspect);
}

/// Without new connections, the same clients are looked up until their paths are open.
#[test]
fn it_lasts_until_the_kernel_shows_that_it_is_over() {
    let mut scene = losing();
    let asked = lose(&mut scene);
    assert_eq!(asked, [client("10.1.0.7")]);
    assert_eq!(
        shown(&mut scene, &[ways("10.1.0.7", &[CUT, CUT])]),
        State::Broken
    );
    for _ in 0..60 {
        let effects = scene.later(1000).idle();
        assert!(effects.has("look up"), "{:?}", effects.names());
        scene.feed(Event::Lookups(vec![ways("10.1.0.7", &[CUT, CUT])]));
    }
    assert_eq!(scene.state(), State::Broken);
    scene.feed(Event::Lookups(vec![ways("10.1.0.7", &[Way::Open; 2])]));
    assert_ne!(scene.state(), State::Broken);
}

/// The pods may be gone. Without connections nothing would show this, so the obstacle expires.
#[test]
fn it_ends_after_a_while_without_a_connection() {
    let mut scene = losing();
    let silent = ways("10.1.0.7", &[SILENT, SILENT]);
    assert_eq!(
        shown(&mut scene, std::slice::from_ref(&silent)),
        State::Broken
    );
    for _ in 0..310 {
        scene.later(1000).idle();
    }
    assert_ne!(scene.state(), State::Broken);
    assert!(!scene.later(1000).idle().has("look up"));
}

#[test]
fn nobody_is_looked_up_while_others_succeed() {
    let mut scene = losing();
    scene.later(250).counted("web", &[Outcome::Proven]);
    let mut lost = scene.failed_connection(Failure::Lost);
    lost.arrived = ms(scene.now() - 1000);
    assert!(!scene.later(500).sighted(lost).has("look up"));
}
