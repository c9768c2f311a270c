//! What the Node's condition `ServiceDatapathReady` says: status, reason and message, from a verdict
//! and what is answered for it; and when it is due to be written ([`Schedule`]) or announced by an
//! Event ([`Announcer`]).
//!
//! The status follows /livez: the datapath alone. A node that is leaving is a reason, never False.
//! Nothing here writes: `publish` does.

mod announce;
mod budget;
mod reason;
mod retry;
mod schedule;
mod spread;

#[cfg(test)]
mod tests;

use crate::answer::Enforcement;
use crate::cause::State;
use crate::eligibility::Eligibility;
use crate::verdict::Verdict;
pub use announce::{Announcer, Severity};
pub use reason::Reason;
pub use retry::Refusal;
pub use schedule::{Pace, Schedule, Written};

/// The condition's type. The merge key of a Node's conditions: what is written under it touches no
/// other.
pub const TYPE: &str = "ServiceDatapathReady";

/// The longest message, in bytes: an Event's note may have 1,024.
pub const MESSAGE_MAX: usize = 1_000;

/// The condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Service traffic gets through, or nothing confirmed says that it does not.
    True,
    /// It does not: what /livez answers 503 for.
    False,
    /// Nothing can be said.
    Unknown,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 3] = [Status::True, Status::False, Status::Unknown];

    /// As the API spells it.
    pub fn name(self) -> &'static str {
        match self {
            Status::True => "True",
            Status::False => "False",
            Status::Unknown => "Unknown",
        }
    }

    /// Of a name; `None` for one that the API does not know.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// What is worth writing or announcing when it changes: everything but the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// The status.
    pub status: Status,
    /// Why.
    pub reason: Reason,
    /// The node is being removed.
    pub leaving: bool,
}

/// What a verdict amounts to. `sound` is whether /livez answers 200, or would without audit.
pub fn standing(verdict: &Verdict, sound: bool) -> Standing {
    let status = match verdict.state {
        State::Unknown | State::Starting => Status::Unknown,
        _ if sound => Status::True,
        _ => Status::False,
    };
    let leaving = is_leaving(&verdict.eligibility);
    let reason = match (status, verdict.state) {
        // A datapath that is broken outranks it: batch jobs may run there for hours.
        (Status::True | Status::Unknown, _) if leaving => Reason::Leaving,
        (Status::False, State::Proven | State::Degraded) => Reason::Recovering,
        (_, state) => Reason::of(state, verdict.cause, verdict.why),
    };
    Standing {
        status,
        reason,
        leaving,
    }
}

fn is_leaving(eligibility: &Eligibility) -> bool {
    match eligibility {
        Eligibility::Deleting | Eligibility::Tainted { .. } => true,
        Eligibility::Eligible | Eligibility::NeverSeen => false,
    }
}

/// Between what is said of a leaving node and what of its datapath.
const LEAVING_MARK: &str = ". Its datapath: ";

/// Whether a [`message`] is about a node that is leaving.
pub fn says_leaving(message: &str) -> bool {
    message.contains(LEAVING_MARK)
}

/// The message: the verdict's sentence, what is to be known beside it, and at most
/// [`MESSAGE_MAX`] bytes.
pub fn message(verdict: &Verdict, standing: Standing, enforcement: Enforcement) -> String {
    let mut text = String::new();
    if standing.leaving {
        text.push_str(&format!("{}{LEAVING_MARK}", verdict.eligibility));
    }
    if standing.reason == Reason::Recovering {
        text.push_str("works again, which has to last before it counts: ");
    }
    text.push_str(&verdict.reason());
    if standing.status == Status::False && enforcement == Enforcement::Audit {
        text.push_str(" (with --enforcement=audit, /livez answers 200 all the same)");
    }
    bounded(text)
}

/// Cut at a character, with an ellipsis.
fn bounded(mut text: String) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() > MESSAGE_MAX {
        text.truncate(text.floor_char_boundary(MESSAGE_MAX - ELLIPSIS.len()));
        text.push_str(ELLIPSIS);
    }
    text
}
