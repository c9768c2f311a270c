//! Rules about other nodes, which read the ledger of peers.
//!
//! They name silent nodes and never take this node out. A policy that takes effect on every node, or a zone
//! with one node left, is indistinguishable from a dead overlay (docs/internal/design/decision.md#peers).

use std::collections::BTreeSet;

use pathproof_facts::cause::Cause;
use pathproof_witness::ledger::WINDOW;
use pathproof_witness::peers::{FamilyPeers, SilentNode, Unanswered};

use super::case::{Case, Grounds};
use super::finding::{Evidence, Named};

impl<'a> Case<'a> {
    fn peers(&self) -> &'a FamilyPeers {
        self.ledger.peers.family(self.family)
    }

    /// Nodes that answered before are silent.
    pub(super) fn degraded_peers(&self) -> Option<Grounds> {
        let outage = self.peers().outage.as_ref();
        let silent: Vec<&SilentNode> = (self.peers().silent.values())
            .filter(|silent| self.is_named(&silent.unanswered))
            .collect();
        let (nodes, unanswered): (Named, Vec<&Unanswered>) = if silent.is_empty() {
            // In a large cluster each node is dialled rarely, so all silent nodes are counted together.
            let all = outage.filter(|all| all.nodes.len() > 1 && self.is_named(&all.unanswered))?;
            let nodes = Named::of(all.nodes.iter().map(|node| &**node));
            (nodes, vec![&all.unanswered])
        } else {
            let nodes = Named::of(silent.iter().map(|silent| &*silent.node));
            let unanswered = silent.iter().map(|silent| &silent.unanswered);
            (nodes, unanswered.collect())
        };
        let services = unanswered.iter().flat_map(|node| node.services.values());
        let evidence = Evidence::Peers {
            nodes,
            services: Named::of(services.collect::<BTreeSet<_>>().into_iter()),
            connections: unanswered.iter().map(|node| node.connections).sum(),
            since: unanswered.iter().map(|node| node.since).min()?,
            others_answer: outage.is_none(),
            near_answers: outage.is_some_and(|outage| outage.near_answers),
        };
        Some((Some(Cause::Overlay), evidence))
    }

    /// Small exchanges of the pod probe succeed and large ones fail, so its backends are not at fault.
    pub(super) fn degraded_by_large_transfers(&self) -> Option<Grounds> {
        let failed = self.peers().large_transfers.as_ref()?;
        let is_enough = failed.connections >= self.ledger.limits.service_failures;
        is_enough.then(|| {
            let evidence = Evidence::LargeTransferFailures {
                transfers: failed.connections,
                since: failed.since,
            };
            (Some(Cause::Mtu), evidence)
        })
    }

    /// Whether the silence is due to the network rather than a backend, and long enough to report.
    fn is_named(&self, unanswered: &Unanswered) -> bool {
        let limits = &self.ledger.limits;
        let services: BTreeSet<&String> = unanswered.services.values().collect();
        unanswered.connections >= limits.service_failures
            && unanswered.last.since(unanswered.since) >= limits.service_spread
            && (unanswered.is_probed || services.len() >= limits.broken_services)
            && self.now.since(unanswered.last) <= WINDOW
    }
}
