//! Which endpoints of this node are looked up, and what is remembered of them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use pathproof_facts::cause::Cause;
use pathproof_facts::cluster::{Change, ObjectName, Protocol};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::evidence::{
    Client, EndpointRoute, EndpointRoutes, EndpointsAsked, Lookup, Way,
};
use rstest::rstest;

use super::scene::{Effects, Scene};
use super::world::{hooks, ip, local_slice, pod_probe};
use crate::effect::{Effect, ReadEffect};
use crate::event::Event;
use crate::replay::replay;

/// The endpoint of the pod probe on this node.
const POD: &str = "10.2.9.9";

/// Runs a check and returns the requested lookups.
fn asked(scene: &mut Scene) -> Option<EndpointsAsked> {
    asked_by(scene.later(5_000).check())
}

fn asked_by(effects: Effects) -> Option<EndpointsAsked> {
    let mut asked = effects.0.into_iter().filter_map(|effect| match effect {
        Effect::Read(ReadEffect::Routes(asked)) => Some(asked),
        _ => None,
    });
    asked.next()
}

fn read(scene: &mut Scene, read: EndpointRoutes) {
    scene.feed(Event::EndpointRoutes(read));
}

/// Number of endpoints that are remembered.
fn known(scene: &Scene) -> usize {
    scene.node.judge().ledger.endpoint_devices.known().len()
}

fn by_veth(endpoint: IpAddr) -> EndpointRoute {
    EndpointRoute {
        endpoint,
        device: "veth7".to_owned(),
        index: 7,
        is_own: true,
    }
}

fn led_by_veth(scene: &mut Scene, endpoints: &[IpAddr]) {
    let routes = endpoints.iter().copied().map(by_veth).collect();
    read(
        scene,
        EndpointRoutes {
            routes,
            ..EndpointRoutes::default()
        },
    );
}

/// Endpoints of this node in a slice of this namespace.
fn listed_by(namespace: &str, endpoints: &[IpAddr]) -> Change {
    let endpoints: Vec<String> = endpoints.iter().map(IpAddr::to_string).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let Change::Slice(mut facts) = local_slice("web", Protocol::Tcp, &endpoints) else {
        unreachable!("a slice");
    };
    Arc::make_mut(&mut facts).name = ObjectName::new(namespace, "web-1");
    Change::Slice(facts)
}

/// Addresses of 10.3.0.0/16.
fn addresses(third: u8, last: std::ops::RangeInclusive<u8>) -> Vec<IpAddr> {
    last.map(|last| IpAddr::from([10, 3, third, last]))
        .collect()
}

/// The first question comes at once, so that from then on only known endpoints count.
#[test]
fn an_endpoint_is_looked_up_until_a_pods_device_leads_to_it() {
    let mut scene = Scene::new();
    assert_eq!(asked(&mut scene), Some(EndpointsAsked::default()));
    read(&mut scene, EndpointRoutes::default());
    assert_eq!(asked(&mut scene), None);
    scene.synced();
    scene.view(pod_probe(true).into());
    let unknown = EndpointsAsked {
        endpoints: vec![ip(POD)],
        ..EndpointsAsked::default()
    };
    assert_eq!(asked(&mut scene), Some(unknown.clone()));
    read(&mut scene, EndpointRoutes::default());
    assert_eq!(asked(&mut scene), Some(unknown.clone()));
    led_by_veth(&mut scene, &[ip(POD)]);
    let known = EndpointsAsked {
        devices: vec![7],
        ..EndpointsAsked::default()
    };
    assert_eq!(asked(&mut scene), Some(known));
    let gone = EndpointRoutes {
        gone: vec![7],
        ..EndpointRoutes::default()
    };
    read(&mut scene, gone);
    assert_eq!(asked(&mut scene), Some(unknown), "its device is gone");
}

