//! What outlives the agent within one boot of the node, so that a restart changes no answer. The
//! app writes it below /run, under the boot's id, and reads it back.

use serde::{Deserialize, Serialize};

use super::report::{Cause, State, Verdict, Why};
use crate::domain::damping::DampingMemory;
use crate::domain::ledger::LedgerMemory;
use crate::domain::node::Eligibility;
use crate::domain::time::Mono;

/// All that is remembered. Plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Proofs and runs of failures.
    pub ledger: LedgerMemory,
    /// What is being answered, and for how long it must be.
    pub damping: DampingMemory,
    /// The last verdict, in short.
    pub verdict: LastVerdict,
    /// What the last known Node object said.
    pub eligibility: Eligibility,
    /// When this was written; the boot's begin, where an older agent did not say so.
    #[serde(default)]
    pub written: Mono,
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
    /// Of a verdict.
    pub fn of(verdict: &Verdict) -> Self {
        Self {
            state: verdict.state,
            cause: verdict.cause,
            why: verdict.why,
            since: verdict.since,
        }
    }
}

impl Verdict {
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
