//! A plan is written to the maps in batches. The result is the same as with single writes, even when a map is
//! full.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use node_tests::observer::Observer;
use pathproof::datapath::program::Programmer;
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

/// Answers to followed datagrams may come after the Service went.
#[test]
fn ports_of_udp_services_are_marked_and_stay_so() {
    let mut programmer = programmer(&[]);
    let frontend = FrontendKey {
        port: 53_u16.to_be_bytes(),
        protocol: UDP,
        ..frontend(53)
    };
    let key = EndpointKey {
        port: 5_053_u16.to_be_bytes(),
        ..endpoint(53)
    };
    let value = EndpointValue {
        flags: endpoint_flag::UDP,
    };
    let marked = |programmer: &Programmer| {
        let marked = programmer.marked_ports().expect("the map");
        [53_u16, 5_053, 80].map(|port| marked.has(port.to_be_bytes()))
    };
    assert_eq!(marked(&programmer), [false; 3]);
    let put = [
        MapChange::PutEndpoint { key, value },
        MapChange::PutFrontend {
            key: frontend,
            value: FrontendValue::default(),
        },
    ];
    let delete = [
        MapChange::DeleteFrontend { key: frontend },
        MapChange::DeleteEndpoint { key },
    ];
    for plan in [put, delete] {
        assert_eq!(programmer.apply(&plan).error, None);
        assert_eq!(marked(&programmer), [true, true, false]);
    }
}
