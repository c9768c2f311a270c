//! Frontends with more than one Service.

use rstest::rstest;

use super::*;

/// A Service with an external IP.
fn conflicting(name: &str, cluster_ip: &str, external_ip: &str) -> Change {
    let mut facts = service_facts(name, cluster_ip);
    facts.external_ips = vec![ip(external_ip)];
    Change::Service(Arc::new(facts))
}

/// Services by frontend.
fn conflicts(planner: &Planner) -> Vec<String> {
    let name =
        |service: Option<&ObjectName>| service.map_or("node".to_owned(), ObjectName::to_string);
    let conflicts = planner.conflicts();
    let said = conflicts.map(|FrontendConflict { frontend, parties }| {
        let at = IpAddr::from(frontend.address).to_canonical();
        format!("{at}: {} {}", name(parties[0]), name(parties[1]))
    });
    said.collect()
}

/// The frontend has no holder until only one Service is left, whichever came first.
#[rstest]
#[case::the_claim_goes("b", "0 = 10.96.0.1 [1, 1, 1]")]
#[case::the_other_goes("a", "1 = 10.96.0.1 [1, 1, 1]")]
fn a_frontend_that_two_services_use_is_in_no_map(#[case] goes: &str, #[case] back: &str) {
    let first = vec![service("a", "10.96.0.1"), slice("a", &["10.2.0.1"])];
    let second = vec![
        conflicting("b", "10.96.0.2", "10.96.0.1"),
        slice("b", &["10.2.0.2"]),
    ];
    let mut world = World::new();
    world.apply(first.clone());
    let plan = world.apply(second.clone());
    let voided = ["1 > 10.2.0.2", "1 = 10.96.0.2 [1, 1, 1]", "no 10.96.0.1"];
    assert_eq!(words(&plan), voided);
    assert_eq!(conflicts(&world.planner), ["10.96.0.1: ns/a ns/b"]);
    assert_eq!(world.planner.frontend_count(), 1);
    // Other changes of either Service do not matter.
    let plan = world.apply(vec![slice("a", &["10.2.0.1", "10.2.0.3"])]);
    assert_eq!(words(&plan), ["0 > 10.2.0.3"]);
    let plan = world.apply(vec![gone(goes)]);
    assert!(words(&plan).contains(&back.to_owned()), "{plan:?}");
    assert_eq!(conflicts(&world.planner), [""; 0]);

    // The conflict begins in one batch, and is found again after a restart.
    let mut world = World::new();
    let plan = world.apply([second, first].concat());
    assert!(!words(&plan).iter().any(|word| word.contains("10.96.0.1")));
    let mut heir = Planner::new();
    let plan = heir.adopt(&world.view, world.maps.installed(), world.now);
    assert!(!words(&plan).iter().any(|word| word.contains("10.96.0.1")));
    assert_eq!(conflicts(&heir), ["10.96.0.1: ns/a ns/b"]);
}

/// While Services come and go, a conflict lasts until one is left. A shared endpoint, or two ports of one
/// Service, are no conflict.
#[test]
fn a_contest_lasts_as_long_as_two_are_in_it() {
    let mut world = World::new();
    world.apply(vec![
        service("a", "10.96.0.1"),
        slice("a", &["10.2.0.1"]),
        conflicting("b", "10.96.0.2", "10.96.0.1"),
        slice("b", &["10.2.0.1"]),
    ]);
    let plan = world.apply(vec![gone("a"), conflicting("c", "10.96.0.3", "10.96.0.1")]);
    assert!(!words(&plan).iter().any(|word| word.contains("10.96.0.1")));
    assert_eq!(conflicts(&world.planner), ["10.96.0.1: ns/b ns/c"]);
    world.apply(vec![gone("c")]);
    assert_eq!(world.maps.frontends.len(), 2);

    let mut world = World::new();
    let mut twice = service_facts("a", "10.96.0.1");
    let mut port = twice.ports[0].clone();
    port.name = "x".into();
    twice.ports.push(port);
    world.apply(vec![Change::Service(Arc::new(twice))]);
    assert_eq!(world.maps.frontends.len(), 1);
    assert_eq!(conflicts(&world.planner), [""; 0]);
}

/// Failures of both Services are excused after the beginning of a conflict, and after its end.
#[test]
fn conflicts_are_dated() {
    let mut world = World::new();
    let changed = |world: &World, id: u32| world.planner.service(id).unwrap().conflict_changed;
    world.apply(vec![service("a", "10.96.0.1"), service("c", "10.96.0.3")]);
    assert_eq!(changed(&world, 0), None);
    world.apply(vec![conflicting("b", "10.96.0.2", "10.96.0.1")]);
    let begun = Some(world.now);
    assert_eq!(
        [0, 1, 2].map(|id| changed(&world, id)),
        [begun, None, begun]
    );
    world.now = world.now.plus(Duration::from_secs(60));
    world.apply(vec![gone("b")]);
    assert_eq!(changed(&world, 0), Some(world.now));
}

