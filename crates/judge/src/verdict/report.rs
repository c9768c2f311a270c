//! A verdict as plain data. `/verdict` prints it as JSON together with the sentences of `explain`, and
//! `pathproof status` reads it back. The JSON names are stable.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use pathproof_facts::cause::{Cause, Failure, ProbeCause, State, Why};
use pathproof_facts::limits::Limits;
use pathproof_facts::named;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{ProbePath, Transport};
use pathproof_wire::probe::{STAGES, Stage};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::conntrack::Conntrack;
use pathproof_witness::drops::Drops;
use pathproof_witness::evidence::CoverageLoss;
use serde::{Deserialize, Serialize};

use super::finding::{Finding, VoidCause};
use crate::eligibility::Eligibility;

/// The verdict on the node. Times are `CLOCK_MONOTONIC` nanoseconds; ages are differences to `at`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub at: Mono,
    pub state: State,
    /// Start of this state, as far as it is remembered.
    pub since: Mono,
    /// Present for [`State::Broken`], [`State::Stale`], [`State::Degraded`] and [`State::Suspect`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
    /// Present for [`State::Unknown`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<Why>,
    /// Finding that determines the state: that of the worst family, or one that prevents any judgement.
    pub finding: Finding,
    /// Limits that were used.
    #[serde(default)]
    pub limits: Limits,
    /// Whether the node may get new connections, apart from its datapath.
    pub eligibility: Eligibility,
    /// Families with frontends, IPv4 first.
    pub families: Vec<FamilyVerdict>,
    /// Services in trouble, the worst first: at most [`SERVICES_SHOWN`].
    pub services: Vec<ServiceTrouble>,
    /// Number of further Services in trouble.
    pub services_omitted: u32,
    pub coverage: CoverageReport,
    pub conntrack: Conntrack,
    /// The kernel's reasons for dropping packets. They only explain, and accuse nobody.
    pub drops: Drops,
}

/// Maximum number of Services in trouble that a verdict shows in full.
pub const SERVICES_SHOWN: usize = 100;

impl Verdict {
    /// The verdict on a family, if it has frontends.
    pub fn family(&self, family: Family) -> Option<&FamilyVerdict> {
        let mut families = self.families.iter();
        families.find(|verdict| verdict.family == family)
    }

    /// The same verdict. If the last one had the same state, `since` is taken from it.
    #[must_use]
    pub fn following(mut self, last: Option<&LastVerdict>) -> Self {
        if let Some(last) = last
            && last.state == self.state
        {
            self.since = last.since.min(self.at);
        }
        self
    }

    /// Whether state, cause or reason changed, which is worth a log line.
    pub fn differs(&self, last: &LastVerdict) -> bool {
        (self.state, self.cause, self.why) != (last.state, last.cause, last.why)
    }
}

/// The parts of a verdict whose change matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastVerdict {
    pub state: State,
    pub cause: Option<Cause>,
    pub why: Option<Why>,
    pub since: Mono,
}

impl LastVerdict {
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
    pub family: Family,
    pub state: State,
    /// See [`Verdict::cause`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
    /// See [`Verdict::why`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<Why>,
    /// Finding that determines the state: the first of `findings`.
    pub finding: Finding,
    /// All findings by weight. None hides another, and none changes the decision.
    pub findings: Vec<Finding>,
    /// Last proof on any path.
    pub last_proof: Option<Mono>,
    /// Last failure on any path.
    pub last_failure: Option<Mono>,
    /// The earliest failure since the last proof.
    pub failing_since: Option<Mono>,
    /// Paths in the order pod, host, external.
    pub paths: Vec<PathView>,
    /// The sentinel's lanes that were ever probed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub lanes: Vec<LaneView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathView {
    pub path: SourceClass,
    pub state: PathState,
    /// When a connection was last proven.
    pub last_proof: Option<Mono>,
    /// When a connection last failed.
    pub last_failure: Option<Mono>,
}

/// State of a path: a fact without judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathState {
    /// Proven within the proof age, and nothing failed since.
    Proven,
    /// The last connection within the proof age failed.
    Failing,
    /// No connection within the proof age.
    Quiet,
}

