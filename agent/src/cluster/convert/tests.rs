use rstest::rstest;

use super::*;
use crate::cluster::yaml::{self, Item};

fn object(text: &str) -> Object {
    let mut found = Vec::new();
    yaml::read(text, &mut |item| match item {
        Item::Object(Ok(object)) => found.push(object),
        other => panic!("{other:?}"),
    });
    assert_eq!(found.len(), 1, "{text}");
    found.remove(0)
}

fn convert(head: &str, text: &str) -> Converted {
    Converter::new("here").facts(object(&format!("{head}\n{text}")))
}

fn service(text: &str) -> Result<Option<ServiceFacts>, Invalid> {
    let facts = convert("apiVersion: v1\nkind: Service", text)?;
    Ok(facts.map(|facts| match facts {
        ObjectFacts::Service(facts) => Arc::unwrap_or_clone(facts),
        other => panic!("{other:?}"),
    }))
}

fn slice(text: &str) -> Result<Option<SliceFacts>, Invalid> {
    let facts = convert("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice", text)?;
    Ok(facts.map(|facts| match facts {
        ObjectFacts::Slice(facts) => Arc::unwrap_or_clone(facts),
        other => panic!("{other:?}"),
    }))
}

fn node(text: &str) -> Result<Option<NodeFacts>, Invalid> {
    let facts = convert("apiVersion: v1\nkind: Node", text)?;
    Ok(facts.map(|facts| match facts {
        ObjectFacts::Node(facts) => Arc::unwrap_or_clone(facts),
        other => panic!("{other:?}"),
    }))
}

const META: &str = "metadata: {name: web, namespace: shop}\n";

#[rstest]
#[case::headless("spec: {clusterIP: None}")]
#[case::headless("spec: {clusterIP: ''}")]
#[case::headless("spec: {clusterIPs: [None]}")]
#[case::headless("spec: {ports: [{port: 80}]}")]
#[case("spec: {type: ExternalName, externalName: a.example, clusterIP: 10.96.0.1}")]
fn ignored_services(#[case] spec: &str) {
    assert_eq!(service(&format!("{META}{spec}")), Ok(None));
}

#[rstest]
#[case("service.kubernetes.io/service-proxy-name: ''", false)]
#[case("service.kubernetes.io/headless: ''", false)]
#[case("app: x", true)]
#[case("kubernetes.io/service-name: ''", true)]
fn labels_decide(#[case] label: &str, #[case] is_served: bool) {
    let meta = format!("metadata: {{name: web, labels: {{{label}}}}}\n");
    assert_eq!(slice(&format!("{meta}addressType: IPv4")), Ok(None));
    let service = service(&format!("{meta}spec: {{clusterIP: 10.96.0.1}}"));
    assert_eq!(service.unwrap().is_some(), is_served);
}

#[test]
fn a_slice_of_domain_names_is_ignored() {
    let meta = "metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\n";
    assert_eq!(slice(&format!("{meta}addressType: FQDN")), Ok(None));
}

#[rstest]
#[case(
    "spec: {clusterIP: 10.96.0}",
    r#"spec.clusterIPs[0] is "10.96.0": must be an IP address"#
)]
#[case(
    "spec: {clusterIP: 10.96.0.1, ports: [{port: 0}]}",
    r#"spec.ports[0].port is "0": must be a port, 1 to 65535"#
)]
#[case(
    "spec: {clusterIP: 10.96.0.1, ports: [{port: 80, nodePort: 70000}]}",
    r#"spec.ports[0].nodePort is "70000": must be a port, 1 to 65535"#
)]
#[case(
    "spec: {clusterIP: 10.96.0.1, ports: [{port: 80, protocol: tcp}]}",
    r#"spec.ports[0].protocol is "tcp": must be TCP, UDP or SCTP"#
)]
#[case(
    "spec: {clusterIP: 10.96.0.1, ports: [{name: a, port: 80}, {name: a, port: 81}]}",
    r#"spec.ports[1].name is "a": another port of the Service has the same name"#
)]
#[case(
    "spec: {clusterIP: 10.96.0.1, ports: [{name: a, port: 80}, {name: b, port: 80}]}",
    r#"spec.ports[1].port is "80": another port of the Service has the same number"#
)]
#[case(
    "spec: {clusterIP: 10.96.0.1, externalIPs: [localhost]}",
    r#"spec.externalIPs[0] is "localhost": must be an IP address"#
)]
#[case(
    "spec: {clusterIP: 10.96.0.1}\nstatus: {loadBalancer: {ingress: [{ip: 1.2.3.4, ipMode: vip}]}}",
    r#"status.loadBalancer.ingress[0].ipMode is "vip": must be VIP or Proxy"#
)]
fn invalid_services(#[case] spec: &str, #[case] message: &str) {
    let error = service(&format!("{META}{spec}")).unwrap_err();
    assert_eq!(error.to_string(), format!("Service shop/web: {message}"));
}

