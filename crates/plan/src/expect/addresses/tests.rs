//! Conflicts of the sentinel's addresses with the cluster, and similar addresses without a conflict.

use std::sync::Arc;

use pathproof_facts::cluster::{
    Change, EndpointFacts, NodeFacts, ObjectName, ServiceFacts, ServicePort, SliceFacts, SlicePort,
};
use pathproof_facts::node_context::address as address_of;
use rstest::rstest;

use super::*;

fn parse<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("an address or network")
}

fn rule() -> SentinelRule {
    SentinelRule {
        service: ObjectName::new("pathproof", "pathproof-sentinel"),
        echo: [parse("198.18.0.2"), parse("2001:2::2")],
        clients: vec![parse("198.18.0.1"), parse("2001:2::1")],
        pods: Vec::new(),
    }
}

fn node(addresses: &[&str], pod_cidrs: &[&str]) -> Change {
    Change::Node(Arc::new(NodeFacts {
        addresses: addresses.iter().map(|text| parse(text)).collect(),
        pod_cidrs: pod_cidrs.iter().map(|text| parse(text)).collect(),
        ..NodeFacts::default()
    }))
}

fn service(name: &str, cluster_ip: &str) -> Change {
    Change::Service(Arc::new(ServiceFacts {
        name: ObjectName::new("shop", name),
        cluster_ips: vec![parse(cluster_ip)],
        ..ServiceFacts::default()
    }))
}

fn slice(service: &str, address: &str) -> Change {
    Change::Slice(Arc::new(SliceFacts {
        name: ObjectName::new("shop", "slice"),
        service: service.into(),
        ports: Vec::new(),
        endpoints: vec![EndpointFacts {
            peer: 0,
            address: address_of(&parse(address)),
            ready: true,
            serving: true,
            terminating: false,
            local: false,
        }],
        fleet: None,
    }))
}

fn said(rule: &SentinelRule, changes: Vec<Change>) -> Option<String> {
    let mut view = ClusterView::new();
    view.apply(changes);
    in_cluster(rule, &view)
}

#[test]
fn addresses_in_use() {
    let rule = rule();
    let harmless = || {
        vec![
            node(&["10.0.0.1"], &["10.244.0.0/24"]),
            service("cart", "10.96.0.1"),
            slice("cart", "10.244.0.7"),
        ]
    };
    assert_eq!(said(&rule, harmless()), None);
    for (change, expected) in [
        (node(&["2001:2::1"], &[]), "Node object"),
        (
            node(&[], &["10.244.0.0/24", "198.18.0.0/24"]),
            "198.18.0.0/24",
        ),
        (
            service("till", "2001:2::1"),
            "a cluster IP of Service shop/till",
        ),
    ] {
        let mut changes = harmless();
        changes.push(change);
        let text = said(&rule, changes).expect("a conflict");
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("choose other sentinel addresses"), "{text}");
    }
    // The sentinel does not conflict with itself.
    let own = SentinelRule {
        service: ObjectName::new("shop", "cart"),
        ..rule
    };
    let mut changes = harmless();
    changes.push(service("cart", "198.18.0.2"));
    assert_eq!(said(&own, changes), None);
}

/// A tenant with rights in one namespace can set external IPs and endpoints.
#[test]
fn claims_of_a_tenant_turn_nothing_off() {
    let mut rule = rule();
    let Change::Service(external) = service("till", "10.96.0.2") else {
        unreachable!("it is a Service");
    };
    let external = ServiceFacts {
        external_ips: vec![parse("198.18.0.2")],
        load_balancer_ips: vec![parse("2001:2::1")],
        ..(*external).clone()
    };
    let claims = vec![
        Change::Service(Arc::new(external.clone())),
        slice("till", "198.18.0.2"),
    ];
    assert_eq!(said(&rule, claims), None);
    // The pod source counts: a pod may have this address.
    rule.pods = vec![parse("10.244.0.254")];
    let node = node(&["10.0.0.1"], &["10.244.0.0/24"]);
    let text = said(&rule, vec![node, slice("till", "10.244.0.254")]);
    assert!(text.is_some_and(|text| text.contains("an endpoint of Service shop/till")));
}

