//! Answers of this node's endpoints that enter the node and are not forwarded to their clients.
//!
//! A SYN that leaves for an endpoint of this node is a proof even without an answer, since the endpoint may
//! be silent. It is no proof while answers enter and none is forwarded: then every connection fails,
//! although its SYN leaves.

use pathproof_facts::time::Mono;
use pathproof_wire::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

/// Answers of one family, by the class of their clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerForwarding {
    /// Time of the last sample with forwarded answers. It outlives the agent, since a fault may begin
    /// between two agents.
    went_on: [Option<Mono>; SOURCE_CLASSES],
    /// Arrival of the last connection after `went_on` whose answer was not forwarded.
    lost: [Option<Mono>; SOURCE_CLASSES],
}

impl AnswerForwarding {
    /// Records forwarded answers in a sample.
    pub(crate) fn go_on(&mut self, class: SourceClass, at: Mono) {
        self.went_on[class as usize] = Some(at);
        self.lost[class as usize] = None;
    }

    /// Records that the answer to a connection was not forwarded. For the first such connection, returns when
    /// an answer was last forwarded. Ignored if no forwarded answer was ever seen: they may pass unobserved.
    pub(crate) fn lose(&mut self, class: SourceClass, arrived: Mono) -> Option<Mono> {
        let last = self.went_on[class as usize].filter(|at| *at < arrived)?;
        let before = self.lost[class as usize];
        self.lost[class as usize] = before.max(Some(arrived));
        before.is_none().then_some(last)
    }

    /// Forgets losses before the given time, because answers may have been forwarded unseen since.
    pub(crate) fn forget_lost(&mut self, before: Mono) {
        self.lost = self.lost.map(|at| at.filter(|at| *at >= before));
    }

    pub fn is_stuck(&self, class: SourceClass) -> bool {
        self.lost[class as usize].is_some()
    }
}
