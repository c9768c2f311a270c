//! Expected result of each fault in each use, derived from the clients that it affects and their scopes. By
//! docs/internal/judgement.md, the node must answer 503 if two scopes fail without a common innocent
//! explanation, or if the failures have a signature without any. Results of runs must not be used here:
//! they show what the judge does, not what it should do.

use std::time::Duration;

use super::faults::FaultRow;
use super::uses::Use;

/// Connections that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Felt {
    /// The sentinel's probes fail without an innocent explanation, even on an idle node.
    ByProbes,
    /// All forwarded connections.
    Forwarded,
    /// Connections that keep a pod's address. Masqueraded ones succeed.
    PodsAddresses,
    /// Connections to endpoints whose route is gone.
    Routes,
    /// Connections of clients outside to endpoints on other nodes.
    Masqueraded,
    /// Connections to an endpoint that was removed.
    Stale,
    /// Data of all connections except the sentinel's.
    Data,
    /// Connections to all Services except the sentinel's. `leaks`: they leave untranslated.
    Services { leaks: bool },
}

/// Expectation of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// 503 within this time after the fault, or after the first connection to a removed endpoint if such
    /// connections fail.
    Fails(Duration),
    /// No 503, but not Proven either: one innocent explanation covers all failures.
    Suspect,
    /// Not Proven. A 503 is right as well, since the node is broken.
    Noticed,
    /// Nothing: connections fail, but no hook sees them completely.
    Unseen,
    /// Nothing: no connection fails.
    NotFelt,
}

/// Time to 503 if the pod probe, which dials once a second, is the second witness.
const BY_POD_PROBE: Duration = Duration::from_secs(6);

/// Time to 503 if the node itself is the only witness.
const BY_HOST: Duration = Duration::from_secs(17);

pub(super) fn expected(row: &FaultRow, used: &Use) -> Expected {
    let fails = Expected::Fails(row.within);
    // The host's connections are not forwarded, and only those that leave by an uplink are visible.
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
        Felt::Services { leaks: true } if by_host_alone => Expected::Fails(BY_HOST),
        Felt::Data if by_host_alone => Expected::NotFelt,
        _ if by_host_alone => Expected::Unseen,
        Felt::Stale => fails,
        // A problem of one Service, or of one local endpoint, may not be the node's fault.
        Felt::Routes if used.is_idle() => Expected::Noticed,
        Felt::Services { .. } | Felt::Data if used.dialled() < 2 => Expected::Noticed,
        Felt::Routes | Felt::Services { .. } | Felt::Data => fails,
    }
}

/// A policy may deny all pods except the pod probe. So only pods and pod probe together are two scopes.
fn pods_addresses(used: &Use, fails: Expected) -> Expected {
    match (used.pod_probe, used.has_pods()) {
        (true, true) => fails,
        (false, false) => Expected::NotFelt,
        _ => Expected::Noticed,
    }
}
