//! Between what the sentinel's parts call the same things: the configuration, its devices, what the
//! prober is given, and what the cluster may use otherwise.

use std::net::IpAddr;

use agent_common::service::{Address, Family};

use crate::config::SentinelConfig;
use crate::sentinel::devices::{
    self, HardwareAddress, Known, NodeState, PodSources, SentinelDevices, Settings, conflict,
};
use crate::sentinel::prober::{End, Wire};
use agent_core::cluster::ObjectName;
use agent_core::view::ClusterView;

/// Whether the cluster uses one of the sentinel's addresses otherwise.
pub(super) fn taken(settings: &Settings, own: &ObjectName, view: &ClusterView) -> Option<String> {
    let none: &[ipnet::IpNet] = &[];
    let node = view.node();
    let states = || view.states().filter(move |(name, _)| *name != own);
    let services = states().flat_map(|(name, state)| {
        let service = state.service.iter();
        service.flat_map(move |service| {
            let ips = service.cluster_ips.iter();
            let ips = ips.chain(&service.load_balancer_ips);
            ips.chain(&service.external_ips).map(move |ip| (*ip, name))
        })
    });
    let endpoints = states().flat_map(|(name, state)| {
        let slices = state.slices.iter();
        slices
            .flat_map(|slice| &slice.endpoints)
            .map(move |endpoint| (ip_of(endpoint.address), name))
    });
    let known = Known {
        pod_cidrs: node.map_or(none, |node| &node.pod_cidrs),
        node_addresses: node.map_or(&[], |node| &node.addresses),
        services: Box::new(services),
        endpoints: Box::new(endpoints),
    };
    let nothing = NodeState::default();
    conflict(settings, &Family::ALL, known, &nothing).map(|conflict| conflict.to_string())
}

fn ip_of(address: Address) -> IpAddr {
    IpAddr::from(address).to_canonical()
}

/// The configuration as `sentinel::devices` takes it.
pub(super) fn settings(config: &SentinelConfig) -> Settings {
    let mut settings = Settings {
        prefix: config.devices.clone(),
        ..Settings::default()
    };
    let mut pod = PodSources::default();
    for family in Family::ALL {
        settings.client = settings.client.with(config.client[family as usize]);
        settings.echo = settings.echo.with(config.echo[family as usize]);
        match config.pod[family as usize] {
            Some(IpAddr::V4(v4)) => pod.v4 = Some(v4),
            Some(IpAddr::V6(v6)) => pod.v6 = Some(v6),
            None => {}
        }
    }
    Settings { pod, ..settings }
}

/// The devices as the prober takes them.
pub(super) fn wire(devices: &SentinelDevices) -> Wire {
    let end = |end: &devices::End| {
        let HardwareAddress(mac) = end.mac;
        End {
            ifindex: end.index,
            mac,
        }
    };
    Wire {
        client_far: end(&devices.client_far),
        client_near: end(&devices.client_near).mac,
        server_near: end(&devices.server_near),
        server_far: end(&devices.server_far).mac,
    }
}
