//! The rules themselves are tested from YAML in `cluster/tests.rs`.

use ExpectedHandling::{Forward, LocalOnly, Nothing, Reject};
use FrontendKind::{ClusterIp, LoadBalancer, NodePort};
use pathproof_facts::cluster::{NodeFacts, ObjectName};
use rstest::rstest;

use super::*;

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
    let prefix = node_context::SourcePrefix::of(&net.parse().unwrap());
    assert_eq!(prefix.bits, bits);
    assert_eq!(
        prefix.contains(&node_context::address(&ip.parse().unwrap())),
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
    assert_eq!(NodeContext::of(None), NodeContext::default());
}

/// Expected handling of pods, the node itself and others, by kube-proxy's rules.
#[rstest]
#[case::cluster_ip(ClusterIp, &[], [Forward; 3])]
#[case::cluster_ip_kept_local(ClusterIp, &["internal_local"], [LocalOnly; 3])]
#[case::external_policy_is_not_its(ClusterIp, &["external_local"], [Forward; 3])]
#[case::node_port(NodePort, &[], [Forward; 3])]
#[case::internal_policy_is_not_its(NodePort, &["internal_local"], [Forward; 3])]
#[case::kept_local(NodePort, &["external_local"], [Forward, Forward, LocalOnly])]
#[case::ranges(LoadBalancer, &["has_source_ranges"], [Nothing; 3])]
#[case::ranges_are_no_node_ports(NodePort, &["has_source_ranges"], [Forward; 3])]
#[case::in_other_clusters(ClusterIp, &["is_global"], [Nothing; 3])]
fn each_source_class_has_its_expectation(
    #[case] kind: FrontendKind,
    #[case] set: &[&str],
    #[case] expected: [ExpectedHandling; SOURCE_CLASSES],
) {
    let service = ServiceFacts {
        name: ObjectName::new("shop", "web"),
        external_local: set.contains(&"external_local"),
        internal_local: set.contains(&"internal_local"),
        has_source_ranges: set.contains(&"has_source_ranges"),
        is_global: set.contains(&"is_global"),
        ..ServiceFacts::default()
    };
    let owed_with = |has_any, has_local| {
        let reachable = Vec::new();
        let sets = EndpointSets {
            has_any,
            has_local,
            reachable,
        };
        expected_handling(&service, kind, &sets)
    };
    assert_eq!(owed_with(true, true), expected);
    // There is no expectation for a policy without local endpoints.
    let elsewhere = expected.map(|handling| {
        if handling == LocalOnly {
            Nothing
        } else {
            handling
        }
    });
    assert_eq!(owed_with(true, false), elsewhere);
    if !service.is_global {
        assert_eq!(owed_with(false, false), [Reject; SOURCE_CLASSES]);
    }
}
