//! The rules that read what became of connections to other nodes.
//!
//! A node that is silent accuses itself; several that are silent while others answer, the network
//! between. None of it takes this node out: a policy that comes into force everywhere, and the last node
//! that is left of a zone, look too much like it. It is named, with what is known against it.

use std::collections::BTreeSet;

use super::finding::{Evidence, Named, PeersLacking};
use super::judge::{Case, Found};
use crate::cause::Cause;
use crate::ledger::WINDOW;
use crate::peers::{FamilyPeers, Quiet, Run, Spell};

/// Nodes that must be silent.
const SILENT: usize = 3;

impl<'a> Case<'a> {
    fn peers(&self) -> &'a FamilyPeers {
        self.ledger.peers.family(self.family)
    }

    /// Nodes that answered before are silent, and that is not all of them, or not for certain.
    pub(super) fn degraded_peers(&self) -> Option<Found> {
        let run = self.peers().run.as_ref();
        let lacking = run.map_or(Some(PeersLacking::Answers), |run| self.peers_lacking(run));
        let silent: Vec<&Quiet> = (self.peers().silent.values())
            .filter(|quiet| self.is_named(&quiet.spell))
            .collect();
        if let Some(since) = silent.iter().map(|quiet| quiet.spell.since).min() {
            let services = silent.iter().flat_map(|quiet| &quiet.spell.services);
            let evidence = Evidence::Peers {
                nodes: Named::of(silent.iter().map(|quiet| &*quiet.node)),
                services: named(&services.cloned().collect()),
                connections: silent.iter().map(|quiet| quiet.spell.connections).sum(),
                since,
                lacking,
            };
            return Some((Some(Cause::Overlay), evidence));
        }
        // Of many nodes each is dialled rarely: together they tell.
        let run = run.filter(|run| run.nodes.len() > 1 && self.is_named(&run.spell))?;
        Some((Some(Cause::Overlay), of_run(run, lacking)))
    }

    /// Small exchanges of the pod probe pass, and large ones do not. A backend cannot be to blame.
    pub(super) fn degraded_cuts(&self) -> Option<Found> {
        let cut = self.peers().cut.as_ref()?;
        let stands = cut.connections >= self.ledger.limits.service_failures;
        stands.then(|| {
            let evidence = Evidence::Cuts {
                transfers: cut.connections,
                since: cut.since,
            };
            (Some(Cause::Mtu), evidence)
        })
    }

    /// Whether silence is the network's rather than a backend's, for long enough to say so.
    fn is_named(&self, spell: &Spell) -> bool {
        let limits = &self.ledger.limits;
        spell.connections >= limits.service_failures
            && spell.last.since(spell.since) >= limits.service_spread
            && (spell.is_probed || spell.services.len() >= limits.broken_services)
            && self.now.since(spell.last) <= WINDOW
    }

    /// Condition that a run of silence lacks to accuse this node; `None` if nothing is lacking.
    fn peers_lacking(&self, run: &Run) -> Option<PeersLacking> {
        let limits = &self.ledger.limits;
        let used = self.ledger.scope(self.family, self.now).namespaces;
        let (seen, spell) = (self.ledger.seen(self.now), &run.spell);
        let fresh = limits.broken_after.saturating_sub(limits.broken_fresh);
        let lasts = seen.since(spell.since) >= limits.broken_after
            && spell.last.since(spell.since) >= fresh;
        let namespaces: BTreeSet<&str> = (spell.services.iter())
            .filter_map(|service| Some(service.split_once('/')?.0))
            .collect();
        if run.nodes.len() < SILENT {
            Some(PeersLacking::Nodes)
        } else if spell.services.len() < limits.broken_services
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

fn of_run(run: &Run, lacking: Option<PeersLacking>) -> Evidence {
    Evidence::Peers {
        nodes: Named::of(run.nodes.iter().map(|node| &**node)),
        services: named(&run.spell.services),
        connections: run.spell.connections,
        since: run.spell.since,
        lacking,
    }
}

fn named(services: &BTreeSet<String>) -> Named {
    Named::of(services.iter())
}