#[rstest]
#[case(
    "addressType: Ipv4",
    r#"addressType is "Ipv4": IPv4, IPv6 or FQDN is wanted"#
)]
#[case(
    "addressType: IPv4\nendpoints: [{addresses: ['fd00::1']}]",
    r#"endpoints[0].addresses[0] is "fd00::1": not of the slice's addressType"#
)]
#[case(
    "addressType: IPv6\nendpoints: [{addresses: [10.0.0.1]}]",
    r#"endpoints[0].addresses[0] is "10.0.0.1": not of the slice's addressType"#
)]
#[case(
    "addressType: IPv4\nports: [{port: -1}]",
    r#"ports[0].port is "-1": must be a port, 1 to 65535"#
)]
fn invalid_slices(#[case] text: &str, #[case] message: &str) {
    let meta = "metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\n";
    let error = slice(&format!("{meta}{text}")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("EndpointSlice default/web-1: {message}")
    );
}

#[test]
fn an_object_without_a_name_is_reported() {
    let error = service("spec: {clusterIP: 10.96.0.1}").unwrap_err();
    let words = "Service without a name: metadata.name is missing: every object has a name";
    assert_eq!(error.to_string(), words);
}

#[test]
fn a_slice_keeps_first_addresses_and_numbered_ports() {
    let facts = slice(
        "metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: a, port: 80}, {name: all}, {name: zero, port: 0}]
endpoints:
- {addresses: [10.0.0.1, 10.0.0.2], nodeName: here}
- {addresses: []}
- {addresses: [10.0.0.3], conditions: {ready: false, terminating: true}, nodeName: there}
",
    );
    let facts = facts.unwrap().unwrap();
    let names: Vec<&str> = facts.ports.iter().map(|port| &*port.name).collect();
    assert_eq!(names, ["a"]);
    let endpoint = |ip: [u8; 4], ready, terminating, local: bool| EndpointFacts {
        // The first other node gets number 1.
        peer: u16::from(!local),
        address: pathproof_wire::service::mapped(ip),
        ready,
        serving: true,
        terminating,
        local,
    };
    let first = endpoint([10, 0, 0, 1], true, false, true);
    assert_eq!(
        facts.endpoints,
        [first, endpoint([10, 0, 0, 3], false, true, false)]
    );
}

#[test]
fn a_node_has_addresses_ranges_taints_and_an_end() {
    let facts = node(
        "metadata: {name: here, uid: u-1, deletionTimestamp: '2026-11-21T10:00:00Z'}
spec:
  podCIDR: 10.244.1.0/24
  taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule, value: '1'}]
status:
  addresses:
  - {type: InternalIP, address: 192.168.0.5}
  - {type: ExternalIP, address: 203.0.113.5}
  - {type: InternalIP, address: 192.168.0.5}
  - {type: InternalDNS, address: here.example}
",
    );
    let facts = facts.unwrap().unwrap();
    assert_eq!(facts.addresses.len(), 2);
    assert_eq!(facts.pod_cidrs, ["10.244.1.0/24".parse().unwrap()]);
    assert_eq!(facts.taints, ["ToBeDeletedByClusterAutoscaler".into()]);
    assert!(facts.deleting);
    assert_eq!(&*facts.uid, "u-1");
}

