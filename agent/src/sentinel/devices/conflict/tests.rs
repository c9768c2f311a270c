//! What is a conflict and what only looks like one.

use rstest::rstest;

use super::super::node::{LocalAddress, Neighbour};
use super::super::settings::PodSources;
use super::*;

fn parse<T: std::str::FromStr<Err: fmt::Debug>>(text: &str) -> T {
    text.parse().expect("an address or network")
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
        device_name: (*rest.last().expect("a device")).to_owned(),
        gateway: rest.contains(&"via"),
    }
}

fn node(routes: &[&str]) -> NodeState {
    NodeState {
        routes: routes.iter().copied().map(route).collect(),
        ..NodeState::default()
    }
}

fn nobody<'a>() -> Known<'a> {
    Known {
        pod_cidrs: &[],
        node_addresses: &[],
        services: Box::new(std::iter::empty()),
        endpoints: Box::new(std::iter::empty()),
    }
}

fn said(settings: &Settings, known: Known<'_>, node: &NodeState) -> Option<String> {
    conflict(settings, &Family::ALL, known, node).map(|conflict| conflict.to_string())
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
fn routes_into_the_ranges(#[case] routes: &[&str], #[case] refused: bool) {
    let said = said(&Settings::default(), nobody(), &node(routes));
    assert_eq!(said.is_some(), refused, "{said:?}");
    if let Some(said) = said {
        assert!(said.contains("choose other sentinel addresses"), "{said}");
    }
}

#[rstest]
#[case::on_link("10.0.0.0/16 eth0", true)]
#[case::behind_a_gateway("10.0.0.0/8 via eth0", false)]
#[case::exactly("10.0.9.1/32 via eth0", true)]
#[case::beside("10.1.0.0/16 eth0", false)]
fn routes_outside_of_the_ranges(#[case] one: &str, #[case] refused: bool) {
    let mut settings = Settings::default();
    settings.client = settings.client.with(parse("10.0.9.1"));
    let said = said(&settings, nobody(), &node(&[one]));
    assert_eq!(said.is_some(), refused, "{said:?}");
}

#[test]
fn one_family_alone() {
    let state = node(&["2001:2::/48 eth0"]);
    let settings = Settings::default();
    assert_eq!(conflict(&settings, &[Family::V4], nobody(), &state), None);
    assert!(conflict(&settings, &[Family::V6], nobody(), &state).is_some());
}

#[test]
fn addresses_in_use() {
    let settings = Settings::default();
    let mut local = NodeState::default();
    local.addresses.push(LocalAddress {
        address: parse("198.18.0.2"),
        device: "eth1".to_owned(),
    });
    let text = said(&settings, nobody(), &local).expect("a conflict");
    assert!(text.contains("198.18.0.2 is an address of eth1"), "{text}");

    let (node, other) = (NodeState::default(), ObjectName::new("shop", "cart"));
    let taken: IpAddr = parse("2001:2::1");
    let known = Known {
        node_addresses: &[taken],
        ..nobody()
    };
    assert!(said(&settings, known, &node).is_some_and(|text| text.contains("Node object")));
    let cidrs = [parse("10.244.0.0/24"), parse("198.18.0.0/24")];
    let known = Known {
        pod_cidrs: &cidrs,
        ..nobody()
    };
    assert!(said(&settings, known, &node).is_some_and(|text| text.contains("198.18.0.0/24")));
    let known = Known {
        services: Box::new([(taken, &other)].into_iter()),
        ..nobody()
    };
    let text = said(&settings, known, &node).expect("a conflict");
    assert!(text.contains("an address of Service shop/cart"), "{text}");
    let known = Known {
        endpoints: Box::new([(parse("10.244.0.7"), &other), (taken, &other)].into_iter()),
        ..nobody()
    };
    let text = said(&settings, known, &node).expect("a conflict");
    assert!(text.contains("an endpoint of Service shop/cart"), "{text}");
}

#[rstest]
#[case("10.244.0.254", "")]
#[case("10.244.0.255", "the broadcast address of 10.244.0.0/24")]
#[case("10.244.0.0", "the network address of 10.244.0.0/24")]
#[case("10.244.0.1", "the first address, the gateway's")]
#[case("10.244.1.7", "in no podCIDR of this node (10.244.0.0/24)")]
#[case("10.244.0.9", "10.244.0.9/32 to veth9")]
#[case("10.244.0.8", "by a neighbour on cni0")]
#[case("fd00:10:244::fffe", "")]
#[case("fd00:10:244:0:ffff:ffff:ffff:ffff", "")]
#[case("fd00:10:244::", "the network address")]
#[case("fd00:10:244::1", "the first address, the gateway's")]
#[case("fd00:10:245::7", "in no podCIDR of this node (fd00:10:244::/64)")]
fn pod_sources(#[case] address: &str, #[case] refused: &str) {
    let settings = Settings {
        pod: PodSources::from_list(&[parse(address)]).expect("one address"),
        ..Settings::default()
    };
    let mut state = node(&["10.244.0.9/32 veth9", "10.244.0.0/24 cni0"]);
    state.neighbours.push(Neighbour {
        address: parse("10.244.0.8"),
        device: "cni0".to_owned(),
    });
    let cidrs = [parse("10.244.0.0/24"), parse("fd00:10:244::/64")];
    let known = Known {
        pod_cidrs: &cidrs,
        ..nobody()
    };
    match said(&settings, known, &state) {
        None => assert_eq!(refused, ""),
        Some(text) => assert!(!refused.is_empty() && text.contains(refused), "{text}"),
    }
}
