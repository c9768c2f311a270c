//! The sentinel's lanes as a verdict shows them.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::probe::{STAGES, Stage};
use serde::{Deserialize, Serialize};

use crate::cause::ProbeCause;
use crate::time::Mono;
use crate::trace::{ProbePath, Transport};
use crate::verdict::finding::VoidCause;

/// One lane: a path by one transport, in the family that it is shown with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneView {
    /// Which way.
    pub path: ProbePath,
    /// By which transport.
    pub transport: Transport,
    /// It worked once in this boot, so that failures say something.
    pub armed: bool,
    /// What it looks like.
    pub state: LaneState,
    /// How its probes fail, or failed as long as it never worked.
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
    /// What the last probe took.
    pub delays: StageDelays,
    /// The port at which the echo was last dialled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub generation: Option<u16>,
    /// The port that the endpoint should have, as the cluster view has it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wanted: Option<u16>,
    /// How long the rules took to follow when the endpoint last moved, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lag: Option<u64>,
    /// For how long they have not followed, in nanoseconds; nothing where they have.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub late: Option<u64>,
    /// Probes that passed, since the agent began.
    pub passed: u64,
    /// That failed.
    pub failed: u64,
    /// That say nothing.
    pub void: u64,
    /// Where its probes come from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client: Option<IpAddr>,
    /// Its frontend is an address of the node's own, which refuses what no rule takes.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub local: bool,
    /// Why the last probe says nothing, where it does not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub void_cause: Option<VoidCause>,
    /// Cilium is not known to translate what enters by the sentinel's interfaces: it proves and
    /// accuses nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub beside_cilium: bool,
}

impl LaneView {
    /// How far the rules lag behind the API: what was measured last, or how long they have been
    /// late, whichever is longer. Nothing where nothing is known.
    pub fn programming_lag(&self) -> Option<Duration> {
        self.lag.max(self.late).map(Duration::from_nanos)
    }
}

/// What a lane looks like; a fact, no judgement.
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

/// What the last probe took, in nanoseconds from the stage before; the first stage from sending.
/// Of a TCP probe these are the stages of its handshake. A stage it did not reach is missing.
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
