//! A plan is written to the maps in batches. The result is the same as with single writes, even when a map is
//! full.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use node_tests::observer::Observer;
use pathproof::datapath::program::Programmer;
use pathproof_facts::time::Mono;
use pathproof_plan::MapChange;
use pathproof_wire::abi::map;
use pathproof_wire::service::{
    EndpointKey, EndpointValue, FrontendKey, FrontendKind, FrontendValue, TCP, UDP, endpoint_flag,
    mapped,
};
use rstest::rstest;

/// Number of changes: more than one call takes, and no multiple of what it takes.
const MANY: u32 = 2_500;

fn endpoint(index: u32) -> EndpointKey {
    EndpointKey {
        service: index / 10,
        address: mapped(Ipv4Addr::from(0x0af4_0000 + index).octets()),
        port: 8080_u16.to_be_bytes(),
        padding: [0; 2],
    }
}

fn frontend(index: u32) -> FrontendKey {
    FrontendKey {
        address: mapped(Ipv4Addr::from(0x0a60_0000 + index).octets()),
        port: 80_u16.to_be_bytes(),
        protocol: TCP,
        padding: 0,
    }
}

fn put_endpoint(index: u32) -> MapChange {
    MapChange::PutEndpoint {
        key: endpoint(index),
        value: EndpointValue::default(),
    }
}

fn put_frontend(index: u32) -> MapChange {
    MapChange::PutFrontend {
        key: frontend(index),
        value: FrontendValue {
            service: index,
            kind: FrontendKind::ClusterIp as u8,
            ..FrontendValue::default()
        },
    }
}

fn programmer(capacities: &[(&'static str, u32)]) -> Programmer {
    Programmer::open(&mut Observer::load(capacities).ebpf).expect("the maps")
}

#[test]
fn a_plan_of_all_kinds() {
    let mut programmer = programmer(&[]);
    let mut plan: Vec<_> = (0..MANY).map(put_endpoint).collect();
    plan.extend((0..MANY).map(put_frontend));
    let outcome = programmer.apply(&plan);
    assert_eq!((outcome.full.len(), outcome.error), (0, None));
    let installed = programmer.installed();
    assert_eq!(installed.endpoints.len() as u32, MANY);
    assert_eq!(installed.frontends.len() as u32, MANY);
    for (key, value) in installed.frontends {
        assert_eq!(key, frontend(value.service));
    }

    // Deleting an absent key must be no error, and an existing value must be replaced.
    let left = EndpointValue {
        flags: endpoint_flag::LEFT,
    };
    let keys = || (0..MANY).map(endpoint);
    let mut plan: Vec<_> = (0..MANY + 9)
        .map(|index| MapChange::DeleteFrontend {
            key: frontend(index),
        })
        .collect();
    plan.extend(keys().map(|key| MapChange::RetireEndpoint { key, value: left }));
    let outcome = programmer.apply(&plan);
    assert_eq!((outcome.full.len(), outcome.error), (0, None));
    let installed = programmer.installed();
    assert!(installed.frontends.is_empty());
    assert!(installed.endpoints.iter().all(|(_, value)| *value == left));

    let plan: Vec<_> = keys()
        .map(|key| MapChange::DeleteEndpoint { key })
        .collect();
    programmer.apply(&plan);
    assert!(programmer.installed().endpoints.is_empty());
}

/// Exactly the changes that did not fit are returned, at whatever change of a call the map became full.
#[rstest]
#[case::at_once(1)]
#[case::within_the_first_call(700)]
#[case::within_the_last_call(2_300)]
fn a_full_map(#[case] room: u32) {
    let capacities = [(map::ENDPOINTS, room), (map::FRONTENDS, room)];
    let mut programmer = programmer(&capacities);
    let mut plan: Vec<_> = (0..MANY).map(put_endpoint).collect();
    plan.extend((0..MANY).map(put_frontend));
    let outcome = programmer.apply(&plan);
    assert_eq!(outcome.error, None);
    let installed = programmer.installed();
    assert_eq!(installed.endpoints.len() as u32, room);
    assert_eq!(installed.frontends.len() as u32, room);
    assert_eq!(outcome.full.len() as u32, 2 * (MANY - room));
    let mut endpoints: BTreeSet<_> = installed.endpoints.iter().map(|(key, _)| *key).collect();
    let mut frontends: BTreeSet<_> = installed.frontends.iter().map(|(key, _)| *key).collect();
    for refused in outcome.full {
        match refused {
            MapChange::PutEndpoint { key, .. } => endpoints.insert(key),
            MapChange::PutFrontend { key, .. } => frontends.insert(key),
            other => panic!("{other:?} needs no room"),
        };
    }
    assert_eq!(endpoints, (0..MANY).map(endpoint).collect());
    assert_eq!(frontends, (0..MANY).map(frontend).collect());
}

/// The port of a UDP Service stays marked while the maps use it, and one minute longer.
#[test]
fn ports_of_udp_services_are_unmarked_when_they_went() {
    let mut programmer = programmer(&[]);
    let value = EndpointValue {
        flags: endpoint_flag::UDP,
    };
    let of = |port: u16| {
        let key = FrontendKey {
            port: port.to_be_bytes(),
            protocol: UDP,
            ..frontend(u32::from(port))
        };
        let end = EndpointKey {
            port: (port + 5_000).to_be_bytes(),
            ..endpoint(u32::from(port))
        };
        (key, end)
    };
    let put = |port| {
        let (frontend, key) = of(port);
        [
            MapChange::PutEndpoint { key, value },
            MapChange::PutFrontend {
                key: frontend,
                value: FrontendValue::default(),
            },
        ]
    };
    let marked = |programmer: &Programmer, ports: [u16; 4]| {
        let marked = programmer.marked_ports().expect("the map");
        ports.map(|port| marked.has(port.to_be_bytes()))
    };
    let minutes = |minutes: u64| Mono(minutes * 60_000_000_000);
    let ports = [53, 5_053, 80, 5_080];
    // Make the first call before the plan: it also checks the ports that an earlier agent marked.
    programmer.unmark_ports(minutes(0)).expect("the maps");
    let plan = [put(53), put(80)].concat();
    assert_eq!(programmer.apply(&plan).error, None);
    programmer.unmark_ports(minutes(1)).expect("the maps");
    assert_eq!(marked(&programmer, ports), [true; 4], "all are in the maps");

    let (key, end) = of(53);
    programmer.apply(&[MapChange::DeleteFrontend { key }]);
    programmer.unmark_ports(minutes(2)).expect("the maps");
    assert_eq!(marked(&programmer, ports), [true; 4], "answers may come");
    programmer.unmark_ports(minutes(3)).expect("the maps");
    assert_eq!(marked(&programmer, ports), [false, true, true, true]);
    programmer.apply(&[MapChange::DeleteEndpoint { key: end }]);
    programmer.unmark_ports(minutes(4)).expect("the maps");
    // A port that is used again within the minute must stay marked.
    programmer.apply(&put(53));
    programmer.unmark_ports(minutes(5)).expect("the maps");
    assert_eq!(marked(&programmer, ports), [true; 4]);

    let other = EndpointKey {
        service: 9_999,
        ..end
    };
    programmer.apply(&[
        MapChange::PutEndpoint { key: other, value },
        MapChange::DeleteEndpoint { key: end },
    ]);
    for minute in 6..9 {
        programmer.unmark_ports(minutes(minute)).expect("the maps");
    }
    assert_eq!(marked(&programmer, ports), [true; 4]);
}
