//! Expectations of a fault in a use, by who can feel it and which scopes it fails in. It follows the
//! decision of docs/internal/judgement.md: two scopes that no innocent explanation covers, or a signature
//! that has none. No result of a run is used here.

use std::time::Duration;

use super::faults::FaultRow;
use super::uses::Use;

/// Connections that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Felt {
    /// The sentinel's probes fail without an innocent explanation, also on an idle node.
    ByProbes,
    /// Everything that the node forwards.
    Forwarded,
    /// Pods, whose connections keep their own addresses. Masqueraded ones pass.
    PodsAddresses,
    /// Connections to endpoints whose route is gone.
    Routes,
    /// Clients outside, to endpoints on other nodes.
    Masqueraded,
    /// Connections to an endpoint that was removed.
    Stale,
    /// Data of all connections but the sentinel's.
    Data,
    /// Every Service but the sentinel's. Without rules connections leave untranslated.
    Services { leaks: bool },
}

/// Expectation of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// 503 within this time of the fault; of the first connection to a removed endpoint if that is what is
    /// felt.
    Fails(Duration),
    /// One innocent explanation covers all that fails: no 503, and not Proven.
    Suspect,
    /// The same, but a 503 is right as well: the node is broken.
    Noticed,
    /// Felt, but by connections that no hook sees whole: nothing is expected.
    Unseen,
    /// Nobody's connection fails: nothing is expected.
    NotFelt,
}

/// Time to 503 where the pod probe, once a second, is the second witness.
const BY_POD_PROBE: Duration = Duration::from_secs(6);

/// Expectation of a fault in a use.
pub(super) fn expected(row: &FaultRow, used: &Use) -> Expected {
    let fails = Expected::Fails(row.within);
    // Connections of the host itself are not forwarded, and are visible only at an uplink.
    let by_host_alone = used.has_host();
    match row.felt {
        Felt::ByProbes => fails,
        Felt::Forwarded if used.is_idle() && used.pod_probe => Expected::Fails(BY_POD_PROBE),
        Felt::Forwarded if used.is_idle() || by_host_alone => Expected::Suspect,
        Felt::Forwarded => fails,
        Felt::PodsAddresses => pods_addresses(used, fails),
        Felt::Masqueraded if used.has_outsiders() => fails,
        Felt::Masqueraded => Expected::NotFelt,
        _ if used.dialled() == 0 => Expected::NotFelt,
        Felt::Services { leaks: true } if by_host_alone => fails,
        Felt::Data if by_host_alone => Expected::NotFelt,
        _ if by_host_alone => Expected::Unseen,
        Felt::Stale => fails,
        // A single Service, or a single local endpoint, may have a problem that is not the node's.
        Felt::Routes if used.is_idle() => Expected::Noticed,
        Felt::Services { .. } | Felt::Data if used.dialled() < 2 => Expected::Noticed,
        Felt::Routes | Felt::Services { .. } | Felt::Data => fails,
    }
}

/// A policy may deny all pods but the pod probe; only both together are two scopes.
fn pods_addresses(used: &Use, fails: Expected) -> Expected {
    match (used.pod_probe, used.has_pods()) {
        (true, true) => fails,
        (false, false) => Expected::NotFelt,
        _ => Expected::Noticed,
    }
}
