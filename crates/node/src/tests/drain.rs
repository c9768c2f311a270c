//! New connections from outside while the node is leaving, and what hides them.

use pathproof_facts::node_context::address;
use pathproof_judge::drain::{Arrival, Outside, ProbeRanges};
use pathproof_witness::coverage::{Hooks, ObserverStart};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::event::{Event, KernelSample};

fn arrivals(scene: &mut Scene, clients: &[&str]) -> Effects {
    let at = ms(scene.now());
    let arrival = |text: &&str| Arrival {
        at,
        client: address(&ip(text)),
    };
    scene.sample(KernelSample {
        outside: Outside {
            until: at,
            arrivals: clients.iter().map(arrival).collect(),
        },
        ..KernelSample::default()
    })
}

#[test]
fn connections_count_from_when_the_node_leaves() {
    let mut scene = Scene::probed();
    arrivals(&mut scene, &["203.0.113.7"]);
    scene.later(1_000).view(vec![tainted(&[TAINT])]);
    let since = ms(scene.now());
    assert_eq!(scene.node.drain().since, Some(since));
    arrivals(&mut scene, &["203.0.113.7", "2001:db8::7"]);
    let drain = scene.node.drain();
    assert_eq!((drain.connections, drain.counted), (2, [2, 1]));
    assert_eq!((drain.last, drain.seen), (Some(since), Some(since)));
    assert_eq!(drain.blind, None);
    scene.view(vec![tainted(&[])]);
    assert_eq!(scene.node.drain().since, None);
}

#[test]
fn those_of_load_balancers_that_probe_do_not_count() {
    let ranges = ProbeRanges::new(["130.211.0.0/22".parse().unwrap()]);
    let mut scene = Scene::probed_with(|settings, _| settings.drain_ignore = ranges);
    arrivals(&mut scene, &["130.211.0.9", "203.0.113.7"]);
    let drain = scene.node.drain();
    assert_eq!((drain.ignored, drain.counted), (1, [1, 0]));
}

/// Whether connections may be unobserved after these events.
fn blind(scene: &mut Scene) -> bool {
    arrivals(scene, &[]);
    scene.node.drain().blind.is_some()
}

fn edited(edit: fn(&mut Hooks)) -> Event {
    let mut hooks = hooks();
    edit(&mut hooks);
    Event::Hooks(hooks)
}

#[rstest]
#[case::all_is_seen(edited(|_| ()), false)]
#[case::a_pod_is_not_seen(edited(|hooks| hooks.devices[1].attached = false), false)]
#[case::an_uplink_is_not_seen(edited(|hooks| hooks.devices[0].attached = false), true)]
#[case::nothing_is_seen(edited(|hooks| hooks.devices.clear()), true)]
#[case::an_interface_is_left_out(edited(|hooks| hooks.left_out = 1), false)]
#[case::it_may_be_the_uplink(edited(|hooks| {
    hooks.left_out = 1;
    hooks.devices[0].uplink = false;
}), true)]
#[case::there_is_no_uplink(edited(|hooks| hooks.devices[0].uplink = false), false)]
fn the_ways_from_outside_have_to_be_observed(#[case] event: Event, #[case] is_blind: bool) {
    let mut scene = Scene::probed();
    scene.feed(event);
    assert_eq!(blind(&mut scene), is_blind);
    scene.feed(Event::Hooks(hooks()));
    assert!(!blind(&mut scene), "it ends");
}

#[rstest]
#[case::never_complete(false, true)]
#[case::goes_on_with_maps(true, false)]
fn the_frontends_have_to_be_known(#[case] continues: bool, #[case] is_blind: bool) {
    let mut scene = Scene::with(|_, start| start.observer.continues = continues);
    scene.feed(Event::Hooks(hooks()));
    assert_eq!(blind(&mut scene), is_blind);
    scene.synced();
    assert!(!blind(&mut scene));
}

#[test]
fn a_view_of_the_sentinel_alone_shows_no_services() {
    let mut scene = Scene::probed_with(|settings, _| settings.watches_services = false);
    assert!(blind(&mut scene));
}

#[test]
fn connections_that_were_not_followed_may_be_from_outside() {
    use pathproof_wire::evidence::{FAULTS, Fault};
    for (fault, hides) in [(Fault::PendingFull, true), (Fault::OverBudget, false)] {
        let mut scene = Scene::probed();
        let mut faults = [0; FAULTS];
        faults[fault as usize] = 1;
        let sample = KernelSample {
            faults,
            ..KernelSample::default()
        };
        scene.later(250).sample(sample);
        assert_eq!(scene.node.drain().blind.is_some(), hides);
    }
}

#[test]
fn without_an_observer_nothing_is_seen() {
    let mut scene = Scene::with(|_, start| {
        start.observer = ObserverStart {
            blind: Some("no BTF".to_owned()),
            ..ObserverStart::default()
        };
    });
    scene.feed(Event::Tick);
    let drain = scene.node.drain();
    assert!(drain.blind.as_ref().unwrap().contains("no BTF"));
    assert_eq!(drain.seen, None);
}

/// Removed hooks missed connections, so the quiet time begins again.
#[test]
fn a_repair_of_hooks_begins_the_quiet_time_anew() {
    let mut scene = Scene::probed();
    arrivals(&mut scene, &[]);
    let watched = scene.node.drain().watched;
    scene.later(5_000);
    arrivals(&mut scene, &[]);
    assert_eq!(scene.node.drain().watched, watched);
    let checked = ms(scene.now() - 100);
    scene.feed(Event::HooksRepaired(checked));
    assert_eq!(
        scene.node.drain().watched,
        Some(ms(scene.now())),
        "up to now"
    );
    arrivals(scene.later(250), &[]);
    assert_eq!(scene.node.drain().watched, Some(ms(scene.now() - 250)));
}
