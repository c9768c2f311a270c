//! The vocabulary of every judgement: failures of connections and probes, their causes on a node,
//! and the states of a node. This module uses only `serde`.

use pathproof_wire::transition::Failed;
use serde::{Deserialize, Serialize};

/// The first column of a table that has a row for every variant, in order.
pub const fn firsts<T: Copy, R: Copy, const N: usize>(table: &[(T, R); N]) -> [T; N] {
    let mut all = [table[0].0; N];
    let mut at = 0;
    while at < N {
        all[at] = table[at].0;
        at += 1;
    }
    all
}

/// Kind of connection failure, as metrics and `/verdict` name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The node refused it, by RST or ICMP.
    Refused,
    /// It left with the frontend still as its destination.
    Leaked,
    /// It left for an address that is no endpoint of the Service.
    Misrouted,
    /// It left for an endpoint that was removed from its slice.
    Stale,
    /// It was answered, but the client repeated its SYN as if the answer had not arrived.
    #[serde(rename = "unheard")]
    AnswerNotDelivered,
    /// It arrived and was not seen again.
    Lost,
}

pub const FAILURES: usize = 6;

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Refused => Failure::Refused,
            Failed::Leaked => Failure::Leaked,
            Failed::Misrouted => Failure::Misrouted,
            Failed::Stale => Failure::Stale,
            Failed::Lost => Failure::Lost,
        }
    }
}

impl Failure {
    const CAUSES: [(Failure, Cause); FAILURES] = [
        (Failure::Refused, Cause::Refused),
        (Failure::Leaked, Cause::Leaked),
        (Failure::Misrouted, Cause::Misrouted),
        (Failure::Stale, Cause::Stale),
        (Failure::AnswerNotDelivered, Cause::AnswerNotDelivered),
        (Failure::Lost, Cause::Lost),
    ];
    pub const ALL: [Failure; FAILURES] = firsts(&Self::CAUSES);
}

/// Kind of probe failure, with the names of metrics and `/verdict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeCause {
    /// Left by an uplink untranslated.
    Leaked,
    /// Refused by RST.
    Refused,
    /// Refused by an ICMP error.
    Unreachable,
    /// Sent to an address that is no endpoint of the sentinel.
    Misrouted,
    /// Sent to an endpoint that was removed from the sentinel's slice.
    Stale,
    /// Arrived and was not forwarded, and forwarding is off in the kernel.
    ForwardingOff,
    /// Arrived and was not forwarded, though forwarding is on.
    #[serde(rename = "lost")]
    LostBeforeLeaving,
    /// The handshake completed, but the data did not come back.
    NoData,
    /// The echo's answer entered the node and did not reach the client.
    AnswerLost,
    /// Passed with the client's address as source, although this lane was masqueraded before.
    NotMasqueraded,
    /// Arrived and was not forwarded, while the kernel drops connections because its connection
    /// table is full.
    ConntrackFull,
}

pub const PROBE_CAUSES: usize = 11;

impl ProbeCause {
    /// Name, cause on a node, and whether the failure is unambiguous.
    const TABLE: [(ProbeCause, (&'static str, Cause, bool)); PROBE_CAUSES] = [
        (ProbeCause::Leaked, ("leaked", Cause::Leaked, true)),
        (ProbeCause::Refused, ("refused", Cause::Refused, true)),
        (
            ProbeCause::Unreachable,
            ("unreachable", Cause::Refused, false),
        ),
        (ProbeCause::Misrouted, ("misrouted", Cause::Misrouted, true)),
        (ProbeCause::Stale, ("stale", Cause::Stale, false)),
        (
            ProbeCause::ForwardingOff,
            ("forwarding_off", Cause::ForwardingOff, true),
        ),
        (ProbeCause::LostBeforeLeaving, ("lost", Cause::Lost, false)),
        (ProbeCause::NoData, ("no_data", Cause::NoData, true)),
        (
            ProbeCause::AnswerLost,
            ("answer_lost", Cause::AnswerLost, false),
        ),
        (
            ProbeCause::NotMasqueraded,
            ("not_masqueraded", Cause::NotMasqueraded, true),
        ),
        (
            ProbeCause::ConntrackFull,
            ("conntrack_full", Cause::ConntrackFull, true),
        ),
    ];
    pub const ALL: [ProbeCause; PROBE_CAUSES] = firsts(&Self::TABLE);

    /// Name as metrics and `/verdict` show it.
    pub fn name(self) -> &'static str {
        Self::TABLE[self as usize].1.0
    }

    pub fn cause(self) -> Cause {
        Self::TABLE[self as usize].1.1
    }

    /// Whether only a fault of the datapath explains it, and no filter of the sentinel's addresses.
    /// REJECT rules send ICMP errors, and drop rules lose answers. REJECT may also send RST, so a
    /// refusal counts only if the frontend is the node's own address.
    pub fn is_unambiguous(self) -> bool {
        Self::TABLE[self as usize].1.2
    }
}

/// The state of the node or of a family. Ordered by severity, except that Unknown and Starting rank below
/// Proven: a node shows them only if no family has another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// There is no evidence.
    Unknown,
    /// Early in the boot, and nothing is proven yet.
    Starting,
    /// New connections get through, and the last one did recently.
    Proven,
    /// Failures that are not confirmed.
    Suspect,
    /// Single Services are broken while the family is proven.
    Degraded,
    /// New connections go to removed endpoints, or the rules do not follow the API.
    Stale,
    /// No new connection gets through.
    Broken,
}

