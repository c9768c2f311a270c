//! The rows of the fleet list, built from Nodes and their condition `ServiceDatapathReady`, and the
//! order in which they are shown. Nothing here reads a cluster.

pub mod rotation;
mod row;
mod tally;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::condition::Status;
use crate::time::Wall;
pub use row::{Group, Judged, Row, age, row};
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

/// All nodes, in the order in which they are shown.
pub fn rows(nodes: &[NodeSeen], now: Wall) -> Vec<Row> {
    let mut rows: Vec<Row> = nodes.iter().map(|node| row(node, now)).collect();
    rows.sort_by(|a, b| (a.group, a.judged, &a.node).cmp(&(b.group, b.judged, &b.node)));
    rows
}
