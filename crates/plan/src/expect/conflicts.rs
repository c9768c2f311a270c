//! Services that use the destinations of the sentinel's probes: an external IP equal to the sentinel's
//! cluster IP, or to this node's address with the sentinel's node port. Anybody with write access to one
//! namespace can create such a Service, and the proxy decides which one gets the probes. So these lanes are
//! no evidence about the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use pathproof_facts::cluster::{ObjectName, Protocol, ServiceFacts};
use pathproof_facts::node_context::address;
use pathproof_facts::trace::{Lane, LaneConflict, ProbePath, Transport};
use pathproof_facts::view::{Applied, ClusterView, ServiceState};
use pathproof_wire::service::Family;

use super::sentinel::Sentinel;

/// The conflicts, by Service, updated with every change of the view.
#[derive(Debug, Default)]
pub struct SentinelConflicts {
    dialled: Vec<ProbeTarget>,
    node: Vec<IpAddr>,
    by_service: BTreeMap<ObjectName, Vec<LaneUse>>,
}

/// A Service uses the destination of one lane.
#[derive(Clone, Copy, Debug)]
struct LaneUse {
    dialled: ProbeTarget,
    /// See [`LaneConflict::loops`].
    loops: bool,
}

/// Destination of a lane's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProbeTarget {
    lane: Lane,
    address: IpAddr,
    port: u16,
}

impl SentinelConflicts {
    /// Follows a change of the view. `own` is the sentinel's Service, and `sentinel` its present state.
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
            self.by_service.clear();
            all.for_each(|name| self.compare(view, own, name));
        } else {
            let changed = applied.before.keys();
            changed.for_each(|name| self.compare(view, own, name));
        }
    }

    /// Lanes whose frontend another Service uses.
    pub fn lanes(&self) -> Vec<LaneConflict> {
        let mut lanes: BTreeMap<Lane, LaneConflict> = BTreeMap::new();
        for (service, conflicts) in &self.by_service {
            for LaneUse { dialled, loops } in conflicts {
                let conflict = lanes.entry(dialled.lane).or_insert_with(|| LaneConflict {
                    lane: dialled.lane,
                    service: service.clone(),
                    loops: false,
                });
                conflict.loops |= loops;
            }
        }
        lanes.into_values().collect()
    }

    /// Conflicts of all lanes with a Service whose frontends are unknown.
    pub fn all_lanes(&self, service: &ObjectName) -> Vec<LaneConflict> {
        let lanes = self.dialled.iter().map(|dialled| dialled.lane);
        let lanes: BTreeSet<Lane> = lanes.collect();
        let conflict = |lane| LaneConflict {
            lane,
            service: service.clone(),
            loops: true,
        };
        lanes.into_iter().map(conflict).collect()
    }

    /// The sentinel's frontends that other Services use, each with the first such Service.
    pub fn frontends(&self) -> BTreeMap<(SocketAddr, Transport), &ObjectName> {
        let mut all = BTreeMap::new();
        for (service, conflicts) in &self.by_service {
            for LaneUse { dialled, .. } in conflicts {
                let at = SocketAddr::new(dialled.address, dialled.port);
                all.entry((at, dialled.lane.transport)).or_insert(service);
            }
        }
        all
    }

    fn compare(&mut self, view: &ClusterView, own: &ObjectName, name: &ObjectName) {
        let state = view.state(name).filter(|_| name != own);
        let conflict = |dialled: &ProbeTarget| {
            let state = state?;
            let is_used = uses(state.service.as_deref()?, dialled, &self.node);
            is_used.then(|| LaneUse {
                dialled: *dialled,
                loops: leads_back(state, dialled),
            })
        };
        let conflicts: Vec<LaneUse> = self.dialled.iter().filter_map(conflict).collect();
        if conflicts.is_empty() {
            self.by_service.remove(name);
        } else {
            self.by_service.insert(name.clone(), conflicts);
        }
    }
}

fn leads_back(state: &ServiceState, dialled: &ProbeTarget) -> bool {
    let address = address(&dialled.address);
    let mut endpoints = state.slices.iter().flat_map(|slice| &slice.endpoints);
    endpoints.any(|endpoint| endpoint.address == address)
}

fn uses(service: &ServiceFacts, dialled: &ProbeTarget, node: &[IpAddr]) -> bool {
    let protocol = match dialled.lane.transport {
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
    };
    let is_address = || {
        let ips = service.external_ips.iter();
        let mut ips = ips
            .chain(&service.load_balancer_ips)
            .chain(&service.cluster_ips);
        ips.any(|ip| *ip == dialled.address)
    };
    let on_node = node.contains(&dialled.address);
    service.ports.iter().any(|port| {
        port.protocol == protocol
            && ((port.port == dialled.port && is_address())
                || (port.node_port == Some(dialled.port) && on_node))
    })
}

fn dialled(sentinel: &Sentinel) -> Vec<ProbeTarget> {
    let mut all = Vec::new();
    for (family, found) in Family::ALL.into_iter().zip(sentinel.families) {
        let Some(found) = found else { continue };
        for (transport, held) in [
            (Transport::Tcp, Some(found.tcp)),
            (Transport::Udp, found.udp),
        ] {
            let Some(held) = held else { continue };
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
                all.extend(target.map(|(address, port)| ProbeTarget {
                    lane,
                    address,
                    port,
                }));
            }
        }
    }
    all
}
