//! Drain insight: whether new connections from outside still reach a node that is being removed, so
//! that a termination hook can wait for its load balancers instead of sleeping.
//!
//! It counts first SYNs to Services from outside the node (clients and other nodes), whatever their outcome.
//! The sentinel's Service does not count. Neither do the ranges that load balancers probe from, because a SYN
//! does not show whether it belongs to a probe.
//!
//! Nothing here outlives the agent: after a restart the quiet time begins again.

use std::net::Ipv6Addr;
use std::time::Duration;

use ipnet::IpNet;
use pathproof_facts::time::{HumanDuration, Mono};
use pathproof_wire::service::{Address, FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::eligibility::Eligibility;

mod ask;

pub use ask::{Ask, AskError, DEFAULT_QUIET, MAX_QUIET, MIN_QUIET, quiet_time, timeout};

/// A new connection from outside the node to a Service other than the sentinel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Arrival of its first SYN.
    pub at: Mono,
    pub client: Address,
}

/// New connections from outside since the previous sample.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    /// Everything that arrived up to this time is in this sample or an earlier one.
    pub until: Mono,
    /// Each connection once, unordered.
    pub arrivals: Vec<Arrival>,
}

/// Source ranges of load balancers' probes: connections from them do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeRanges(Vec<IpNet>);

impl ProbeRanges {
    /// Without ranges, every connection counts.
    pub fn new(ranges: impl IntoIterator<Item = IpNet>) -> Self {
        Self(IpNet::aggregate(&ranges.into_iter().collect::<Vec<_>>()))
    }

    pub fn contains(&self, client: &Address) -> bool {
        let client = Ipv6Addr::from(*client).to_canonical();
        self.0.iter().any(|range| range.contains(&client))
    }
}

/// Everything known about connections from outside, as the report shows it. [`DrainView::answer`]
/// uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainView {
    /// When the Node object began to show the removal.
    pub since: Option<Mono>,
    /// Number of connections after `since`.
    pub connections: u64,
    /// Connections since the agent started, by [`Family`].
    pub counted: [u64; FAMILIES],
    /// Connections from probe ranges since the agent started.
    pub ignored: u64,
    /// When the last connection that counts arrived.
    pub last: Option<Mono>,
    /// Since when there has been no gap in the observation.
    pub watched: Option<Mono>,
    /// Everything that arrived up to this time was observed.
    pub seen: Option<Mono>,
    pub blind: Option<String>,
}

/// Counts connections from outside, and records when the node began to leave.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    ranges: ProbeRanges,
    view: DrainView,
}

impl Drain {
    pub fn new(ranges: ProbeRanges) -> Self {
        Self {
            ranges,
            ..Self::default()
        }
    }

    /// Records whether the node is leaving. Call it whenever that may have changed; `now` matters
    /// only if it did.
    pub fn follow(&mut self, eligibility: &Eligibility, now: Mono) {
        let view = &mut self.view;
        let leaving = eligibility.is_leaving();
        if leaving != view.since.is_some() {
            view.since = leaving.then_some(now);
            view.connections = 0;
        }
    }

    /// Records a sample. `blind` is why connections may be unobserved. If it is set, no time up to now counts
    /// as quiet.
    pub fn look(&mut self, outside: &Outside, blind: Option<String>) {
        let view = &mut self.view;
        for arrival in &outside.arrivals {
            if self.ranges.contains(&arrival.client) {
                view.ignored += 1;
                continue;
            }
            view.counted[Family::of(&arrival.client) as usize] += 1;
            if view.since.is_some_and(|since| arrival.at >= since) {
                view.connections += 1;
            }
            view.last = view.last.max(Some(arrival.at));
        }
        if blind.is_some() || view.watched.is_none() {
            view.watched = Some(outside.until);
        }
        view.seen = Some(outside.until);
        view.blind = blind;
    }

    /// Connections up to `at` may have been missed, and are observed again now: the quiet time begins
    /// again. Before the first sample this changes nothing.
    pub fn missed(&mut self, at: Mono) {
        self.view.watched = self.view.watched.map(|since| since.max(at));
    }

