//! Whether programming stands still: the datapath follows nothing of what this node received.
//!
//! Two things show it: endpoints that were added, by the connections that are sent to them, and the
//! sentinel's generations, by its probes.

use std::time::Duration;

use super::case::Case;
use super::lanes::Probed;
use crate::time::Mono;

/// An endpoint that takes the place of one that left is received in the same update, or just before it.
const ONE_UPDATE: Duration = Duration::from_secs(2);

impl<'a> Case<'a> {
    /// Whether nothing that this node received after `left` has been seen on the wire, though something should
    /// have been.
    pub(super) fn stands_still_since(&self, left: Mono) -> bool {
        let read = self.ledger.programming;
        let followed = read.and_then(|of| of.followed);
        let followed = followed.max(self.generation_followed());
        let should = match read {
            Some(read) => {
                let unmet = [read.unmet, self.generation_unmet()];
                let after = |received: &Mono| received.plus(ONE_UPDATE) >= left;
                unmet.iter().flatten().any(after)
            }
            // Agents of before did not record it.
            None => true,
        };
        should && followed.is_none_or(|received| received <= left)
    }

    /// When the newest generation was received that a passing lane has met.
    fn generation_followed(&self) -> Option<Mono> {
        let lanes = self.main().filter(|(_, lane)| self.is_passing(lane));
        lanes
            .filter_map(|(_, lane)| lane.freshness.followed())
            .max()
    }

    /// When the oldest generation was received that a passing lane should have met by now, and has not.
    fn generation_unmet(&self) -> Option<Mono> {
        let lag = self
            .inputs
            .usual_lag
            .map_or(Duration::ZERO, |lag| lag.saturating_mul(3));
        let late = |(lane, ledger): &Probed<'a>| {
            let late = self.lateness(*lane, ledger);
            late.is_some_and(|late| late >= self.limits().unmet_after.max(lag))
        };
        let lanes = self.main().filter(late);
        lanes
            .filter_map(|(_, lane)| lane.freshness.unmet_since())
            .min()
    }
}
