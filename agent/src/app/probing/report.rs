//! The sentinel's block of the report.

use std::net::{IpAddr, SocketAddr};

use agent_common::service::Family;
use agent_core::expect::sentinel::SentinelFamily;
use agent_core::node::{Condition, Node};
use agent_core::report::sentinel::{SentinelAddresses, SentinelDevices, SentinelReport};

use super::Probing;
use crate::sentinel::devices::Role;

impl Probing {
    pub(in crate::app) fn report(&self, node: &Node) -> SentinelReport {
        let service = &self.config.service;
        let condition = node
            .sentinel()
            .map_or(Condition::Absent, |of| of.condition());
        let name = |role| self.settings.name(role);
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

    fn addresses(&self, node: &Node) -> Vec<SentinelAddresses> {
        let Some(watched) = node.sentinel() else {
            return Vec::new();
        };
        let has = |family| (self.devices.as_ref()).is_none_or(|devices| devices.has(family));
        let families = Family::ALL.into_iter().filter(|family| has(*family));
        let found = |family: Family| Some((family, watched.found().families[family as usize]?));
        let addresses = |(family, found)| self.addresses_of(family, &found);
        families.filter_map(found).map(addresses).collect()
    }

    fn addresses_of(&self, family: Family, found: &SentinelFamily) -> SentinelAddresses {
        let cluster_ip = |port| SocketAddr::new(found.cluster_ip, port);
        let node_port = |port: Option<u16>| {
            let (address, port): (IpAddr, u16) = found.node_address.zip(port)?;
            Some(SocketAddr::new(address, port))
        };
        SentinelAddresses {
            family,
            client: self.config.client[family as usize],
            pod_client: self.config.pod[family as usize],
            cluster_ip: cluster_ip(found.tcp.port),
            cluster_ip_udp: found.udp.map(|udp| cluster_ip(udp.port)),
            node_port: node_port(found.tcp.node_port),
            node_port_udp: node_port(found.udp.and_then(|udp| udp.node_port)),
            endpoint: found.echo,
        }
    }
}
