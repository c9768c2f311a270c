//! Which endpoints of a Service port are in use: kube-proxy's `CategorizeEndpoints`.
//!
//! Topology hints are left out on purpose: they only narrow the choice among ready endpoints, and
//! an endpoint of another zone is still an endpoint of the Service.

use std::sync::Arc;

use agent_common::service::{Address, Family, Port};

use crate::cluster::{EndpointFacts, Protocol, SliceFacts};

/// An endpoint that connections may be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Mapped address.
    pub address: Address,
    /// Port, network order.
    pub port: Port,
    /// Whether it is a pod of this node.
    pub local: bool,
    /// Whether it is a UDP port's.
    pub udp: bool,
}

/// The endpoints of one Service port and family, by use.
#[derive(Debug, Default)]
pub(super) struct EndpointSets {
    /// Whether there is a usable endpoint anywhere in the cluster.
    pub(super) has_any: bool,
    /// Whether there is one that local traffic policy may use.
    pub(super) has_local: bool,
    /// What cluster and local traffic policy use, together; each once, in order.
    pub(super) reachable: Vec<Endpoint>,
}

/// How an endpoint may be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Ready,
    /// Serving though terminating: in use only while no endpoint is ready.
    Fallback,
}

impl Use {
    fn of(facts: &EndpointFacts) -> Option<Use> {
        match facts {
            _ if facts.ready => Some(Use::Ready),
            _ if facts.serving && facts.terminating => Some(Use::Fallback),
            _ => None,
        }
    }
}

/// Which uses have been seen.
#[derive(Clone, Copy, Default)]
struct Seen {
    ready: bool,
    fallback: bool,
}

impl Seen {
    fn note(&mut self, usage: Use) {
        match usage {
            Use::Ready => self.ready = true,
            Use::Fallback => self.fallback = true,
        }
    }

    fn any(self) -> bool {
        self.ready || self.fallback
    }

    /// The use that a policy over these endpoints chooses: ready ones if there is one.
    fn chosen(self) -> Use {
        if self.ready {
            Use::Ready
        } else {
            Use::Fallback
        }
    }
}

impl EndpointSets {
    /// Collects the endpoints of `port` and `family` from a Service's slices. `uses_cluster` and
    /// `uses_local` say which traffic policies the port has anything to do with.
    pub(super) fn collect(
        slices: &[Arc<SliceFacts>],
        port: (&str, Protocol),
        family: Family,
        uses_cluster: bool,
        uses_local: bool,
    ) -> Self {
        let (mut cluster, mut local) = (Seen::default(), Seen::default());
        let mut usable = 0;
        for (facts, _, usage) in candidates(slices, port, family) {
            usable += 1;
            cluster.note(usage);
            if facts.local {
                local.note(usage);
            }
        }
        let chosen = |facts: &EndpointFacts, usage: Use| {
            (uses_cluster && usage == cluster.chosen())
                || (uses_local && facts.local && usage == local.chosen())
        };
        let mut reachable = Vec::with_capacity(usable);
        reachable.extend(
            candidates(slices, port, family)
                .filter(|(facts, _, usage)| chosen(facts, *usage))
                .map(|(facts, number, _)| Endpoint {
                    address: facts.address,
                    port: number.to_be_bytes(),
                    local: facts.local,
                    udp: port.1 == Protocol::Udp,
                }),
        );
        // An endpoint may be in two slices while it moves; kube-proxy prefers the local reading.
        reachable.sort_unstable_by_key(|e| (e.address, e.port, !e.local));
        reachable.dedup_by_key(|e| (e.address, e.port));
        Self {
            has_any: cluster.any(),
            has_local: uses_local && local.any(),
            reachable,
        }
    }
}

fn candidates<'a>(
    slices: &'a [Arc<SliceFacts>],
    (name, protocol): (&'a str, Protocol),
    family: Family,
) -> impl Iterator<Item = (&'a EndpointFacts, u16, Use)> {
    slices.iter().flat_map(move |slice| {
        let ports = slice
            .ports
            .iter()
            .filter(move |candidate| candidate.protocol == protocol && &*candidate.name == name);
        ports.flat_map(move |port| {
            slice.endpoints.iter().filter_map(move |facts| {
                let usage = Use::of(facts)?;
                (Family::of(&facts.address) == family).then_some((facts, port.port, usage))
            })
        })
    })
}
