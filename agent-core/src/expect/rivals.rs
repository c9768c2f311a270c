//! Services that claim what the sentinel's probes dial: an external IP that is the sentinel's cluster
//! IP, or this node's address with the sentinel's node port. Whoever may edit one namespace may make
//! one, and whose rule comes first is the proxy's business: such a lane says nothing of the node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use agent_common::service::Family;

use super::sentinel::{Sentinel, SentinelFamily};
use crate::cluster::{ObjectName, Protocol, ServiceFacts};
use crate::trace::{Lane, ProbePath, Transport};
use crate::view::{Applied, ClusterView};

/// The claims, by Service. Follows the view change by change.
#[derive(Debug, Default)]
pub struct Rivals {
    dialled: Vec<Dialled>,
    node: Vec<IpAddr>,
    lanes: BTreeMap<ObjectName, Vec<Lane>>,
}

/// Where a lane's probes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dialled {
    lane: Lane,
    address: IpAddr,
    port: u16,
}

impl Rivals {
    /// Follows a change of the view, in which the sentinel is `own` and like this now.
    pub fn follow(
        &mut self,
        view: &ClusterView,
        applied: &Applied,
        own: &ObjectName,
        sentinel: &Sentinel,
    ) {
        let dialled = dialled(sentinel);
        let addresses = view.node().map_or(&[][..], |node| &node.addresses);
        if self.dialled != dialled || self.node != addresses {
            (self.dialled, self.node) = (dialled, addresses.to_vec());
            let all = view.states().map(|(name, _)| name);
            self.lanes.clear();
            all.for_each(|name| self.look(view, own, name));
        } else {
            let changed = applied.before.keys();
            changed.for_each(|name| self.look(view, own, name));
        }
    }

    /// Lanes that are claimed, and the first Service of each in the order of their names.
    pub fn contested(&self) -> BTreeMap<Lane, ObjectName> {
        let mut first = BTreeMap::new();
        for (name, lanes) in &self.lanes {
            for lane in lanes {
                first.entry(*lane).or_insert_with(|| name.clone());
            }
        }
        first
    }

    fn look(&mut self, view: &ClusterView, own: &ObjectName, name: &ObjectName) {
        let service = view.state(name).and_then(|state| state.service.as_deref());
        let service = service.filter(|_| name != own);
        let claimed = |dialled: &&Dialled| {
            service.is_some_and(|service| claims(service, dialled, &self.node))
        };
        let lanes: Vec<Lane> = self
            .dialled
            .iter()
            .filter(claimed)
            .map(|dialled| dialled.lane)
            .collect();
        if lanes.is_empty() {
            self.lanes.remove(name);
        } else {
            self.lanes.insert(name.clone(), lanes);
        }
    }
}

fn claims(service: &ServiceFacts, dialled: &Dialled, node: &[IpAddr]) -> bool {
    let protocol = match dialled.lane.transport {
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
    };
    let mut ports = service
        .ports
        .iter()
        .filter(|port| port.protocol == protocol);
    let is_address = || {
        let ips = service.external_ips.iter();
        let mut ips = ips
            .chain(&service.load_balancer_ips)
            .chain(&service.cluster_ips);
        ips.any(|ip| *ip == dialled.address)
    };
    let on_node = node.contains(&dialled.address);
    ports.any(|port| {
        (port.port == dialled.port && is_address())
            || (port.node_port == Some(dialled.port) && on_node)
    })
}

fn dialled(sentinel: &Sentinel) -> Vec<Dialled> {
    let found = Family::ALL.into_iter().zip(sentinel.families);
    let found = found.filter_map(|(family, found)| Some((family, found?)));
    found
        .flat_map(|(family, found)| of_family(family, &found))
        .collect()
}

fn of_family(family: Family, found: &SentinelFamily) -> Vec<Dialled> {
    let mut all = Vec::new();
    for transport in Transport::ALL {
        let port = match transport {
            Transport::Tcp => Some(found.tcp),
            Transport::Udp => found.udp,
        };
        let Some(held) = port else { continue };
        for path in ProbePath::ALL {
            let target = match path {
                ProbePath::NodePort => found.node_address.zip(held.node_port),
                _ => Some((found.cluster_ip, held.port)),
            };
            let lane = Lane {
                path,
                family,
                transport,
            };
            all.extend(target.map(|(address, port)| Dialled {
                lane,
                address,
                port,
            }));
        }
    }
    all
}
