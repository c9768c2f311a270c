//! A verdict as plain data without a sentence: `explain` has those. `/verdict` prints both as JSON,
//! whose names are stable, and `pathproof status` reads the data back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use agent_common::probe::{STAGES, Stage};
use agent_common::service::{Family, SourceClass};
use serde::{Deserialize, Serialize};

use super::decision::Decision;
use super::finding::{Finding, VoidCause};
use crate::cause::{Cause, Failure, ProbeCause, State, Why};
use crate::conntrack::Conntrack;
use crate::drops::Drops;
use crate::eligibility::Eligibility;
use crate::evidence::CoverageLoss;
use crate::limits::Limits;
use crate::names;
use crate::time::Mono;
use crate::trace::{ProbePath, Transport};

/// The verdict on the node. Times are `CLOCK_MONOTONIC` nanoseconds; ages are differences to `at`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// When it was given.
    pub at: Mono,
    /// Whether the datapath is at fault; nothing in reports of older agents.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decision: Option<Decision>,
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
    /// Finding that the state rests on: that of the worst family, or one that keeps all from being
    /// judged.
    pub finding: Finding,
    /// The numbers that it was judged by.
    #[serde(default)]
    pub limits: Limits,
    /// Whether the node may be sent new connections, apart from its datapath.
    pub eligibility: Eligibility,
    /// By family, those that have frontends; IPv4 first.
    pub families: Vec<FamilyVerdict>,
    /// Services in trouble, the worst first, at most [`SERVICES_SHOWN`].
    pub services: Vec<ServiceTrouble>,
    /// Services in trouble beyond those.
    pub services_omitted: u32,
    pub coverage: Coverage,
    /// The kernel's table of connections.
    #[serde(default)]
    pub conntrack: Conntrack,
    /// The kernel's reasons for dropping packets; they explain and accuse nobody.
    #[serde(default)]
    pub drops: Drops,
}

/// Maximum number of Services in trouble that a verdict shows in full.
pub const SERVICES_SHOWN: usize = 100;

impl Verdict {
    /// The verdict on a family, where it has frontends.
    pub fn family(&self, family: Family) -> Option<&FamilyVerdict> {
        let mut families = self.families.iter();
        families.find(|verdict| verdict.family == family)
    }

    /// The same verdict, said to hold since the state began rather than since now.
    #[must_use]
    pub fn following(mut self, last: Option<&LastVerdict>) -> Self {
        if let Some(last) = last
            && last.state == self.state
        {
            self.since = last.since.min(self.at);
        }
        self
    }

    /// Whether something changed that is worth a line in the log: state, cause or why.
    pub fn differs(&self, last: &LastVerdict) -> bool {
        (self.state, self.cause, self.why) != (last.state, last.cause, last.why)
    }
}

/// A verdict in short: what tells one from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastVerdict {
    /// Its state.
    pub state: State,
    /// With it.
    pub cause: Option<Cause>,
    /// With it.
    pub why: Option<Why>,
    /// Since when.
    pub since: Mono,
}

impl LastVerdict {
    /// Shortens a verdict.
    pub fn of(verdict: &Verdict) -> Self {
        Self {
            state: verdict.state,
            cause: verdict.cause,
            why: verdict.why,
            since: verdict.since,
        }
    }
}

/// The verdict on one IP family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyVerdict {
    #[serde(with = "names::FamilyName")]
    pub family: Family,
    /// See [`Verdict::decision`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decision: Option<Decision>,
    /// Its state.
    pub state: State,
    /// See [`Verdict::cause`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
    /// See [`Verdict::why`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<Why>,
    /// Finding that the state rests on: the first of `findings`.
    pub finding: Finding,
    /// Everything that was found, by weight. None hides another, and none changes the decision.
    #[serde(default)]
    pub findings: Vec<Finding>,
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

impl FamilyVerdict {
    /// Every finding, the first one included. Agents of before reported only that.
    pub fn all_findings(&self) -> impl Iterator<Item = &Finding> {
        let first = std::iter::once(&self.finding);
        first.chain(self.findings.iter().filter(|of| **of != self.finding))
    }
}

/// Observations on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathView {
    /// Source class of the connections.
    #[serde(with = "names::ClassName")]
    pub path: SourceClass,
    pub state: PathState,
    /// When a connection was last proven.
    pub last_proof: Option<Mono>,
    /// When one last failed.
    pub last_failure: Option<Mono>,
}

