use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use pathproof_facts::cluster::{
    Change, EndpointFacts, NodeFacts, Protocol, ServiceFacts, ServicePort, SliceFacts, SlicePort,
};
use pathproof_facts::directory::Directory;
use pathproof_facts::node_context::{SourcePrefix, address};
use pathproof_wire::service::{Family, SourceClass, frontend_flag};

use super::*;

mod conflicts;
mod departed;
mod properties;
mod tenants;
mod world;

use world::{UNBOUNDED, World};

/// A planner with fewer ids than the maps support.
fn with_ids(ids: u32) -> Planner {
    Planner {
        registry: Registry::new(ids),
        ..Planner::new()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(name: &str, cluster_ip: &str) -> Change {
    Change::Service(Arc::new(service_facts(name, cluster_ip)))
}

fn service_facts(name: &str, cluster_ip: &str) -> ServiceFacts {
    ServiceFacts {
        name: ObjectName::new("ns", name),
        cluster_ips: vec![ip(cluster_ip)],
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        ..ServiceFacts::default()
    }
}

fn gone(name: &str) -> Change {
    Change::ServiceGone(ObjectName::new("ns", name))
}

fn slice(service: &str, endpoints: &[&str]) -> Change {
    let endpoints = endpoints.iter().map(|text| EndpointFacts {
        peer: 0,
        address: address(&ip(text)),
        ready: true,
        serving: true,
        terminating: false,
        local: text.starts_with("10.1."),
    });
    Change::Slice(Arc::new(SliceFacts {
        name: ObjectName::new("ns", &format!("{service}-1")),
        service: service.into(),
        ports: vec![SlicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints: endpoints.collect(),
        fleet: None,
    }))
}

fn node(addresses: &[&str], cidrs: &[&str]) -> Change {
    Change::Node(Arc::new(NodeFacts {
        name: "here".into(),
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        pod_cidrs: cidrs.iter().map(|text| text.parse().unwrap()).collect(),
        ..NodeFacts::default()
    }))
}

fn words(plan: &[MapChange]) -> Vec<String> {
    let at = |a: &Address| IpAddr::from(*a).to_canonical();
    plan.iter()
        .map(|change| match change {
            MapChange::ResetCounts { service } => format!("reset {service}"),
            MapChange::PutSource { prefix, class } => {
                format!("source {}/{} {class:?}", at(&prefix.address), prefix.bits)
            }
            MapChange::DeleteSource { prefix } => format!("no source {}", at(&prefix.address)),
            MapChange::PutEndpoint { key, .. } => format!("{} > {}", key.service, at(&key.address)),
            MapChange::UpdateEndpoint { key, .. } => {
                format!("{} >> {}", key.service, at(&key.address))
            }
            MapChange::PutFrontend { key, value } => {
                format!("{} = {} {:?}", value.service, at(&key.address), value.owed)
            }
            MapChange::DeleteFrontend { key } => format!("no {}", at(&key.address)),
            MapChange::RetireEndpoint { key, .. } => {
                format!("{} left {}", key.service, at(&key.address))
            }
            MapChange::DeleteEndpoint { key } => {
                format!("{} forget {}", key.service, at(&key.address))
            }
        })
        .collect()
}

#[test]
fn endpoints_come_before_frontends_and_go_after() {
    let mut world = World::new();
    let plan = world.apply(vec![
        service("a", "10.96.0.1"),
        slice("a", &["10.2.0.1", "10.2.0.2"]),
    ]);
    assert_eq!(
        words(&plan),
        ["0 > 10.2.0.1", "0 > 10.2.0.2", "0 = 10.96.0.1 [1, 1, 1]"]
    );
    let plan = world.apply(vec![slice("a", &["10.2.0.2", "10.2.0.3"])]);
    assert_eq!(words(&plan), ["0 > 10.2.0.3", "0 left 10.2.0.1"]);
    let plan = world.apply(vec![slice("a", &[])]);
    assert_eq!(
        words(&plan),
        [
            "0 = 10.96.0.1 [3, 3, 3]",
            "0 left 10.2.0.2",
            "0 left 10.2.0.3"
        ]
    );
    let plan = world.apply(vec![gone("a")]);
    assert_eq!(words(&plan), ["no 10.96.0.1"]);
}

#[test]
fn an_unchanged_batch_needs_no_changes() {
    let mut world = World::new();
    let batch = vec![
        node(&["192.168.0.5"], &[]),
        service("a", "10.96.0.1"),
        slice("a", &["10.2.0.1"]),
    ];
    assert!(!world.apply(batch.clone()).is_empty());
    assert_eq!(world.apply(batch), []);
    assert_eq!(world.apply(vec![Change::Synced]), []);
}

#[test]
fn an_endpoint_that_left_is_remembered_and_may_return() {
    let mut world = World::new();
    world.apply(vec![
        service("a", "10.96.0.1"),
        slice("a", &["10.2.0.1", "10.2.0.2"]),
    ]);
    world.apply(vec![slice("a", &["10.2.0.2"])]);
    let since = |world: &World, text: &str| {
        world
            .planner
            .left_since(0, address(&ip(text)), 8080_u16.to_be_bytes())
    };
    assert_eq!(since(&world, "10.2.0.1"), Some(world.now));
    assert_eq!(since(&world, "10.2.0.2"), None);
    world.now = world.now.plus(Duration::from_secs(100));
    let plan = world.apply(vec![slice("a", &["10.2.0.1", "10.2.0.2"])]);
    assert_eq!(words(&plan), ["0 > 10.2.0.1"]);
    assert_eq!(since(&world, "10.2.0.1"), None);
    assert_eq!(world.expire(Duration::from_secs(299)), []);

    world.apply(vec![slice("a", &["10.2.0.2"])]);
    assert_eq!(world.expire(Duration::from_secs(299)), []);
    assert_eq!(
        words(&world.expire(Duration::from_secs(1))),
        ["0 forget 10.2.0.1"]
    );
    assert_eq!(since(&world, "10.2.0.1"), None);
}

#[test]
fn a_service_that_returns_finds_its_id() {
    let mut world = World::new();
    let batch = vec![service("a", "10.96.0.1"), slice("a", &["10.2.0.1"])];
    world.apply(batch.clone());
    world.apply(vec![gone("a")]);
    assert_eq!(world.planner.service(0).map(|info| info.endpoints), Some(0));
    let plan = world.apply(batch);
    assert_eq!(words(&plan), ["0 > 10.2.0.1", "0 = 10.96.0.1 [1, 1, 1]"]);
}

/// A proxy has to write rules for a new frontend, or for the first endpoints. Other changes are none.
#[test]
fn a_port_is_as_old_as_its_newest_frontend() {
    let mut world = World::new();
    let mut at = |seconds: u64, batch: Vec<Change>| {
        world.now = Mono(0).plus(Duration::from_secs(seconds));
        world.apply(batch);
        let since = world.planner.service(0).and_then(|info| info.since);
        since.map(|since| since.since(Mono(0)).as_secs())
    };
    let endpoint = || slice("a", &["10.2.0.1"]);
    assert_eq!(at(1, vec![service("a", "10.96.0.1")]), Some(1));
    assert_eq!(at(2, vec![endpoint()]), Some(2), "the first endpoint");
    let two = slice("a", &["10.2.0.1", "10.2.0.2"]);
    assert_eq!(at(3, vec![two]), Some(2), "another endpoint");
    let moved = service("a", "10.96.0.2");
    assert_eq!(at(4, vec![moved.clone()]), Some(4), "another cluster IP");
    assert_eq!(at(5, vec![slice("a", &[])]), Some(4), "no endpoint");
    assert_eq!(at(6, vec![endpoint()]), Some(6), "an endpoint again");
    assert_eq!(at(7, vec![gone("a")]), Some(6));
    assert_eq!(at(8, vec![moved, endpoint()]), Some(8), "it returns");
}

#[test]
fn a_rested_id_is_given_out_again_after_a_reset() {
    let mut world = World::new();
    world.planner = with_ids(1);
    world.apply(vec![service("a", "10.96.0.1"), slice("a", &["10.2.0.1"])]);
    world.apply(vec![
        gone("a"),
        service("b", "10.96.0.2"),
        slice("b", &["10.2.0.2"]),
    ]);
    assert_eq!(
        world.planner.missing(),
        Missing {
            services: 1,
            ..Missing::default()
        }
    );
    let plan = world.expire(REST);
    assert_eq!(
        words(&plan),
        [
            "0 forget 10.2.0.1",
            "reset 0",
            "0 > 10.2.0.2",
            "0 = 10.96.0.2 [1, 1, 1]"
        ]
    );
    assert_eq!(world.planner.missing(), Missing::default());
    let info = world.planner.service(0).unwrap();
    assert_eq!(
        (info.name.to_string().as_str(), info.endpoints),
        ("ns/b", 1)
    );
}

#[test]
fn an_id_that_rested_twice_at_one_moment_is_given_to_one_service() {
    let mut world = World::new();
    world.planner = with_ids(1);
    let named = |port: &str| {
        let mut facts = service_facts("d", "10.96.0.1");
        facts.ports[0].name = port.into();
        Change::Service(Arc::new(facts))
    };
    world.apply(vec![named("")]);
    world.apply(vec![service("a", "10.96.0.1")]);
    for port in ["x", "", "x"] {
        world.apply(vec![named(port)]);
    }
    let plan = world.expire(REST);
    assert_eq!(words(&plan), ["reset 0", "0 = 10.96.0.1 [3, 3, 3]"]);
    let info = world.planner.service(0).unwrap();
    assert_eq!(info.name.to_string(), "ns/a");
    assert_eq!(world.planner.missing().services, 1);
}

#[test]
fn a_frontend_may_move_within_a_batch() {
    let mut world = World::new();
    world.apply(vec![service("a", "10.96.0.1"), slice("a", &["10.2.0.1"])]);
    let batch = vec![
        gone("a"),
        service("b", "10.96.0.1"),
        slice("b", &["10.2.0.2"]),
    ];
    let plan = world.apply(batch);
    assert_eq!(
        words(&plan),
        ["1 > 10.2.0.2", "1 = 10.96.0.1 [1, 1, 1]", "0 left 10.2.0.1"]
    );
}

/// A tenant who can write a slice can declare any address to be on this node.
#[test]
fn sources_are_ranges_and_addresses_and_no_endpoint() {
    let mut world = World::new();
    world.apply(vec![node(&["192.168.0.5"], &["10.1.0.0/16"])]);
    world.apply(vec![
        service("a", "10.96.0.1"),
        slice("a", &["10.1.0.7", "10.2.0.7", "203.0.113.7"]),
    ]);
    let prefix = |text: &str| SourcePrefix::host(address(&ip(text)));
    let range = SourcePrefix::of(&"10.1.0.0/16".parse().unwrap());
    assert_eq!(range.bits, 112);
    let host = (prefix("192.168.0.5"), SourceClass::Host);
    let both = BTreeMap::from([(range, SourceClass::Pod), host]);
    assert_eq!(world.maps.sources, both);
    let plan = world.apply(vec![node(&["192.168.0.5"], &[])]);
    assert_eq!(words(&plan), ["no source 10.1.0.0"]);
    world.apply(vec![node(&["192.168.0.5"], &["10.1.0.0/16"])]);
    assert_eq!(world.maps.sources, both);
    let flagged = |world: &World| {
        world
            .maps
            .frontends
            .values()
            .any(|value| value.flags & frontend_flag::HOST_ENDPOINT != 0)
    };
    assert!(!flagged(&world));
    world.apply(vec![slice("a", &["192.168.0.5"])]);
    assert!(flagged(&world));
    world.apply(vec![node(&["192.168.0.6"], &[])]);
    assert!(!flagged(&world));
}

#[test]
fn a_full_map_withholds_frontends_and_lets_go_of_what_left() {
    let mut world = World::new();
    world.maps.room = [3; 3];
    world.apply(vec![
        service("a", "10.96.0.1"),
        slice("a", &["10.2.0.1", "10.2.0.2"]),
    ]);
    world.apply(vec![
        service("b", "10.96.0.2"),
        slice("b", &["10.2.0.3", "10.2.0.4"]),
    ]);
    assert_eq!(
        world.planner.missing(),
        Missing {
            frontends: 1,
            endpoints: 1,
            ..Missing::default()
        }
    );
    assert_eq!(world.maps.frontends.len(), 1);
    // Removed endpoints make room at once rather than after their rest.
    world.apply(vec![slice("a", &["10.2.0.1"])]);
    world.expire(REST);
    assert_eq!(world.planner.missing(), Missing::default());
    assert_eq!(world.maps.frontends.len(), 2);
    assert_eq!(world.planner.endpoint_count(), 3);
    assert_eq!(world.planner.frontend_count(), 2);
}

#[test]
fn a_source_that_found_no_place_takes_that_of_one_that_goes() {
    let mut world = World::new();
    world.maps.room = [1; 3];
    let prefixes = ["10.1.0.0/16", "10.2.0.0/16"];
    world.apply(vec![node(&[], &prefixes)]);
    assert_eq!(world.planner.missing().sources, 1);
    let installed =
        |world: &World| -> Vec<SourcePrefix> { world.maps.sources.keys().copied().collect() };
    let first = installed(&world);
    let other = prefixes.into_iter().find(|prefix| {
        let net = prefix.parse().unwrap();
        first != [SourcePrefix::of(&net)]
    });
    let other = other.unwrap();
    world.apply(vec![node(&[], &[other])]);
    assert_eq!(world.planner.missing().sources, 0);
    assert_eq!(
        installed(&world),
        [SourcePrefix::of(&other.parse().unwrap())]
    );
}

#[test]
fn adoption_of_what_is_right_changes_nothing() {
    let mut world = World::new();
    world.apply(vec![
        node(&["192.168.0.5"], &["10.1.0.0/16"]),
        service("b", "10.96.0.2"),
        slice("b", &["10.2.0.3"]),
    ]);
    world.apply(vec![service("a", "10.96.0.1"), slice("a", &["10.2.0.1"])]);
    world.apply(vec![slice("b", &["10.2.0.4"])]);
    let mut heir = Planner::new();
    assert_eq!(
        heir.adopt(&world.view, world.maps.installed(), world.now),
        []
    );
    assert_eq!(heir.service(0).unwrap().name.to_string(), "ns/b");
    assert_eq!(heir.retired.len(), 1);
    assert_eq!((heir.frontend_count(), heir.endpoint_count()), (2, 2));
}

#[test]
fn adoption_repairs_what_differs() {
    let mut world = World::new();
    world.apply(vec![service("a", "10.96.0.1"), slice("a", &["10.2.0.1"])]);
    world.apply(vec![service("b", "10.96.0.2"), slice("b", &["10.2.0.2"])]);
    let mut view = ClusterView::new();
    view.apply(vec![
        service("b", "10.96.0.2"),
        slice("b", &["10.2.0.5"]),
        service("c", "10.96.0.3"),
        slice("c", &["10.2.0.1"]),
    ]);
    let mut heir = Planner::new();
    let plan = heir.adopt(&view, world.maps.installed(), world.now);
    assert_eq!(
        words(&plan),
        [
            "1 > 10.2.0.5",
            "reset 2",
            "2 > 10.2.0.1",
            "2 = 10.96.0.3 [1, 1, 1]",
            "no 10.96.0.1",
            "1 left 10.2.0.2",
            "0 forget 10.2.0.1",
        ]
    );
    assert!(world.maps.run(&plan, false).is_empty());
    assert_eq!(heir.service(0).map(|info| info.endpoints), None);
}

#[test]
fn families_have_ids_of_their_own() {
    let mut world = World::new();
    let mut dual = service_facts("a", "10.96.0.1");
    dual.cluster_ips.push(ip("fd00:96::1"));
    world.apply(vec![
        Change::Service(Arc::new(dual)),
        slice("a", &["10.2.0.1"]),
    ]);
    let family = |id| world.planner.service(id).unwrap().family;
    assert_eq!((family(0), family(1)), (Family::V4, Family::V6));
}
