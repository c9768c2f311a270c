//! What a verdict says, as plain data without a sentence: `explain` has those. `/verdict` prints
//! both as JSON, whose names are stable, and `pathproof status` reads the data back.

pub mod lanes;

use agent_common::service::{Family, SourceClass};
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use crate::cause::{Cause, Failure, State, Why};
use crate::eligibility::Eligibility;
use crate::evidence::CoverageLoss;
use crate::limits::Limits;
use crate::names;
use crate::time::Mono;
pub use lanes::{LaneState, LaneView, StageDelays};

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
    /// What the worst family, or what keeps all from being judged, rests on.
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
    #[serde(with = "names::FamilyName")]
    pub family: Family,
    /// Its state.
    pub state: State,
    /// As in [`Verdict`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
    /// As in [`Verdict`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<Why>,
    /// What it rests on.
    pub finding: Finding,
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
    #[serde(with = "names::ClassName")]
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
    #[serde(with = "names::FamilyName")]
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
