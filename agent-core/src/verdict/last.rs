//! A verdict in short: what tells one from the next.

use serde::{Deserialize, Serialize};

use super::report::Verdict;
use crate::cause::{Cause, State, Why};
use crate::time::Mono;

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
