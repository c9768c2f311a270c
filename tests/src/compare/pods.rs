//! Names of the Services and pods on which cases are played.

use crate::world::Place;

/// Namespaces of the users' Services: enough for every use. A use dials some of them.
pub(super) const NAMESPACES: [&str; 5] = ["shop", "shop", "bank", "mail", "shop"];
/// Endpoints of each Service on this node and on the other, as in the tables.
pub(super) const LOCAL: usize = 2;
pub(super) const REMOTE: usize = 2;
/// Pods that replace an endpoint: on this node, and on the other.
pub(super) const NEW_PODS: [&str; 2] = ["new-l", "new-r"];
/// Pods of the pod probe, with the nodes that its slices name. The first one is on this node.
pub(super) const PROBES: [(&str, &str); 4] = [
    ("echo", "node-1"),
    ("echo-r0", "node-2"),
    ("echo-r1", "node-3"),
    ("echo-r2", "node-4"),
];

pub(super) fn service_name(service: usize) -> String {
    format!("s{service}")
}

/// Name of a pod that dials.
pub(super) fn client_name(number: u8) -> String {
    format!("c{number}")
}

/// Pods of a Service, in the simulator's order.
pub(super) fn endpoints(service: usize) -> [(String, Place); LOCAL + REMOTE] {
    std::array::from_fn(|place| match place.checked_sub(LOCAL) {
        None => (format!("s{service}-l{place}"), Place::Local),
        Some(place) => (format!("s{service}-r{place}"), Place::Remote),
    })
}
