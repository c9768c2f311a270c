//! All nodes of a cluster at a glance: rows out of what their Nodes and their agents say, which row
//! comes first, and which agents are worth asking.
//!
//! A Node's condition says the verdict and little more, and is there for whoever may read Nodes. An
//! agent that is asked says everything. Nothing here asks.

mod ask;
pub mod rotation;
mod row;
mod tally;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::condition::Status;
use crate::time::Wall;
use crate::verdict::Verdict;
pub use ask::{Ask, MOST, to_ask};
pub use row::{CoverageSeen, Eligible, Group, Judged, Row, Source, row};
pub use tally::Tally;

/// A condition this old is nobody's any more: an agent writes it every 5 min.
pub const OUT_OF_DATE: Duration = Duration::from_secs(15 * 60);

/// What a Node object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSeen {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Keys of its taints.
    pub taints: Vec<String>,
    /// Label `kubernetes.io/os`, where it is another than linux: no agent runs there.
    pub foreign_os: Option<String>,
    /// The condition `ServiceDatapathReady`.
    pub condition: Option<ConditionSeen>,
}

/// What the condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionSeen {
    /// Its status.
    pub status: Status,
    /// Its reason, as it stands there.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// When its status last changed.
    pub transition: Option<Wall>,
    /// When an agent last wrote it.
    pub heartbeat: Option<Wall>,
}

/// What is known of a node's agent beside the condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AgentSeen {
    /// It was not looked for.
    #[default]
    Unsought,
    /// No pod of an agent is on the node.
    Missing,
    /// It has a pod, and was not asked.
    Unasked,
    /// It was asked and did not answer, or cannot be: one sentence.
    Silent(String),
    /// It answered.
    Told(Box<Told>),
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its verdict.
    pub verdict: Verdict,
    /// `verdict.at` on the wall clock.
    pub written: Wall,
    /// Whether /livez answers 200 for the datapath, or would without audit.
    pub sound: bool,
    /// Its verdict has no consequences.
    pub audit: bool,
}

/// A node and its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The Node.
    pub node: NodeSeen,
    /// Its agent.
    pub agent: AgentSeen,
}

/// All nodes, in the order in which they are shown.
pub fn rows(facts: &[NodeFacts], now: Wall) -> Vec<Row> {
    let mut rows: Vec<Row> = facts.iter().map(|facts| row(facts, now)).collect();
    rows.sort_by(|a, b| {
        let place = |row: &Row| (row.group, std::cmp::Reverse(row.judged.severity()));
        place(a).cmp(&place(b)).then_with(|| a.node.cmp(&b.node))
    });
    rows
}
