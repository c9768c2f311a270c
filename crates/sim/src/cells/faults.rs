//! Faults of a node and the connections that they affect. `expected` derives which of them must cause 503.

use std::time::Duration;

use pathproof_wire::service::Family;

use super::expected::Felt;
use crate::world::{Act, Fault, World};

/// A fault of the node.
#[derive(Clone, Copy, Debug)]
pub struct FaultRow {
    pub name: &'static str,
    breaks: Breaks,
    pub felt: Felt,
    /// Maximum time to 503 if there must be one.
    pub within: Duration,
}

/// How a fault begins.
#[derive(Clone, Copy, Debug)]
enum Breaks {
    By(&'static [Fault]),
    /// These faults, with kube-proxy in iptables mode.
    BesideIptables(&'static [Fault]),
    /// The proxy stops following the API, and an endpoint of the first Service is replaced by another and
    /// dies.
    Frozen,
}

const fn row(name: &'static str, faults: &'static [Fault], felt: Felt, ms: u64) -> FaultRow {
    FaultRow {
        name,
        breaks: Breaks::By(faults),
        felt,
        within: Duration::from_millis(ms),
    }
}

/// The faults of the table.
#[rustfmt::skip]
pub const FAULTS: [FaultRow; 15] = [
    row("rules flushed", &[Fault::Flushed], Felt::ByProbes, 1_500),
    row("tables deleted", &[Fault::TablesGone], Felt::ByProbes, 1_500),
    row("forwarding off", &[Fault::ForwardingOff], Felt::ByProbes, 1_500),
    row("conntrack full", &[Fault::ConntrackFull], Felt::ByProbes, 1_500),
    row("everything forwarded is dropped", &[Fault::ForwardDropped], Felt::Forwarded, 4_000),
    row("everything forwarded is rejected", &[Fault::ForwardRejected], Felt::Forwarded, 4_000),
    FaultRow {
        breaks: Breaks::BesideIptables(&[Fault::ForwardPolicy]),
        ..row("FORWARD policy DROP (Docker)", &[], Felt::PodsAddresses, 4_000)
    },
    row("routes to local pods gone", &[Fault::PodRoutesGone], Felt::Routes, 5_000),
    row("routes to remote pods gone", &[Fault::RemoteRoutesGone], Felt::Routes, 5_000),
    row("routes to all pods gone", &[Fault::PodRoutesGone, Fault::RemoteRoutesGone], Felt::Routes, 5_000),
    row("masquerade gone", &[Fault::NotMasqueraded], Felt::Masqueraded, 12_000),
    FaultRow {
        breaks: Breaks::Frozen,
        ..row("proxy frozen, dead or locked out, an endpoint replaced", &[], Felt::Stale, 25_000)
    },
    row("rules of other Services gone", &[Fault::OthersGone], Felt::Services { leaks: true }, 5_000),
    row("data dropped after the handshake", &[Fault::DataDropped], Felt::Data, 8_000),
    row("rules of other Services lead astray", &[Fault::Astray], Felt::Services { leaks: false }, 5_000),
];

impl FaultRow {
    /// Whether it can affect one family alone.
    pub fn is_of_family(&self) -> bool {
        match self.breaks {
            Breaks::By(faults) => !faults.contains(&Fault::ConntrackFull),
            Breaks::BesideIptables(_) => true,
            Breaks::Frozen => false,
        }
    }

    /// Adds the fault to a world.
    pub fn begin(&self, mut world: World, at: Duration, only: Option<Family>) -> World {
        let faults = match self.breaks {
            Breaks::By(faults) => faults,
            Breaks::BesideIptables(faults) => {
                world.iptables = true;
                faults
            }
            Breaks::Frozen => return frozen(world, at),
        };
        for fault in faults {
            let act = match only {
                Some(family) => Act::BreakIn(family, *fault),
                None => Act::Break(*fault),
            };
            world = world.with(at, act);
        }
        world
    }
}

/// Freezes the proxy and replaces an endpoint of the first Service. The endpoint is on another node,
/// because the Service may be the pod probe's.
fn frozen(world: World, at: Duration) -> World {
    let first = world.services.first().map(|service| service.local);
    let world = world.with(at, Act::FreezeProxy);
    match first {
        Some(remote) => world.with(at, Act::Replace(0, remote, Duration::ZERO)),
        None => world,
    }
}
