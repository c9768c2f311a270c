//! The judge's rules: their names, and the state that each one gives. No rule is evaluated here.

use pathproof_facts::cause::{State, Why};
use pathproof_facts::named;

named! {
    /// The judge's rules. docs/behaviour.md describes those that take a node out, `explain` has the
    /// sentences.
    ///
    /// To add one, follow docs/internal/architecture.md#add-a-finding.
    pub enum Rule {
        /// Probes fail in a row on a path that represents the node.
        BrokenByProbes = "broken_by_probes",
        /// Two of these began to fail at the same moment: the sentinel, real connections, and the pod probe.
        BrokenByTwoScopes = "broken_by_two_scopes",
        /// Every Service that is dialled fails as if its rules were gone.
        BrokenByRules = "broken_by_rules",
        /// Connections to pods of this node leave by an uplink, or connections to other nodes by another
        /// device than usual.
        BrokenByRoutes = "broken_by_routes",
        /// Connections of pods fail so broadly that no single policy explains it.
        BrokenByConnections = "broken_by_connections",
        /// Handshakes complete, but the data after them is not forwarded.
        BrokenByData = "broken_by_data",
        /// Clients of one scope are not served, and the kernel shows why.
        BrokenByObstacle = "broken_by_obstacle",
        /// New connections go to an endpoint that left, and no later change is seen on the wire.
        StaleByConnections = "stale_by_connections",
        /// Probes have reached an old generation of the sentinel for too long.
        StaleByProbes = "stale_by_probes",
        /// Single Services fail.
        DegradedServices = "degraded_services",
        /// Data of single Services is not forwarded.
        DegradedByData = "degraded_by_data",
        /// Clients repeat their SYN as if no answer had reached them.
        DegradedAnswerNotDelivered = "degraded_unheard",
        /// Other nodes do not answer.
        DegradedByPeers = "degraded_by_peers",
        /// Large transfers of the pod probe fail while small ones succeed.
        DegradedByLargeTransfers = "degraded_by_cuts",
        /// The Node object reports that its pods have no network.
        DegradedByNode = "degraded_by_node",
        /// Probes fail while a real connection of the same path succeeds.
        DegradedContradicted = "degraded_contradicted",
        /// Probes from outside the cluster's ranges fail while probes from pod addresses pass.
        DegradedFiltered = "degraded_filtered",
        /// Probes fail on a path that does not represent the node, or on one main path alone in a way that
        /// another Service or other node port addresses may explain.
        DegradedSecondaryPath = "degraded_aside",
        /// Probes of any lane reach an old generation of the sentinel.
        DegradedByLag = "degraded_by_lag",
        /// The family is at fault, but does not count for the answer.
        DegradedUncounted = "degraded_uncounted",
        /// Probes fail, but this is not confirmed.
        SuspectByProbes = "suspect_by_probes",
        /// Connections fail, but this is not confirmed.
        SuspectByConnections = "suspect_by_connections",
        /// Connections go to an endpoint that left, but this is not confirmed.
        SuspectByStale = "suspect_by_stale",
        /// A real connection succeeded.
        ProvenByConnection = "proven_by_connection",
        /// A probe passed.
        ProvenByProbe = "proven_by_probe",
        /// The node booted recently, and no connection of a pod succeeded yet. The pod probe will make one.
        StartingPods = "starting_pods",
        /// The node booted recently, and nothing is proven yet.
        Starting = "starting",
        /// The observer has not been read for too long.
        NotSampled = "not_sampled",
        /// The observer is attached nowhere.
        ObserverBlind = "observer_blind",
        /// The cluster view was never complete.
        ViewNotSynced = "view_not_synced",
        /// No Service has a frontend on this node.
        NothingExpected = "nothing_expected",
        /// The failures are too old to accuse the node.
        EvidenceTooOld = "evidence_too_old",
        /// Somebody edited the sentinel.
        SentinelAltered = "sentinel_altered",
        /// Another program took over the datapath.
        DatapathChanged = "datapath_changed",
        /// A lane of the sentinel never worked.
        NeverWorked = "never_worked",
        /// Connections or probes arrived, but none is conclusive.
        Inconclusive = "inconclusive",
        /// There is a sentinel, but nothing was proven.
        NothingProven = "nothing_proven",
        /// No new connection arrived.
        Idle = "idle",
    }
}

impl Rule {
    /// State of a family or the node under this rule.
    pub fn state(self) -> State {
        match self {
            Rule::BrokenByProbes
            | Rule::BrokenByTwoScopes
            | Rule::BrokenByRules
            | Rule::BrokenByRoutes
            | Rule::BrokenByConnections
            | Rule::BrokenByData
            | Rule::BrokenByObstacle => State::Broken,
            Rule::StaleByConnections | Rule::StaleByProbes => State::Stale,
            Rule::DegradedServices
            | Rule::DegradedByData
            | Rule::DegradedAnswerNotDelivered
            | Rule::DegradedByPeers
            | Rule::DegradedByLargeTransfers
            | Rule::DegradedByNode
            | Rule::DegradedContradicted
            | Rule::DegradedFiltered
            | Rule::DegradedSecondaryPath
            | Rule::DegradedByLag
            | Rule::DegradedUncounted => State::Degraded,
            Rule::SuspectByProbes | Rule::SuspectByConnections | Rule::SuspectByStale => {
                State::Suspect
            }
            Rule::ProvenByConnection | Rule::ProvenByProbe => State::Proven,
            Rule::StartingPods | Rule::Starting => State::Starting,
            // All others have a reason for Unknown: see `why`.
            _ => State::Unknown,
        }
    }

    /// Reason for [`State::Unknown`].
    pub fn why(self) -> Option<Why> {
        Some(match self {
            Rule::NotSampled => Why::NotSampled,
            Rule::ObserverBlind => Why::ObserverBlind,
            Rule::ViewNotSynced => Why::ViewNotSynced,
            Rule::NothingExpected => Why::NothingExpected,
            Rule::EvidenceTooOld => Why::EvidenceTooOld,
            Rule::SentinelAltered => Why::SentinelAltered,
            Rule::DatapathChanged => Why::DatapathChanged,
            Rule::NeverWorked | Rule::NothingProven => Why::NothingProven,
            Rule::Inconclusive => Why::Inconclusive,
            Rule::Idle => Why::Idle,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_always_has_a_reason() {
        for rule in Rule::ALL {
            let is_unknown = rule.state() == State::Unknown;
            assert_eq!(rule.why().is_some(), is_unknown, "{rule:?}");
        }
    }
}
