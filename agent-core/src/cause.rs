//! The vocabulary of every judgement: how connections and probes fail, what that is called on a node,
//! and the states a node can be in. Below everything else: it names nothing but `serde`.

use serde::{Deserialize, Serialize};

/// How a connection failed. The names are those of metrics and `/verdict`.
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
    /// It was answered, but the client did not hear the answer and asked again.
    Unheard,
    /// It arrived and was not seen again.
    Lost,
}

pub const FAILURES: usize = 6;

impl Failure {
    pub const ALL: [Failure; FAILURES] = [
        Failure::Refused,
        Failure::Leaked,
        Failure::Misrouted,
        Failure::Stale,
        Failure::Unheard,
        Failure::Lost,
    ];

    /// Place in tables by failure.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// How a probe failed.
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
}

pub const PROBE_CAUSES: usize = 10;

impl ProbeCause {
    pub const ALL: [ProbeCause; PROBE_CAUSES] = [
        ProbeCause::Leaked,
        ProbeCause::Refused,
        ProbeCause::Unreachable,
        ProbeCause::Misrouted,
        ProbeCause::Stale,
        ProbeCause::ForwardingOff,
        ProbeCause::LostBeforeLeaving,
        ProbeCause::NoData,
        ProbeCause::AnswerLost,
        ProbeCause::NotMasqueraded,
    ];

    /// Place in tables by cause.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Name as metrics and `/verdict` show it.
    pub fn name(self) -> &'static str {
        match self {
            ProbeCause::Leaked => "leaked",
            ProbeCause::Refused => "refused",
            ProbeCause::Unreachable => "unreachable",
            ProbeCause::Misrouted => "misrouted",
            ProbeCause::Stale => "stale",
            ProbeCause::ForwardingOff => "forwarding_off",
            ProbeCause::LostBeforeLeaving => "lost",
            ProbeCause::NoData => "no_data",
            ProbeCause::AnswerLost => "answer_lost",
            ProbeCause::NotMasqueraded => "not_masqueraded",
        }
    }

    pub fn cause(self) -> Cause {
        match self {
            ProbeCause::Leaked => Cause::Leaked,
            ProbeCause::Refused | ProbeCause::Unreachable => Cause::Refused,
            ProbeCause::Misrouted => Cause::Misrouted,
            ProbeCause::Stale => Cause::Stale,
            ProbeCause::ForwardingOff => Cause::ForwardingOff,
            ProbeCause::LostBeforeLeaving => Cause::Lost,
            ProbeCause::NoData => Cause::NoData,
            ProbeCause::AnswerLost => Cause::AnswerLost,
            ProbeCause::NotMasqueraded => Cause::NotMasqueraded,
        }
    }

    /// Whether it accuses the datapath alone: no filter of the sentinel's own addresses looks like
    /// it. An ICMP error is what a REJECT rule sends; a lost answer is what a drop rule makes. A
    /// REJECT rule may send RST too: that counts only where the frontend is the node's own address.
    pub fn is_unambiguous(self) -> bool {
        match self {
            ProbeCause::Leaked
            | ProbeCause::Refused
            | ProbeCause::Misrouted
            | ProbeCause::ForwardingOff
            | ProbeCause::NoData
            | ProbeCause::NotMasqueraded => true,
            ProbeCause::Unreachable
            | ProbeCause::Stale
            | ProbeCause::LostBeforeLeaving
            | ProbeCause::AnswerLost => false,
        }
    }
}

/// The state of the node or of a family. The order is that of severity, except that nothing known
/// comes before sound: it shows only where nothing else is known.
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
    pub const ALL: [State; 7] = [
        State::Unknown,
        State::Starting,
        State::Proven,
        State::Suspect,
        State::Degraded,
        State::Stale,
        State::Broken,
    ];

    /// Name as metrics and `/verdict` show it.
    pub fn name(self) -> &'static str {
        match self {
            State::Proven => "proven",
            State::Unknown => "unknown",
            State::Starting => "starting",
            State::Suspect => "suspect",
            State::Degraded => "degraded",
            State::Stale => "stale",
            State::Broken => "broken",
        }
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
}

impl Cause {
    pub const ALL: [Cause; 10] = [
        Cause::Leaked,
        Cause::Refused,
        Cause::Misrouted,
        Cause::Lost,
        Cause::Stale,
        Cause::Unheard,
        Cause::NoData,
        Cause::ForwardingOff,
        Cause::NotMasqueraded,
        Cause::AnswerLost,
    ];

    pub fn of(failure: Failure) -> Cause {
        match failure {
            Failure::Refused => Cause::Refused,
            Failure::Leaked => Cause::Leaked,
            Failure::Misrouted => Cause::Misrouted,
            Failure::Stale => Cause::Stale,
            Failure::Unheard => Cause::Unheard,
            Failure::Lost => Cause::Lost,
        }
    }

    /// Name as metrics and `/verdict` show it.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Leaked => "leaked",
            Cause::Refused => "refused",
            Cause::Misrouted => "misrouted",
            Cause::Lost => "lost",
            Cause::Stale => "stale",
            Cause::Unheard => "unheard",
            Cause::NoData => "no_data",
            Cause::ForwardingOff => "forwarding_off",
            Cause::NotMasqueraded => "not_masqueraded",
            Cause::AnswerLost => "answer_lost",
        }
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
    pub const ALL: [Why; 10] = [
        Why::ObserverBlind,
        Why::NotSampled,
        Why::ViewNotSynced,
        Why::NothingExpected,
        Why::NothingProven,
        Why::Idle,
        Why::Inconclusive,
        Why::EvidenceTooOld,
        Why::SentinelAltered,
        Why::DatapathChanged,
    ];

    /// Name as metrics and `/verdict` show it.
    pub fn name(self) -> &'static str {
        match self {
            Why::ObserverBlind => "observer_blind",
            Why::NotSampled => "not_sampled",
            Why::ViewNotSynced => "view_not_synced",
            Why::NothingExpected => "nothing_expected",
            Why::NothingProven => "nothing_proven",
            Why::Idle => "idle",
            Why::Inconclusive => "inconclusive",
            Why::EvidenceTooOld => "evidence_too_old",
            Why::SentinelAltered => "sentinel_altered",
            Why::DatapathChanged => "datapath_changed",
        }
    }
}
