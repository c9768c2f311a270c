//! The cluster of the scene: a node, a TCP Service, a UDP Service and the sentinel.

use std::net::IpAddr;
use std::sync::Arc;

use pathproof_facts::cluster::{
    Change, EndpointFacts, NodeFacts, ObjectName, Protocol, ServiceFacts, ServicePort, SliceFacts,
    SlicePort,
};
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::node_context::{ECHO_SERVICE, address};
use pathproof_plan::expect::sentinel::SentinelRule;
use pathproof_witness::coverage::{Hook, Hooks};

/// Taint of the cluster autoscaler, which announces the removal of a node.
pub(super) const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn rule() -> SentinelRule {
    SentinelRule {
        service: ObjectName::new("pathproof", "sentinel"),
        echo: [ip("198.18.0.2"), ip("2001:2::2")],
        clients: Vec::new(),
        pods: Vec::new(),
    }
}

pub(super) fn node_facts() -> NodeFacts {
    NodeFacts {
        name: "here".into(),
        uid: "u-1".into(),
        addresses: vec![ip("192.0.2.10")],
        pod_cidrs: vec!["10.1.0.0/16".parse().unwrap()],
        ..NodeFacts::default()
    }
}

/// The Node object with these taints.
pub(super) fn tainted(taints: &[&str]) -> Change {
    Change::Node(Arc::new(NodeFacts {
        taints: taints.iter().map(|taint| (*taint).into()).collect(),
        ..node_facts()
    }))
}

fn port(name: &str, protocol: Protocol, number: u16, node_port: Option<u16>) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        port: number,
        node_port,
    }
}

fn facts(name: ObjectName, cluster_ip: &str, ports: Vec<ServicePort>) -> ServiceFacts {
    ServiceFacts {
        name,
        cluster_ips: vec![ip(cluster_ip)],
        ports,
        ..ServiceFacts::default()
    }
}

pub(super) fn service(name: &str, cluster_ip: &str) -> Change {
    let name = ObjectName::new("default", name);
    let ports = vec![port("", Protocol::Tcp, 80, None)];
    Change::Service(Arc::new(facts(name, cluster_ip, ports)))
}

/// A Service with an address of the sentinel.
pub(super) fn taker() -> Change {
    service("taker", "198.18.0.2")
}

/// Reason of the sentinel's condition while [`taker`] exists.
pub(super) const TAKEN: &str = "the sentinel's address 198.18.0.2 is a cluster IP of Service \
                                default/taker: choose other sentinel addresses";

fn dns() -> Change {
    let name = ObjectName::new("default", "dns");
    let ports = vec![port("", Protocol::Udp, 53, None)];
    Change::Service(Arc::new(facts(name, "10.96.0.53", ports)))
}

/// A slice of a Service in `default`, with these endpoints.
pub(super) fn slice(service: &str, protocol: Protocol, endpoints: &[&str]) -> Change {
    Change::Slice(Arc::new(SliceFacts {
        name: ObjectName::new("default", &format!("{service}-1")),
        service: service.into(),
        ports: vec![SlicePort {
            name: "".into(),
            protocol,
            port: 8080,
        }],
        endpoints: endpoints.iter().map(|text| endpoint(text)).collect(),
        fleet: None,
    }))
}

/// The same, with endpoints on this node.
pub(super) fn local_slice(service: &str, protocol: Protocol, endpoints: &[&str]) -> Change {
    let Change::Slice(mut facts) = slice(service, protocol, endpoints) else {
        unreachable!("a slice");
    };
    for endpoint in &mut Arc::make_mut(&mut facts).endpoints {
        endpoint.local = true;
    }
    Change::Slice(facts)
}

fn endpoint(text: &str) -> EndpointFacts {
    EndpointFacts {
        peer: 0,
        address: address(&ip(text)),
        ready: true,
        serving: true,
        terminating: false,
        local: false,
    }
}

/// The sentinel's Service with this node port.
pub(super) fn sentinel_service(node_port: u16) -> Change {
    let ports = vec![
        port("tcp", Protocol::Tcp, 80, Some(node_port)),
        port("udp", Protocol::Udp, 80, None),
    ];
    Change::Service(Arc::new(facts(rule().service, "10.96.0.9", ports)))
}

/// The pod probe's Service, with a pod on this node or on another one.
pub(super) fn pod_probe(local: bool) -> [Change; 2] {
    pod_probe_of("10.96.0.77", "10.2.9.9", local)
}

