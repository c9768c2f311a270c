//! What the operator decides about answers, and the table of what each state asks for.

use serde::{Deserialize, Serialize};

use crate::cause::State;

/// What an unknown verdict is answered with: `--unknown-policy`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum UnknownPolicy {
    /// 200.
    #[default]
    Open,
    /// 503.
    Closed,
}

/// Whether the datapath's health is enforced: `--enforcement`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// It decides.
    #[default]
    Enforce,
    /// It is computed and published, and answered as healthy.
    Audit,
}

/// What a state asks of the answer for the datapath, before [damping](super::damping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// 200.
    Pass,
    /// Whatever it was.
    Undecided,
    /// 503.
    Fail,
}

/// The table: what each state asks for. [`State::Starting`] is 503 on `/healthz` besides, see
/// `answer`.
pub fn wish(state: State, policy: UnknownPolicy) -> Wish {
    match (state, policy) {
        (State::Proven | State::Degraded, _) => Wish::Pass,
        (State::Suspect | State::Starting, _) => Wish::Undecided,
        (State::Stale | State::Broken, _) => Wish::Fail,
        (State::Unknown, UnknownPolicy::Open) => Wish::Pass,
        (State::Unknown, UnknownPolicy::Closed) => Wish::Fail,
    }
}
