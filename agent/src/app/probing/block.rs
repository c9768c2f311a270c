//! What others are shown of the sentinel: its block of the report, and probes as they come in.

use std::net::{IpAddr, SocketAddr};

use agent_common::service::Family;

use super::Probing;
use crate::sentinel::devices::Role;
use agent_core::expect::sentinel::SentinelFamily;
use agent_core::report::sentinel::{
    SentinelAddresses, SentinelDevices, SentinelReport, SentinelState,
};

impl Probing {
    /// The block of the report.
    pub(in crate::app) fn report(&self, view_synced: bool) -> SentinelReport {
        let service = &self.config.service;
        let (state, sentence) = if let Some(altered) = &self.found.altered {
            (SentinelState::Altered, altered.clone())
        } else if !self.found.exists {
            let sentence = match view_synced {
                true => format!("Service {service} is not in the cluster"),
                false => {
                    format!("Service {service} is not known: the cluster view is not complete")
                }
            };
            (SentinelState::Absent, sentence)
        } else if let Some(why) = self.off() {
            (SentinelState::Off, why.to_owned())
        } else {
            let sentence = match self.is_running() {
                true => format!("Service {service} is probed"),
                false => "its interfaces are being made".to_owned(),
            };
            (SentinelState::Probing, sentence)
        };
        SentinelReport {
            state,
            sentence,
            service: Some(service.to_string()),
            devices: Some(self.device_names()),
            families: self.addresses(),
        }
    }

    /// Whether probes are sent.
    pub(in crate::app) fn is_running(&self) -> bool {
        self.prober
            .as_ref()
            .is_some_and(|prober| prober.is_running())
            && self.devices.is_some()
    }

    fn device_names(&self) -> SentinelDevices {
        let name = |role| self.settings.name(role);
        SentinelDevices {
            client_far: name(Role::ClientFar),
            client_near: name(Role::ClientNear),
            server_near: name(Role::ServerNear),
            server_far: name(Role::ServerFar),
        }
    }

    fn addresses(&self) -> Vec<SentinelAddresses> {
        let usable = |family: &Family| match &self.devices {
            Some(devices) => devices.has(*family),
            None => true,
        };
        let found = |family: Family| {
            let found = self.found.families[family as usize].as_ref()?;
            Some(self.addresses_of(family, found))
        };
        Family::ALL
            .into_iter()
            .filter(usable)
            .filter_map(found)
            .collect()
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