/// The sentinel's probes are followed one by one, so it keeps its frontends, whoever uses them
/// before or after.
#[rstest]
#[case::before(true)]
#[case::after(false)]
fn the_sentinels_frontends_stay_its_own(#[case] before: bool) {
    let mut world = World::new();
    world.planner = Planner::new().with_sentinel(Some(ObjectName::new("ns", "s")));
    let sentinel = vec![service("s", "10.96.0.1"), slice("s", &["10.2.0.1"])];
    let tenants = vec![
        conflicting("a", "10.96.0.2", "10.96.0.1"),
        conflicting("t", "10.96.0.3", "10.96.0.1"),
    ];
    let (one, other) = match before {
        true => (tenants, sentinel),
        false => (sentinel, tenants),
    };
    world.apply(one);
    world.apply(other);
    let own = |world: &World| {
        let key = address(&ip("10.96.0.1"));
        let found = world.maps.frontends.iter();
        let mut found = found.filter(|(frontend, _)| frontend.address == key);
        found
            .next()
            .map(|(_, value)| value.flags & frontend_flag::SENTINEL != 0)
    };
    assert_eq!(own(&world), Some(true));
    assert_eq!(conflicts(&world.planner), ["10.96.0.1: ns/s ns/a"]);
    world.apply(vec![gone("s")]);
    assert_eq!(own(&world), None, "two tenants are left");
    world.apply(vec![gone("a")]);
    assert_eq!(own(&world), Some(false));
}

/// Ports at which load balancers reach this agent.
#[test]
fn the_agents_own_ports_are_kept_by_the_node() {
    let mut world = World::new();
    world.planner = Planner::new().with_own_ports(&[80, 19_256]);
    world.apply(vec![node(&["192.168.0.5"], &[])]);
    world.apply(vec![
        conflicting("a", "10.96.0.1", "192.168.0.5"),
        conflicting("b", "10.96.0.2", "192.168.0.6"),
    ]);
    assert_eq!(conflicts(&world.planner), ["192.168.0.5: node ns/a"]);
    assert_eq!(world.maps.frontends.len(), 3);
    // The node's address changes.
    world.apply(vec![node(&["192.168.0.6"], &[])]);
    assert_eq!(conflicts(&world.planner), ["192.168.0.6: node ns/b"]);
    assert_eq!(world.maps.frontends.len(), 3);
}

/// A Service that came into conflict while no agent ran does not adopt the other Service's id and counts.
#[test]
fn a_conflict_does_not_adopt_an_id() {
    let mut world = World::new();
    world.apply(vec![service("b", "10.96.0.1"), slice("b", &["10.2.0.1"])]);
    world
        .view
        .apply(vec![conflicting("a", "10.96.0.2", "10.96.0.1")]);
    let mut heir = Planner::new();
    heir.adopt(&world.view, world.maps.installed(), world.now);
    assert_eq!(heir.service(0).unwrap().name.to_string(), "ns/b");
}

/// "b" waits for room for a frontend that "c" requests too: neither Service gets room until only one is
/// left.
#[test]
fn a_frontend_that_is_contested_takes_no_room() {
    let mut world = World::new();
    world.maps.room = [2; 3];
    world.apply(vec![service("a", "10.96.0.4")]);
    world.apply(vec![conflicting("b", "10.96.0.1", "10.96.0.3")]);
    assert_eq!(world.planner.missing().frontends, 1);
    world.apply(vec![service("c", "10.96.0.3")]);
    assert_eq!(world.planner.missing(), Missing::default());
    let plan = world.apply(vec![gone("b")]);
    assert_eq!(words(&plan), ["2 = 10.96.0.3 [3, 3, 3]", "no 10.96.0.1"]);
    assert_eq!(world.maps.frontends.len(), 2);
    assert_eq!(world.planner.missing(), Missing::default());
}

/// A Service beyond its quota is in no plan, but its proxy still serves it.
#[rstest]
#[case::same_frontend("10.96.0.1", 1_100, true)]
#[case::another_address("10.96.0.7", 1_100, false)]
#[case::another_port("10.96.0.1", 70, false)]
fn a_service_beyond_its_quota_conflicts_with_what_it_uses(
    #[case] address: &str,
    #[case] ports: u16,
    #[case] in_conflict: bool,
) {
    let mut facts = service_facts("b", "10.96.0.2");
    let others = (0..70).map(|last| IpAddr::from([203, 0, 113, last]));
    facts.external_ips = others.chain([ip(address)]).collect();
    let port = |number: u16| ServicePort {
        name: format!("p{number}").into(),
        protocol: Protocol::Tcp,
        port: number,
        node_port: None,
    };
    facts.ports = (1..=ports).map(port).collect();
    let beyond = Change::Service(Arc::new(facts));
    let expected = match in_conflict {
        true => vec!["10.96.0.1: ns/a ns/b".to_owned()],
        false => vec![],
    };
    let mut world = World::new();
    let one = vec![service("a", "10.96.0.1"), slice("a", &["10.2.0.1"])];
    world.apply(one.clone());
    let plan = world.apply(vec![beyond.clone()]);
    assert_eq!(world.planner.unjudged().service, 1);
    assert_eq!(
        words(&plan).contains(&"no 10.96.0.1".to_owned()),
        in_conflict
    );
    assert_eq!(conflicts(&world.planner), expected);
    let mut heir = Planner::new();
    heir.adopt(&world.view, world.maps.installed(), world.now);
    assert_eq!(conflicts(&heir), expected);
    world.apply(vec![gone("b")]);
    assert_eq!(conflicts(&world.planner), [""; 0]);
    assert_eq!(world.planner.frontend_count(), 1);

    // Now the Service beyond the quota comes first.
    let mut world = World::new();
    world.apply(vec![beyond]);
    world.apply(one);
    assert_eq!(conflicts(&world.planner), expected);
    assert_eq!(world.planner.frontend_count(), usize::from(!in_conflict));
}
