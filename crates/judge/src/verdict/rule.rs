//! The judge's rules: their names, and the state that each one gives. No rule is evaluated here.

use pathproof_facts::cause::{State, Why, firsts};
use serde::{Deserialize, Serialize};

/// The judge's rules. docs/behaviour.md describes those that take a node out, `explain` has the sentences.
///
/// To add one, follow docs/internal/architecture.md#add-a-finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Probes fail in a row on a path that represents the node.
    BrokenByProbes,
    /// The sentinel and real connections fail since the same moment, or the pod probe and either of them.
    BrokenByTwoScopes,
    /// Every Service that is dialled fails as if its rules were gone.
    BrokenByRules,
    /// Connections to pods of this node leave by an uplink, or connections to other nodes by another device
    /// than usual.
    BrokenByRoutes,
    /// Connections of pods fail so broadly that no single policy explains it.
    BrokenByConnections,
    /// Handshakes complete, but the data after them is not forwarded.
    BrokenByData,
    /// Clients of one scope are not served, and the kernel shows why.
    BrokenByObstacle,
    /// New connections go to an endpoint that left, and no later change is seen on the wire.
    StaleByConnections,
    /// Probes have reached an old generation of the sentinel for too long.
    StaleByProbes,
    /// Single Services fail.
    DegradedServices,
    /// Data of single Services is not forwarded.
    DegradedByData,
    /// Clients repeat their SYN as if no answer had reached them.
    #[serde(rename = "degraded_unheard")]
    DegradedAnswerNotDelivered,
    /// Other nodes do not answer.
    DegradedByPeers,
    /// Large transfers of the pod probe fail while small ones succeed.
    #[serde(rename = "degraded_by_cuts")]
    DegradedByLargeTransfers,
    /// The Node object reports that its pods have no network.
    DegradedByNode,
    /// Probes fail while a real connection of the same path succeeds.
    DegradedContradicted,
    /// Probes from outside the cluster's ranges fail while probes from pod addresses pass.
    DegradedFiltered,
    /// Probes fail on a path that does not represent the node.
    #[serde(rename = "degraded_aside")]
    DegradedSecondaryPath,
    /// Probes of a path that does not represent the node reach an old generation.
    DegradedByLag,
    /// The family is at fault, but does not count for the answer.
    DegradedUncounted,
    /// Probes fail, but this is not confirmed.
    SuspectByProbes,
    /// Connections fail, but this is not confirmed.
    SuspectByConnections,
    /// Connections go to an endpoint that left, but this is not confirmed.
    SuspectByStale,
    /// A real connection succeeded.
    ProvenByConnection,
    /// A probe passed.
    ProvenByProbe,
    /// The node booted recently, and no connection of a pod succeeded yet. The pod probe will make one.
    StartingPods,
    /// The node booted recently, and nothing is proven yet.
    Starting,
    /// The observer has not been read for too long.
    NotSampled,
    /// The observer is attached nowhere.
    ObserverBlind,
    /// The cluster view was never complete.
    ViewNotSynced,
    /// No Service has a frontend on this node.
    NothingExpected,
    /// The failures are too old to accuse the node.
    EvidenceTooOld,
    /// Somebody edited the sentinel.
    SentinelAltered,
    /// Another program took over the datapath.
    DatapathChanged,
    /// A lane of the sentinel never worked.
    NeverWorked,
    /// Connections or probes arrived, but none is conclusive.
    Inconclusive,
    /// There is a sentinel, but nothing was proven.
    NothingProven,
    /// No new connection arrived.
    Idle,
}

impl Rule {
    /// Names as metrics and `/verdict` show them.
    const NAMES: [(Rule, &'static str); 38] = [
        (Rule::BrokenByProbes, "broken_by_probes"),
        (Rule::BrokenByTwoScopes, "broken_by_two_scopes"),
        (Rule::BrokenByRules, "broken_by_rules"),
        (Rule::BrokenByRoutes, "broken_by_routes"),
        (Rule::BrokenByConnections, "broken_by_connections"),
        (Rule::BrokenByData, "broken_by_data"),
        (Rule::BrokenByObstacle, "broken_by_obstacle"),
        (Rule::StaleByConnections, "stale_by_connections"),
        (Rule::StaleByProbes, "stale_by_probes"),
        (Rule::DegradedServices, "degraded_services"),
        (Rule::DegradedByData, "degraded_by_data"),
        (Rule::DegradedAnswerNotDelivered, "degraded_unheard"),
        (Rule::DegradedByPeers, "degraded_by_peers"),
        (Rule::DegradedByLargeTransfers, "degraded_by_cuts"),
        (Rule::DegradedByNode, "degraded_by_node"),
        (Rule::DegradedContradicted, "degraded_contradicted"),
        (Rule::DegradedFiltered, "degraded_filtered"),
        (Rule::DegradedSecondaryPath, "degraded_aside"),
        (Rule::DegradedByLag, "degraded_by_lag"),
        (Rule::DegradedUncounted, "degraded_uncounted"),
        (Rule::SuspectByProbes, "suspect_by_probes"),
        (Rule::SuspectByConnections, "suspect_by_connections"),
        (Rule::SuspectByStale, "suspect_by_stale"),
        (Rule::ProvenByConnection, "proven_by_connection"),
        (Rule::ProvenByProbe, "proven_by_probe"),
        (Rule::StartingPods, "starting_pods"),
        (Rule::Starting, "starting"),
        (Rule::NotSampled, "not_sampled"),
        (Rule::ObserverBlind, "observer_blind"),
        (Rule::ViewNotSynced, "view_not_synced"),
        (Rule::NothingExpected, "nothing_expected"),
        (Rule::EvidenceTooOld, "evidence_too_old"),
        (Rule::SentinelAltered, "sentinel_altered"),
        (Rule::DatapathChanged, "datapath_changed"),
        (Rule::NeverWorked, "never_worked"),
        (Rule::Inconclusive, "inconclusive"),
        (Rule::NothingProven, "nothing_proven"),
        (Rule::Idle, "idle"),
    ];
    pub const ALL: [Rule; 38] = firsts(&Self::NAMES);

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

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
