//! Health check node ports of Services, where load balancers check whether a node has endpoints of
//! a Service with `externalTrafficPolicy: Local`.
//!
//! The selection of Services and endpoints follows kube-proxy (1.36, `serviceport.go`,
//! `endpointschangetracker.go`). Each family has its own server, which counts addresses of ready endpoints
//! on this node, whatever their ports. [`of_service`](super::answer::of_service) gives the answer.

pub mod owner;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::node_context::address;
use pathproof_facts::view::{Applied, ClusterView, ServiceState};
use pathproof_wire::service::{FAMILIES, Family};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthPort {
    pub service: ObjectName,
    /// Ready endpoints on this node, by [`Family`]; `None` if the Service has no cluster IP in that
    /// family, because kube-proxy does not listen then.
    pub local: [Option<u32>; FAMILIES],
}

/// Services by health check node port, in host order.
pub type PortTable = BTreeMap<u16, HealthPort>;

/// Whether a Service and family are selected.
type Selection<'a> = dyn Fn(&ObjectName, Family) -> bool + 'a;

/// The health check node ports of the cluster.
#[derive(Clone, Debug, Default)]
pub struct HealthPorts {
    ports: BTreeMap<ObjectName, (u16, [Option<u32>; FAMILIES])>,
    changed: bool,
    /// Whether the last call of [`HealthPorts::news`] selected only failing Services.
    reduced: bool,
    given: Option<PortTable>,
}

impl HealthPorts {
    /// Follows a batch of changes that was applied to the view.
    pub fn follow(&mut self, view: &ClusterView, applied: &Applied) {
        for name in applied.before.keys() {
            let next = view.state(name).and_then(port_of);
            self.changed |= self.ports.get(name) != next.as_ref();
            match next {
                Some(next) => self.ports.insert(name.clone(), next),
                None => self.ports.remove(name),
            };
        }
    }

    /// The Services by port, if the table changed. With `failing` it has only the Services and
    /// families that `failing` selects. If two Services name the same port, which no API server
    /// accepts, the first by name gets it.
    pub fn news(&mut self, failing: Option<&Selection<'_>>) -> Option<PortTable> {
        let reduced = std::mem::replace(&mut self.reduced, failing.is_some());
        if !(std::mem::take(&mut self.changed) || reduced || self.reduced) {
            return None;
        }
        let table = self.table(failing.unwrap_or(&|_, _| true));
        let is_new = self.given.as_ref() != Some(&table);
        is_new.then(|| self.given.insert(table).clone())
    }

    fn table(&self, has: &Selection<'_>) -> PortTable {
        let mut table = PortTable::new();
        for (service, (port, local)) in &self.ports {
            let local =
                Family::ALL.map(|family| local[family as usize].filter(|_| has(service, family)));
            if let Entry::Vacant(place) = table.entry(*port)
                && local.iter().any(Option::is_some)
            {
                place.insert(HealthPort {
                    service: service.clone(),
                    local,
                });
            }
        }
        table
    }
}

/// Health check node port and endpoints of a Service, if it has one.
fn port_of(state: &ServiceState) -> Option<(u16, [Option<u32>; FAMILIES])> {
    let service = state.service.as_deref()?;
    let port = service.health_port?;
    let local = Family::ALL.map(|family| {
        let is_its = |ip| Family::of(&address(ip)) == family;
        let is_served = service.cluster_ips.iter().any(is_its);
        is_served.then(|| local_ready(state, family))
    });
    Some((port, local))
}

