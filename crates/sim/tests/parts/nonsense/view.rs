//! Changes of a cluster view, sensible or not.

use std::sync::Arc;

use pathproof_facts::cluster::{
    Change, EndpointFacts, NodeFacts, ObjectName, Protocol, ServiceFacts, ServicePort, SliceFacts,
    SlicePort,
};
use pathproof_node::event::ViewUpdate;
use proptest::prelude::*;
use proptest::sample::select;

use super::{addresses, mapped, names, ports};

const FLEETS: [&str; 3] = [
    r#"{"nodes":200,"unsound":{"DatapathStale":150}}"#,
    r#"{"nodes":1,"unsound":{"DatapathStale":2}}"#,
    "",
];

prop_compose! {
    pub(super) fn node_facts()(
        addresses in prop::collection::vec(addresses(), 0..3),
        taint in prop::option::of(select(vec!["ToBeDeletedByClusterAutoscaler", "other"])),
        deleting: bool,
        kubelet_silent: bool,
        ranges in prop::collection::vec(
            select(vec!["10.128.0.0/24", "10.96.0.0/12", "0.0.0.0/0", "::/0", "fd00::/64"]), 0..3),
        enforcement in switches(),
        network in prop::option::weighted(0.1, Just("no CNI")),
    ) -> NodeFacts {
        NodeFacts {
            name: "node-0".into(),
            uid: "".into(),
            addresses,
            pod_cidrs: ranges.into_iter().filter_map(|range| range.parse().ok()).collect(),
            taints: taint.map(Into::into).into_iter().collect(),
            deleting,
            kubelet_silent,
            network: network.map(Into::into),
            enforcement,
            marks: Default::default(),
        }
    }
}

fn switches() -> impl Strategy<Value = Option<Box<str>>> {
    prop::option::of(select(vec!["audit", "enforce", ""]).prop_map(Box::from))
}

fn protocols() -> impl Strategy<Value = Protocol> {
    select(vec![
        Protocol::Tcp,
        Protocol::Tcp,
        Protocol::Udp,
        Protocol::Sctp,
    ])
}

prop_compose! {
    fn service()(
        name in names(),
        ips in prop::array::uniform3(prop::collection::vec(addresses(), 0..3)),
        ports in prop::collection::vec((protocols(), ports(), prop::option::of(ports())), 0..3),
        flags: [bool; 4],
        enforcement in switches(),
    ) -> ServiceFacts {
        let [cluster_ips, external_ips, load_balancer_ips] = ips;
        let [external_local, internal_local, has_source_ranges, is_global] = flags;
        let port = |(protocol, port, node_port)| ServicePort {
            name: "".into(),
            protocol,
            port,
            node_port,
        };
        ServiceFacts {
            name,
            cluster_ips,
            external_ips,
            load_balancer_ips,
            ports: ports.into_iter().map(port).collect(),
            external_local: external_local && internal_local,
            internal_local,
            has_source_ranges: has_source_ranges && is_global,
            is_global,
            health_port: external_local.then_some(30_500),
            enforcement,
        }
    }
}

prop_compose! {
    fn slice()(
        service in names(),
        number in 0..3_u8,
        ports in prop::collection::vec((protocols(), ports()), 0..3),
        endpoints in prop::collection::vec((mapped(), any::<[bool; 4]>()), 0..5),
        fleet in prop::option::of(select(&FLEETS[..])),
    ) -> SliceFacts {
        let port = |(protocol, port)| SlicePort { name: "".into(), protocol, port };
        let endpoint = |(address, [ready, serving, terminating, local]): ([u8; 16], [bool; 4])| EndpointFacts {
 peer: 0,
            address,
            ready,
            serving,
            terminating,
            local,
        };
        SliceFacts {
            name: ObjectName::new(&service.namespace, &format!("{}-{number}", service.name)),
            service: service.name,
            ports: ports.into_iter().map(port).collect(),
            endpoints: endpoints.into_iter().map(endpoint).collect(),
            fleet: fleet.map(Box::from),
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => node_facts().prop_map(|node| Change::Node(Arc::new(node))),
        1 => Just(Change::NodeGone),
        4 => service().prop_map(|service| Change::Service(Arc::new(service))),
        1 => names().prop_map(Change::ServiceGone),
        4 => slice().prop_map(|slice| Change::Slice(Arc::new(slice))),
        1 => (names(), 0..3_u8).prop_map(|(service, number)| Change::SliceGone {
            slice: ObjectName::new(&service.namespace, &format!("{}-{number}", service.name)),
            service: service.name,
        }),
        2 => Just(Change::Synced),
    ]
}

pub(super) fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 0..6)
}

prop_compose! {
    pub(super) fn view()(changes in changes(), problem in prop::option::of(Just("away")), silent: bool, ignored: u64)
    -> ViewUpdate {
        ViewUpdate {
            changes,
            problems: problem.map(str::to_owned).into_iter().collect(),
            silent,
            ignored,
            unknown_frontends: (ignored % 2 == 1).then(|| ObjectName::new("shop", "claim")),
            missing_node: (ignored % 3 == 1).then(|| "no Node is named here".to_owned()),
        }
    }
}
