//! One node's row.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{ConditionSeen, NodeSeen, OUT_OF_DATE};
use crate::condition::{Reason, Status, says_leaving};
use crate::eligibility::PRESETS;
use crate::explain;
use crate::time::{Spoken, Wall};

/// Where a row belongs, in the order of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
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

/// The verdict on a node, the worst first.
#[expect(missing_docs, reason = "most are the states of a verdict")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judged {
    Broken,
    Stale,
    /// The condition is False, by a reason that this release does not know.
    NotReady,
    /// Proven again, and still answered 503 until that lasts.
    Recovering,
    Degraded,
    Suspect,
    /// The condition is no longer renewed.
    OutOfDate,
    Unknown,
    Starting,
    /// The node's system is one that has no agent.
    NoAgent,
    /// The condition is True, by a reason that names no state.
    Ready,
    Proven,
}

impl Judged {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Judged::Broken => "broken",
            Judged::Stale => "stale",
            Judged::NotReady => "not ready",
            Judged::Recovering => "recovering",
            Judged::Degraded => "degraded",
            Judged::Suspect => "suspect",
            Judged::OutOfDate => "out of date",
            Judged::Unknown => "unknown",
            Judged::Starting => "starting",
            Judged::NoAgent => "no agent",
            Judged::Ready => "ready",
            Judged::Proven => "proven",
        }
    }

    fn group(self) -> Group {
        match self {
            Judged::Broken | Judged::Stale | Judged::NotReady | Judged::Recovering => Group::Sick,
            Judged::Proven | Judged::Ready | Judged::NoAgent => Group::Sound,
            _ => Group::Doubtful,
        }
    }
}

impl Serialize for Judged {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The row. Names in JSON are stable: fields are added, never renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The node's name.
    pub node: String,
    /// Where it belongs.
    pub group: Group,
    /// What is known of its datapath.
    #[serde(rename = "verdict")]
    pub judged: Judged,
    /// Why, in a word or two; nothing of a node that is proven.
    pub reason: String,
    /// Why, in a sentence, where there is something to tell.
    pub sentence: Option<String>,
    /// When the condition's status last changed; of one that is out of date, the last heartbeat.
    #[serde(serialize_with = "as_text")]
    pub since: Option<Wall>,
    /// Why the node leaves, in a word such as a taint's key; nothing of one that stays.
    pub leaving: Option<String>,
}

fn as_text<S: Serializer>(at: &Option<Wall>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.to_string()).serialize(serializer)
}

/// Of one node, as of `now`.
pub fn row(node: &NodeSeen, now: Wall) -> Row {
    let mut row = match &node.condition {
        Some(condition) => of_condition(node, condition, now),
        None => of_nothing(node),
    };
    if row.leaving.is_some() {
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
        leaving: leaving(node),
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
    if reason == Some(Reason::Leaving) || says_leaving(&condition.message) {
        row.leaving.get_or_insert("leaving".to_owned());
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
    let mut row = blank(node, Judged::Unknown);
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
    match (reason, status) {
        (Some(Reason::Proven), _) => Judged::Proven,
        (Some(Reason::Recovering), _) => Judged::Recovering,
        (Some(Reason::Starting), _) => Judged::Starting,
        (Some(Reason::Stale), _) => Judged::Stale,
        (Some(Reason::Broken(_)), _) => Judged::Broken,
        (Some(Reason::Degraded(_)), _) => Judged::Degraded,
        (Some(Reason::Suspect(_)), _) => Judged::Suspect,
        (Some(Reason::Unknown(_)), _) => Judged::Unknown,
        (None | Some(Reason::Leaving), Status::True) => Judged::Ready,
        (None | Some(Reason::Leaving), Status::False) => Judged::NotReady,
        (None | Some(Reason::Leaving), Status::Unknown) => Judged::Unknown,
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
    explain::label(word)
}

/// By the Node alone: deletion, and the taint that always counts.
fn leaving(node: &NodeSeen) -> Option<String> {
    if node.deleting {
        return Some("deleted".to_owned());
    }
    let counts = |key: &&String| PRESETS[0].keys.contains(&key.as_str());
    node.taints.iter().find(counts).cloned()
}

/// How long before `now`; zero where it lies ahead, as with clocks that differ.
pub fn age(at: Wall, now: Wall) -> Duration {
    Duration::from_nanos(u64::try_from(now.0.saturating_sub(at.0)).unwrap_or(0))
}