/// kubelet reports a graceful node shutdown only in a message; the negative control is another message.
#[rstest]
#[case::shuts_down("node is shutting down", Some("True"))]
#[case::no_network("container runtime network not ready", None)]
fn labels_and_conditions_are_marks(#[case] message: &str, #[case] shutdown: Option<&str>) {
    let facts = node(&format!(
        "metadata: {{name: here, labels: {{kured: rebooting, empty: ''}}}}
status:
  conditions:
  - {{type: Ready, status: 'False', reason: KubeletNotReady, message: {message}}}
  - {{type: Terminating, status: 'True'}}
"
    ));
    let marks = facts.unwrap().unwrap().marks;
    let mark = |key: &str| marks.get(key).map(|value| &**value);
    assert_eq!(mark("label kured"), Some("rebooting"));
    assert_eq!(mark("label empty"), Some(""));
    assert_eq!(mark("condition Ready"), Some("False"));
    assert_eq!(mark("condition Terminating"), Some("True"));
    assert_eq!(mark("condition kubelet-shutdown"), shutdown);
}

#[test]
fn another_node_is_not_taken() {
    assert_eq!(node("metadata: {name: there}"), Ok(None));
}

/// Invalid addresses that a cloud writes must not hide that the node is being deleted.
#[rstest]
#[case::empty(
    "''",
    "10.244.1.0/24",
    r#"status.addresses[0].address is "": must be an IP address"#
)]
#[case::a_name(
    "x",
    "10.244.1.0/24",
    r#"status.addresses[0].address is "x": must be an IP address"#
)]
#[case::a_range(
    "192.0.2.10",
    "10.244.1.0",
    r#"spec.podCIDRs is "10.244.1.0": a CIDR such as 10.244.1.0/24 is wanted"#
)]
fn a_node_is_used_without_its_invalid_addresses(
    #[case] address: &str,
    #[case] range: &str,
    #[case] expected: &str,
) {
    let mut converter = Converter::new("here");
    let text = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: here}}\n\
         spec: {{podCIDRs: ['{range}'], \
         taints: [{{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}}]}}\n\
         status: {{addresses: [{{type: ExternalIP, address: {address}}}, \
         {{type: InternalIP, address: 192.0.2.10}}]}}"
    );
    let facts = converter.facts(object(&text)).expect("taken");
    let Some(ObjectFacts::Node(facts)) = facts else {
        panic!("{facts:?}");
    };
    assert_eq!(facts.taints, ["ToBeDeletedByClusterAutoscaler".into()]);
    assert_eq!(facts.addresses.len(), 1);
    let told = converter.left_out.take().expect("a report").to_string();
    assert_eq!(told, format!("Node here: {expected}"));
    assert_eq!(converter.left_out, None, "it was taken");
}

#[test]
fn external_policy_needs_an_external_frontend() {
    let local = |text: &str| {
        service(&format!("{META}{text}"))
            .unwrap()
            .unwrap()
            .external_local
    };
    assert!(!local(
        "spec: {clusterIP: 10.96.0.1, externalTrafficPolicy: Local}"
    ));
    assert!(local(
        "spec: {clusterIP: 10.96.0.1, type: NodePort, externalTrafficPolicy: Local}"
    ));
    assert!(local(
        "spec: {clusterIP: 10.96.0.1, externalIPs: [203.0.113.1], externalTrafficPolicy: Local}"
    ));
}

#[test]
fn shared_names_are_kept_once() {
    let mut converter = Converter::new("here");
    let first = converter.share("http");
    assert!(Arc::ptr_eq(&first, &converter.share("http")));
    for round in 0..10_000 {
        converter.share(&format!("port-{round}"));
    }
    assert!(converter.shared.len() < 5_000, "{}", converter.shared.len());
    assert!(Arc::ptr_eq(&first, &converter.share("http")));
}