pub(super) fn pod_probe_of(cluster_ip: &str, pod: &str, local: bool) -> [Change; 2] {
    let name = ObjectName::new("pathproof", ECHO_SERVICE);
    let ports = vec![port("", Protocol::Tcp, 19_257, None)];
    let probe = EndpointFacts {
        local,
        ..endpoint(pod)
    };
    let slice = SliceFacts {
        name: ObjectName::new("pathproof", "pathproof-echo-1"),
        service: ECHO_SERVICE.into(),
        ports: vec![],
        endpoints: vec![probe],
        fleet: None,
    };
    [
        Change::Service(Arc::new(facts(name, cluster_ip, ports))),
        Change::Slice(Arc::new(slice)),
    ]
}

/// A tenant's Service with an external IP of the tenant's choice.
pub(super) fn conflicting(external_ip: &str, protocol: Protocol, number: u16) -> Change {
    conflicting_as("claim", external_ip, protocol, number)
}

/// [`conflicting`] with another name.
pub(super) fn conflicting_as(
    name: &str,
    external_ip: &str,
    protocol: Protocol,
    number: u16,
) -> Change {
    let cluster_ip = format!("10.96.7.{}", name.as_bytes()[0]);
    let name = ObjectName::new("shop", name);
    let ports = vec![port("any", protocol, number, None)];
    Change::Service(Arc::new(ServiceFacts {
        external_ips: vec![ip(external_ip)],
        ..facts(name, &cluster_ip, ports)
    }))
}

/// The sentinel's Service with the annotation that switches the whole cluster.
pub(super) fn switched_service(node_port: u16, switch: &str) -> Change {
    let Change::Service(service) = sentinel_service(node_port) else {
        unreachable!("it is a Service");
    };
    Change::Service(Arc::new(ServiceFacts {
        enforcement: Some(switch.into()),
        ..(*service).clone()
    }))
}

/// The sentinel's slice with this port, which is its generation.
pub(super) fn sentinel_slice(generation: u16) -> Change {
    counted(generation, None)
}

/// The sentinel's slice with this generation and the rotator's count of nodes.
pub(super) fn counted(generation: u16, fleet: Option<&str>) -> Change {
    let port = |name: &str, protocol| SlicePort {
        name: name.into(),
        protocol,
        port: generation,
    };
    Change::Slice(Arc::new(SliceFacts {
        name: ObjectName::new("pathproof", "sentinel-v4"),
        service: "sentinel".into(),
        ports: vec![port("tcp", Protocol::Tcp), port("udp", Protocol::Udp)],
        endpoints: vec![endpoint("198.18.0.2")],
        fleet: fleet.map(Box::from),
    }))
}

/// The sentinel as installed.
pub(super) fn sentinel_objects() -> Vec<Change> {
    vec![sentinel_service(30_080), sentinel_slice(FIRST_GENERATION)]
}

/// The sentinel with a cluster IP and a slice in each family.
pub(super) fn dual_stack_sentinel() -> Vec<Change> {
    let mut changes = sentinel_objects();
    let mut slices = vec![sentinel_slice(FIRST_GENERATION)];
    for change in &mut slices {
        if let Change::Slice(slice) = change {
            let slice = Arc::make_mut(slice);
            slice.name = ObjectName::new("pathproof", "sentinel-v6");
            slice.endpoints[0].address = address(&rule().echo[1]);
        }
    }
    for change in &mut changes {
        if let Change::Service(service) = change {
            Arc::make_mut(service).cluster_ips.push(ip("fd00:10:96::9"));
        }
    }
    changes.extend(slices);
    changes
}

/// An edit that alters the sentinel: the port of its endpoint is no generation.
pub(super) fn alteration() -> Change {
    sentinel_slice(9_001)
}

/// All objects except the sentinel's. The view is not complete yet.
pub(super) fn services() -> Vec<Change> {
    vec![
        tainted(&[]),
        service("web", "10.96.0.1"),
        slice("web", Protocol::Tcp, &["10.2.0.1", "10.2.0.2"]),
        dns(),
        slice("dns", Protocol::Udp, &["10.2.0.53"]),
    ]
}

/// All objects except the sentinel's, as a complete view.
pub(super) fn synced_services() -> Vec<Change> {
    let mut changes = services();
    changes.push(Change::Synced);
    changes
}

pub(super) fn cluster() -> Vec<Change> {
    let mut changes = services();
    changes.extend(sentinel_objects());
    changes.push(Change::Synced);
    changes
}

fn hook(device: &str, uplink: bool) -> Hook {
    Hook {
        device: device.to_owned(),
        uplink,
        attached: true,
        first: true,
        problem: None,
    }
}

/// An uplink and a pod's interface, both observed.
pub(super) fn hooks() -> Hooks {
    Hooks {
        devices: vec![hook("eth0", true), hook("veth1", false)],
        left_out: 0,
        unseen: 0,
        new: 0,
        not_pinned: None,
    }
}
