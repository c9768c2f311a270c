//! The vocabulary of every judgement: failures of connections and probes, their causes on a node, and the
//! states of a node. This module uses only `serde` and `pathproof_wire`.

use pathproof_wire::transition::Failed;

/// Defines an enum and one name for each variant, for JSON and metrics.
#[macro_export]
macro_rules! named {
    (
        $(#[$attribute:meta])*
        $vis:vis enum $enum:ident {
            $($(#[$of_variant:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize,
        )]
        $vis enum $enum {
            $($(#[$of_variant])* #[serde(rename = $name)] $variant,)+
        }

        impl $enum {
            pub const ALL: [$enum; [$($name),+].len()] = [$($enum::$variant),+];

            /// Name as metrics and `/verdict` show it.
            pub fn name(self) -> &'static str {
                match self {
                    $($enum::$variant => $name,)+
                }
            }
        }
    };
}

named! {
    /// Kind of connection failure, as metrics and `/verdict` name it.
    pub enum Failure {
        /// The node refused the connection, by RST or ICMP.
        Refused = "refused",
        /// The connection left with the frontend still as its destination.
        Leaked = "leaked",
        /// The connection left for an address that is no endpoint of the Service.
        Misrouted = "misrouted",
        /// The connection left for an endpoint that was removed from its slice.
        Stale = "stale",
        /// The connection was answered, but the client repeated its SYN as if the answer had not arrived.
        AnswerNotDelivered = "unheard",
        /// The connection arrived and was not seen again.
        Lost = "lost",
    }
}

pub const FAILURES: usize = Failure::ALL.len();

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

named! {
    /// Kind of probe failure, as metrics and `/verdict` name it.
    pub enum ProbeCause {
        /// Left by an uplink untranslated.
        Leaked = "leaked",
        /// Refused by RST.
        Refused = "refused",
        /// Refused by an ICMP error.
        Unreachable = "unreachable",
        /// Sent to an address that is no endpoint of the sentinel.
        Misrouted = "misrouted",
        /// Sent to an endpoint that was removed from the sentinel's slice.
        Stale = "stale",
        /// Arrived and was not forwarded, and forwarding is off in the kernel.
        ForwardingOff = "forwarding_off",
        /// Arrived and was not forwarded, though forwarding is on.
        LostBeforeLeaving = "lost",
        /// The handshake completed, but the data did not come back.
        NoData = "no_data",
        /// The echo's answer entered the node and did not reach the client.
        AnswerLost = "answer_lost",
        /// Passed with the client's address as source, although this lane was masqueraded before.
        NotMasqueraded = "not_masqueraded",
        /// Arrived and was not forwarded, while the kernel drops connections because its connection
        /// table is full.
        ConntrackFull = "conntrack_full",
    }
}

pub const PROBE_CAUSES: usize = ProbeCause::ALL.len();

impl ProbeCause {
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
            ProbeCause::ConntrackFull => Cause::ConntrackFull,
        }
    }

    /// Whether only a fault of the datapath can be the cause. A filter of the sentinel's addresses would send
    /// ICMP errors (REJECT) or lose answers (DROP). REJECT may also send RST, so callers count a refusal only
    /// if the frontend is an address of the node.
    pub fn is_unambiguous(self) -> bool {
        use ProbeCause::{AnswerLost, LostBeforeLeaving, Stale, Unreachable};
        !matches!(self, AnswerLost | LostBeforeLeaving | Stale | Unreachable)
    }
}

named! {
    /// The state of the node or of a family. Ordered by severity, except that Unknown and Starting rank below
    /// Proven: a node shows them only if no family has another state.
    pub enum State {
        /// There is no evidence.
        Unknown = "unknown",
        /// Early in the boot, and nothing is proven yet.
        Starting = "starting",
        /// New connections get through, and the last one did recently.
        Proven = "proven",
        /// Failures that are not confirmed.
        Suspect = "suspect",
        /// Some Services are broken while the family is proven.
        Degraded = "degraded",
        /// New connections go to removed endpoints, or the rules do not follow the API.
        Stale = "stale",
        /// No new connection gets through.
        Broken = "broken",
    }
}

impl State {
    /// Whether load balancers get 503 in this state.
    pub fn fails(self) -> bool {
        matches!(self, State::Broken | State::Stale)
    }
}

named! {
    /// Cause of failures on a node, as metrics and `/verdict` name it.
    pub enum Cause {
        /// Connections leave untranslated.
        Leaked = "leaked",
        /// The node refuses connections.
        Refused = "refused",
        /// Connections go to an address that is no endpoint.
        Misrouted = "misrouted",
        /// Connections arrive and are not seen again.
        Lost = "lost",
        /// Connections go to removed endpoints.
        Stale = "stale",
        /// Answers do not reach the clients.
        AnswerNotDelivered = "unheard",
        /// Connections are established, but carry no data.
        NoData = "no_data",
        /// The kernel does not forward packets.
        ForwardingOff = "forwarding_off",
        /// Connections keep their source address although they need masquerading.
        NotMasqueraded = "not_masqueraded",
        /// Probes are answered, but the answers do not reach the client.
        AnswerLost = "answer_lost",
        /// The connection table is full, so new connections are dropped.
        ConntrackFull = "conntrack_full",
        /// Connections leave for other nodes, and no node answers.
        Overlay = "overlay",
        /// Small packets pass between nodes, large ones do not.
        Mtu = "mtu",
        /// A condition of the Node reports that its pods have no network.
        Cni = "cni",
        /// The program that translates ingress at an uplink is not attached.
        ProgramMissing = "program_missing",
        /// The kernel has no route to the pods of this node, or none back from them.
        NoRoute = "no_route",
        /// The reverse path filter drops packets of clients.
        ReversePath = "reverse_path",
        /// The pods of this node do not answer ARP or neighbour discovery.
        NoNeighbour = "no_neighbour",
        /// Answers between pods behind one bridge are not translated back: its netfilter hooks are off.
        BridgeFilter = "bridge_filter",
    }
}

impl Cause {
    /// Whether the cause is found in routes or neighbour tables.
    pub fn is_looked_up(self) -> bool {
        matches!(
            self,
            Cause::NoRoute | Cause::ReversePath | Cause::NoNeighbour | Cause::BridgeFilter
        )
    }

    pub fn of(failure: Failure) -> Cause {
        match failure {
            Failure::Refused => Cause::Refused,
            Failure::Leaked => Cause::Leaked,
            Failure::Misrouted => Cause::Misrouted,
            Failure::Stale => Cause::Stale,
            Failure::AnswerNotDelivered => Cause::AnswerNotDelivered,
            Failure::Lost => Cause::Lost,
        }
    }
}

named! {
    /// Reason for Unknown.
    pub enum Why {
        /// The observer is not attached anywhere.
        ObserverBlind = "observer_blind",
        /// There is no recent sample from the observer.
        NotSampled = "not_sampled",
        /// The cluster view was never complete.
        ViewNotSynced = "view_not_synced",
        /// No Service has a frontend on this node.
        NothingExpected = "nothing_expected",
        /// The sentinel exists and the boot is over, but nothing is proven.
        NothingProven = "nothing_proven",
        /// No recent connection to a Service, and no sentinel to make one.
        Idle = "idle",
        /// There were new connections, but no outcome is conclusive.
        Inconclusive = "inconclusive",
        /// The failures are too old, and nothing newer was observed.
        EvidenceTooOld = "evidence_too_old",
        /// The sentinel was edited, so its probes are not evidence.
        SentinelAltered = "sentinel_altered",
        /// Another program took over the datapath, and no probe passed since.
        DatapathChanged = "datapath_changed",
    }
}