/// A Service port and family that is in trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceTrouble {
    /// `namespace/name`, and `:port` where the port has a name.
    pub service: String,
    pub family: Family,
    /// Whether the trouble is confirmed, rather than a few single failures.
    pub confirmed: bool,
    /// The most common failure.
    pub cause: Cause,
    /// Failures by name since the first.
    pub failures: BTreeMap<Failure, u64>,
    /// The first failure.
    pub since: Mono,
    pub last_failure: Mono,
    /// The last proof since the first failure, if there was one.
    pub last_proof: Option<Mono>,
    pub endpoints: u32,
}

/// Coverage of the node's traffic by the observer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageReport {
    /// Devices with a hook in both directions.
    pub attached: u32,
    /// Devices that should have hooks in both directions.
    pub wanted: u32,
    /// When the kernel's maps were last read.
    pub sampled: Option<Mono>,
    /// Whether lost connections are currently not counted.
    pub lost_suspended: bool,
    /// Whether misrouted and stale connections are currently not counted.
    pub misrouted_suspended: bool,
    /// Losses of coverage, with their reasons.
    pub losses: Vec<CoverageLoss>,
}

/// A lane of a family: one path by one transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneView {
    pub path: ProbePath,
    pub transport: Transport,
    /// Whether the lane worked in this boot, so that its failures count.
    pub armed: bool,
    pub state: LaneState,
    /// Cause of its failures, while it fails or has never worked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<ProbeCause>,
    /// Number of consecutive failures that count.
    pub failures: u32,
    /// When the first of these failures was sent.
    pub failing_since: Option<Mono>,
    pub last_pass: Option<Mono>,
    /// When a probe last failed, counted or not.
    pub last_failure: Option<Mono>,
    pub delays: StageDelays,
    /// The port at which the echo was last dialled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub generation: Option<u16>,
    /// The port that the endpoint should have according to the cluster view.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wanted: Option<u16>,
    /// Time that the rules took to follow the endpoint's last move, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lag: Option<u64>,
    /// Time for which the rules have not followed, in nanoseconds; `None` if they have.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub late: Option<u64>,
    /// Number of probes that passed since the agent started.
    pub passed: u64,
    pub failed: u64,
    /// Number of void probes, which prove and accuse nothing.
    pub void: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client: Option<IpAddr>,
    /// Whether a refusal of its frontend accuses the datapath, and not a filter.
    #[serde(rename = "local", skip_serializing_if = "std::ops::Not::not", default)]
    pub refusal_clear: bool,
    /// Reason why the last probe is void, if it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub void_cause: Option<VoidCause>,
    /// Whether packets from the sentinel's interfaces may bypass Cilium's translation. If so, the lane proves
    /// and accuses nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub beside_cilium: bool,
    /// Another Service that uses the lane's frontend, if any. If so, the lane proves and accuses nothing.
    #[serde(skip_serializing_if = "Option::is_none", default, rename = "rival")]
    pub conflicting_service: Option<String>,
}

impl LaneView {
    /// Lag of the rules behind the API: the last measurement or the current lateness, whichever is longer.
    pub fn programming_lag(&self) -> Option<Duration> {
        self.lag.max(self.late).map(Duration::from_nanos)
    }
}

named! {
    /// State of a lane: a fact without judgement.
    pub enum LaneState {
        Passing = "passing",
        /// Probes fail since the last one that passed.
        Failing = "failing",
        Void = "void",
        /// No probe has passed in this boot, or since the sentinel was created or another program took over
        /// the datapath.
        NeverWorked = "never_worked",
        /// The lane is not probed.
        Off = "off",
    }
}

/// Delays of the last probe from stage to stage, in nanoseconds; the first delay starts when it is sent. A
/// TCP probe passes these stages in its handshake. Stages that the probe did not reach are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageDelays {
    /// The probe entered the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrived: Option<u64>,
    /// It left for the echo, translated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub translated: Option<u64>,
    /// It reached the echo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echoed: Option<u64>,
    /// The answer entered the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned: Option<u64>,
    /// The answer reached the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected: Option<u64>,
    /// Round trip of the last probe that passed, including data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<u64>,
}

impl StageDelays {
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
