//! What a verdict says. Plain data: `/verdict` prints it as JSON, whose names are stable, and
//! `pathproof status` reads it back.

pub mod lanes;
pub mod names;

use std::fmt;

use agent_common::service::{Family, SourceClass};
use serde::{Deserialize, Serialize};

use crate::domain::evidence::{CoverageLoss, Failure};
use crate::domain::node::Eligibility;
use crate::domain::time::Mono;
pub use lanes::{LaneState, LaneView, StageDelays};

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
    /// All, in their order.
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

/// What goes wrong, in the commonest case among the failures.
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
    /// The node's own proxy says that it is unhealthy.
    UpstreamUnhealthy,
    /// The node's own proxy does not answer.
    UpstreamSilent,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 12] = [
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
        Cause::UpstreamUnhealthy,
        Cause::UpstreamSilent,
    ];

    /// The cause of a failure.
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
            Cause::UpstreamUnhealthy => "upstream_unhealthy",
            Cause::UpstreamSilent => "upstream_silent",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Leaked => "leaked, VIP left untranslated",
            Cause::Refused => "refused by the node itself",
            Cause::Misrouted => "misrouted, sent where no endpoint is",
            Cause::Lost => "lost, arrived and not seen again",
            Cause::Stale => "misrouted, still sent to an endpoint that left its slice",
            Cause::Unheard => "unheard, the answers do not reach the clients",
            Cause::NoData => "no data, connections are made but carry none",
            Cause::ForwardingOff => "forwarding off, the kernel sends nothing on",
            Cause::NotMasqueraded => "not masqueraded, sent on with the client's own address",
            Cause::AnswerLost => "answer lost, it came back into the node and no further",
            Cause::UpstreamUnhealthy => "unhealthy, as the node's own proxy says",
            Cause::UpstreamSilent => "silent, the node's own proxy does not answer",
        })
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
    /// All of them.
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

/// The verdict on the node. Times are `CLOCK_MONOTONIC` nanoseconds; ages are differences to `at`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// When it was given.
    pub at: Mono,
    /// State of the worst family.
    pub state: State,
    /// Since when the node is in this state, as far as is remembered.
    pub since: Mono,
    /// With [`State::Broken`], [`State::Stale`], [`State::Degraded`] and [`State::Suspect`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
    /// With [`State::Unknown`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<Why>,
    /// One sentence for a person.
    pub reason: String,
    /// Whether the node may be sent new connections, apart from its datapath.
    pub eligibility: Eligibility,
    /// By family, those that have frontends; IPv4 first.
    pub families: Vec<FamilyVerdict>,
    /// Services in trouble, the worst first, at most [`SERVICES_SHOWN`].
    pub services: Vec<ServiceTrouble>,
    /// Services in trouble beyond those.
    pub services_omitted: u32,
    /// How well the observer sees.
    pub coverage: Coverage,
}

/// How many Services in trouble a verdict shows in full.
pub const SERVICES_SHOWN: usize = 100;

impl Verdict {
    /// The node is broken or stale, and every family that is says so by the sentinel alone. The
    /// moment to read the sentinel afresh, before the first 503.
    pub fn rests_on_sentinel(&self) -> bool {
        let broken = |family: &&FamilyVerdict| matches!(family.state, State::Broken | State::Stale);
        let mut families = self.families.iter().filter(broken).peekable();
        families.peek().is_some() && families.all(|family| family.by_sentinel)
    }

    /// The verdict on a family, where it has frontends.
    pub fn family(&self, family: Family) -> Option<&FamilyVerdict> {
        self.families
            .iter()
            .find(|verdict| verdict.family == family)
    }
}

/// The verdict on one IP family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyVerdict {
    /// Which.
    #[serde(with = "names::family")]
    pub family: Family,
    /// Its state.
    pub state: State,
    /// As in [`Verdict`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
    /// As in [`Verdict`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<Why>,
    /// One sentence for a person.
    pub reason: String,
    /// When a connection of any path was last proven.
    pub last_proof: Option<Mono>,
    /// When one last failed.
    pub last_failure: Option<Mono>,
    /// The earliest failure since the last proof.
    pub failing_since: Option<Mono>,
    /// By path: pod, host, external.
    pub paths: Vec<PathView>,
    /// [`State::Broken`] or [`State::Stale`] rests on the sentinel alone: no real connections say
    /// it too.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub by_sentinel: bool,
    /// The sentinel's lanes, those that were ever probed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub lanes: Vec<LaneView>,
}

/// What was seen on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathView {
    /// Where the connections come from.
    #[serde(with = "names::path")]
    pub path: SourceClass,
    /// What the path looks like.
    pub state: PathState,
    /// When a connection was last proven.
    pub last_proof: Option<Mono>,
    /// When one last failed.
    pub last_failure: Option<Mono>,
}

/// What a path looks like; a fact, no judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathState {
    /// Proven within the proof age, and nothing failed since.
    Proven,
    /// The last that was seen, within the proof age, is a failure.
    Failing,
    /// Nothing within the proof age.
    Quiet,
}

/// A Service port and family that is in trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceTrouble {
    /// `namespace/name`, and `:port` where the port has a name.
    pub service: String,
    /// Which family.
    #[serde(with = "names::family")]
    pub family: Family,
    /// Whether the trouble is confirmed; else these are single failures.
    pub confirmed: bool,
    /// The commonest failure.
    pub cause: Cause,
    /// Failures by name, since they began.
    #[serde(with = "names::by_failure")]
    pub failures: Vec<(Failure, u64)>,
    /// When they began.
    pub since: Mono,
    /// The last of them.
    pub last_failure: Mono,
    /// When a connection was last proven, if that was seen since they began.
    pub last_proof: Option<Mono>,
    /// How many current endpoints the Service has.
    pub endpoints: u32,
    /// A client, what it dialled and where it was sent, of the last failure that was reported.
    pub example: Option<String>,
}

/// How well the observer sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Devices with a hook in both directions.
    pub attached: u32,
    /// Devices that should have both.
    pub wanted: u32,
    /// When the kernel's maps were last read.
    pub sampled: Option<Mono>,
    /// Lost connections are not counted now.
    pub lost_suspended: bool,
    /// Misrouted and stale connections are not counted now.
    pub misrouted_suspended: bool,
    /// How often a failing Service found no place in the ledger.
    pub services_untracked: u64,
    /// What is not seen, and why.
    pub losses: Vec<Loss>,
}

/// A part of the traffic that is not seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Its facts.
    #[serde(flatten)]
    pub loss: CoverageLoss,
    /// The same for a person.
    pub sentence: String,
}
