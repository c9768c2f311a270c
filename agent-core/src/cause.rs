//! The vocabulary of every judgement: how connections and probes fail, what that is called on a node,
//! and the states a node can be in. Below everything else: it names nothing but `serde`.

use serde::{Deserialize, Serialize};

/// The first column of a table, which has a row for every variant in order.
pub(crate) const fn firsts<T: Copy, R: Copy, const N: usize>(table: &[(T, R); N]) -> [T; N] {
    let mut all = [table[0].0; N];
    let mut at = 0;
    while at < N {
        all[at] = table[at].0;
        at += 1;
    }
    all
}

/// Kind of connection failure. The names are those of metrics and `/verdict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The node itself refused it.
    Refused,
    /// It left with the frontend still as its destination.
    Leaked,
    /// It left for an address that is no endpoint of the Service.
    Misrouted,
    /// It left for an endpoint that has left its slice.
    Stale,
    /// It was answered, but the client repeated its SYN as if the answer had not arrived.
    Unheard,
    /// It arrived and was not seen again.
    Lost,
}

pub const FAILURES: usize = 6;

impl Failure {
    const CAUSES: [(Failure, Cause); FAILURES] = [
        (Failure::Refused, Cause::Refused),
        (Failure::Leaked, Cause::Leaked),
        (Failure::Misrouted, Cause::Misrouted),
        (Failure::Stale, Cause::Stale),
        (Failure::Unheard, Cause::Unheard),
        (Failure::Lost, Cause::Lost),
    ];
    pub const ALL: [Failure; FAILURES] = firsts(&Self::CAUSES);
}

/// Kind of probe failure.
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
    /// Sent to an endpoint that has left the sentinel's slice.
    Stale,
    /// Arrived and was not sent on, and the kernel says that it does not forward.
    ForwardingOff,
    /// Arrived and was not sent on, though the kernel forwards.
    #[serde(rename = "lost")]
    LostBeforeLeaving,
    /// The handshake completed, the data did not come back.
    NoData,
    /// The echo's answer came into the node and did not reach the client.
    AnswerLost,
    /// Passed, but with the client's own address where it was masqueraded before.
    NotMasqueraded,
    /// Arrived and was not sent on, while the kernel drops connections for want of room in its table.
    ConntrackFull,
}

pub const PROBE_CAUSES: usize = 11;

impl ProbeCause {
    /// Its name, what it is called on a node, and whether it is unambiguous.
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

    /// Whether it accuses the datapath alone: no filter of the sentinel's own addresses looks like
    /// it. An ICMP error is what a REJECT rule sends; a lost answer is what a drop rule makes. A
    /// REJECT rule may send RST too: that counts only where the frontend is the node's own address.
    pub fn is_unambiguous(self) -> bool {
        Self::TABLE[self as usize].1.2
    }
}

/// The state of the node or of a family. Ordered by severity, except that Unknown and Starting rank below
/// Proven: a node shows them only if no family has another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing can be said.
    Unknown,
    /// Nothing is proven yet in this boot, and it is early.
    Starting,
    /// New connections get through, seen a moment ago.
    Proven,
    /// Failures, not confirmed.
    Suspect,
    /// Single Services are broken while the family is proven.
    Degraded,
    /// New connections go to endpoints that left, or the rules do not follow the API.
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

    /// Whether load balancers get 503 for it.
    pub fn fails(self) -> bool {
        matches!(self, State::Broken | State::Stale)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// The cause of trouble: the commonest kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Connections leave untranslated.
    Leaked,
    /// The node refuses connections.
    Refused,
    /// Connections go where no endpoint is.
    Misrouted,
    /// Connections arrive and are not seen again.
    Lost,
    /// Connections go to endpoints that left their slice.
    Stale,
    /// Answers do not reach the clients.
    Unheard,
    /// Connections are made, but carry no data.
    NoData,
    /// The kernel does not forward.
    ForwardingOff,
    /// Connections keep their source where it has to be masqueraded.
    NotMasqueraded,
    /// Probes are answered, and the answers do not get back.
    AnswerLost,
    /// The table of tracked connections is full, and new ones are dropped.
    ConntrackFull,
    /// Connections leave for other nodes, and no node answers.
    Overlay,
    /// Small packets pass between nodes, and large ones do not.
    Mtu,
    /// The Node says that its pods have no network.
    Cni,
    /// The program that translates what comes in by an uplink is not attached there.
    ProgramMissing,
    /// The kernel has no route to the pods of this node, or none back from them.
    NoRoute,
    /// The reverse path filter drops what clients send.
    ReversePath,
    /// The pods of this node do not answer ARP or neighbour discovery.
    NoNeighbour,
}

impl Cause {
    /// Names as metrics and `/verdict` show them.
    const NAMES: [(Cause, &'static str); 18] = [
        (Cause::Leaked, "leaked"),
        (Cause::Refused, "refused"),
        (Cause::Misrouted, "misrouted"),
        (Cause::Lost, "lost"),
        (Cause::Stale, "stale"),
        (Cause::Unheard, "unheard"),
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
    ];
    pub const ALL: [Cause; 18] = firsts(&Self::NAMES);

    /// Whether it is an obstacle that routes or neighbour tables show.
    pub(crate) fn is_looked_up(self) -> bool {
        matches!(
            self,
            Cause::NoRoute | Cause::ReversePath | Cause::NoNeighbour
        )
    }

    pub fn of(failure: Failure) -> Cause {
        Failure::CAUSES[failure as usize].1
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// Why nothing can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The observer is attached nowhere.
    ObserverBlind,
    /// The observer was not read for too long.
    NotSampled,
    /// The cluster view was never complete.
    ViewNotSynced,
    /// No Service has a frontend here.
    NothingExpected,
    /// A sentinel is there, the boot is no longer young, and nothing was proven.
    NothingProven,
    /// No new connection to a Service lately, and no sentinel that would make one.
    Idle,
    /// New connections came, but none whose outcome says anything.
    Inconclusive,
    /// The failures are too old, and nothing was seen since.
    EvidenceTooOld,
    /// The sentinel is not as pathproof made it, so its probes say nothing.
    SentinelAltered,
    /// Another program took the datapath over, and no probe passed since.
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