/// A deleted pod may stay listed. Connections to it would count before the next check.
#[test]
fn devices_are_looked_up_at_once_when_interfaces_change() {
    let mut scene = Scene::new();
    scene.feed(Event::Hooks(hooks()));
    led_by_veth(&mut scene, &[ip(POD)]);
    assert_eq!(asked_by(scene.feed(Event::Hooks(hooks()))), None);
    let mut fewer = hooks();
    fewer.devices.pop();
    let known = EndpointsAsked {
        devices: vec![7],
        ..EndpointsAsked::default()
    };
    assert_eq!(asked_by(scene.feed(Event::Hooks(fewer))), Some(known));
}

/// While a bridge has no default route, it cannot be told from a bridge to pods.
#[test]
fn endpoints_behind_a_new_uplink_are_forgotten() {
    let mut scene = Scene::new();
    led_by_veth(&mut scene, &[ip(POD)]);
    let mut changed = hooks();
    changed.devices[1].device = "veth7".to_owned();
    scene.feed(Event::Hooks(changed.clone()));
    assert_eq!(known(&scene), 1);
    changed.devices[1].uplink = true;
    scene.feed(Event::Hooks(changed));
    assert_eq!(known(&scene), 0);
}

#[test]
fn endpoints_that_left_are_forgotten() {
    let mut scene = Scene::new();
    scene.synced();
    let [service, slice] = pod_probe(true);
    let Change::Slice(facts) = &slice else {
        panic!("{slice:?}");
    };
    let gone = Change::SliceGone {
        slice: facts.name.clone(),
        service: facts.service.clone(),
    };
    scene.view(vec![service, slice]);
    led_by_veth(&mut scene, &[ip(POD)]);
    scene.view(vec![gone]);
    let left = vec![ip(POD)];
    assert_eq!(
        asked(&mut scene).map(|asked| asked.left),
        Some(left.clone())
    );
    let read_left = EndpointRoutes {
        left,
        ..EndpointRoutes::default()
    };
    read(&mut scene, read_left);
    assert_eq!(asked(&mut scene), None);
}

/// A Service lists 500 addresses outside, which are looked up in vain at each check.
#[test]
fn one_namespace_does_not_delay_the_others() {
    let mut scene = Scene::new();
    scene.synced();
    let many: Vec<String> = (0..500)
        .map(|n| format!("203.0.{}.{}", n / 250, n % 250 + 1))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    scene.view(vec![local_slice("web", Protocol::Tcp, &many)]);
    scene.view(pod_probe(true).into());
    let first = asked(&mut scene).expect("lookups").endpoints;
    assert!(first.contains(&ip(POD)) && first.len() <= 32, "{first:?}");
    let second = asked(&mut scene).expect("lookups").endpoints;
    let again = |endpoint: &&IpAddr| first.contains(endpoint);
    assert_eq!(second.iter().filter(again).count(), 1, "all others in turn");
    // The number of known endpoints per namespace is limited as well.
    for _ in 0..40 {
        let endpoints = asked(&mut scene).map_or_else(Vec::new, |asked| asked.endpoints);
        led_by_veth(&mut scene, &endpoints);
    }
    let known = known(&scene);
    assert!((256..300).contains(&known), "{known}");
}

#[test]
fn lookups_for_many_namespaces_are_bounded() {
    let mut scene = Scene::new();
    scene.synced();
    let slices = (0..48).map(|n| {
        let endpoints = [1, 2].map(|last| ip(&format!("10.3.{n}.{last}")));
        listed_by(&format!("tenant-{n}"), &endpoints)
    });
    scene.view(slices.collect());
    let mut all = BTreeSet::new();
    for _ in 0..3 {
        let endpoints = asked(&mut scene).expect("lookups").endpoints;
        assert_eq!(endpoints.len(), 32);
        all.extend(endpoints);
    }
    assert_eq!(all.len(), 96, "each of them in turn");
}

