//! For any history: the maps have exactly what is expected.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Batch(Vec<Change>),
    Wait(u64),
    /// The agent restarts and adopts the maps.
    Restart,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn any_ip(prefix: &'static str, last: u8) -> impl Strategy<Value = IpAddr> {
    (1..=last).prop_map(move |last| ip(&format!("{prefix}{last}")))
}

fn any_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES)
}

fn any_port_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "x"])
}

fn any_service() -> impl Strategy<Value = Change> {
    let addresses = (
        prop::collection::vec(
            prop_oneof![any_ip("10.96.0.", 3), any_ip("fd00:96::", 2)],
            1..3,
        ),
        prop::collection::vec(any_ip("10.96.0.", 3), 0..2),
        prop::collection::vec(any_ip("10.99.0.", 2), 0..2),
    );
    let port = (
        any_port_name(),
        80..82_u16,
        prop::option::of(30_080..30_082_u16),
    );
    let ports = prop::collection::vec(port, 1..3);
    (any_name(), addresses, ports, any::<(bool, bool, bool)>()).prop_map(
        |(name, (cluster_ips, external_ips, load_balancer_ips), ports, flags)| {
            let ports = ports
                .into_iter()
                .map(|(name, port, node_port)| ServicePort {
                    name: name.into(),
                    protocol: if port == 81 && name == "x" {
                        Protocol::Udp
                    } else {
                        Protocol::Tcp
                    },
                    port,
                    node_port,
                });
            Change::Service(Arc::new(ServiceFacts {
                name: ObjectName::new("ns", name),
                cluster_ips,
                external_ips,
                load_balancer_ips,
                ports: ports.collect(),
                external_local: flags.0,
                internal_local: flags.1,
                has_source_ranges: flags.2,
                ..ServiceFacts::default()
            }))
        },
    )
}

fn any_slice() -> impl Strategy<Value = Change> {
    let ip = prop_oneof![
        any_ip("10.1.0.", 3),
        any_ip("10.2.0.", 3),
        any_ip("fd00:2::", 2)
    ];
    let endpoint = (ip, any::<(bool, bool, bool, bool)>()).prop_map(|(ip, conditions)| {
        let (ready, serving, terminating, local) = conditions;
        EndpointFacts {
            peer: 0,
            address: address(&ip),
            ready,
            serving,
            terminating,
            local,
        }
    });
    let endpoints = prop::collection::vec(endpoint, 0..5);
    let port = (any_port_name(), prop::bool::weighted(0.8));
    (any_name(), 1..3, port, endpoints).prop_map(|(service, number, (port, tcp), endpoints)| {
        Change::Slice(Arc::new(SliceFacts {
            name: ObjectName::new("ns", &format!("{service}-{number}")),
            service: service.into(),
            ports: vec![SlicePort {
                name: port.into(),
                protocol: if tcp { Protocol::Tcp } else { Protocol::Udp },
                port: 8080,
            }],
            endpoints,
            fleet: None,
        }))
    })
}

fn any_node() -> impl Strategy<Value = Change> {
    let ip = prop_oneof![any_ip("192.168.0.", 2), any_ip("10.1.0.", 2)];
    let cidrs = vec![
        vec![],
        vec!["10.1.0.0/16"],
        vec!["10.1.0.0/31", "fd00:2::/64"],
    ];
    (prop::collection::vec(ip, 0..3), prop::sample::select(cidrs)).prop_map(|(addresses, cidrs)| {
        Change::Node(Arc::new(NodeFacts {
            name: "here".into(),
            addresses,
            pod_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            ..NodeFacts::default()
        }))
    })
}