/// The API server keeps such addresses in Services that are older than its strict checks, and kube-proxy
/// serves them.
#[rstest]
#[case("192.0.2.010", "192.0.2.10")]
#[case("::ffff:192.0.2.10", "192.0.2.10")]
#[case("2001:DB8::0010", "2001:db8::10")]
fn addresses_are_read_as_kube_proxy_reads_them(#[case] text: &str, #[case] ip: &str) {
    let spec = format!("spec: {{clusterIP: '{text}', externalIPs: ['{text}']}}");
    let facts = service(&format!("{META}{spec}")).expect("valid");
    let facts = facts.expect("a Service");
    let ip: IpAddr = ip.parse().unwrap();
    assert_eq!(facts.cluster_ips, [ip]);
    assert_eq!(facts.external_ips, [ip]);
}

#[test]
fn an_endpoint_is_read_as_kube_proxy_reads_it() {
    let facts = slice(
        "metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.0.000.011]}]
",
    );
    let facts = facts.unwrap().unwrap();
    let address = pathproof_wire::service::mapped([10, 0, 0, 11]);
    assert_eq!(facts.endpoints[0].address, address);
}

/// Anybody who may edit one namespace may annotate its slices with megabytes.
#[test]
fn long_annotations_are_cut_between_characters() {
    let long = "ä".repeat(1_000);
    let head = "name: web, namespace: shop, labels: {kubernetes.io/service-name: web}";
    let meta = |key: &str| format!("metadata: {{{head}, annotations: {{{key}: {long}}}}}\n");
    let text = meta("pathproof.io/enforcement") + "spec: {clusterIP: 10.96.0.10}";
    let service = service(&text).expect("valid");
    let kept = service
        .and_then(|service| service.enforcement)
        .expect("an annotation");
    assert_eq!(&*kept, "ä".repeat(20));
    let text = meta("pathproof.io/fleet") + "addressType: IPv4\nendpoints: []";
    let facts = slice(&text).expect("valid").expect("a slice");
    let kept = facts.fleet;
    assert_eq!(kept.as_deref(), Some(&*"ä".repeat(512)));
}

const WEB_SLICE: &str = "metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
";

/// No API server accepts more, but a file may have any number.
#[rstest]
#[case::endpoints("endpoints", "{addresses: [10.0.0.1]}", 1_000)]
#[case::ports("ports", "{port: 80}", 20_000)]
fn a_slice_has_at_most_what_kubernetes_allows(
    #[case] field: &str,
    #[case] entry: &str,
    #[case] most: usize,
) {
    let of = |count| {
        let entries = format!("- {entry}\n").repeat(count);
        slice(&format!("{WEB_SLICE}{field}:\n{entries}"))
    };
    let facts = of(most).expect("valid").expect("a slice");
    assert_eq!(facts.endpoints.len() + facts.ports.len(), most);
    let message = format!(
        "EndpointSlice default/web-1: {field} has {} entries, and Kubernetes allows {most}: divide \
         them among several slices",
        most + 1
    );
    assert_eq!(of(most + 1).unwrap_err().to_string(), message);
}

/// The memory budget charges for the entries that are kept.
#[test]
fn a_slice_keeps_no_room_for_entries_that_were_skipped() {
    let ports = "- {name: a}\n".repeat(1_000);
    let endpoints = "- {addresses: []}\n".repeat(1_000);
    let text = format!("{WEB_SLICE}ports:\n{ports}endpoints:\n{endpoints}");
    let facts = slice(&text).expect("valid").expect("a slice");
    assert_eq!((facts.ports.capacity(), facts.endpoints.capacity()), (0, 0));
}

/// A check of each port against each other would take minutes, and delay all other objects. No time is
/// asserted, but such a check would be noticed.
#[test]
fn a_service_with_every_port_is_converted() {
    let port = |protocol: &str, port: i32| KubeServicePort {
        name: Some(format!("p{port}")),
        port,
        protocol: Some(protocol.to_owned()),
        ..KubeServicePort::default()
    };
    let of = |protocol: &'static str| (1..=65_535).map(move |number| port(protocol, number));
    let listed: Vec<_> = of("TCP").chain(of("UDP")).chain(of("SCTP")).collect();
    let ports = Converter::new("here").service_ports(&listed);
    assert_eq!(ports.expect("valid").len(), 3 * 65_535);
}
