//! Conflicts, and states that only look like one.

use std::sync::Arc;

use agent_core::cluster::{Change, EndpointFacts, NodeFacts, ObjectName, ServiceFacts, SliceFacts};
use agent_core::expect::node::address as address_of;
use rstest::rstest;

use super::*;

fn parse<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("an address or network")
}

fn config() -> SentinelConfig {
    SentinelConfig {
        service: ObjectName::new("pathproof", "pathproof-sentinel"),
        devices: "pathproof".to_owned(),
        client: [parse("198.18.0.1"), parse("2001:2::1")],
        echo: [parse("198.18.0.2"), parse("2001:2::2")],
        pod: [None, None],
        datapath: None,
    }
}

/// "198.18.0.0/16 eth0", with "via" behind a gateway, or a type's name first.
fn route(text: &str) -> Route {
    let words: Vec<_> = text.split(' ').collect();
    let kind = match words.first() {
        Some(&"blackhole") => RouteType::BlackHole,
        Some(&"prohibit") => RouteType::Prohibit,
        _ => RouteType::Unicast,
    };
    let rest = &words[usize::from(kind != RouteType::Unicast)..];
    Route {
        destination: parse(rest[0]),
        kind,
        table: 254,
        device: Some(2),
        gateway: rest.contains(&"via"),
        ours: false,
    }
}

#[rstest]
#[case::default_routes(&["0.0.0.0/0 via eth0", "::/0 via eth0"], false)]
#[case::wider(&["198.16.0.0/12 via eth0", "2001::/16 via eth0"], false)]
#[case::beside(&["198.20.0.0/16 eth0", "2001:3::/48 eth0"], false)]
#[case::the_range(&["198.18.0.0/15 via eth0"], true)]
#[case::part_of_it(&["198.19.255.0/24 via eth0"], true)]
#[case::the_range_v6(&["2001:2::/48 eth0"], true)]
#[case::part_of_it_v6(&["2001:2:0:ffff::/64 via eth0"], true)]
#[case::exactly(&["2001:2::2/128 eth0"], true)]
#[case::bogon_filter(&["blackhole 198.18.0.0/15 -", "prohibit 2001:2::/48 -"], false)]
#[case::exactly_dropped(&["blackhole 198.18.0.2/32 -"], true)]
fn routes_into_the_ranges(#[case] routes: &[&str], #[case] used: bool) {
    let config = config();
    let uses = routes.iter().any(|text| {
        let ours = [config.client, config.echo].concat();
        ours.iter().any(|address| uses(&route(text), *address))
    });
    assert_eq!(uses, used);
}

#[rstest]
#[case::on_link("10.0.0.0/16 eth0", true)]
#[case::behind_a_gateway("10.0.0.0/8 via eth0", false)]
#[case::exactly("10.0.9.1/32 via eth0", true)]
#[case::beside("10.1.0.0/16 eth0", false)]
fn routes_outside_of_the_ranges(#[case] text: &str, #[case] used: bool) {
    assert_eq!(uses(&route(text), parse("10.0.9.1")), used);
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
        triggered: None,
    }))
}

fn said(config: &SentinelConfig, changes: Vec<Change>) -> Option<String> {
    let mut view = ClusterView::new();
    view.apply(changes);
    in_cluster(config, &view)
}

#[test]
fn addresses_in_use() {
    let config = config();
    let harmless = || {
        vec![
            node(&["10.0.0.1"], &["10.244.0.0/24"]),
            service("cart", "10.96.0.1"),
            slice("cart", "10.244.0.7"),
        ]
    };
    assert_eq!(said(&config, harmless()), None);
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
        let text = said(&config, changes).expect("a conflict");
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("choose other sentinel addresses"), "{text}");
    }
    // Its own are no conflict.
    let own = SentinelConfig {
        service: ObjectName::new("shop", "cart"),
        ..config
    };
    let mut changes = harmless();
    changes.push(service("cart", "198.18.0.2"));
    assert_eq!(said(&own, changes), None);
}

/// Whoever may edit one namespace may write these.
#[test]
fn claims_of_a_tenant_turn_nothing_off() {
    let mut config = config();
    let Change::Service(external) = service("till", "10.96.0.2") else {
        unreachable!("it is a Service");
    };
    let external = ServiceFacts {
        external_ips: vec![parse("198.18.0.2")],
        load_balancer_ips: vec![parse("2001:2::1")],
        ..(*external).clone()
    };
    let claims = vec![
        Change::Service(Arc::new(external)),
        slice("till", "198.18.0.2"),
    ];
    assert_eq!(said(&config, claims), None);
    // A pod may have got it.
    config.pod[0] = Some(parse("10.244.0.254"));
    let node = node(&["10.0.0.1"], &["10.244.0.0/24"]);
    let text = said(&config, vec![node, slice("till", "10.244.0.254")]);
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
    let mut config = config();
    config.pod[usize::from(address.is_ipv6())] = Some(address);
    let cidrs = ["10.244.0.0/24", "fd00:10:244::/64"];
    match said(&config, vec![node(&[], &cidrs)]) {
        None => assert_eq!(refused, ""),
        Some(text) => assert!(!refused.is_empty() && text.contains(refused), "{text}"),
    }
}
