//! API objects of a simulated node: its Node, Services and EndpointSlices, one slice per family. No state
//! and no rule is here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use pathproof_facts::cluster::{
    Change, EndpointFacts, NodeFacts, ObjectName, Protocol, ServiceFacts, ServicePort, SliceFacts,
    SlicePort,
};
use pathproof_facts::node_context::address;
use pathproof_plan::expect::sentinel::SentinelRule;
use pathproof_wire::service::{Family, FrontendKind};

use super::addresses::{self, Both, ECHO};
use super::{PORT, Pod, Service};
use crate::world::{ServiceSpec, Stack};

const SENTINEL_NODE_PORT: u16 = 32_767;
/// Number of other nodes that the agent distinguishes.
pub(super) const PEERS: u16 = 3;

/// Configuration of the sentinel on every simulated node.
pub(crate) fn sentinel_rule() -> SentinelRule {
    SentinelRule {
        service: ObjectName::new("pathproof", "pathproof-sentinel"),
        echo: ECHO,
        clients: Vec::new(),
        pods: Vec::new(),
    }
}

/// The sentinel's Service, with one port per transport.
pub(super) fn sentinel(stack: Stack, has_node_port: bool) -> ServiceFacts {
    let port = |(name, protocol): (&str, Protocol)| ServicePort {
        name: name.into(),
        protocol,
        port: PORT,
        node_port: has_node_port.then_some(SENTINEL_NODE_PORT),
    };
    ServiceFacts {
        name: sentinel_rule().service,
        cluster_ips: stack.of(addresses::SENTINEL),
        ports: [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)]
            .map(port)
            .into(),
        ..ServiceFacts::default()
    }
}

pub(super) fn service(
    place: usize,
    spec: &ServiceSpec,
    external_ips: Vec<IpAddr>,
    stack: Stack,
) -> ServiceFacts {
    let unnamed = || format!("service-{place}");
    let name = spec.name.clone().unwrap_or_else(unnamed);
    let port = |number: u16| ServicePort {
        name: match number {
            0 => "".into(),
            _ => format!("p{number}").into(),
        },
        protocol: Protocol::Tcp,
        port: spec.port.saturating_add(number),
        node_port: (number == 0 && spec.has_node_port).then_some(30_000 + place as u16),
    };
    ServiceFacts {
        name: ObjectName::new(&spec.namespace, &name),
        cluster_ips: stack.of(addresses::cluster_ip(place)),
        external_ips,
        ports: (0..spec.ports).map(port).collect(),
        ..ServiceFacts::default()
    }
}

pub(super) fn node(number: u32, stack: Stack) -> NodeFacts {
    NodeFacts {
        name: format!("node-{number}").into(),
        addresses: stack.of(addresses::node(number)),
        pod_cidrs: stack
            .families()
            .map(|family| addresses::pod_range(number, family))
            .collect(),
        ..NodeFacts::default()
    }
}

pub(super) fn peers() -> Change {
    let named = |number| (number, format!("other-{number}").into());
    Change::Peers((1..=PEERS).map(named).collect())
}

pub(super) fn dialled(
    facts: &ServiceFacts,
    node: &Both,
    kind: FrontendKind,
    family: Family,
) -> Option<SocketAddr> {
    let port = facts.ports.first()?;
    let mut cluster_ips = facts.cluster_ips.iter();
    let of_family = |ip: &&IpAddr| ip.is_ipv4() == (family == Family::V4);
    let cluster_ip = *cluster_ips.find(of_family)?;
    match kind {
        FrontendKind::ClusterIp => Some(SocketAddr::new(cluster_ip, port.port)),
        _ => Some(SocketAddr::new(node[family as usize], port.node_port?)),
    }
}

pub(super) fn slices_of(service: &Service, stack: Stack) -> impl Iterator<Item = Change> {
    let pods: Vec<Pod> = service.api_pods().collect();
    let facts = Arc::clone(&service.facts);
    let port = service.target;
    stack
        .families()
        .map(move |family| slice(&facts, port, &pods, family))
}

/// Slices of the sentinel. The port of its endpoint is the generation.
pub(super) fn sentinel_slices(
    sentinel: &Arc<ServiceFacts>,
    generation: u16,
    stack: Stack,
) -> impl Iterator<Item = Change> {
    let echo = Pod {
        ips: ECHO,
        local: false,
        peer: 0,
    };
    let facts = Arc::clone(sentinel);
    let slices = stack.families();
    slices.map(move |family| slice(&facts, generation, &[echo], family))
}

pub(super) fn slice_name(service: &ObjectName, family: Family) -> ObjectName {
    let suffix = ["v4", "v6"][family as usize];
    ObjectName::new(&service.namespace, &format!("{}-{suffix}", service.name))
}

fn slice(facts: &ServiceFacts, port: u16, pods: &[Pod], family: Family) -> Change {
    let endpoint = |pod: &Pod| EndpointFacts {
        peer: pod.peer,
        address: address(&pod.ip(family)),
        ready: true,
        serving: true,
        terminating: false,
        local: pod.local,
    };
    let ports = facts.ports.iter().map(|service_port| SlicePort {
        name: Arc::clone(&service_port.name),
        protocol: service_port.protocol,
        port,
    });
    Change::Slice(Arc::new(SliceFacts {
        name: slice_name(&facts.name, family),
        service: Arc::clone(&facts.name.name),
        ports: ports.collect(),
        endpoints: pods.iter().map(endpoint).collect(),
        fleet: None,
    }))
}
