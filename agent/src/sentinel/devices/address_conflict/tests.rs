//! Conflicts, and harmless states that resemble them.

use pathproof_facts::cluster::ObjectName;
use rstest::rstest;

use super::*;
use crate::config::SentinelPlace;

fn parse<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("an address or network")
}

fn config() -> SentinelConfig {
    SentinelConfig {
        place: SentinelPlace {
            service: ObjectName::new("pathproof", "pathproof-sentinel"),
            client: [parse("198.18.0.1"), parse("2001:2::1")],
            echo: [parse("198.18.0.2"), parse("2001:2::2")],
        },
        devices: "pathproof".to_owned(),
        pod: [None, None],
        datapath: None,
    }
}

/// Parses a route such as "198.18.0.0/16 eth0". "via" adds a gateway. A type such as "blackhole" comes first.
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
        protocol: 3,
        devices: vec![2],
        gateway: rest.contains(&"via").then(|| parse("192.0.2.1")),
        has_mtu: false,
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
        let ours = [config.place.client, config.place.echo].concat();
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
