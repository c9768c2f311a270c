//! Addresses of removed endpoints: which are watched, and for how long.

use rstest::rstest;

use super::*;

/// A world with translated sockets and a Service `a` whose first endpoint was removed.
fn world() -> World {
    let mut world = World::new();
    world.planner.watch_sockets([true; 2]);
    world.apply(vec![
        service("a", "10.96.0.1"),
        slice("a", &["10.2.0.1", "10.2.0.2"]),
    ]);
    world.expire(Duration::from_secs(5));
    world.apply(vec![slice("a", &["10.2.0.2"])]);
    world
}

fn check(world: &mut World) -> Vec<String> {
    words(&world.expire(Duration::from_secs(5)))
}

const WATCHED: [&str; 1] = ["0 = 10.2.0.1 [1, 0, 0]"];
const LET_GO: [&str; 1] = ["no 10.2.0.1"];

#[test]
fn an_endpoint_that_left_is_watched_until_it_is_forgotten() {
    let mut world = world();
    assert_eq!(check(&mut world), WATCHED);
    assert_eq!(check(&mut world), [""; 0]);
    assert_eq!(world.planner.frontend_count(), 1, "it is no frontend");
    let plan = words(&world.expire(REST));
    assert_eq!(plan, ["no 10.2.0.1", "0 forget 10.2.0.1"]);
}

#[test]
fn nothing_is_watched_where_sockets_are_not_translated() {
    let mut world = world();
    world.planner.watch_sockets([false, true]);
    assert_eq!(check(&mut world), [""; 0]);
    world.planner.watch_sockets([true; 2]);
    assert_eq!(check(&mut world), WATCHED);
    world.planner.watch_sockets([false; 2]);
    assert_eq!(check(&mut world), LET_GO);
}

/// If the address is an endpoint again, clients that dial it reach its new owner.
#[rstest]
#[case::to_its_service(vec![slice("a", &["10.2.0.1", "10.2.0.2"])])]
#[case::to_another_one(vec![service("b", "10.96.0.2"), slice("b", &["10.2.0.1"])])]
fn an_address_that_comes_back_is_watched_no_more(#[case] batch: Vec<Change>) {
    let mut world = world();
    assert_eq!(check(&mut world), WATCHED);
    let plan = words(&world.apply(batch));
    assert!(plan.contains(&LET_GO[0].to_owned()), "{plan:?}");
    assert_eq!(check(&mut world), [""; 0]);
}

/// A terminating pod stays in its slice, serving and terminating, until its grace period ends.
#[test]
fn an_endpoint_that_ends_gracefully_is_watched() {
    let mut world = World::new();
    world.planner.watch_sockets([true; 2]);
    let batch = |ready: bool| {
        let Change::Slice(facts) = slice("a", &["10.2.0.1", "10.2.0.2"]) else {
            unreachable!("a slice");
        };
        let mut facts = Arc::unwrap_or_clone(facts);
        (facts.endpoints[0].ready, facts.endpoints[0].terminating) = (ready, !ready);
        vec![service("a", "10.96.0.1"), Change::Slice(Arc::new(facts))]
    };
    world.apply(batch(true));
    world.apply(batch(false));
    assert_eq!(check(&mut world), WATCHED);
    world.apply(vec![slice("a", &["10.2.0.2"])]);
    assert_eq!(check(&mut world), [""; 0]);
}

/// Blue-green deployment behind two Services: only one of them lost the endpoint.
#[test]
fn an_endpoint_of_another_service_is_not_watched() {
    let mut world = World::new();
    world.planner.watch_sockets([true; 2]);
    let both = [("a", "10.96.0.1"), ("b", "10.96.0.2")];
    for (name, ip) in both {
        world.apply(vec![
            service(name, ip),
            slice(name, &["10.2.0.1", "10.2.0.2"]),
        ]);
    }
    world.apply(vec![slice("a", &["10.2.0.2"])]);
    assert_eq!(check(&mut world), [""; 0]);
}

/// Two Services lost the endpoint. When the first of them forgets it, it is watched for the second.
#[test]
fn an_endpoint_that_two_services_lost_is_watched_for_the_last() {
    let mut world = World::new();
    world.planner.watch_sockets([true; 2]);
    let slices = |name, endpoints: &[&str]| vec![slice(name, endpoints)];
    for (name, ip) in [("b", "10.96.0.2"), ("a", "10.96.0.1")] {
        world.apply(vec![service(name, ip)]);
        world.apply(slices(name, &["10.2.0.1", "10.2.0.2"]));
    }
    world.apply(slices("a", &["10.2.0.2"]));
    world.expire(Duration::from_secs(60));
    world.apply(slices("b", &["10.2.0.2"]));
    assert_eq!(check(&mut world), ["1 = 10.2.0.1 [1, 0, 0]"]);
    let plan = words(&world.expire(REST - Duration::from_secs(10)));
    assert_eq!(plan, ["0 = 10.2.0.1 [1, 0, 0]", "1 forget 10.2.0.1"]);
}

/// An external IP may be any address, also one that is watched.
#[test]
fn a_frontend_takes_the_place_of_an_address_that_is_watched() {
    let mut world = world();
    assert_eq!(check(&mut world), WATCHED);
    let mut other = service_facts("b", "10.96.0.2");
    other.external_ips = vec![ip("10.2.0.1")];
    other.ports[0].port = 8080;
    world.apply(vec![
        Change::Service(Arc::new(other)),
        slice("b", &["10.2.0.3"]),
    ]);
    let mut standing = world.maps.frontends.values();
    assert!(standing.all(|value| value.flags == 0));
    assert_eq!(world.maps.frontends.len(), 3);
    let again = words(&world.expire(Duration::from_secs(5)));
    assert_eq!(again, [""; 0], "it stays");
}

#[test]
fn watched_addresses_make_room_for_frontends() {
    let mut world = world();
    check(&mut world);
    world.maps.room = [world.maps.frontends.len(); 3];
    world.apply(vec![service("b", "10.96.0.2"), slice("b", &["10.2.0.3"])]);
    world.maps.room = UNBOUNDED;
    check(&mut world);
    assert_eq!(world.planner.missing(), Missing::default());
    let standing = world.maps.frontends.keys().map(|key| key.address);
    assert!(
        !standing.clone().any(|at| at == address(&ip("10.2.0.1"))),
        "{standing:?}"
    );
}

/// A successor derives the watched addresses again.
#[test]
fn a_successor_lets_go_of_what_was_watched() {
    let mut world = world();
    check(&mut world);
    let mut heir = Planner::new();
    let plan = heir.adopt(&world.view, world.maps.installed(), world.now);
    assert_eq!(words(&plan), LET_GO);
    heir.watch_sockets([true; 2]);
    let plan = heir.expire(&world.view, world.now.plus(Duration::from_secs(5)));
    assert_eq!(words(&plan), WATCHED);
}

/// Clients may keep connections to an endpoint that left long ago, until conntrack forgets them.
#[test]
fn an_endpoint_is_remembered_once_it_is_not_in_the_map() {
    let mut world = world();
    let removed = world.now;
    let left = |world: &World| {
        let (address, port) = (address(&ip("10.2.0.1")), 8_080_u16.to_be_bytes());
        let current = world.planner.left_since(0, address, port);
        (current, world.planner.former_left_since(address, port))
    };
    assert_eq!(left(&world), (Some(removed), None));
    world.expire(REST);
    assert_eq!(left(&world), (None, Some(removed)));
    let other = address(&ip("10.2.0.2"));
    assert_eq!(
        world
            .planner
            .former_left_since(other, 8_080_u16.to_be_bytes()),
        None
    );
}