/// State of a path; a fact, no judgement.
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
    #[serde(with = "names::FamilyName")]
    pub family: Family,
    /// Whether the trouble is confirmed; else these are single failures.
    pub confirmed: bool,
    /// The commonest failure.
    pub cause: Cause,
    /// Failures by name, since they began.
    pub failures: BTreeMap<Failure, u64>,
    /// When they began.
    pub since: Mono,
    /// The last of them.
    pub last_failure: Mono,
    /// When a connection was last proven, if that was seen since they began.
    pub last_proof: Option<Mono>,
    /// Number of current endpoints of the Service.
    pub endpoints: u32,
    /// A client, what it dialled and where it was sent, of the last failure that was reported.
    pub example: Option<String>,
}

/// Coverage of the node's traffic by the observer.
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
    /// Number of times that a failing Service found no place in the ledger.
    pub services_untracked: u64,
    /// Failed connections that were not judged since the agent began, for losses of coverage.
    #[serde(default)]
    pub unjudged: Vec<(Failure, u64)>,
    /// Losses of coverage, with their reasons.
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

/// One lane: a path by one transport, in the family that it is shown with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneView {
    pub path: ProbePath,
    pub transport: Transport,
    /// It worked once in this boot, so that failures say something.
    pub armed: bool,
    pub state: LaneState,
    /// Cause of its probes' failures, while it fails or as long as it never worked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<ProbeCause>,
    /// Failures in a row that count.
    pub failures: u32,
    /// When the first of them was sent.
    pub failing_since: Option<Mono>,
    /// When a probe last passed.
    pub last_pass: Option<Mono>,
    /// When one last failed, counted or not.
    pub last_failure: Option<Mono>,
    /// Delays of the last probe.
    pub delays: StageDelays,
    /// The port at which the echo was last dialled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub generation: Option<u16>,
    /// The port that the endpoint should have, as the cluster view has it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wanted: Option<u16>,
    /// Time that the rules took to follow when the endpoint last moved, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lag: Option<u64>,
    /// Time for which they have not followed, in nanoseconds; nothing where they have.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub late: Option<u64>,
    /// Probes that passed, since the agent began.
    pub passed: u64,
    /// Probes that failed.
    pub failed: u64,
    /// Probes that were void: they prove and accuse nothing.
    pub void: u64,
    /// Source address of its probes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client: Option<IpAddr>,
    /// Its frontend is an address of the node's own, which refuses what no rule takes.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub local: bool,
    /// Reason why the last probe is no evidence, if it is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub void_cause: Option<VoidCause>,
    /// Cilium is not known to translate what enters by the sentinel's interfaces: it proves and
    /// accuses nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub beside_cilium: bool,
    /// The Service that claims what it dials: it proves and accuses nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rival: Option<String>,
}

impl LaneView {
    /// Lag of the rules behind the API: the last measure, or the time for which they have been
    /// late, whichever is longer. `None` if neither is known.
    pub fn programming_lag(&self) -> Option<Duration> {
        self.lag.max(self.late).map(Duration::from_nanos)
    }
}

/// State of a lane; a fact, no judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneState {
    /// The last probe passed.
    Passing,
    /// Probes fail since the last one that passed.
    Failing,
    /// The last probe says nothing.
    Void,
    /// No probe passed yet in this boot, or since the sentinel was made or another program took the
    /// datapath over.
    NeverWorked,
    /// It is not probed.
    Off,
}

impl LaneState {
    /// Name as metrics and `/verdict` show it.
    pub fn name(self) -> &'static str {
        match self {
            LaneState::Passing => "passing",
            LaneState::Failing => "failing",
            LaneState::Void => "void",
            LaneState::NeverWorked => "never_worked",
            LaneState::Off => "off",
        }
    }
}

/// Delays of the last probe, in nanoseconds from the stage before; the first stage from sending.
/// For a TCP probe these are the stages of its handshake. A stage it did not reach is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageDelays {
    /// Came into the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrived: Option<u64>,
    /// Left for the echo, translated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub translated: Option<u64>,
    /// Reached the echo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echoed: Option<u64>,
    /// The answer came into the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned: Option<u64>,
    /// The answer reached the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected: Option<u64>,
    /// All of the last probe that passed, data included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<u64>,
}

impl StageDelays {
    /// From a table by stage.
    pub(crate) fn of(delays: [Option<u64>; STAGES], round_trip: Option<u64>) -> Self {
        let at = |stage: Stage| delays[stage as usize];
        Self {
            arrived: at(Stage::Arrived),
            translated: at(Stage::Translated),
            echoed: at(Stage::Echoed),
            returned: at(Stage::Returned),
            collected: at(Stage::Collected),
            round_trip,
        }
    }
}