impl State {
    /// Names as metrics and `/verdict` show them.
    const NAMES: [(State, &'static str); 7] = [
        (State::Unknown, "unknown"),
        (State::Starting, "starting"),
        (State::Proven, "proven"),
        (State::Suspect, "suspect"),
        (State::Degraded, "degraded"),
        (State::Stale, "stale"),
        (State::Broken, "broken"),
    ];
    pub const ALL: [State; 7] = firsts(&Self::NAMES);

    /// Whether load balancers get 503 in this state.
    pub fn fails(self) -> bool {
        matches!(self, State::Broken | State::Stale)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// The commonest kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Connections leave untranslated.
    Leaked,
    /// The node refuses connections.
    Refused,
    /// Connections go to an address that is no endpoint.
    Misrouted,
    /// Connections arrive and are not seen again.
    Lost,
    /// Connections go to removed endpoints.
    Stale,
    /// Answers do not reach the clients.
    #[serde(rename = "unheard")]
    AnswerNotDelivered,
    /// Connections are established, but carry no data.
    NoData,
    /// The kernel does not forward packets.
    ForwardingOff,
    /// Connections keep their source address although they need masquerading.
    NotMasqueraded,
    /// Probes are answered, but the answers do not reach the client.
    AnswerLost,
    /// The connection table is full, so new connections are dropped.
    ConntrackFull,
    /// Connections leave for other nodes, and no node answers.
    Overlay,
    /// Small packets pass between nodes, large ones do not.
    Mtu,
    /// A condition of the Node reports that its pods have no network.
    Cni,
    /// The program that translates ingress at an uplink is not attached.
    ProgramMissing,
    /// The kernel has no route to the pods of this node, or none back from them.
    NoRoute,
    /// The reverse path filter drops packets of clients.
    ReversePath,
    /// The pods of this node do not answer ARP or neighbour discovery.
    NoNeighbour,
    /// Answers between pods behind one bridge of this node are not translated back: its netfilter hooks are off.
    BridgeFilter,
}

impl Cause {
    /// Names as metrics and `/verdict` show them.
    const NAMES: [(Cause, &'static str); 19] = [
        (Cause::Leaked, "leaked"),
        (Cause::Refused, "refused"),
        (Cause::Misrouted, "misrouted"),
        (Cause::Lost, "lost"),
        (Cause::Stale, "stale"),
        (Cause::AnswerNotDelivered, "unheard"),
        (Cause::NoData, "no_data"),
        (Cause::ForwardingOff, "forwarding_off"),
        (Cause::NotMasqueraded, "not_masqueraded"),
        (Cause::AnswerLost, "answer_lost"),
        (Cause::ConntrackFull, "conntrack_full"),
        (Cause::Overlay, "overlay"),
        (Cause::Mtu, "mtu"),
        (Cause::Cni, "cni"),
        (Cause::ProgramMissing, "program_missing"),
        (Cause::NoRoute, "no_route"),
        (Cause::ReversePath, "reverse_path"),
        (Cause::NoNeighbour, "no_neighbour"),
        (Cause::BridgeFilter, "bridge_filter"),
    ];
    pub const ALL: [Cause; 19] = firsts(&Self::NAMES);

    /// Whether the cause is found in routes or neighbour tables.
    pub fn is_looked_up(self) -> bool {
        matches!(
            self,
            Cause::NoRoute | Cause::ReversePath | Cause::NoNeighbour | Cause::BridgeFilter
        )
    }

    pub fn of(failure: Failure) -> Cause {
        Failure::CAUSES[failure as usize].1
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// Reason for Unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The observer is not attached anywhere.
    ObserverBlind,
    /// No recent sample of the observer.
    NotSampled,
    /// The cluster view was never complete.
    ViewNotSynced,
    /// No Service has a frontend on this node.
    NothingExpected,
    /// The sentinel exists and the boot is over, but nothing is proven.
    NothingProven,
    /// No recent connection to a Service, and no sentinel to make one.
    Idle,
    /// There were new connections, but no outcome is conclusive.
    Inconclusive,
    /// The failures are too old, and nothing newer was observed.
    EvidenceTooOld,
    /// The sentinel was edited, so its probes are not evidence.
    SentinelAltered,
    /// Another program took over the datapath, and no probe passed since.
    DatapathChanged,
}

impl Why {
    /// Names as metrics and `/verdict` show them.
    const NAMES: [(Why, &'static str); 10] = [
        (Why::ObserverBlind, "observer_blind"),
        (Why::NotSampled, "not_sampled"),
        (Why::ViewNotSynced, "view_not_synced"),
        (Why::NothingExpected, "nothing_expected"),
        (Why::NothingProven, "nothing_proven"),
        (Why::Idle, "idle"),
        (Why::Inconclusive, "inconclusive"),
        (Why::EvidenceTooOld, "evidence_too_old"),
        (Why::SentinelAltered, "sentinel_altered"),
        (Why::DatapathChanged, "datapath_changed"),
    ];
    pub const ALL: [Why; 10] = firsts(&Self::NAMES);

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_the_order_of_variants_and_names_are_those_of_json() {
        for (at, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, at);
        }
        for (at, cause) in ProbeCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at);
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
        for (at, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, at);
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
        for (at, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at);
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
        for (at, why) in Why::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, at);
            assert_eq!(serde_json::to_value(why).unwrap(), why.name());
        }
    }
}
