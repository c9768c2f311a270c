//! Drain insight: whether new connections still come from outside to a node that leaves, so that a
//! termination hook can wait for its load balancers instead of sleeping.
//!
//! Counted are first SYNs to Services from outside the node (clients and other nodes), whatever
//! became of them. Those of the sentinel's Service never count, nor do those of the ranges that
//! load balancers probe from: a SYN does not tell whether data will follow it.
//!
//! Connections that are open are counted too, while the Node object says that the node leaves
//! (`drain::open`).
//!
//! Nothing here outlives the agent: a restarted one begins its quiet time anew.

use std::net::Ipv6Addr;
use std::time::Duration;

use agent_common::service::{Address, FAMILIES, Family};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::eligibility::Eligibility;
use crate::time::{Mono, Spoken};

mod ask;
mod open;

pub use ask::{
    Ask, AskError, DEFAULT_IDLE, DEFAULT_QUIET, MAX_QUIET, MIN_QUIET, Until, idle_time, quiet_time,
    timeout, until,
};
pub use open::{Flow, OpenConnections, OpenView, Outsiders};

/// A new connection to a Service from outside the node; the sentinel's are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When its first SYN came in.
    pub at: Mono,
    pub client: Address,
}

/// New connections from outside since the look before.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    /// Up to when everything that came is among them, in this look or in one before.
    pub until: Mono,
    /// Each connection once, in no order.
    pub arrivals: Vec<Arrival>,
}

/// Source ranges of load balancers' probes: connections from them do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeRanges(Vec<IpNet>);

impl ProbeRanges {
    /// With these ranges; with none, every connection counts.
    pub fn new(ranges: impl IntoIterator<Item = IpNet>) -> Self {
        Self(IpNet::aggregate(&ranges.into_iter().collect::<Vec<_>>()))
    }

    /// Whether a client is in one of them.
    pub fn contains(&self, client: &Address) -> bool {
        let client = Ipv6Addr::from(*client).to_canonical();
        self.0.iter().any(|range| range.contains(&client))
    }
}

/// Everything that is known of connections from outside, as the report holds it.
/// [`DrainView::judge`] answers from it.
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
    /// Connections that are open.
    pub open: OpenView,
}

/// Counts connections from outside, and knows since when the node leaves.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    ranges: ProbeRanges,
    view: DrainView,
    /// When the last count of open connections began.
    begun: Option<Mono>,
    /// It is not over.
    counts: bool,
}

impl Drain {
    /// Nothing was seen yet.
    pub fn new(ranges: ProbeRanges) -> Self {
        Self {
            ranges,
            view: DrainView::default(),
            begun: None,
            counts: false,
        }
    }

    /// The node leaves, or does not. Call whenever that may have changed; `now` counts only where
    /// it did.
    pub fn follow(&mut self, eligibility: &Eligibility, now: Mono) {
        let view = &mut self.view;
        let leaving = eligibility.is_leaving();
        if leaving != view.since.is_some() {
            view.since = leaving.then_some(now);
            view.connections = 0;
            view.open = OpenView::default();
        }
    }

    /// Whether a count of open connections begins now. There is one at a time.
    pub fn counts_open(&mut self, now: Mono) -> bool {
        let due = |at: Mono| now.since(at) >= open::PAUSE;
        let begins = self.view.since.is_some() && !self.counts && self.begun.is_none_or(due);
        if begins {
            (self.begun, self.counts) = (Some(now), true);
        }
        begins
    }

    /// Takes in the count that began last, or why there is none.
    pub fn open(&mut self, counted: Result<OpenConnections, String>) {
        self.counts = false;
        self.view.open.take(counted, self.begun.unwrap_or_default());
    }

    /// Source ranges of load balancers' probes.
    pub fn ignored(&self) -> &ProbeRanges {
        &self.ranges
    }

    /// Takes in what a look brought. `blind` says why connections may have come unseen, where they
    /// may: then no time up to now was quiet for certain.
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

    /// Something may have come unseen up to `at`, and nothing does any more: quiet begins anew. The
    /// first look says itself since when somebody watches.
    pub fn missed(&mut self, at: Mono) {
        self.view.watched = self.view.watched.map(|since| since.max(at));
    }

    /// There is nothing to look at, for the reason given.
    pub fn cannot_see(&mut self, why: &str) {
        self.view.blind = Some(why.to_owned());
    }

    pub fn view(&self) -> &DrainView {
        &self.view
    }
}

/// Maximum age of the last look: beyond it the agent was stopped or starved, and nothing is known.
const UNSEEN: Duration = Duration::from_secs(5);

/// Time from a connection's first SYN until it is surely open: a count that began earlier may lack it.
const HANDSHAKE: Duration = Duration::from_secs(1);

const NOT_LEAVING: &str = "the node is not being removed, so there is nothing to wait for; to \
                           drain it anyway, pass the time since the drain began as waited=SECONDS";

