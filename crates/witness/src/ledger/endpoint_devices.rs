//! The devices that lead to this node's endpoints, as the kernel's routes showed them while they worked.
//!
//! Anybody who can edit a Service can list any address as an endpoint of this node. Connections to such an
//! address leave by an uplink and stay unanswered, as if a pod's route were missing. So a missing route
//! counts only for an endpoint that a pod's device led to before. If that device belongs to one pod and is
//! gone, the pod is gone too.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::evidence::EndpointRoute;

/// Maximum number of endpoints that are remembered; a node has at most a few hundred pods.
const KEPT: usize = 4_096;

/// Endpoints with the devices that led to them; `None` until routes were first read. A
/// list, not a map, because redaction replaces addresses only in values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointDevices(Option<Vec<EndpointRoute>>);

impl EndpointDevices {
    /// Records the devices of endpoints, except uplinks.
    pub(super) fn learn(&mut self, routes: &[EndpointRoute], uplinks: &BTreeSet<&str>) {
        let known = self.0.get_or_insert_default();
        let by_others = routes.iter();
        let by_others = by_others.filter(|route| !uplinks.contains(&*route.device));
        for route in by_others {
            known.retain(|before| before.endpoint != route.endpoint);
            if known.len() < KEPT {
                known.push(route.clone());
            }
        }
    }

    /// Forgets the endpoints whose own devices, given by index, are gone.
    pub(super) fn lose(&mut self, gone: &[u32]) {
        if let Some(known) = &mut self.0 {
            known.retain(|route| !route.is_own || !gone.contains(&route.index));
        }
    }

    /// Forgets the endpoints whose devices have become uplinks.
    pub fn lose_uplinks(&mut self, uplinks: &BTreeSet<&str>) {
        if let Some(known) = &mut self.0 {
            known.retain(|route| !uplinks.contains(&*route.device));
        }
    }

    /// Forgets endpoints that left.
    pub(super) fn forget(&mut self, left: &[IpAddr]) {
        if let Some(known) = &mut self.0 {
            known.retain(|route| !left.contains(&route.endpoint));
        }
    }

    /// Whether routes were ever read.
    pub fn is_read(&self) -> bool {
        self.0.is_some()
    }

    pub fn known(&self) -> &[EndpointRoute] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Indexes of known devices of single pods.
    pub fn own(&self) -> Vec<u32> {
        let own = self.known().iter().filter(|route| route.is_own);
        own.map(|route| route.index).collect()
    }

    /// Whether a missing route to this endpoint counts. For agents that read no routes, all count.
    pub(super) fn believes(&self, endpoint: &IpAddr) -> bool {
        let is_it = |route: &EndpointRoute| route.endpoint == *endpoint;
        self.0.is_none() || self.known().iter().any(is_it)
    }
}

#[cfg(test)]
mod tests {
    use pathproof_facts::limits::Limits;
    use pathproof_facts::time::Mono;

    use super::*;
    use crate::ledger::Ledger;

    const POD: [u8; 4] = [10, 1, 0, 7];

    fn route(device: &str, is_own: bool) -> EndpointRoute {
        EndpointRoute {
            endpoint: POD.into(),
            device: device.to_owned(),
            index: 7,
            is_own,
        }
    }

    fn learned(device: &str, is_own: bool) -> EndpointDevices {
        let mut devices = EndpointDevices::default();
        devices.learn(&[route(device, is_own)], &BTreeSet::from(["eth0"]));
        devices
    }

    #[test]
    fn endpoints_behind_an_uplink_are_not_believed() {
        assert!(learned("veth7", true).believes(&POD.into()));
        assert!(!learned("eth0", false).believes(&POD.into()));
        assert!(EndpointDevices::default().believes(&POD.into()));
        let mut changed = learned("eth1", false);
        changed.lose_uplinks(&BTreeSet::from(["eth1"]));
        assert!(
            !changed.believes(&POD.into()),
            "the device became an uplink"
        );
    }

    #[test]
    fn a_pod_whose_own_device_is_gone_is_gone() {
        let lost = |mut devices: EndpointDevices, gone| {
            devices.lose(&[gone]);
            !devices.believes(&POD.into())
        };
        assert!(lost(learned("veth7", true), 7));
        assert!(!lost(learned("veth7", true), 8));
        // Without a bridge all its pods are cut off.
        assert!(!lost(learned("cni0", false), 7));
    }

    #[test]
    fn an_endpoint_without_a_device_is_not_taken_over() {
        let is_believed = |device: &str| {
            let earlier = Ledger {
                endpoint_devices: learned(device, false),
                ..Ledger::default()
            };
            let memory = earlier.memory();
            let heir = Ledger::restore(Limits::default(), memory, true, Mono(1));
            heir.endpoint_devices.believes(&POD.into())
        };
        assert!(is_believed("cni0"));
        assert!(!is_believed(""));
    }

    #[test]
    fn an_endpoint_that_left_is_forgotten() {
        let mut devices = learned("cni0", false);
        devices.forget(&[POD.into()]);
        assert!(!devices.believes(&POD.into()));
    }

    #[test]
    fn memory_is_bounded() {
        let mut devices = learned("veth7", true);
        let many = |n: u128| EndpointRoute {
            endpoint: IpAddr::V6(n.into()),
            ..route("cni0", false)
        };
        let routes: Vec<_> = (0..2 * KEPT as u128).map(many).collect();
        devices.learn(&routes, &BTreeSet::new());
        assert_eq!(devices.known().len(), KEPT);
        assert!(devices.believes(&POD.into()));
    }
}
