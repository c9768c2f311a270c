//! A tenant with write access to one namespace: whatever the tenant does, Services of others are
//! followed completely, and the maps are never full.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::quotas::Quotas;

/// Entries of each map.
const MAP: usize = 66;
/// Entries that quotas distribute.
const ROOM: u64 = 62;

/// A Service of a namespace with its slice: numbers of ports, external IPs and endpoints.
fn objects(namespace: &str, number: u8, ports: u8, ips: u8, endpoints: u8) -> Vec<Change> {
    let name = ObjectName::new(namespace, &format!("s{number}"));
    let place = namespace.as_bytes()[0];
    let external = (0..ips).map(|ip| IpAddr::from([198, place, number, ip]));
    let mut facts = service_facts("", "10.96.0.1");
    facts.name = name.clone();
    facts.cluster_ips = vec![IpAddr::from([10, place, 0, number])];
    facts.external_ips = external.collect();
    let of_service = |port: u8| ServicePort {
        name: format!("p{port}").into(),
        port: u16::from(port) + 80,
        ..facts.ports[0].clone()
    };
    facts.ports = (0..ports).map(of_service).collect();
    let of_slice = |port: u8| SlicePort {
        name: format!("p{port}").into(),
        protocol: Protocol::Tcp,
        port: 8080 + u16::from(port),
    };
    let endpoint = |last: u8| EndpointFacts {
        peer: 0,
        address: address(&IpAddr::from([172, place, number, last])),
        ready: true,
        serving: true,
        terminating: false,
        local: false,
    };
    let slice = SliceFacts {
        service: Arc::clone(&name.name),
        name,
        ports: (0..ports).map(of_slice).collect(),
        endpoints: (0..endpoints).map(endpoint).collect(),
        fleet: None,
    };
    vec![
        Change::Service(Arc::new(facts)),
        Change::Slice(Arc::new(slice)),
    ]
}

fn delete(namespace: &str, number: u8) -> Vec<Change> {
    let name = ObjectName::new(namespace, &format!("s{number}"));
    let gone = Change::SliceGone {
        service: Arc::clone(&name.name),
        slice: name.clone(),
    };
    vec![Change::ServiceGone(name), gone]
}

fn world() -> World {
    let mut world = World::new();
    world.maps.room = [MAP; 3];
    world.planner.quotas = Quotas::new([ROOM; 3]);
    world
}

/// Two namespaces of two Services, with a frontend, two endpoints and an id each.
fn honest() -> Vec<Change> {
    let namespaces = ["h", "i"].into_iter();
    namespaces
        .flat_map(|namespace| (0..2).flat_map(|number| objects(namespace, number, 1, 0, 2)))
        .collect()
}

#[derive(Clone, Debug)]
enum Action {
    Make(u8, u8, u8, u8),
    Delete(u8),
    Wait(u64),
    Restart,
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0..12_u8, 1..7_u8, 0..5_u8, 0..12_u8)
            .prop_map(|(number, ports, ips, endpoints)| Action::Make(number, ports, ips, endpoints)),
        3 => (0..12_u8).prop_map(Action::Delete),
        2 => (1..200_u64).prop_map(Action::Wait),
        1 => Just(Action::Restart),
    ]
}

impl World {
    fn suffer(&mut self, actions: Vec<Action>) {
        let mut batch = Vec::new();
        for action in actions {
            match action {
                Action::Make(number, ports, ips, endpoints) => {
                    batch.extend(objects("t", number, ports, ips, endpoints));
                }
                Action::Delete(number) => batch.extend(delete("t", number)),
                Action::Wait(seconds) => drop(self.expire(Duration::from_secs(seconds))),
                Action::Restart => self.restart(),
            }
        }
        self.now = self.now.plus(Duration::from_millis(30));
        self.apply(batch);
    }

    /// A new agent follows the same Services.
    fn restart(&mut self) {
        let before = self.followed();
        let mut heir = Planner {
            quotas: Quotas::new([ROOM; 3]),
            ..Planner::new()
        };
        let plan = heir.adopt(&self.view, self.maps.installed(), self.now);
        self.planner = heir;
        self.run(plan);
        assert_eq!(self.followed(), before);
    }

    fn followed(&self) -> BTreeSet<ObjectName> {
        let names = self.view.states().map(|(name, _)| name.clone());
        names
            .filter(|name| self.planner.quotas.follows(name))
            .collect()
    }

    /// Numbers of frontends and current endpoints of a namespace in the maps.
    fn standing(&self, namespace: &str) -> (usize, usize) {
        let is_of = |id: u32| {
            let slot = self.planner.registry.slot(id);
            slot.is_some_and(|slot| &*slot.name.namespace == namespace)
        };
        let frontends = self.maps.frontends.values();
        let current = self.maps.current();
        (
            frontends.filter(|value| is_of(value.service)).count(),
            current.keys().filter(|key| is_of(key.service)).count(),
        )
    }

    fn assert_others_are_followed(&self, are_there: bool) {
        let all = if are_there { (2, 4) } else { (0, 0) };
        assert_eq!((self.standing("h"), self.standing("i")), (all, all));
        assert_eq!(self.planner.missing(), Missing::default());
        let problems = self.planner.quota_problems();
        assert!(problems.len() <= 1, "{problems:?}");
        assert!(
            problems
                .iter()
                .all(|problem| problem.starts_with("Service t/"))
        );
    }
}

proptest! {
    #[test]
    fn one_namespace_takes_nothing_from_others(
        actions in prop::collection::vec(prop::collection::vec(any_action(), 1..6), 1..20),
        come in 0..20_usize,
    ) {
        let mut world = world();
        for (round, actions) in actions.into_iter().enumerate() {
            if round == come {
                world.apply(honest());
            }
            world.suffer(actions);
            world.assert_others_are_followed(round >= come);
        }
    }
}

/// Removed endpoints and resting ids count against the namespace that caused them.
#[test]
fn churn_counts_against_its_namespace() {
    let mut world = world();
    world.apply(honest());
    let mut leaving = objects("h", 0, 1, 0, 1);
    world.apply(leaving.split_off(1));
    for round in 0..40_u8 {
        world.now = world.now.plus(Duration::from_millis(30));
        world.apply(objects("t", round % 7, 2, 0, 5 + round % 5));
        world.apply(delete("t", round % 7));
        assert_eq!(world.planner.missing(), Missing::default());
    }
    let left = address(&IpAddr::from([172, b'h', 0, 1]));
    let id = world.maps.current().keys().next().map(|key| key.service);
    let since = world
        .planner
        .left_since(id.unwrap(), left, 8080_u16.to_be_bytes());
    assert!(since.is_some(), "{:?}", world.planner.retired);
}

/// A renamed port gets a new id, and the old one rests.
#[test]
fn renamed_ports_take_no_ids_from_others() {
    let mut world = World::new();
    world.planner = with_ids(400);
    world.apply(honest());
    for round in 0..200_u16 {
        world.now = world.now.plus(Duration::from_millis(30));
        let mut facts = service_facts("t", "10.96.0.9");
        facts.name = ObjectName::new("t", "t");
        let port = |number: u16| ServicePort {
            name: format!("p{round}-{number}").into(),
            port: 80 + number,
            ..facts.ports[0].clone()
        };
        facts.ports = (0..40).map(port).collect();
        world.apply(vec![Change::Service(Arc::new(facts))]);
        assert_eq!(world.planner.missing(), Missing::default());
    }
    assert_eq!(world.planner.service(0).unwrap().name.to_string(), "h/s0");
}