/// The tenant lists free addresses, as many as are remembered of one namespace, and pods of twelve others.
#[test]
fn a_tenant_who_lists_pods_of_others_takes_none_of_their_room() {
    let mut scene = Scene::new();
    scene.synced();
    let (free, pods) = (addresses(0, 0..=255), addresses(1, 1..=12));
    scene.view(vec![listed_by("tenant", &free)]);
    led_by_veth(&mut scene, &free);
    let mut slices = vec![listed_by("tenant", &[&free[..], &pods].concat())];
    let own = (0..).zip(&pods);
    slices.extend(own.map(|(n, pod)| listed_by(&format!("shop-{n}"), &[*pod])));
    scene.view(slices);
    let endpoints = asked(&mut scene).expect("lookups").endpoints;
    assert_eq!(BTreeSet::from_iter(endpoints), BTreeSet::from_iter(pods));
}

/// All pods of these namespaces are cut off. The tenant lists addresses outside, which the uplink reaches, free
/// addresses behind the pods' device, of which the kernel shows nothing, and some of those pods.
#[rstest]
#[case::lists_no_pod(&["shop", "till"], 255, 0, true)]
#[case::lists_all_pods(&["shop", "till"], 255, 8, true)]
#[case::lists_only_pods(&["shop", "till"], 0, 8, true)]
#[case::lists_some_pods_of_one_namespace(&["shop"], 0, 4, false)]
#[case::lists_all_pods_of_one_namespace(&["shop"], 0, 8, false)]
fn a_tenant_neither_hides_nor_adds_a_namespace_that_is_cut_off(
    #[case] namespaces: &[&str],
    #[case] free: u8,
    #[case] also_listed: usize,
    #[case] expected: bool,
) {
    let mut scene = Scene::new();
    scene.synced();
    let free = addresses(0, 1..=free);
    let outside = (0..=255).map(|last| IpAddr::from([203, 0, 113, last]));
    let mut by_tenant: Vec<IpAddr> = free.iter().copied().chain(outside).collect();
    let (mut slices, mut cut) = (Vec::new(), Vec::new());
    for (third, namespace) in (1..).zip(namespaces) {
        let pods = addresses(third, 1..=8);
        slices.push(listed_by(namespace, &pods));
        by_tenant.extend(&pods[..also_listed]);
        cut.extend(pods);
    }
    slices.push(listed_by("tenant", &by_tenant));
    scene.view(slices);
    led_by_veth(&mut scene, &[&free[..], &cut].concat());
    let client = Client {
        address: ip("10.1.0.7"),
        class: SourceClass::Pod,
        device: 2,
    };
    let way = |endpoint: &IpAddr| match endpoint {
        cut_off if cut.contains(cut_off) => Way::Blocked(Cause::NoRoute),
        led if free.contains(led) => Way::Unclear,
        _ => Way::Open,
    };
    let here = scene.node.endpoints_here(Family::V4).into_iter();
    let ways = here.map(|(endpoint, listed_by)| (listed_by, way(&endpoint)));
    let lookup = Lookup::of(client, ways);
    assert_eq!(lookup.is_blocked(2), expected, "{lookup:?}");
}

/// The first reading changes something even if it is empty: from then on only known endpoints count.
#[test]
fn readings_that_change_nothing_are_not_recorded() {
    let mut scene = Scene::probed();
    let events = |scene: &Scene| replay(&scene.node.recording(), None).unwrap().events;
    let before = events(&scene);
    read(&mut scene, EndpointRoutes::default());
    assert_eq!(events(&scene), before + 1);
    read(scene.later(500), EndpointRoutes::default());
    assert_eq!(events(&scene), before + 1);
    led_by_veth(&mut scene, &[ip(POD)]);
    assert_eq!(events(&scene), before + 2);
    read(scene.later(500), EndpointRoutes::default());
    // A new part of the recording begins with the judge.
    scene.later(60_000).idle();
    let replayed = replay(&scene.node.recording(), None).unwrap();
    assert_eq!(replayed.differs, None);
    assert!(replayed.last.judge().ledger.endpoint_devices.is_read());
}
