//! How much one Service may have. Ports and addresses multiply: a single Service of a tenant's with a
//! thousand of each would take more memory than the agent may have, on every node.

use std::fmt;

use agent_common::service::Family;

use super::NodeContext;
use super::node::address;
use crate::cluster::ServiceFacts;
use crate::view::ServiceState;

/// Frontends of one Service: 300 ports at a cluster IP, a load balancer's and three of the node's
/// addresses, in both families, are fewer. A sixteenth of the map.
const FRONTENDS: usize = 4_096;
/// Endpoints of one Service, each counted with each port and family: a quarter of the map.
const ENDPOINTS: usize = 65_536;

/// A Service has more than it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// So many frontends.
    Frontends(usize),
    /// So many endpoints, or fewer where slices repeat each other.
    Endpoints(usize),
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frontends(count) => write!(
                f,
                "has {count} frontends (ports times addresses), more than {FRONTENDS}"
            ),
            Self::Endpoints(count) => write!(
                f,
                "has {count} endpoints (ports times addresses), more than {ENDPOINTS}"
            ),
        }
    }
}

/// What a Service has too much of, without building any of it.
pub(super) fn excess(
    state: &ServiceState,
    service: &ServiceFacts,
    node: &NodeContext,
) -> Option<Excess> {
    let frontends = frontends(service, node);
    let of_slice = state
        .slices
        .iter()
        .map(|slice| slice.ports.len().saturating_mul(slice.endpoints.len()));
    let endpoints = of_slice.fold(0, usize::saturating_add);
    if frontends > FRONTENDS {
        Some(Excess::Frontends(frontends))
    } else if endpoints > ENDPOINTS {
        Some(Excess::Endpoints(endpoints))
    } else {
        None
    }
}

fn frontends(service: &ServiceFacts, node: &NodeContext) -> usize {
    let node_ports = service.ports.iter().filter(|port| port.node_port.is_some());
    let (ports, node_ports) = (service.ports.len(), node_ports.count());
    let of_family = |family: Family| {
        let held = |ips: &[std::net::IpAddr]| {
            let ips = ips.iter().map(address);
            ips.filter(|ip| Family::of(ip) == family).count()
        };
        if held(&service.cluster_ips) == 0 {
            return 0;
        }
        let addresses = 1 + held(&service.external_ips) + held(&service.load_balancer_ips);
        let nodes = node.addresses.iter().filter(|ip| Family::of(ip) == family);
        let at_nodes = node_ports.saturating_mul(nodes.count());
        ports.saturating_mul(addresses).saturating_add(at_nodes)
    };
    let [v4, v6] = Family::ALL.map(of_family);
    v4.saturating_add(v6)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::cluster::{EndpointFacts, ObjectName, Protocol, ServicePort, SliceFacts, SlicePort};
    use crate::expect::expectation;

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
                load_balancer_ips: vec![],
                ports: (0..ports).map(port).collect(),
                external_local: false,
                internal_local: false,
                has_source_ranges: false,
                is_global: false,
                enforcement: None,
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
    #[case::ordinary(2, 1, 100, None)]
    #[case::many_ports(1_000, 3, 10, None)]
    #[case::at_the_limit(1_024, 3, 1, None)]
    #[case::beyond_it(1_024, 4, 1, Some(Excess::Frontends(5_120)))]
    #[case::a_large_service_of_both_families(5, 0, 10_000, None)]
    #[case::products(1_000, 0, 100, Some(Excess::Endpoints(100_000)))]
    fn one_service_may_have_so_much(
        #[case] ports: u16,
        #[case] external_ips: u32,
        #[case] endpoints: usize,
        #[case] expected: Option<Excess>,
    ) {
        let expectation = expectation(
            &state(ports, external_ips, endpoints),
            &NodeContext::default(),
        );
        assert_eq!(expectation.excess, expected);
        assert_eq!(expectation.ports.is_empty(), expected.is_some());
    }

    /// A million of them are counted, and not made.
    #[test]
    fn a_product_is_not_built() {
        let state = state(1_000, 1_000, 0);
        for _ in 0..1_000 {
            let expectation = expectation(&state, &NodeContext::default());
            assert_eq!(expectation.excess, Some(Excess::Frontends(1_001_000)));
        }
    }
}
