//! The rows of the fleet list, made from Nodes and their condition `ServiceDatapathReady`, and
//! their order. Nothing here reads a cluster.

pub mod census;
pub mod domains;
pub mod rotation;
pub mod withdrawal;

use std::time::Duration;

use pathproof_facts::time::{HumanDuration, Wall};
use pathproof_judge::eligibility::always_counts;
use pathproof_judge::explain::label;
use pathproof_report::condition::{AgentSeen, Reason, Status, TYPE, says_leaving};
use serde::{Serialize, Serializer};

/// A condition that is older than this is out of date: agents write it every 5 min.
pub const OUT_OF_DATE: Duration = Duration::from_secs(15 * 60);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSeen {
    pub name: String,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Keys of its taints.
    pub taints: Vec<String>,
    /// Label `kubernetes.io/os` if it is not linux: no agent runs there.
    pub foreign_os: Option<String>,
    /// The condition `ServiceDatapathReady`.
    pub condition: Option<ConditionSeen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionSeen {
    pub status: Status,
    pub reason: String,
    pub message: String,
    /// When the condition's status last changed.
    pub transition: Option<Wall>,
    /// When an agent last wrote the condition.
    pub heartbeat: Option<Wall>,
}

/// Group of a row, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Broken or stale: the node's traffic is lost.
    NotReady,
    /// Not known to be healthy.
    Uncertain,
    /// Being removed, which is expected, whatever its datapath.
    Leaving,
    /// Proven, and not leaving.
    Healthy,
    /// Another operating system: no agent is expected.
    NotLinux,
}

/// The row of a node. Names in JSON are stable: fields are added, never renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub node: String,
    pub group: Group,
    /// State of the node's datapath, as far as known.
    pub verdict: &'static str,
    /// Reason in one or two words; empty for a proven node.
    pub reason: String,
    /// Reason as a sentence, if there is something to add.
    pub sentence: Option<String>,
    /// When the condition's status last changed; the last heartbeat if the condition is out of date.
    #[serde(serialize_with = "as_text")]
    pub since: Option<Wall>,
    /// Why the node is leaving, in one word such as a taint's key.
    pub leaving: Option<String>,
    /// The agent, its mode and the brake when it wrote the condition; `None` from an earlier release.
    pub agent: Option<AgentSeen>,
}

fn as_text<S: Serializer>(at: &Option<Wall>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.to_string()).serialize(serializer)
}

const WORST_FIRST: [(&str, Group); 12] = [
    ("broken", Group::NotReady),
    ("stale", Group::NotReady),
    ("not ready", Group::NotReady),
    // While a datapath recovers, the answer is still 503.
    ("recovering", Group::NotReady),
    ("degraded", Group::Uncertain),
    ("suspect", Group::Uncertain),
    ("out of date", Group::Uncertain),
    ("unknown", Group::Uncertain),
    ("starting", Group::Uncertain),
    ("no agent", Group::NotLinux),
    ("ready", Group::Healthy),
    ("proven", Group::Healthy),
];

/// All nodes in display order; within a group the worst first.
pub fn rows(nodes: &[NodeSeen], now: Wall) -> Vec<Row> {
    let mut rows: Vec<Row> = nodes.iter().map(|node| row(node, now)).collect();
    let place = |row: &Row| {
        WORST_FIRST
            .iter()
            .position(|(verdict, _)| *verdict == row.verdict)
    };
    rows.sort_by_cached_key(|row| (row.group, place(row), row.node.clone()));
    rows
}

fn row(node: &NodeSeen, now: Wall) -> Row {
    let mut row = match (&node.condition, &node.foreign_os) {
        (Some(condition), _) => of_condition(node, condition, now),
        // pathproof runs on Linux only: no agent is expected.
        (None, Some(os)) => blank(node, "no agent", format!("{os} node")),
        (None, None) => Row {
            sentence: Some(format!(
                "the Node has no condition {TYPE}: check whether an agent runs there and \
                 publishes the condition"
            )),
            ..blank(node, "unknown", "no condition".to_owned())
        },
    };
    if row.leaving.is_some() {
        row.group = Group::Leaving;
    }
    row
}

fn blank(node: &NodeSeen, verdict: &'static str, reason: String) -> Row {
    // Whether the node is leaving, by the Node alone: its deletion, and the taints that always count.
    let tainted = node.taints.iter().find(|key| always_counts(key)).cloned();
    let deleted = node.deleting.then(|| "deleted".to_owned());
    Row {
        node: node.name.clone(),
        group: group(verdict),
        verdict,
        reason,
        sentence: None,
        since: None,
        leaving: deleted.or(tainted),
        agent: None,
    }
}

fn of_condition(node: &NodeSeen, condition: &ConditionSeen, now: Wall) -> Row {
    let reason = Reason::parse(&condition.reason);
    let (message, agent) = AgentSeen::read(&condition.message);
    let age = condition.heartbeat.map(|at| age(at, now));
    if age.is_none_or(|age| age > OUT_OF_DATE) {
        let unwritten = match age {
            Some(age) => format!("has not written the condition for {}", HumanDuration(age)),
            None => "never wrote the condition".to_owned(),
        };
        return Row {
            since: condition.heartbeat,
            sentence: Some(format!(
                "its agent {unwritten}: check the agent's pod; the last message was: {message}"
            )),
            agent,
            ..blank(node, "out of date", "no heartbeat".to_owned())
        };
    }
    let (verdict, why) = judged(condition.status, reason);
    let why = reason.map_or_else(|| condition.reason.clone(), |_| label(why));
    let mut row = blank(node, verdict, why);
    row.since = condition.transition;
    row.agent = agent;
    row.sentence = (row.group != Group::Healthy).then(|| message.to_owned());
    if reason == Some(Reason::Leaving) || says_leaving(message) {
        row.leaving.get_or_insert("leaving".to_owned());
    }
    row
}

fn group(verdict: &str) -> Group {
    let known = WORST_FIRST.iter().find(|(known, _)| *known == verdict);
    known.map_or(Group::Uncertain, |(_, group)| *group)
}

/// The verdict for a condition's status and reason, and the cause by its name in metrics.
fn judged(status: Status, reason: Option<Reason>) -> (&'static str, &'static str) {
    match (reason, status) {
        (None | Some(Reason::Leaving), Status::True) => ("ready", ""),
        (None | Some(Reason::Leaving), Status::False) => ("not ready", ""),
        (None | Some(Reason::Leaving), Status::Unknown) => ("unknown", ""),
        (Some(Reason::Stale), _) => ("stale", "rules too old"),
        (Some(reason), _) => {
            let (state, cause) = reason.words();
            (state, cause.unwrap_or_default())
        }
    }
}

/// Number of nodes in each group: the summary line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    pub nodes: usize,
    pub not_ready: usize,
    pub uncertain: usize,
    pub leaving: usize,
    pub healthy: usize,
    pub not_linux: usize,
}

impl Tally {
    pub fn of(rows: &[Row]) -> Self {
        let count = |group| rows.iter().filter(|row| row.group == group).count();
        Self {
            nodes: rows.len(),
            not_ready: count(Group::NotReady),
            uncertain: count(Group::Uncertain),
            leaving: count(Group::Leaving),
            healthy: count(Group::Healthy),
            not_linux: count(Group::NotLinux),
        }
    }
}

/// Time from `at` to `now`; zero if `at` is in the future, because clocks differ.
pub fn age(at: Wall, now: Wall) -> Duration {
    Duration::from_nanos(u64::try_from(now.0.saturating_sub(at.0)).unwrap_or(0))
}

#[cfg(test)]
mod tests;
