//! The devices that lead to this node's endpoints, as the kernel's routes showed them while they worked.
//!
//! Anybody who can edit a Service can list any address as an endpoint of this node. Connections to such an
//! address leave by an uplink and stay unanswered, as if a pod's route were missing. So a missing route is
//! only believed of an endpoint to which another device than an uplink led before. That device must still
//! exist: if it is gone, so is the pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::evidence::EndpointRoute;

/// Maximum number of endpoints whose device is remembered; a node has at most a few hundred pods.
const KEPT: usize = 1_024;

/// Devices of endpoints; `None` in recordings of agents that read no routes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointDevices(Option<BTreeMap<IpAddr, Box<str>>>);

impl EndpointDevices {
    /// Records the routes of endpoints, except those by an uplink.
    pub(super) fn learn(&mut self, routes: &[EndpointRoute], uplinks: &BTreeSet<&str>) {
        let devices = self.0.get_or_insert_default();
        let by_pods_device = routes
            .iter()
            .filter(|route| !uplinks.contains(&*route.device));
        for route in by_pods_device {
            if devices.len() < KEPT || devices.contains_key(&route.endpoint) {
                devices.insert(route.endpoint, route.device.as_str().into());
            }
        }
    }

    /// Forgets the endpoints behind these devices, which are gone.
    pub(super) fn lose(&mut self, gone: &BTreeSet<&str>) {
        if let Some(devices) = &mut self.0 {
            devices.retain(|_, device| !gone.contains(&**device));
        }
    }

    /// Forgets endpoints that left.
    pub(super) fn forget(&mut self, left: &[IpAddr]) {
        if let Some(devices) = &mut self.0 {
            devices.retain(|endpoint, _| !left.contains(endpoint));
        }
    }

    /// Whether routes were ever read.
    pub fn is_read(&self) -> bool {
        self.0.is_some()
    }

    /// The endpoints with a known device.
    pub fn known(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().flat_map(|devices| devices.keys().copied())
    }

    fn knows(&self, endpoint: &IpAddr) -> bool {
        (self.0.as_ref()).is_some_and(|devices| devices.contains_key(endpoint))
    }

    /// Whether this endpoint is known to be on the node. Of agents that read no routes, all are.
    pub(super) fn is_here(&self, endpoint: &IpAddr) -> bool {
        self.0.is_none() || self.knows(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: [u8; 4] = [10, 1, 0, 7];

    fn learned(device: &str) -> EndpointDevices {
        let mut devices = EndpointDevices::default();
        let route = EndpointRoute {
            endpoint: POD.into(),
            device: device.to_owned(),
        };
        devices.learn(&[route], &BTreeSet::from(["eth0"]));
        devices
    }

    #[test]
    fn endpoints_behind_an_uplink_are_not_here() {
        assert!(learned("veth7").is_here(&POD.into()));
        assert!(!learned("eth0").is_here(&POD.into()));
        assert!(EndpointDevices::default().is_here(&POD.into()));
    }

    #[test]
    fn an_endpoint_is_here_until_its_device_is_gone_or_it_left() {
        let mut devices = learned("veth7");
        devices.lose(&BTreeSet::from(["veth8"]));
        assert!(devices.is_here(&POD.into()));
        let mut lost = devices.clone();
        lost.lose(&BTreeSet::from(["veth7"]));
        assert!(!lost.is_here(&POD.into()));
        devices.forget(&[POD.into()]);
        assert!(!devices.is_here(&POD.into()));
    }

    #[test]
    fn memory_is_bounded() {
        let mut devices = learned("veth7");
        let route = |n: u128| EndpointRoute {
            endpoint: IpAddr::V6(n.into()),
            device: "cni0".to_owned(),
        };
        let routes: Vec<_> = (0..2 * KEPT as u128).map(route).collect();
        devices.learn(&routes, &BTreeSet::new());
        assert_eq!(devices.0.as_ref().map(BTreeMap::len), Some(KEPT));
        assert!(devices.is_here(&POD.into()));
    }
}
