//! Whether programming has stalled: the datapath follows no change that this node received.
//!
//! A change has reached the datapath if connections are sent to a new endpoint, or probes to a new generation
//! of the sentinel.

use std::time::Duration;

use pathproof_facts::time::Mono;

use super::case::Case;
use super::lanes::Probed;

/// Maximum time by which a replacement may be received before its predecessor leaves: usually both are one
/// update.
const ONE_UPDATE: Duration = Duration::from_secs(2);

impl<'a> Case<'a> {
    /// Whether nothing that this node received after `left` has been seen on the wire, although it should
    /// have been.
    pub(super) fn stands_still_since(&self, left: Mono) -> bool {
        let read = self.ledger.programming;
        let followed = read.and_then(|seen| seen.followed);
        let followed = followed.max(self.generation_followed());
        let should = match read {
            Some(read) => {
                // A late generation counts whenever it became late. An endpoint without connections counts
                // only if it came with the removal or later: an older one may get no connections for another
                // reason.
                let after = |received: Mono| {
                    received.plus(ONE_UPDATE) >= left
                        && self.now.since(received) >= self.late_after()
                };
                self.is_generation_late() || read.unmet.is_some_and(after)
            }
            // Without a sentinel nobody reads whether endpoints are followed.
            None => true,
        };
        should && followed.is_none_or(|received| received <= left)
    }

    /// When this node received the newest generation that a passing lane has reached.
    fn generation_followed(&self) -> Option<Mono> {
        let lanes = self.main().filter(|(_, lane)| self.is_passing(lane));
        lanes
            .filter_map(|(_, lane)| lane.freshness.followed())
            .max()
    }

    /// Whether a passing lane should have reached a newer generation by now.
    pub(super) fn is_generation_late(&self) -> bool {
        let late = |(lane, ledger): Probed<'a>| self.lateness(lane, ledger);
        self.main()
            .filter_map(late)
            .any(|late| late >= self.late_after())
    }

    /// Age at which a change should be on the wire.
    fn late_after(&self) -> Duration {
        let lag = self.inputs.usual_lag.unwrap_or_default();
        self.limits().unmet_after.max(lag.saturating_mul(3))
    }
}
