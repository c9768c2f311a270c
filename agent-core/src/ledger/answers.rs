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
    /// Time of the last look that found some that had gone on. It outlives the agent: a fault may begin while
    /// there is none.
    went_on: [Option<Mono>; SOURCE_CLASSES],
    /// Arrival of the last connection whose answer did not go on, since then.
    #[serde(default)]
    lost: [Option<Mono>; SOURCE_CLASSES],
}

impl Answers {
    /// Answers had gone on when the kernel was looked at.
    pub(crate) fn go_on(&mut self, class: SourceClass, at: Mono) {
        self.went_on[class as usize] = Some(at);
        self.lost[class as usize] = None;
    }

    /// The answer to a connection that had arrived then did not go on. Returns when answers last did if
    /// this one is the first since. Where none was ever seen to go on, they may go unseen.
    pub(crate) fn lose(&mut self, class: SourceClass, arrived: Mono) -> Option<Mono> {
        let last = self.went_on[class as usize].filter(|at| *at < arrived)?;
        let before = self.lost[class as usize];
        self.lost[class as usize] = before.max(Some(arrived));
        before.is_none().then_some(last)
    }

    /// Forgets what was lost before that: answers may have gone on unseen since.
    pub(crate) fn forget_lost(&mut self, before: Mono) {
        self.lost = self.lost.map(|at| at.filter(|at| *at >= before));
    }

    /// Whether nothing is known.
    pub(crate) fn are_unknown(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn is_stuck(&self, class: SourceClass) -> bool {
        self.lost[class as usize].is_some()
    }
}