fn any_change() -> impl Strategy<Value = Change> {
    let slice_gone = (any_name(), 1..3).prop_map(|(service, number)| Change::SliceGone {
        slice: ObjectName::new("ns", &format!("{service}-{number}")),
        service: service.into(),
    });
    prop_oneof![
        8 => any_service(),
        8 => any_slice(),
        3 => any_name().prop_map(gone),
        2 => slice_gone,
        2 => any_node(),
        1 => Just(Change::NodeGone),
        1 => Just(Change::Synced),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::vec(any_change(), 1..6).prop_map(Step::Batch),
        2 => (0..400_u64).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Batch(batch) => {
                self.apply(batch);
                let again = as_it_is(&self.view);
                assert_eq!(self.apply(again), []);
            }
            Step::Wait(seconds) => {
                self.expire(Duration::from_secs(seconds));
            }
            Step::Restart => {
                let mut heir = Planner::new();
                let plan = heir.adopt(&self.view, self.maps.installed(), self.now);
                self.planner = heir;
                self.planner.watch_sockets([true; 2]);
                self.run(plan);
                // Ids are derived from frontends in the map. A port without an uncontested frontend
                // gets another id.
                if self.planner.conflicts.is_empty() && self.planner.missing() == Missing::default()
                {
                    let mut second = Planner::new();
                    let maps = self.maps.installed();
                    assert_eq!(second.adopt(&self.view, maps, self.now), []);
                }
            }
        }
    }

    /// The frontends in the map, without watched addresses.
    fn frontends(&self) -> BTreeMap<FrontendKey, FrontendValue> {
        let standing = self
            .maps
            .frontends
            .iter()
            .map(|(key, value)| (*key, *value));
        let (watched, frontends): (BTreeMap<_, _>, _) =
            standing.partition(|(_, value)| value.is_departed());
        assert!(watched.keys().eq(self.planner.departed.standing.keys()));
        let left = |at: &EndpointKey| self.planner.retired.contains_key(at);
        assert!(self.planner.departed.standing.values().all(left));
        frontends
    }

    /// Compares the maps with expectations computed from scratch.
    fn assert_as_expected(&self) {
        let node = NodeContext::of(self.view.node());
        let mut wanted: BTreeMap<FrontendKey, Vec<FrontendValue>> = BTreeMap::new();
        let mut endpoints = BTreeMap::new();
        let mut ids = BTreeSet::new();
        for (name, state) in self.view.states() {
            for port in expectation(state, &node).ports {
                let id = self.planner.registry.active(name, &port);
                let id = id.expect("there are enough ids");
                assert!(ids.insert(id), "id {id} is used twice");
                let info = self.planner.service(id).unwrap();
                assert_eq!(info.endpoints as usize, port.endpoints.len());
                for frontend in &port.frontends {
                    wanted
                        .entry(frontend.key)
                        .or_default()
                        .push(frontend.value(id));
                }
                endpoints.extend(port.endpoints.iter().map(|e| (e.key(id), e.value())));
            }
        }
        assert_eq!(self.maps.current(), endpoints);
        // Frontends of several Services are in no map.
        let names = |wanted: &[FrontendValue]| -> BTreeSet<&ObjectName> {
            let ids = wanted.iter().map(|value| value.service);
            ids.filter_map(|id| self.planner.service_of(id)).collect()
        };
        let before = wanted.len();
        wanted.retain(|_, wanted| names(wanted).len() == 1);
        let conflicts = before - wanted.len();
        let frontends = self.frontends();
        assert!(frontends.keys().eq(wanted.keys()), "{frontends:?}");
        for (key, value) in &frontends {
            assert!(
                wanted[key].contains(value),
                "{key:?} {value:?} {:?}",
                wanted[key]
            );
        }
        assert_eq!(self.planner.conflicts().count(), conflicts);
        assert_eq!(self.maps.sources, node.sources());
        let retired = self.maps.endpoints.len() - endpoints.len();
        assert_eq!(self.planner.retired.len(), retired);
        assert_eq!(self.planner.endpoint_count() as usize, endpoints.len());
    }

    /// Every frontend in the map is as expected, with all its endpoints: whatever is missing, no
    /// connection counts as misrouted.
    fn assert_nothing_wrong(&self) {
        let node = NodeContext::of(self.view.node());
        for (key, value) in &self.frontends() {
            let slot = self.planner.registry.slot(value.service).unwrap();
            let expected = expectation(self.view.state(&slot.name).unwrap(), &node);
            let mut ports = expected.ports.iter();
            let port = ports.find(|port| slot.is_of(port));
            let port = port.unwrap();
            let mut same = port.frontends.iter().filter(|f| f.key == *key);
            assert_eq!(same.next().map(|f| f.value(value.service)), Some(*value));
            for endpoint in &port.endpoints {
                let stands = self.maps.endpoints.get(&endpoint.key(value.service));
                assert_eq!(stands, Some(&endpoint.value()));
            }
        }
    }
}

/// A batch that repeats the present state.
fn as_it_is(view: &ClusterView) -> Vec<Change> {
    let mut again = Vec::new();
    for (_, state) in view.states() {
        again.extend(state.service.clone().map(Change::Service));
        again.extend(state.slices.iter().cloned().map(Change::Slice));
    }
    again
}

proptest! {
    #[test]
    fn the_maps_follow_the_view(steps in prop::collection::vec(any_step(), 1..12)) {
        let mut world = World::new();
        world.planner.watch_sockets([true; 2]);
        for step in steps {
            world.step(step);
            world.assert_as_expected();
        }
    }

    /// With too little room, nothing wrong is in the maps; with room again, everything is.
    #[test]
    fn full_maps_recover(
        steps in prop::collection::vec(any_step(), 1..10),
        room in 1_usize..6,
    ) {
        let mut world = World::new();
        world.planner.watch_sockets([true; 2]);
        world.maps.room = [room; 3];
        for step in steps {
            pass(&mut world, step);
            world.assert_nothing_wrong();
        }
        world.maps.room = UNBOUNDED;
        world.step(Step::Restart);
        world.assert_as_expected();
    }

    /// With too few ids, nothing wrong is in the maps. They are empty once all Services are long gone.
    #[test]
    fn with_few_ids_nothing_wrong_is_in_the_maps(
        steps in prop::collection::vec(any_step(), 1..10),
        ids in 1_u32..5,
    ) {
        let mut world = World::new();
        world.planner = with_ids(ids);
        world.planner.watch_sockets([true; 2]);
        for step in steps {
            pass(&mut world, step);
            world.assert_nothing_wrong();
            assert!(world.maps.frontends.values().all(|value| value.service < ids));
        }
        world.apply(everything_gone(&world.view));
        assert!(world.frontends().is_empty() && world.maps.current().is_empty());
        world.expire(REST);
        assert!(world.maps.endpoints.is_empty(), "{:?}", world.maps.endpoints);
        assert_eq!(world.planner.missing(), Missing::default());
    }
}

/// Takes a step without restarting the agent.
fn pass(world: &mut World, step: Step) {
    match step {
        Step::Batch(batch) => drop(world.apply(batch)),
        Step::Wait(seconds) => drop(world.expire(Duration::from_secs(seconds))),
        Step::Restart => {}
    }
}

fn everything_gone(view: &ClusterView) -> Vec<Change> {
    let mut gone = vec![Change::NodeGone];
    for (name, state) in view.states() {
        gone.push(Change::ServiceGone(name.clone()));
        gone.extend(state.slices.iter().map(|slice| Change::SliceGone {
            slice: slice.name.clone(),
            service: slice.service.clone(),
        }));
    }
    gone
}
