//! One node's row.

use std::time::Duration;

use super::{ConditionSeen, NodeSeen, OUT_OF_DATE};
use crate::domain::condition::{Reason, Status, says_leaving};
use crate::domain::node::PRESETS;
use crate::domain::time::{Spoken, Wall};
use crate::domain::verdict::State;

/// Where a row belongs, in the order of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Broken or stale: its traffic is lost.
    Sick,
    /// Not known to be sound.
    Doubtful,
    /// Being removed, which is expected; whatever else it is.
    Leaving,
    /// Proven, and staying.
    Sound,
}

/// What is said of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The verdict's state.
    State(State),
    /// Proven again, and still answered 503 until that lasts.
    Recovering,
    /// The condition is True and does not say of which state.
    Ready,
    /// The condition is False, by a reason that this release does not know.
    NotReady,
    /// The condition is no longer renewed.
    OutOfDate,
    /// The node's system is one that has no agent.
    NoAgent,
}

impl Judged {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Judged::State(state) => state.name(),
            Judged::Recovering => "recovering",
            Judged::Ready => "ready",
            Judged::NotReady => "not ready",
            Judged::OutOfDate => "out of date",
            Judged::NoAgent => "no agent",
        }
    }

    /// The worst has the most.
    pub fn severity(self) -> u8 {
        match self {
            Judged::State(State::Broken) => 12,
            Judged::State(State::Stale) => 11,
            Judged::NotReady => 10,
            Judged::Recovering => 9,
            Judged::State(State::Degraded) => 8,
            Judged::State(State::Suspect) => 7,
            Judged::OutOfDate => 5,
            Judged::State(State::Unknown) => 4,
            Judged::NoAgent => 3,
            Judged::State(State::Starting) => 2,
            Judged::Ready => 1,
            Judged::State(State::Proven) => 0,
        }
    }

    fn group(self) -> Group {
        match self {
            Judged::State(State::Broken | State::Stale) | Judged::NotReady | Judged::Recovering => {
                Group::Sick
            }
            Judged::State(State::Proven) | Judged::Ready | Judged::NoAgent => Group::Sound,
            _ => Group::Doubtful,
        }
    }
}

/// Whether the node may be sent new connections, apart from its datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eligible {
    /// It stays.
    Yes,
    /// It leaves: one word for why, such as a taint's key.
    No(String),
}

/// The row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The node's name.
    pub node: String,
    /// Where it belongs.
    pub group: Group,
    /// What is said of it.
    pub judged: Judged,
    /// Why, in a word or two; nothing of a node that is proven.
    pub reason: String,
    /// Why, in a sentence, where there is something to tell.
    pub sentence: Option<String>,
    /// When the condition's status last changed; of one that is out of date, the last heartbeat.
    pub since: Option<Wall>,
    /// Whether the node stays.
    pub eligible: Eligible,
}

/// Of one node, as of `now`.
pub fn row(node: &NodeSeen, now: Wall) -> Row {
    let mut row = match &node.condition {
        Some(condition) => of_condition(node, condition, now),
        None => of_nothing(node),
    };
    if row.eligible != Eligible::Yes {
        row.group = Group::Leaving;
    }
    row
}

fn blank(node: &NodeSeen, judged: Judged) -> Row {
    Row {
        node: node.name.clone(),
        group: judged.group(),
        judged,
        reason: String::new(),
        sentence: None,
        since: None,
        eligible: eligible(node),
    }
}

fn of_condition(node: &NodeSeen, condition: &ConditionSeen, now: Wall) -> Row {
    let reason = Reason::parse(&condition.reason);
    let age = condition.heartbeat.map(|at| age(at, now));
    if age.is_none_or(|age| age > OUT_OF_DATE) {
        let since = age.map_or("ever".to_owned(), |age| Spoken(age).to_string());
        let mut row = blank(node, Judged::OutOfDate);
        row.reason = "no heartbeat".to_owned();
        row.since = condition.heartbeat;
        row.sentence = Some(format!(
            "its agent has not written the condition for {since}; last message: {}",
            condition.message
        ));
        return row;
    }
    let mut row = blank(node, judged(condition.status, reason));
    row.since = condition.transition;
    row.reason = reason.map_or_else(|| condition.reason.clone(), short);
    row.sentence = (row.group != Group::Sound).then(|| condition.message.clone());
    let leaves = reason == Some(Reason::Leaving) || says_leaving(&condition.message);
    if leaves && row.eligible == Eligible::Yes {
        row.eligible = Eligible::No("leaving".to_owned());
    }
    row
}

fn of_nothing(node: &NodeSeen) -> Row {
    // pathproof is for Linux: no agent is expected elsewhere.
    if let Some(os) = &node.foreign_os {
        let mut row = blank(node, Judged::NoAgent);
        row.reason = format!("{os} node");
        return row;
    }
    let mut row = blank(node, Judged::State(State::Unknown));
    row.reason = "no condition".to_owned();
    row.sentence = Some(
        "the Node has no condition ServiceDatapathReady: no agent runs there, or it does not \
         publish"
            .to_owned(),
    );
    row
}

/// What a condition's status and reason amount to.
fn judged(status: Status, reason: Option<Reason>) -> Judged {
    let by_status = match status {
        Status::True => Judged::Ready,
        Status::False => Judged::NotReady,
        Status::Unknown => Judged::State(State::Unknown),
    };
    match reason {
        None | Some(Reason::Leaving) => by_status,
        Some(Reason::Proven) => Judged::State(State::Proven),
        Some(Reason::Recovering) => Judged::Recovering,
        Some(Reason::Starting) => Judged::State(State::Starting),
        Some(Reason::Stale) => Judged::State(State::Stale),
        Some(Reason::Broken(_)) => Judged::State(State::Broken),
        Some(Reason::Degraded(_)) => Judged::State(State::Degraded),
        Some(Reason::Suspect(_)) => Judged::State(State::Suspect),
        Some(Reason::Unknown(_)) => Judged::State(State::Unknown),
    }
}

/// The cause, in the words of metrics and runbook, with blanks.
fn short(reason: Reason) -> String {
    let word = match reason {
        Reason::Broken(cause) | Reason::Degraded(cause) | Reason::Suspect(cause) => {
            cause.map_or("", |cause| cause.name())
        }
        Reason::Unknown(why) => why.map_or("", |why| why.name()),
        Reason::Stale => "rules too old",
        Reason::Proven | Reason::Recovering | Reason::Starting | Reason::Leaving => "",
    };
    word.replace('_', " ")
}

/// Of the Node alone: deletion, and the taint that always counts.
fn eligible(node: &NodeSeen) -> Eligible {
    if node.deleting {
        return Eligible::No("deleted".to_owned());
    }
    let counts = |key: &&String| PRESETS[0].keys.contains(&key.as_str());
    match node.taints.iter().find(counts) {
        Some(key) => Eligible::No(key.clone()),
        None => Eligible::Yes,
    }
}

/// How long before `now`; zero where it lies ahead, as with clocks that differ.
fn age(at: Wall, now: Wall) -> Duration {
    Duration::from_nanos(u64::try_from(now.0.saturating_sub(at.0)).unwrap_or(0))
}
