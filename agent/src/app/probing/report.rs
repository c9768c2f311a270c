//! The sentinel's block of the report. The addresses in it also configure the prober.

use std::net::SocketAddr;

use pathproof_node::{Condition, Node};
use pathproof_report::sentinel::{SentinelAddresses, SentinelDevices, SentinelReport};
use pathproof_wire::service::Family;

use super::Probing;
use crate::sentinel::devices::Role;

impl Probing {
    pub(in crate::app) fn report(&self, node: &Node) -> SentinelReport {
        let service = &self.config.place.service;
        let condition = node
            .sentinel()
            .map_or(Condition::Absent, |sentinel| sentinel.condition());
        let name = |role: Role| role.name(&self.config.devices);
        SentinelReport {
            devices: Some(SentinelDevices {
                client_far: name(Role::ClientFar),
                client_near: name(Role::ClientNear),
                server_near: name(Role::ServerNear),
                server_far: name(Role::ServerFar),
            }),
            families: self.addresses(node),
            ..SentinelReport::of(service, &condition, node.view().is_synced())
        }
    }

    /// Probed addresses, by family.
    pub(super) fn addresses(&self, node: &Node) -> Vec<SentinelAddresses> {
        let Some(watched) = node.sentinel() else {
            return Vec::new();
        };
        let has = |family| (self.devices.as_ref()).is_none_or(|devices| devices.has(family));
        let families = Family::ALL.into_iter().filter(|family| has(*family));
        let outside_rests = !node.judge().topology.has_applicable_probes();
        let addresses = |family: Family| {
            let found = watched.found().families[family as usize]?;
            let cluster_ip = |port| SocketAddr::new(found.cluster_ip, port);
            let node_port = |port: Option<u16>| Some(SocketAddr::new(found.node_address?, port?));
            Some(SentinelAddresses {
                family,
                client: self.config.place.client[family as usize],
                pod_client: self.config.pod[family as usize],
                cluster_ip: cluster_ip(found.tcp.port),
                cluster_ip_udp: found.udp.map(|udp| cluster_ip(udp.port)),
                node_port: node_port(found.tcp.node_port),
                node_port_udp: node_port(found.udp.and_then(|udp| udp.node_port)),
                endpoint: found.echo,
                outside_rests,
            })
        };
        families.filter_map(addresses).collect()
    }
}
