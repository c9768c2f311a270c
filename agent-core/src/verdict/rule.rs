//! The rules of the judge: their names, and the state that each gives. No rule is evaluated here.

use serde::{Deserialize, Serialize};

use crate::cause::{State, Why, firsts};

/// The rules of the judge, as described in docs/behaviour.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Probes fail in a row on a path that represents the node.
    BrokenByProbes,
    /// The sentinel and real connections, or the pod probe and either of them, fail since the same moment.
    BrokenByTwoScopes,
    /// Every Service that is dialled fails as if its rules were gone.
    BrokenByRules,
    /// Connections to pods of this node leave by an uplink, or those to other nodes by another device than usual.
    BrokenByRoutes,
    /// Every Service with new connections fails.
    BrokenByConnections,
    /// Connections are made, and their data is not forwarded.
    BrokenByData,
    /// Clients outside are not served, and the kernel shows why.
    BrokenByObstacle,
    /// New connections go to an endpoint that left, and nothing newer is on the wire.
    StaleByConnections,
    /// Probes meet an old generation for too long.
    StaleByProbes,
    /// Single Services fail.
    DegradedServices,
    /// Data of single Services is not forwarded.
    DegradedByData,
    /// Clients send their SYN again as if no answer had reached them.
    DegradedUnheard,
    /// Other nodes do not answer.
    DegradedByPeers,
    /// Large transfers of the pod probe do not get through, and small ones do.
    DegradedByCuts,
    /// The Node object reports that its pods have no network.
    DegradedByNode,
    /// Probes fail, and a real connection of the same path gets through.
    DegradedContradicted,
    /// Probes from outside the cluster's ranges fail, those of pods pass.
    DegradedFiltered,
    /// Probes fail on a path that does not represent the node.
    DegradedAside,
    /// Probes of such a path meet an old generation.
    DegradedByLag,
    /// The family is at fault, and does not count for the answer.
    DegradedUncounted,
    /// Probes fail, which is not confirmed.
    SuspectByProbes,
    /// Connections fail, which is not confirmed.
    SuspectByConnections,
    /// Connections go to an endpoint that left, which is not confirmed.
    SuspectByStale,
    /// A real connection got through.
    ProvenByConnection,
    /// A probe got through.
    ProvenByProbe,
    /// The boot is young, and no connection of pods got through yet, which the pod probe will make.
    StartingPods,
    /// Nothing is proven yet, and the boot is young.
    Starting,
    /// The observer was not read for too long.
    NotSampled,
    /// The observer is attached nowhere.
    ObserverBlind,
    /// The cluster view was never complete.
    ViewNotSynced,
    /// No Service has a frontend on this node.
    NothingExpected,
    /// The failures are too old to accuse.
    EvidenceTooOld,
    /// Somebody edited the sentinel.
    SentinelAltered,
    /// Another program took the datapath over.
    DatapathChanged,
    /// A lane of the sentinel never worked.
    NeverWorked,
    /// Connections or probes came, but none of them is conclusive.
    Inconclusive,
    /// There is a sentinel, and nothing was proven.
    NothingProven,
    /// No new connection came.
    Idle,
}

impl Rule {
    /// Names in metrics and `/verdict`.
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
        (Rule::DegradedUnheard, "degraded_unheard"),
        (Rule::DegradedByPeers, "degraded_by_peers"),
        (Rule::DegradedByCuts, "degraded_by_cuts"),
        (Rule::DegradedByNode, "degraded_by_node"),
        (Rule::DegradedContradicted, "degraded_contradicted"),
        (Rule::DegradedFiltered, "degraded_filtered"),
        (Rule::DegradedAside, "degraded_aside"),
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

    /// The state that it gives a family or the node.
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
            | Rule::DegradedUnheard
            | Rule::DegradedByPeers
            | Rule::DegradedByCuts
            | Rule::DegradedByNode
            | Rule::DegradedContradicted
            | Rule::DegradedFiltered
            | Rule::DegradedAside
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

    /// With [`State::Unknown`], why.
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
