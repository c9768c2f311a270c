//! Which endpoints of this node are looked up, and what is remembered of them.

use std::net::IpAddr;

use pathproof_facts::cluster::Change;
use pathproof_witness::coverage::{Hook, Hooks};
use pathproof_witness::evidence::{EndpointRoute, EndpointRoutes};

use super::scene::Scene;
use super::world::{ip, pod_probe};
use crate::effect::{Effect, ReadEffect};
use crate::event::Event;

/// The endpoint of the pod probe on this node.
const POD: &str = "10.2.9.9";

/// The lookups that a check asks for, and the endpoints that left.
fn asked(scene: &mut Scene) -> Option<(Vec<IpAddr>, Vec<IpAddr>)> {
    let effects = scene.later(5_000).check().0.into_iter();
    let mut asked = effects.filter_map(|effect| match effect {
        Effect::Read(ReadEffect::Routes { endpoints, left }) => Some((endpoints, left)),
        _ => None,
    });
    asked.next()
}

fn led_by(scene: &mut Scene, device: &str, left: Vec<IpAddr>) {
    let route = EndpointRoute {
        endpoint: ip(POD),
        device: device.to_owned(),
    };
    let routes = Vec::from_iter(left.is_empty().then_some(route));
    scene.feed(Event::EndpointRoutes(EndpointRoutes { routes, left }));
}

fn observed(scene: &mut Scene, devices: &[&str]) {
    let hook = |name: &&str| Hook {
        device: (*name).to_owned(),
        uplink: *name == "eth0",
        ..Hook::default()
    };
    scene.feed(Event::Hooks(Hooks {
        devices: devices.iter().map(hook).collect(),
        ..Hooks::default()
    }));
}

#[test]
fn an_endpoint_is_looked_up_until_a_pods_device_leads_to_it() {
    let mut scene = Scene::new();
    observed(&mut scene, &["eth0", "veth7"]);
    // Asked for at once, so that from here on only endpoints with a known device count.
    assert_eq!(asked(&mut scene), Some((vec![], vec![])));
    led_by(&mut scene, "eth0", vec![]);
    scene.synced();
    scene.view(pod_probe(true).into());
    assert_eq!(asked(&mut scene), Some((vec![ip(POD)], vec![])));
    led_by(&mut scene, "eth0", vec![]);
    assert_eq!(asked(&mut scene), Some((vec![ip(POD)], vec![])));
    led_by(&mut scene, "veth7", vec![]);
    assert_eq!(asked(&mut scene), None);

    observed(&mut scene, &["eth0"]);
    assert_eq!(
        asked(&mut scene),
        Some((vec![ip(POD)], vec![])),
        "its device is gone"
    );
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
    led_by(&mut scene, "veth7", vec![]);
    scene.view(vec![gone]);
    assert_eq!(asked(&mut scene), Some((vec![], vec![ip(POD)])));
    led_by(&mut scene, "veth7", vec![ip(POD)]);
    assert_eq!(asked(&mut scene), None);
}