    /// Records why there is no observer.
    pub fn cannot_see(&mut self, why: &str) {
        self.view.blind = Some(why.to_owned());
    }

    pub fn view(&self) -> &DrainView {
        &self.view
    }
}

/// Maximum age of the last sample. If it is older, the agent was stopped or got no CPU time, and
/// nothing is known.
const UNSEEN: Duration = Duration::from_secs(5);

const NOT_LEAVING: &str = "the node is not being removed, so there is nothing to wait for; to \
                           drain it anyway, pass the time since the drain began as waited=SECONDS";

/// Reason for the answer. Only [`DrainReason::Quiet`] is 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DrainReason {
    /// No new connection for the quiet time.
    Quiet,
    /// A new connection arrived within the quiet time.
    Connections,
    /// No new connection so far, but the quiet time is not over.
    Waiting,
    /// Neither the Node object nor the caller declares that the node is leaving.
    NotLeaving,
    /// Connections may be unobserved.
    Blind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainAnswer {
    pub reason: DrainReason,
    /// Since when the node is leaving: by its Node object or the caller, whichever is earlier.
    pub since: Option<Mono>,
    /// Observed time without a new connection; zero if the node is not leaving.
    pub quiet_for: Duration,
    /// The reason as a sentence, without its period.
    pub message: String,
}

impl DrainView {
    /// Answers a caller. Unobserved time, and time before the node began to leave, is not quiet.
    pub fn answer(&self, ask: &Ask, now: Mono) -> DrainAnswer {
        let waited = ask.waited.map(|waited| now.minus(waited));
        let since = self.since.into_iter().chain(waited).min();
        let quiet_for = since.map_or(Duration::ZERO, |since| self.quiet_since(since));
        let (reason, message) = match (since, self.unseen(now)) {
            (None, _) => (DrainReason::NotLeaving, NOT_LEAVING.to_owned()),
            (_, Some(why)) => (
                DrainReason::Blind,
                format!("cannot tell whether new connections arrive: {why}"),
            ),
            (Some(since), None) => self.tell(since, quiet_for, ask.quiet, now),
        };
        DrainAnswer {
            reason,
            since,
            quiet_for,
            message,
        }
    }

    /// Time without a new connection, up to the last sample; `None` before the observation began.
    pub fn quiet(&self) -> Option<Duration> {
        self.watched.map(|watched| self.quiet_since(watched))
    }

    fn quiet_since(&self, since: Mono) -> Duration {
        let from = since.max(self.watched.unwrap_or_default());
        let from = from.max(self.last.unwrap_or_default());
        let seen = self.watched.and(self.seen);
        seen.map_or(Duration::ZERO, |seen| seen.since(from))
    }

    fn unseen(&self, now: Mono) -> Option<String> {
        let age = self.seen.map(|seen| now.since(seen));
        match (&self.blind, age) {
            (Some(why), _) => Some(why.clone()),
            (None, None) => Some("the agent has not counted connections yet".to_owned()),
            (None, Some(age)) => (age > UNSEEN).then(|| {
                format!(
                    "the agent last counted connections {} ago",
                    HumanDuration(age)
                )
            }),
        }
    }

    fn tell(
        &self,
        since: Mono,
        quiet: Duration,
        wanted: Duration,
        now: Mono,
    ) -> (DrainReason, String) {
        if quiet >= wanted {
            let message = format!(
                "no new connection from outside for {}",
                HumanDuration(quiet)
            );
            return (DrainReason::Quiet, message);
        }
        // A connection that arrived before the quiet time could begin is no reason to wait.
        let begun = self.watched.map_or(since, |watched| since.max(watched));
        if let Some(last) = self.last.filter(|last| *last >= begun) {
            let ago = HumanDuration(now.since(last));
            let message =
                format!("new connections from outside still arrive, the last one {ago} ago");
            return (DrainReason::Connections, message);
        }
        let (quiet, wanted) = (HumanDuration(quiet), HumanDuration(wanted));
        let message =
            format!("no new connection from outside for {quiet} of the required {wanted}");
        (DrainReason::Waiting, message)
    }
}

#[cfg(test)]
mod tests;
