//! From YAML to expectations: one table per rule of docs/expectations.md.

use std::net::{IpAddr, SocketAddr};

use pathproof_facts::node_context::NodeContext;
use pathproof_facts::view::ClusterView;
use pathproof_plan::expect::{Expectation, PortExpectation, expectation};
use pathproof_wire::service::{
    Address, ExpectedHandling, Family, FrontendKind, SourceClass, frontend_flag,
};
use rstest::rstest;

use super::convert::Converter;
use super::facts::compare;
use super::yaml::{self, Item};

const NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: here}
spec: {podCIDRs: [10.244.1.0/24, 'fd00:1::/64']}
status:
  addresses:
  - {type: Hostname, address: here}
  - {type: InternalIP, address: 192.168.0.5}
  - {type: InternalIP, address: 'fd00::5'}
";

/// A view of this node and the objects in the text.
fn view(text: &str) -> ClusterView {
    let mut view = ClusterView::new();
    let mut converter = Converter::new("here");
    let mut changes = Vec::new();
    yaml::read(&format!("{NODE}---\n{text}"), &mut |item| match item {
        Item::Object(Ok(object)) => {
            let facts = converter.facts(object).unwrap();
            compare(None, facts.as_ref(), &mut changes);
        }
        other => panic!("{other:?}"),
    });
    view.apply(changes);
    view
}

/// The expectation for the only Service.
fn expected(text: &str) -> Expectation {
    let view = view(text);
    let node = NodeContext::of(view.node());
    let mut states = view.states().filter(|(_, state)| state.service.is_some());
    states
        .next()
        .map(|(_, state)| expectation(state, &node))
        .unwrap_or_default()
}

fn socket(address: &Address, port: [u8; 2]) -> SocketAddr {
    SocketAddr::new(
        IpAddr::from(*address).to_canonical(),
        u16::from_be_bytes(port),
    )
}

fn letter(handling: ExpectedHandling) -> char {
    match handling {
        ExpectedHandling::Nothing => '-',
        ExpectedHandling::Forward => 'F',
        ExpectedHandling::LocalOnly => 'L',
        ExpectedHandling::Reject => 'R',
    }
}

/// `ClusterIP 10.96.0.1:80 FFF`: kind, address, expectation for pods, host and outside.
fn frontends(port: &PortExpectation) -> Vec<String> {
    let kind = |kind| match kind {
        FrontendKind::ClusterIp => "ClusterIP",
        FrontendKind::NodePort => "NodePort",
        FrontendKind::LoadBalancer => "LB",
        FrontendKind::ExternalIp => "externalIP",
    };
    let mut lines: Vec<String> = port
        .frontends
        .iter()
        .map(|f| {
            let handling: String = SourceClass::ALL
                .iter()
                .map(|c| letter(f.handling[*c as usize]))
                .collect();
            let host = if f.flags & frontend_flag::HOST_ENDPOINT != 0 {
                " host"
            } else {
                ""
            };
            format!(
                "{} {} {handling}{host}",
                kind(f.kind),
                socket(&f.key.address, f.key.port)
            )
        })
        .collect();
    lines.sort();
    lines
}

/// `10.244.1.7:8080 local`.
fn endpoints(port: &PortExpectation) -> Vec<String> {
    let local = |local| if local { " local" } else { "" };
    port.endpoints
        .iter()
        .map(|e| format!("{}{}", socket(&e.address, e.port), local(e.local)))
        .collect()
}

/// A Service with every kind of frontend, plus `spec`.
fn web(spec: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1]
  externalIPs: [203.0.113.9]
  ports:
  - {{port: 80, targetPort: http, nodePort: 30080}}
{spec}
status: {{loadBalancer: {{ingress: [{{ip: 198.51.100.7}}, {{ip: 198.51.100.8, ipMode: Proxy}}, {{hostname: lb.example}}]}}}}
---
"
    )
}

/// The slice of `web`: each endpoint `address node conditions`.
fn slice(endpoints: &[(&str, &str, &str)]) -> String {
    let mut text = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: '', port: 8080, protocol: TCP}]
endpoints:
"
    .to_owned();
    for (address, node, conditions) in endpoints {
        text += &format!(
            "- {{addresses: [{address}], nodeName: {node}, conditions: {{{conditions}}}}}\n"
        );
    }
    text
}

const READY: &str = "ready: true, serving: true";
const NOT_READY: &str = "ready: false, serving: false";
const LEAVING: &str = "ready: false, serving: true, terminating: true";
const DEAD: &str = "ready: false, serving: false, terminating: true";
const LEAVING_UNSET: &str = "ready: false, terminating: true";
const NONE: &[(&str, &str, &str)] = &[];
const HERE: (&str, &str, &str) = ("10.244.1.7", "here", READY);
const THERE: (&str, &str, &str) = ("10.244.2.7", "there", READY);
const E_LOCAL: &str = "  externalTrafficPolicy: Local";
const I_LOCAL: &str = "  internalTrafficPolicy: Local";
const BOTH_LOCAL: &str = "  internalTrafficPolicy: Local\n  externalTrafficPolicy: Local";
const RANGES: &str = "  loadBalancerSourceRanges: [10.0.0.0/8]";

