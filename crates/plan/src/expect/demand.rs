//! Counts the map entries that a Service needs, without building them. Each port has a frontend at each
//! address: a tenant's single Service with a thousand of both would take more memory than the agent may
//! use.

use pathproof_facts::cluster::ServiceFacts;
use pathproof_facts::node_context::{NodeContext, address};
use pathproof_facts::view::ServiceState;
use pathproof_wire::service::Family;

pub const KINDS: usize = 3;
/// Frontends: ports times addresses.
pub const FRONTENDS: usize = 0;
/// Endpoints, counted once for each port of their slice.
pub const ENDPOINTS: usize = 1;
/// Service ids: one for each port and family.
pub const IDS: usize = 2;

/// Number of entries by kind: an upper bound, because slices may repeat each other.
pub type Demand = [u64; KINDS];

/// Entries that a Service needs; `None` without the Service.
pub fn demand(state: &ServiceState, node: &NodeContext) -> Option<Demand> {
    let service = state.service.as_deref()?;
    let of_slice = state.slices.iter().map(|slice| {
        let (ports, endpoints) = (slice.ports.len(), slice.endpoints.len());
        ports.saturating_mul(endpoints)
    });
    let endpoints = of_slice.fold(0, usize::saturating_add);
    let served = Family::ALL.map(|family| frontends(service, node, family));
    let frontends = served.into_iter().flatten().fold(0, usize::saturating_add);
    let families = served.into_iter().flatten().count();
    let ids = service.ports.len().saturating_mul(families);
    Some([frontends, endpoints, ids].map(|places| places as u64))
}

/// Number of frontends in one family; `None` if the Service is not served in it.
fn frontends(service: &ServiceFacts, node: &NodeContext, family: Family) -> Option<usize> {
    let held = |ips: &[std::net::IpAddr]| {
        let ips = ips.iter().map(address);
        ips.filter(|ip| Family::of(ip) == family).count()
    };
    if held(&service.cluster_ips) == 0 {
        return None;
    }
    let node_ports = service.ports.iter().filter(|port| port.node_port.is_some());
    let addresses = 1 + held(&service.external_ips) + held(&service.load_balancer_ips);
    let nodes = node.addresses.iter().filter(|ip| Family::of(ip) == family);
    let at_nodes = node_ports.count().saturating_mul(nodes.count());
    let ports = service.ports.len();
    Some(ports.saturating_mul(addresses).saturating_add(at_nodes))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use pathproof_facts::cluster::{
        EndpointFacts, ObjectName, Protocol, ServicePort, SliceFacts, SlicePort,
    };
    use rstest::rstest;

    use super::*;

    fn state(ports: u16, external_ips: u32, endpoints: usize) -> ServiceState {
        let port = |number: u16| ServicePort {
            name: format!("p{number}").into(),
            protocol: Protocol::Tcp,
            port: number + 1,
            node_port: None,
        };
        let slice_port = |number: u16| SlicePort {
            name: format!("p{number}").into(),
            protocol: Protocol::Tcp,
            port: number + 1,
        };
        let endpoint = EndpointFacts {
            peer: 0,
            address: address(&IpAddr::from([10, 244, 0, 7])),
            ready: true,
            serving: true,
            terminating: false,
            local: false,
        };
        let ip = |number: u32| IpAddr::from(Ipv4Addr::from(0x0A00_0000 + number));
        ServiceState {
            service: Some(Arc::new(ServiceFacts {
                name: ObjectName::new("shop", "web"),
                cluster_ips: vec![IpAddr::from([10, 96, 0, 7])],
                external_ips: (0..external_ips).map(ip).collect(),
                ports: (0..ports).map(port).collect(),
                ..ServiceFacts::default()
            })),
            slices: vec![Arc::new(SliceFacts {
                name: ObjectName::new("shop", "web-1"),
                service: "web".into(),
                ports: (0..ports).map(slice_port).collect(),
                endpoints: vec![endpoint; endpoints],
                fleet: None,
            })],
        }
    }

    #[rstest]
    #[case::ordinary(2, 1, 100, [4, 200, 2])]
    #[case::at_the_limit(1_024, 3, 1, [4_096, 1_024, 1_024])]
    #[case::a_product(1_000, 1_000, 100, [1_001_000, 100_000, 1_000])]
    fn ports_and_addresses_multiply(
        #[case] ports: u16,
        #[case] external_ips: u32,
        #[case] endpoints: usize,
        #[case] expected: Demand,
    ) {
        let state = state(ports, external_ips, endpoints);
        assert_eq!(demand(&state, &NodeContext::default()), Some(expected));
    }
}