/// Why the answer is what it is. Only [`Reason::Quiet`] is 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// Nothing came for the quiet time; where the caller waits for open ones, none is active either.
    Quiet,
    /// Connections are open, and the caller waits for them.
    Open,
    /// Something came, and the quiet time since then is not over.
    Connections,
    /// Nothing came so far, and the quiet time is not over; or open connections were not counted since the
    /// last one came, and the caller waits for them.
    Waiting,
    /// Neither the Node object nor the caller says that the node leaves.
    NotLeaving,
    /// Connections may come unseen.
    Blind,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Why.
    pub reason: Reason,
    /// Since when the node leaves: by its Node object or by the caller's word, whichever is earlier.
    pub since: Option<Mono>,
    /// Time without a new connection, as far as it was watched; zero where the node does not leave.
    pub quiet_for: Duration,
    /// The reason in a sentence, without its period.
    pub message: String,
}

impl DrainView {
    /// Answers. Time that nobody watched, and time before the node left, is not quiet.
    pub fn judge(&self, ask: &Ask, now: Mono) -> Finding {
        let told = ask.waited.map(|waited| now.minus(waited));
        let since = self.since.into_iter().chain(told).min();
        let quiet_for = since.map_or(Duration::ZERO, |since| self.quiet_since(since));
        let (mut reason, mut message) = match (since, self.unseen(now)) {
            (None, _) => (Reason::NotLeaving, NOT_LEAVING.to_owned()),
            (_, Some(why)) => (
                Reason::Blind,
                format!("cannot tell whether new connections arrive: {why}"),
            ),
            (Some(since), None) => self.tell(since, quiet_for, ask.quiet, now),
        };
        if reason == Reason::Quiet && ask.until == Until::Open {
            (reason, message) = self.tell_open(message, ask.idle, now);
        }
        Finding {
            reason,
            since,
            quiet_for,
            message,
        }
    }

    /// Time without a new connection, up to the last look; `None` before somebody watched.
    pub fn quiet(&self) -> Option<Duration> {
        self.watched.map(|watched| self.quiet_since(watched))
    }

    fn quiet_since(&self, since: Mono) -> Duration {
        let from = since.max(self.watched.unwrap_or_default());
        let from = from.max(self.last.unwrap_or_default());
        let seen = self.watched.and(self.seen);
        seen.map_or(Duration::ZERO, |seen| seen.since(from))
    }

    /// Open connections, as far as they are counted, and else why they are not.
    pub fn open_connections(&self, now: Mono) -> Result<&OpenConnections, String> {
        self.open.known(self.since.is_some(), now)
    }

    /// Answer where no new connection comes, to a caller that waits for open ones too.
    fn tell_open(&self, quiet: String, idle: Duration, now: Mono) -> (Reason, String) {
        let counted = match self.open_connections(now) {
            Ok(counted) => counted,
            Err(why) => {
                let message = format!("cannot count open connections: {why}");
                return (Reason::Blind, message);
            }
        };
        let begun = self.open.last.as_ref().map(|(_, begun)| *begun);
        if begun < self.last.map(|last| last.plus(HANDSHAKE)) {
            let message = "the last connection arrived after open ones were last counted";
            return (Reason::Waiting, message.to_owned());
        }
        let after = Spoken(idle);
        match counted.split(idle) {
            (0, 0) => (Reason::Quiet, format!("{quiet}, and none is open")),
            (0, n) => (
                Reason::Quiet,
                format!("{quiet}, and the {n} open ones have been idle for {after}"),
            ),
            (active, n) => (
                Reason::Open,
                format!(
                    "{active} connections from outside were in use within {after}, {n} more are open and idle"
                ),
            ),
        }
    }

    fn unseen(&self, now: Mono) -> Option<String> {
        let age = self.seen.map(|seen| now.since(seen));
        match (&self.blind, age) {
            (Some(why), _) => Some(why.clone()),
            (None, None) => Some("the agent has not counted connections yet".to_owned()),
            (None, Some(age)) => (age > UNSEEN)
                .then(|| format!("the agent last counted connections {} ago", Spoken(age))),
        }
    }

    fn tell(&self, since: Mono, quiet: Duration, wanted: Duration, now: Mono) -> (Reason, String) {
        if quiet >= wanted {
            let message = format!("no new connection from outside for {}", Spoken(quiet));
            return (Reason::Quiet, message);
        }
        // A connection from before the quiet time could begin is no reason to wait.
        let begun = self.watched.map_or(since, |watched| since.max(watched));
        if let Some(last) = self.last.filter(|last| *last >= begun) {
            let ago = Spoken(now.since(last));
            let message =
                format!("new connections from outside still arrive, the last one {ago} ago");
            return (Reason::Connections, message);
        }
        let (quiet, wanted) = (Spoken(quiet), Spoken(wanted));
        let message =
            format!("no new connection from outside for {quiet} of the required {wanted}");
        (Reason::Waiting, message)
    }
}

#[cfg(test)]
mod tests;