/// Number of addresses of this node's ready endpoints. Terminating endpoints are not ready: load
/// balancers must switch before the last one ends.
fn local_ready(state: &ServiceState, family: Family) -> u32 {
    let slices = state.slices.iter().filter(|slice| !slice.ports.is_empty());
    let endpoints = slices.flat_map(|slice| &slice.endpoints);
    let counted = endpoints.filter(|endpoint| {
        endpoint.local && endpoint.ready && Family::of(&endpoint.address) == family
    });
    let addresses: BTreeSet<_> = counted.map(|endpoint| endpoint.address).collect();
    addresses.len().try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use pathproof_facts::cluster::{
        Change, EndpointFacts, Protocol, ServiceFacts, ServicePort, SliceFacts, SlicePort,
    };

    use super::*;

    fn service(name: &str, health_port: Option<u16>, cluster_ips: &[&str]) -> Change {
        let ips = cluster_ips.iter().map(|ip| ip.parse().unwrap());
        Change::Service(Arc::new(ServiceFacts {
            name: ObjectName::new("shop", name),
            cluster_ips: ips.collect(),
            ports: vec![ServicePort {
                name: "".into(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: Some(30_080),
            }],
            external_local: true,
            health_port,
            ..ServiceFacts::default()
        }))
    }

    fn endpoint(ip: &str) -> EndpointFacts {
        EndpointFacts {
            address: address(&ip.parse::<IpAddr>().unwrap()),
            ready: true,
            serving: true,
            terminating: false,
            local: true,
            peer: 0,
        }
    }

    fn slice(name: &str, ports: &[u16], endpoints: Vec<EndpointFacts>) -> Change {
        let port = |number: &u16| SlicePort {
            name: number.to_string().into(),
            protocol: Protocol::Tcp,
            port: *number,
        };
        Change::Slice(Arc::new(SliceFacts {
            name: ObjectName::new("shop", name),
            service: "web".into(),
            ports: ports.iter().map(port).collect(),
            endpoints,
            fleet: None,
        }))
    }

    #[derive(Default)]
    struct Scene {
        view: ClusterView,
        ports: HealthPorts,
    }

    impl Scene {
        fn apply(&mut self, changes: Vec<Change>) -> bool {
            let applied = self.view.apply(changes);
            self.ports.follow(&self.view, &applied);
            self.ports.news(None).is_some()
        }

        fn local(&self, port: u16) -> Option<[Option<u32>; FAMILIES]> {
            self.ports
                .table(&|_, _| true)
                .get(&port)
                .map(|port| port.local)
        }
    }

    #[test]
    fn ready_addresses_of_this_node_are_counted_by_family() {
        let mut scene = Scene::default();
        assert!(scene.apply(vec![service("web", Some(30_500), &["10.96.0.7"])]));
        assert_eq!(scene.local(30_500), Some([Some(0), None]));
        let elsewhere = EndpointFacts {
            local: false,
            peer: 3,
            ..endpoint("10.244.2.2")
        };
        let leaving = EndpointFacts {
            ready: false,
            terminating: true,
            ..endpoint("10.244.1.9")
        };
        let two = vec![endpoint("10.244.1.2"), endpoint("10.244.1.3")];
        assert!(scene.apply(vec![
            // One address with two ports, in two slices, is one endpoint.
            slice(
                "web-1",
                &[80, 443],
                [two.clone(), vec![elsewhere, leaving]].concat()
            ),
            slice("web-2", &[80], two),
            slice("web-3", &[], vec![endpoint("10.244.1.4")]),
            slice("web-6", &[80], vec![endpoint("fd00::2")]),
        ]));
        assert_eq!(scene.local(30_500), Some([Some(2), None]));
        let both = service("web", Some(30_500), &["10.96.0.7", "fd01::7"]);
        assert!(scene.apply(vec![both]));
        assert_eq!(scene.local(30_500), Some([Some(2), Some(1)]));
    }

    #[test]
    fn a_port_goes_with_its_service() {
        let mut scene = Scene::default();
        scene.apply(vec![service("web", Some(30_500), &["10.96.0.7"])]);
        assert!(!scene.apply(vec![service("api", None, &["10.96.0.8"])]));
        assert!(scene.apply(vec![service("web", Some(30_501), &["10.96.0.7"])]));
        assert_eq!(scene.local(30_500), None);
        // Two Services name the same port, which is possible if they come from a folder.
        assert!(scene.apply(vec![service("api", Some(30_501), &["fd01::8"])]));
        assert_eq!(scene.local(30_501), Some([None, Some(0)]));
        let api = ObjectName::new("shop", "api");
        assert!(scene.apply(vec![Change::ServiceGone(api)]));
        assert_eq!(scene.local(30_501), Some([Some(0), None]));
        assert!(scene.apply(vec![service("web", None, &["10.96.0.7"])]));
        assert!(scene.ports.table(&|_, _| true).is_empty());
    }
}
