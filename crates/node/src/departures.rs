//! Notes, for each connection to a removed endpoint, when that endpoint left its slice.

use pathproof_facts::cause::Failure;
use pathproof_facts::node_context::address;
use pathproof_plan::Planner;

use crate::event::KernelSample;

/// Sets `left_since` of connections to removed endpoints. The kernel does not know an endpoint that is no
/// longer in its map, so it calls such a connection misrouted. It stays misrouted, because old rules that
/// were restored also lead to removed endpoints. But it may also be a client that reuses the port of an old
/// connection.
pub(crate) fn set_left_since(sample: &mut KernelSample, planner: &Planner) {
    for failed_connection in &mut sample.failed_connections {
        let (None, Some(to)) = (failed_connection.left_since, failed_connection.destination) else {
            continue;
        };
        let (address, port) = (address(&to.ip()), to.port().to_be_bytes());
        failed_connection.left_since = match failed_connection.failure {
            Failure::Stale => planner.left_since(failed_connection.service, address, port),
            // With `misdelivered`, an endpoint of this node was the destination.
            Failure::Misrouted if !failed_connection.misdelivered => {
                planner.former_left_since(address, port)
            }
            _ => None,
        };
    }
}
