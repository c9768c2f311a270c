//! The Node's condition `ServiceDatapathReady`: status, reason and message, from a verdict and its answer;
//! and when it is due to be written ([`Schedule`]) or announced by an Event ([`Announcer`]).
//!
//! The status follows /livez: the datapath alone. A leaving node changes the reason and never makes
//! the status False. Nothing here writes; `publish` does.

mod announce;
mod schedule;

use std::iter;

pub use announce::Announcer;
use pathproof_facts::cause::{Cause, State, Why};
use pathproof_facts::named;
use pathproof_facts::switches::Enforcement;
use pathproof_facts::text::visible;
use pathproof_judge::verdict::Verdict;
pub use schedule::{Pace, Refusal, Schedule, Written};
use serde::Serialize;

use crate::Report;

/// The condition's type: the merge key of a Node's conditions, so that writes touch no other condition.
pub const TYPE: &str = "ServiceDatapathReady";

/// Maximum length of a message in bytes: an Event's note may have 1,024.
pub const MESSAGE_MAX: usize = 1_000;

named! {
    pub enum Status {
        /// Service traffic gets through, or no failure is confirmed.
        True = "True",
        /// Service traffic does not get through: /livez answers 503, or would without audit.
        False = "False",
        /// There is no evidence.
        Unknown = "Unknown",
    }
}

impl Status {
    /// Parses a name; `None` if the API does not have it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// Why the condition has its status, and the reason of an Event: stable CamelCase words, one for each state
/// and cause of a verdict. docs/behaviour.md lists them; rules of other programs match them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// New connections get through.
    Proven,
    /// New connections get through again, but for too short a time for 200.
    Recovering,
    /// The node is being removed; its datapath is not known to be broken.
    Leaving,
    /// Nothing is proven yet in this boot.
    Starting,
    /// New connections go to removed endpoints.
    Stale,
    Broken(Option<Cause>),
    Degraded(Option<Cause>),
    /// Failures that are not confirmed.
    Suspect(Option<Cause>),
    /// There is no evidence.
    Unknown(Option<Why>),
}

impl Reason {
    pub fn all() -> Vec<Reason> {
        let causes = || iter::once(None).chain(Cause::ALL.map(Some));
        let whys = iter::once(None).chain(Why::ALL.map(Some));
        let plain = [
            Reason::Proven,
            Reason::Recovering,
            Reason::Leaving,
            Reason::Starting,
            Reason::Stale,
        ];
        let with_cause = [Reason::Broken, Reason::Degraded, Reason::Suspect];
        let with_cause = with_cause
            .into_iter()
            .flat_map(|reason| causes().map(reason));
        let all = plain.into_iter().chain(with_cause);
        all.chain(whys.map(Reason::Unknown)).collect()
    }

    /// The state in lower case, and the cause by its name in metrics.
    pub fn words(self) -> (&'static str, Option<&'static str>) {
        match self {
            Reason::Proven => ("proven", None),
            Reason::Recovering => ("recovering", None),
            Reason::Leaving => ("leaving", None),
            Reason::Starting => ("starting", None),
            Reason::Stale => ("stale", None),
            Reason::Broken(cause) => ("broken", cause.map(Cause::name)),
            Reason::Degraded(cause) => ("degraded", cause.map(Cause::name)),
            Reason::Suspect(cause) => ("suspect", cause.map(Cause::name)),
            Reason::Unknown(why) => ("unknown", why.map(Why::name)),
        }
    }

    /// The API's spelling.
    pub fn name(self) -> String {
        let subject = match self {
            Reason::Leaving => "Node",
            _ => "Datapath",
        };
        let (state, detail) = self.words();
        let detail = detail.iter().flat_map(|detail| detail.split('_'));
        // Example: `no_data` becomes `NoData`.
        let mut name = subject.to_owned();
        for word in iter::once(state).chain(detail) {
            let (first, rest) = word.split_at(1);
            name += &first.to_ascii_uppercase();
            name += rest;
        }
        name
    }

    /// Parses a name; `None` for a name of another release.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|reason| reason.name() == name)
    }
}

/// The part of the condition whose change causes a write or an Event: everything except the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConditionState {
    pub status: Status,
    pub reason: Reason,
    /// Whether the node is being removed.
    pub leaving: bool,
}

