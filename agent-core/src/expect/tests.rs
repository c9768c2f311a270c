//! The rules themselves are tested from YAML on, in `cluster/tests.rs`.

use rstest::rstest;

use super::*;
use crate::cluster::NodeFacts;

#[rstest]
#[case("10.1.0.0/16", 112, "10.1.2.3", true)]
#[case("10.1.0.0/16", 112, "10.2.0.0", false)]
#[case("0.0.0.0/0", 96, "203.0.113.1", true)]
#[case("0.0.0.0/0", 96, "fd00::1", false)]
#[case("::/0", 0, "fd00::1", true)]
#[case("fd00:1::/64", 64, "fd00:1::9", true)]
#[case("192.168.0.5/32", 128, "192.168.0.6", false)]
fn prefixes_are_of_mapped_addresses(
    #[case] net: &str,
    #[case] bits: u32,
    #[case] ip: &str,
    #[case] inside: bool,
) {
    let prefix = SourcePrefix::of(&net.parse().unwrap());
    assert_eq!(prefix.bits, bits);
    assert_eq!(
        prefix.contains(&node::address(&ip.parse().unwrap())),
        inside
    );
}

#[test]
fn a_node_address_inside_its_pod_range_is_the_node() {
    let facts = NodeFacts {
        addresses: vec!["10.1.0.5".parse().unwrap()],
        pod_cidrs: vec!["10.1.0.0/16".parse().unwrap()],
        ..NodeFacts::default()
    };
    let context = NodeContext::of(Some(&facts));
    assert_eq!(context.sources().len(), 2);
    let needs = |ip: &str| context.needs_own_source(&node::address(&ip.parse().unwrap()));
    assert_eq!(
        (needs("10.1.0.5"), needs("10.1.0.6"), needs("10.2.0.6")),
        (false, false, true)
    );
    assert_eq!(NodeContext::of(None), NodeContext::default());
}
