//! Answers of endpoints on this node that come in and do not go on to their clients.
//!
//! A SYN that leaves for an endpoint of this node is a proof, since the endpoint may be silent. It is none
//! while answers come in and none goes on: then every connection fails, and each would still look like one
//! that got through.

use agent_common::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

use crate::time::Mono;

/// Answers of one family, by the path of their clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answers {
    /// Time of the last look that found some that had gone on.
    went_on: [Option<Mono>; SOURCE_CLASSES],
    /// Since then some came in, and none went on.
    is_stuck: [bool; SOURCE_CLASSES],
}

impl Answers {
    /// Answers had gone on when the kernel was looked at.
    pub(crate) fn go_on(&mut self, class: SourceClass, at: Mono) {
        self.went_on[class as usize] = Some(at);
        self.is_stuck[class as usize] = false;
    }

    /// The answer to a connection that had arrived then did not go on. Returns when answers last did if
    /// this one is the first since. Where none was ever seen to go on, they may go unseen.
    pub(crate) fn lose(&mut self, class: SourceClass, arrived: Mono) -> Option<Mono> {
        let is_stuck = &mut self.is_stuck[class as usize];
        let last = self.went_on[class as usize].filter(|at| *at < arrived && !*is_stuck)?;
        *is_stuck = true;
        Some(last)
    }

    /// Nothing of it has to outlive the agent: answers that go on are soon seen again.
    pub(crate) fn go_on_everywhere(&self) -> bool {
        self.is_stuck == [false; SOURCE_CLASSES]
    }

    pub(crate) fn is_stuck(&self, class: SourceClass) -> bool {
        self.is_stuck[class as usize]
    }
}