/// The condition for a verdict. `sound` is whether /livez answers 200, or would without audit.
pub fn condition(verdict: &Verdict, sound: bool) -> ConditionState {
    let status = match verdict.state {
        State::Unknown | State::Starting => Status::Unknown,
        _ if sound => Status::True,
        _ => Status::False,
    };
    let leaving = verdict.eligibility.is_leaving();
    let reason = match (status, verdict.state) {
        // A broken datapath has priority over leaving: batch jobs may run there for hours.
        (Status::True | Status::Unknown, _) if leaving => Reason::Leaving,
        (Status::False, State::Proven | State::Degraded) => Reason::Recovering,
        (_, State::Proven) => Reason::Proven,
        (_, State::Starting) => Reason::Starting,
        (_, State::Stale) => Reason::Stale,
        (_, State::Broken) => Reason::Broken(verdict.cause),
        (_, State::Degraded) => Reason::Degraded(verdict.cause),
        (_, State::Suspect) => Reason::Suspect(verdict.cause),
        (_, State::Unknown) => Reason::Unknown(verdict.why),
    };
    ConditionState {
        status,
        reason,
        leaving,
    }
}

/// Separates the sentence about a leaving node from the one about its datapath.
const LEAVING_MARK: &str = ". Its datapath";

/// Whether a [`message`] is about a node that is leaving.
pub fn says_leaving(message: &str) -> bool {
    message.contains(LEAVING_MARK)
}

/// The message, at most [`MESSAGE_MAX`] bytes: the verdict's sentence, and the first other finding
/// if it fits. `lenience` is why /livez answers 200 in spite of the verdict.
pub fn message(verdict: &Verdict, condition: ConditionState, lenience: Option<&str>) -> String {
    let recovering = condition.reason == Reason::Recovering;
    let mut text = match (condition.leaving, recovering) {
        (true, true) => format!("{}{LEAVING_MARK} ", verdict.eligibility),
        (true, false) => format!("{}{LEAVING_MARK}: ", verdict.eligibility),
        (false, true) => "the datapath ".to_owned(),
        (false, false) => String::new(),
    };
    if recovering {
        text.push_str("works again, but not for long enough yet: ");
    }
    text.push_str(&verdict.reason());
    if condition.status == Status::False
        && let Some(why) = lenience
    {
        text.push_str(&format!(" (/livez still answers 200: {why})"));
    }
    let text = visible(&text).into_owned();
    // The other finding is added whole or not at all.
    let also = verdict.also().into_iter().next();
    let also = also.map(|also| format!("; also: {}", visible(&also)));
    let fits = |also: &String| text.len() + also.len() <= MESSAGE_MAX;
    let also = also.filter(fits).unwrap_or_default();
    bounded(text + &also)
}

/// Separates the sentence of a condition's message from its [`AgentSeen`].
const AGENT_MARK: &str = " [pathproof ";

/// An agent's version and mode, at the end of its condition's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentSeen {
    pub version: String,
    /// `enforce` or `audit`.
    pub enforcement: String,
    /// Whether the fleet brake holds back a 503.
    pub braked: bool,
}

impl AgentSeen {
    pub fn of(report: &Report) -> Self {
        let enforcement = match report.agent.enforcement {
            Enforcement::Enforce => "enforce",
            Enforcement::Audit => "audit",
        };
        Self {
            version: report.agent.version.clone(),
            enforcement: enforcement.to_owned(),
            braked: report.answers.held.is_some(),
        }
    }

    /// The part whose change is written soon. The brake may change many nodes at once.
    pub fn mode(&self) -> (&str, &str) {
        (&self.version, &self.enforcement)
    }

    /// Appends this to a message.
    pub fn sign(&self, message: &str) -> String {
        let (version, enforcement) = self.mode();
        let braked = if self.braked { ", braked" } else { "" };
        format!("{message}{AGENT_MARK}{version}, {enforcement}{braked}]")
    }

    /// Splits a message; `None` if an earlier release wrote it.
    pub fn read(message: &str) -> (&str, Option<Self>) {
        let signed = || {
            let (message, words) = message.strip_suffix(']')?.rsplit_once(AGENT_MARK)?;
            let mut words = words.split(", ").map(str::to_owned);
            let agent = Self {
                version: words.next()?,
                enforcement: words.next()?,
                braked: words.next().is_some(),
            };
            Some((message, Some(agent)))
        };
        signed().unwrap_or((message, None))
    }
}

/// Truncates at a character, with an ellipsis.
pub fn bounded(mut text: String) -> String {
    if text.len() > MESSAGE_MAX {
        text.truncate(text.floor_char_boundary(MESSAGE_MAX - '…'.len_utf8()));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests;