#[rstest]
#[case::forward("", &[HERE, THERE], ["FFF", "FFF", "FFF", "FFF"])]
#[case::no_endpoints("", NONE, ["RRR", "RRR", "RRR", "RRR"])]
#[case::none_ready("", &[("10.244.2.7", "there", NOT_READY)], ["RRR", "RRR", "RRR", "RRR"])]
#[case::none_serving("", &[("10.244.2.7", "there", DEAD)], ["RRR", "RRR", "RRR", "RRR"])]
#[case::only_leaving("", &[("10.244.2.7", "there", LEAVING)], ["FFF", "FFF", "FFF", "FFF"])]
#[case::external_local(E_LOCAL, &[HERE, THERE], ["FFF", "FFL", "FFL", "FFL"])]
#[case::external_local_elsewhere(E_LOCAL, &[THERE], ["FFF", "FF-", "FF-", "FF-"])]
#[case::external_local_none(E_LOCAL, NONE, ["RRR", "RRR", "RRR", "RRR"])]
#[case::internal_local(I_LOCAL, &[HERE, THERE], ["LLL", "FFF", "FFF", "FFF"])]
#[case::internal_local_elsewhere(I_LOCAL, &[THERE], ["---", "FFF", "FFF", "FFF"])]
#[case::both_local(BOTH_LOCAL, &[HERE, THERE], ["LLL", "FFL", "FFL", "FFL"])]
#[case::both_local_elsewhere(BOTH_LOCAL, &[THERE], ["---", "FF-", "FF-", "FF-"])]
#[case::source_ranges(RANGES, &[HERE], ["FFF", "---", "FFF", "FFF"])]
#[case::source_ranges_none(RANGES, NONE, ["RRR", "RRR", "RRR", "RRR"])]
fn expectations_of_a_service(
    #[case] spec: &str,
    #[case] listed: &[(&str, &str, &str)],
    #[case] owed: [&str; 4],
) {
    let expected = expected(&(web(spec) + &slice(listed)));
    assert_eq!(expected.ports.len(), 1);
    let [cluster, lb, node_port, external] = owed;
    let lines = [
        format!("ClusterIP 10.96.0.1:80 {cluster}"),
        format!("LB 198.51.100.7:80 {lb}"),
        format!("NodePort 192.168.0.5:30080 {node_port}"),
        format!("externalIP 203.0.113.9:80 {external}"),
    ];
    assert_eq!(frontends(&expected.ports[0]), lines);
}

/// A Service that may have endpoints in other clusters gets no expectation, because no slice of this cluster
/// has them.
#[rstest]
#[case::now("service.cilium.io/global: 'true'", '-')]
#[case::before("io.cilium/global-service: 'true'", '-')]
#[case::not_global("service.cilium.io/global: 'false'", 'F')]
fn a_global_service_gets_no_expectation(#[case] annotation: &str, #[case] owed: char) {
    let metadata = format!("metadata: {{name: web, annotations: {{{annotation}}}}}");
    let text = web("").replace("metadata: {name: web}", &metadata);
    for listed in [NONE, &[HERE]] {
        let expected = expected(&(text.clone() + &slice(listed)));
        let expected = match (owed, listed) {
            ('F', NONE) => continue,
            _ => frontends(&expected.ports[0]),
        };
        let owed = owed.to_string().repeat(3);
        assert!(
            expected.iter().all(|line| line.ends_with(&owed)),
            "{expected:?}"
        );
    }
}

#[rstest]
#[case::ready_only("", &[HERE, ("10.244.2.8", "there", LEAVING)], &["10.244.1.7:8080 local"])]
#[case::unset_is_ready("", &[("10.244.2.8", "there", "")], &["10.244.2.8:8080"])]
#[case::fallback("", &[("10.244.2.8", "there", LEAVING), ("10.244.2.9", "there", DEAD)],
    &["10.244.2.8:8080"])]
#[case::serving_unset("", &[("10.244.2.8", "there", LEAVING_UNSET)], &["10.244.2.8:8080"])]
// Cluster policy uses the ready endpoint on the other node, local policy the terminating one on this node.
// Both are expected.
#[case::union(E_LOCAL, &[("10.244.1.7", "here", LEAVING), THERE],
    &["10.244.1.7:8080 local", "10.244.2.7:8080"])]
#[case::no_local_policy("", &[("10.244.1.7", "here", LEAVING), THERE], &["10.244.2.7:8080"])]
#[case::local_ready_wins(E_LOCAL, &[HERE, ("10.244.1.8", "here", LEAVING), THERE],
    &["10.244.1.7:8080 local", "10.244.2.7:8080"])]
