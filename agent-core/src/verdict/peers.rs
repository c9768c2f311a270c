//! The rules that read what became of connections to other nodes.
//!
//! A node that is silent accuses itself; several that are silent while others answer, the network
//! between. This node is accused only where no node that pods dial answers any more, and endpoints of
//! this node do, for one of the same Services: what a policy denies is silent on every node.

use std::collections::BTreeSet;

use super::finding::{Evidence, Named, PeersLacking};
use super::judge::{Case, Found};
use crate::cause::Cause;
use crate::ledger::WINDOW;
use crate::peers::{FamilyPeers, Quiet, Run};

/// Nodes that must be silent.
const SILENT: usize = 3;

impl<'a> Case<'a> {
    fn peers(&self) -> &'a FamilyPeers {
        self.ledger.peers.family(self.family)
    }

    /// No other node answers pods of this one.
    pub(super) fn broken_by_peers(&self) -> Option<Found> {
        let run = self.peers().run.as_ref()?;
        let stands = self.is_within_proof_age(run.last) && self.peers_lacking(run).is_none();
        stands.then(|| {
            let evidence = Evidence::Peers {
                nodes: Named::of(run.nodes.values().map(|node| &**node)),
                services: named(&run.services),
                connections: run.connections,
                since: run.since,
                lacking: None,
            };
            (Some(Cause::Overlay), evidence)
        })
    }

    /// Nodes that answered before are silent, and that is not all of them, or not for certain.
    pub(super) fn degraded_peers(&self) -> Option<Found> {
        let limits = &self.ledger.limits;
        let counts = |quiet: &&Quiet| {
            quiet.connections >= limits.service_failures
                && quiet.last.since(quiet.since) >= limits.service_spread
                && quiet.services.len() >= limits.broken_services
                && self.now.since(quiet.last) <= WINDOW
        };
        let silent: Vec<&Quiet> = self.peers().silent.values().filter(counts).collect();
        let since = silent.iter().map(|quiet| quiet.since).min()?;
        let services = silent
            .iter()
            .flat_map(|quiet| quiet.services.iter().cloned());
        let run = self.peers().run.as_ref();
        let lacking = run.and_then(|run| self.peers_lacking(run));
        let evidence = Evidence::Peers {
            nodes: Named::of(silent.iter().map(|quiet| &*quiet.node)),
            services: named(&services.collect()),
            connections: silent.iter().map(|quiet| quiet.connections).sum(),
            since,
            lacking: Some(lacking.unwrap_or(PeersLacking::Answers)),
        };
        Some((Some(Cause::Overlay), evidence))
    }

    /// Condition that a run of silence lacks to accuse this node; `None` if nothing is lacking.
    fn peers_lacking(&self, run: &Run) -> Option<PeersLacking> {
        let limits = &self.ledger.limits;
        let namespace = |service: &'a str| service.split_once('/').map_or("", |(of, _)| of);
        let used = self.ledger.scope(self.family, self.now).namespaces;
        let (seen, last) = (self.ledger.seen(self.now), run.last);
        let fresh = limits.broken_after.saturating_sub(limits.broken_fresh);
        let lasts = seen.since(run.since) >= limits.broken_after && last.since(run.since) >= fresh;
        let peers = self.peers();
        let services = peers.run.iter().flat_map(|run| &run.services);
        let namespaces: BTreeSet<&str> = services.map(|of| namespace(of)).collect();
        if run.nodes.len() < SILENT {
            Some(PeersLacking::Nodes)
        } else if run.services.len() < limits.broken_services
            || namespaces.len() < limits.broken_namespaces.min(used)
        {
            Some(PeersLacking::Services)
        } else if run.clients.len() < limits.broken_sources {
            Some(PeersLacking::Clients)
        } else if !run.is_near_sound {
            Some(PeersLacking::Local)
        } else if !lasts {
            Some(PeersLacking::Time)
        } else {
            None
        }
    }
}

fn named(services: &BTreeSet<String>) -> Named {
    Named::of(services.iter())
}
