//! Drain insight: whether new connections still come from outside to a node that leaves, so that a
//! termination hook can wait for its load balancers instead of sleeping.
//!
//! Counted are first SYNs to Services from outside the node (clients and other nodes), whatever
//! became of them. Those of the sentinel's Service never count, nor do those of the ranges that
//! load balancers probe from: a SYN does not tell whether data will follow it.
//!
//! Nothing here outlives the agent: a restarted one begins its quiet time anew.

use std::fmt;
use std::net::Ipv6Addr;

use agent_common::service::{Address, FAMILIES, Family};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::eligibility::Eligibility;
use crate::time::Mono;

mod ask;
mod judge;

pub use ask::{Ask, AskError, DEFAULT_QUIET, MAX_QUIET, MIN_QUIET, quiet_time, timeout};
pub use judge::{Finding, Reason};

/// A new connection to a Service from outside the node; the sentinel's are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When its first SYN came in.
    pub at: Mono,
    /// Who sent it.
    pub client: Address,
}

/// What came from outside since the look before.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    /// Up to when everything that came is among them, in this look or in one before.
    pub until: Mono,
    /// Each connection once, in no order.
    pub arrivals: Vec<Arrival>,
}

/// Where load balancers probe from: connections of these sources do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeRanges(Vec<IpNet>);

impl ProbeRanges {
    /// Of these ranges; none: every connection counts.
    pub fn new(ranges: impl IntoIterator<Item = IpNet>) -> Self {
        Self(IpNet::aggregate(&ranges.into_iter().collect::<Vec<_>>()))
    }

    /// Whether a client is in one of them.
    pub fn contains(&self, client: &Address) -> bool {
        let client = Ipv6Addr::from(*client).to_canonical();
        self.0.iter().any(|range| range.contains(&client))
    }
}

impl fmt::Display for ProbeRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, range) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{range}")?;
        }
        Ok(())
    }
}

/// What is known of connections from outside, as the report holds it. [`DrainView::judge`] answers
/// from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainView {
    /// Since when the Node object says that the node leaves.
    pub since: Option<Mono>,
    /// Connections since then.
    pub connections: u64,
    /// Connections since the agent started, by [`Family`].
    pub counted: [u64; FAMILIES],
    /// Connections of probe ranges since the agent started.
    pub ignored: u64,
    /// When the last connection that counts came.
    pub last: Option<Mono>,
    /// Since when nothing was missed.
    pub watched: Option<Mono>,
    /// Until when everything that came was seen.
    pub seen: Option<Mono>,
    /// Why connections may come unseen now, where they may.
    pub blind: Option<String>,
}

/// Counts connections from outside, and knows since when the node leaves.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    ranges: ProbeRanges,
    view: DrainView,
}

impl Drain {
    /// Nothing was seen yet.
    pub fn new(ranges: ProbeRanges) -> Self {
        Self {
            ranges,
            view: DrainView::default(),
        }
    }

    /// The node leaves, or does not. Call whenever that may have changed; `now` counts only where
    /// it did.
    pub fn follow(&mut self, eligibility: &Eligibility, now: Mono) {
        let view = &mut self.view;
        let leaving = match eligibility {
            Eligibility::Deleting | Eligibility::Tainted { .. } => true,
            Eligibility::Eligible | Eligibility::NeverSeen => false,
        };
        if leaving != view.since.is_some() {
            view.since = leaving.then_some(now);
            view.connections = 0;
        }
    }

    /// Takes in what a look brought. `blind` says why connections may have come unseen, where they
    /// may: then no time up to now was quiet for certain.
    pub fn look(&mut self, outside: &Outside, blind: Option<String>) {
        for arrival in &outside.arrivals {
            self.take(arrival);
        }
        let view = &mut self.view;
        if blind.is_some() || view.watched.is_none() {
            view.watched = Some(outside.until);
        }
        view.seen = Some(outside.until);
        view.blind = blind;
    }

    /// Something may have come unseen up to `at`, and nothing does any more: quiet begins anew. The
    /// first look says itself since when somebody watches.
    pub fn missed(&mut self, at: Mono) {
        let watched = &mut self.view.watched;
        *watched = watched.map(|since| since.max(at));
    }

    /// There is nothing to look at, for the reason given.
    pub fn cannot_see(&mut self, why: &str) {
        self.view.blind = Some(why.to_owned());
    }

    /// What is known.
    pub fn view(&self) -> &DrainView {
        &self.view
    }

    fn take(&mut self, arrival: &Arrival) {
        let view = &mut self.view;
        if self.ranges.contains(&arrival.client) {
            view.ignored += 1;
            return;
        }
        view.counted[Family::of(&arrival.client) as usize] += 1;
        if view.since.is_some_and(|since| arrival.at >= since) {
            view.connections += 1;
        }
        view.last = view.last.max(Some(arrival.at));
    }
}

#[cfg(test)]
mod tests;