// A Service with external frontends uses the endpoints of the whole cluster in addition to the local ones.
#[case::internal_local(I_LOCAL, &[HERE, THERE], &["10.244.1.7:8080 local", "10.244.2.7:8080"])]
fn which_endpoints(
    #[case] spec: &str,
    #[case] listed: &[(&str, &str, &str)],
    #[case] used: &[&str],
) {
    let expected = expected(&(web(spec) + &slice(listed)));
    assert_eq!(endpoints(&expected.ports[0]), used);
}

#[test]
fn internal_local_alone_uses_local_endpoints_only() {
    let service = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.1, internalTrafficPolicy: Local, ports: [{port: 80}]}
---
";
    let expected = expected(&(service.to_owned() + &slice(&[HERE, THERE])));
    assert_eq!(endpoints(&expected.ports[0]), ["10.244.1.7:8080 local"]);
    assert_eq!(
        frontends(&expected.ports[0]),
        ["ClusterIP 10.96.0.1:80 LLL"]
    );
}

#[test]
fn an_endpoint_at_the_node_marks_the_frontends() {
    let listed = [("192.168.0.5", "here", READY), THERE];
    let expected = expected(&(web("") + &slice(&listed)));
    assert!(
        frontends(&expected.ports[0])
            .iter()
            .all(|line| line.ends_with(" host"))
    );
}

#[test]
fn an_address_of_two_kinds_is_one_frontend() {
    let both =
        web("  loadBalancerSourceRanges: [10.0.0.0/8]").replace("203.0.113.9", "198.51.100.7");
    let expected = expected(&(both + &slice(&[HERE])));
    let lines = [
        "ClusterIP 10.96.0.1:80 FFF",
        "LB 198.51.100.7:80 ---",
        "NodePort 192.168.0.5:30080 FFF",
    ];
    assert_eq!(frontends(&expected.ports[0]), lines);
}

#[test]
fn both_families_and_named_ports() {
    let expected = expected(
        "
apiVersion: v1
kind: Service
metadata: {name: dual, namespace: shop}
spec:
  clusterIP: 10.96.0.2
  clusterIPs: [10.96.0.2, 'fd00:96::2']
  type: NodePort
  ports:
  - {name: web, port: 80, targetPort: http, nodePort: 30081}
  - {name: dns, port: 53, protocol: UDP}
  - {name: admin, port: 9000}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dual-4, namespace: shop, labels: {kubernetes.io/service-name: dual}}
addressType: IPv4
ports: [{name: web, port: 8080}, {name: dns, port: 53, protocol: UDP}]
endpoints: [{addresses: [10.244.1.7, 10.244.1.8], nodeName: here}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dual-6, namespace: shop, labels: {kubernetes.io/service-name: dual}}
addressType: IPv6
ports: [{name: web, port: 8086}]
endpoints: [{addresses: ['fd00:2::7'], nodeName: there}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: elsewhere, namespace: other, labels: {kubernetes.io/service-name: dual}}
addressType: IPv4
ports: [{name: web, port: 8080}]
endpoints: [{addresses: [10.244.9.9]}]
",
    );
    let ports: Vec<(String, Family)> = expected
        .ports
        .iter()
        .map(|p| (p.port.to_string(), p.family))
        .collect();
    let wanted = [
        ("web", Family::V4),
        ("web", Family::V6),
        ("dns", Family::V4),
        ("dns", Family::V6),
        ("admin", Family::V4),
        ("admin", Family::V6),
    ];
    assert_eq!(
        ports,
        wanted.map(|(name, family)| (name.to_owned(), family))
    );
    assert_eq!(endpoints(&expected.ports[2]), ["10.244.1.7:53 local"]);
    assert_eq!(endpoints(&expected.ports[3]), [""; 0]);
    assert_eq!(endpoints(&expected.ports[0]), ["10.244.1.7:8080 local"]);
    assert_eq!(endpoints(&expected.ports[1]), ["[fd00:2::7]:8086"]);
    assert_eq!(
        frontends(&expected.ports[1]),
        [
            "ClusterIP [fd00:96::2]:80 FFF",
            "NodePort [fd00::5]:30081 FFF"
        ]
    );
    assert_eq!(
        frontends(&expected.ports[4]),
        ["ClusterIP 10.96.0.2:9000 RRR"]
    );
}

#[test]
fn a_family_without_a_cluster_ip_is_not_served() {
    let text = web("").replace("203.0.113.9", "'2001:db8::9'") + &slice(&[HERE]);
    let expected = expected(&text);
    assert_eq!(expected.ports.len(), 1);
    assert!(
        frontends(&expected.ports[0])
            .iter()
            .all(|line| !line.contains("2001:db8"))
    );
}
