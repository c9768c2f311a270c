use std::sync::Arc;

use pathproof_facts::cluster::{Change, ServicePort, SliceFacts};
use pathproof_facts::view::ClusterView;
use rstest::rstest;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn rule() -> SentinelRule {
    SentinelRule {
        service: ObjectName::new("pathproof", "pathproof-sentinel"),
        echo: [ip("198.18.0.2"), ip("2001:2::2")],
        clients: Vec::new(),
        pods: Vec::new(),
    }
}

fn service() -> ServiceFacts {
    let port = |name: &str, protocol, node_port| ServicePort {
        name: name.into(),
        protocol,
        port: 80,
        node_port,
    };
    ServiceFacts {
        name: rule().service,
        cluster_ips: vec![ip("10.96.0.9"), ip("fd00::9")],
        ports: vec![
            port("tcp", Protocol::Tcp, Some(30_080)),
            port("udp", Protocol::Udp, None),
        ],
        ..ServiceFacts::default()
    }
}

fn slice(address_text: &str) -> SliceFacts {
    let port = |name: &str, protocol| SlicePort {
        name: name.into(),
        protocol,
        port: 20_001,
    };
    SliceFacts {
        name: ObjectName::new("pathproof", &format!("sentinel-{address_text}")),
        service: "pathproof-sentinel".into(),
        ports: vec![port("tcp", Protocol::Tcp), port("udp", Protocol::Udp)],
        endpoints: vec![EndpointFacts {
            peer: 0,
            address: address(&ip(address_text)),
            ready: true,
            serving: true,
            terminating: false,
            local: false,
        }],
        fleet: None,
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        addresses: vec![ip("192.0.2.10"), ip("2001:db8::10")],
        ..NodeFacts::default()
    }
}

fn found(service: ServiceFacts, slices: Vec<SliceFacts>) -> Sentinel {
    let mut view = ClusterView::new();
    let mut batch = vec![Change::Service(Arc::new(service))];
    batch.extend(
        slices
            .into_iter()
            .map(|slice| Change::Slice(Arc::new(slice))),
    );
    view.apply(batch);
    sentinel(&rule(), view.state(&rule().service), Some(&node()))
}

fn both() -> Vec<SliceFacts> {
    vec![slice("198.18.0.2"), slice("2001:2::2")]
}

#[test]
fn as_installed() {
    let found = found(service(), both());
    assert_eq!((found.exists, &found.altered), (true, &None));
    let v4 = found.families[0].unwrap();
    assert_eq!(v4.cluster_ip, ip("10.96.0.9"));
    assert_eq!(v4.node_address, Some(ip("192.0.2.10")));
    assert_eq!(v4.tcp.node_port, Some(30_080));
    assert_eq!(v4.udp.unwrap().node_port, None);
    assert_eq!(v4.echo, "198.18.0.2:20001".parse().unwrap());
    let v6 = found.families[1].unwrap();
    assert_eq!(v6.echo, "[2001:2::2]:20001".parse().unwrap());
}

#[test]
fn absent() {
    assert_eq!(sentinel(&rule(), None, None), Sentinel::default());
}

#[test]
fn of_one_family() {
    let mut service = service();
    service.cluster_ips.truncate(1);
    let found = found(service, vec![slice("198.18.0.2")]);
    assert_eq!(found.altered, None);
    assert!(found.families[0].is_some() && found.families[1].is_none());
}

type SentinelObjects = (ServiceFacts, Vec<SliceFacts>);

fn edited(edit: fn(&mut SentinelObjects)) -> SentinelObjects {
    let mut parts = (service(), both());
    edit(&mut parts);
    parts
}

fn add_endpoint((_, slices): &mut SentinelObjects) {
    let more = slices[0].endpoints[0];
    slices[0].endpoints.push(more);
}

fn replace_endpoint((_, slices): &mut SentinelObjects) {
    slices[0].endpoints[0].address = address(&ip("10.1.1.1"));
}

#[rstest]
#[case::foreign_endpoint(edited(replace_endpoint), "exactly one ready endpoint")]
#[case::one_more(edited(add_endpoint), "exactly one ready endpoint")]
#[case::not_ready(edited(|(_, slices)| slices[0].endpoints[0].ready = false), "exactly one ready endpoint")]
#[case::no_slice(edited(|(_, slices)| drop(slices.remove(1))), "no IPv6 endpoint")]
#[case::before_the_rotator(edited(|(_, slices)| slices.clear()), "no IPv4 endpoint: the rotator")]
#[case::renamed(edited(|(service, _)| service.ports[0].name = "web".into()), "lacks")]
#[case::no_generation(edited(|(_, slices)| slices[1].ports[1].port = 9_001), "9001 in its IPv6 EndpointSlice: the port must be")]
#[case::local(edited(|(service, _)| service.external_local = true), "policy Local")]
#[case::ranges(edited(|(service, _)| service.has_source_ranges = true), "SourceRanges")]
#[case::no_tcp(edited(|(service, _)| drop(service.ports.remove(0))), "no TCP port")]
#[case::no_address(edited(|(service, _)| service.cluster_ips.clear()), "no cluster IP")]
fn edited_by_somebody(#[case] (service, slices): SentinelObjects, #[case] words: &str) {
    let found = found(service, slices);
    assert!(found.exists);
    assert_eq!(
        found.families,
        [None, None],
        "an altered sentinel is not probed"
    );
    let altered = found.altered.unwrap();
    assert!(altered.contains(words), "{altered}");
    assert_eq!(
        found.awaits_slice,
        words.contains("endpoint:") || words == "no IPv6 endpoint"
    );
}

#[test]
fn a_rotation_is_no_other_sentinel() {
    let rotated = || {
        let mut slices = both();
        for port in slices.iter_mut().flat_map(|slice| &mut slice.ports) {
            port.port = 20_002;
        }
        slices
    };
    let (before, after) = (found(service(), both()), found(service(), rotated()));
    assert_eq!(after.altered, None);
    for (before, after) in before.families.into_iter().zip(after.families) {
        let (before, after) = (before.unwrap(), after.unwrap());
        assert_eq!(
            (before.tcp.generation, after.tcp.generation),
            (20_001, 20_002)
        );
        assert_eq!(after.udp.unwrap().generation, 20_002);
        assert_ne!(before, after);
        assert_eq!(before.without_generation(), after.without_generation());
    }
    let mut moved = service();
    moved.ports[0].node_port = Some(30_081);
    let moved = found(moved, both()).families[0].unwrap();
    let before = before.families[0].unwrap();
    assert_ne!(before.without_generation(), moved.without_generation());
}