#[rstest]
#[case("10.244.0.254", "")]
#[case("10.244.0.255", "the broadcast address of 10.244.0.0/24")]
#[case("10.244.0.0", "the network address of 10.244.0.0/24")]
#[case("10.244.0.1", "the first address, the gateway's")]
#[case("10.244.1.7", "in no podCIDR of this node (10.244.0.0/24)")]
#[case("fd00:10:244::fffe", "")]
#[case("fd00:10:244:0:ffff:ffff:ffff:ffff", "")]
#[case("fd00:10:244::", "the network address")]
#[case("fd00:10:244::1", "the first address, the gateway's")]
#[case("fd00:10:245::7", "in no podCIDR of this node (fd00:10:244::/64)")]
fn pod_sources(#[case] address: IpAddr, #[case] refused: &str) {
    let mut rule = rule();
    rule.pods = vec![address];
    let cidrs = ["10.244.0.0/24", "fd00:10:244::/64"];
    match said(&rule, vec![node(&[], &cidrs)]) {
        None => assert_eq!(refused, ""),
        Some(text) => assert!(!refused.is_empty() && text.contains(refused), "{text}"),
    }
}

/// By a tenant, who may write Services and slices.
#[test]
fn claimed_addresses_are_tried_unless_the_proxy_would_answer() {
    let tried = |changes: Vec<Change>| {
        let mut view = ClusterView::new();
        view.apply(changes);
        let tries = tries(&rule(), &view);
        let of_echo = tries.into_iter().filter(|to| to.ip() == rule().echo[0]);
        of_echo.map(|to| to.port()).collect::<Vec<u16>>()
    };
    let with_ports = |address, ports: &[(Protocol, u16)]| {
        let Change::Slice(slice) = slice("cart", address) else {
            unreachable!("it is a slice");
        };
        let port = |(protocol, port): &(Protocol, u16)| SlicePort {
            name: "".into(),
            protocol: *protocol,
            port: *port,
        };
        let ports = ports.iter().map(port).collect();
        Change::Slice(Arc::new(SliceFacts {
            ports,
            ..(*slice).clone()
        }))
    };
    let ports = [(Protocol::Tcp, 8080), (Protocol::Udp, 53)];
    assert_eq!(tried(vec![with_ports("10.244.0.7", &ports)]), [9, 10_250]);
    assert_eq!(
        tried(vec![with_ports("198.18.0.2", &ports)]),
        [9, 8080, 10_250]
    );
    let many: Vec<_> = (1..9).map(|port| (Protocol::Tcp, port)).collect();
    assert_eq!(
        tried(vec![with_ports("198.18.0.2", &many)]),
        [1, 2, 3, 4, 9, 10_250]
    );
    let port = |port| ServicePort {
        name: "".into(),
        protocol: Protocol::Tcp,
        port,
        node_port: None,
    };
    let external = ServiceFacts {
        name: ObjectName::new("shop", "cart"),
        external_ips: vec![parse("198.18.0.2")],
        ports: vec![port(8080), port(9)],
        ..ServiceFacts::default()
    };
    let both = vec![
        Change::Service(Arc::new(external.clone())),
        with_ports("198.18.0.2", &ports),
    ];
    assert_eq!(tried(both), [10_250]);
    let all = ServiceFacts {
        ports: (1..5).map(port).collect(),
        ..external
    };
    let both = vec![
        Change::Service(Arc::new(all)),
        with_ports("198.18.0.2", &many),
    ];
    let tried = tried(both);
    assert_eq!(
        tried,
        [5, 6, 7, 8, 9, 10_250],
        "what is translated takes no place"
    );
}
