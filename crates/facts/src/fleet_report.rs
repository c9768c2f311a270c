//! The count of the cluster's nodes that the rotator publishes on the sentinel's slices, and that each
//! agent's fleet brake reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Annotation of the sentinel's slices that holds a [`FleetReport`].
pub const FLEET: &str = "pathproof.io/fleet";

/// Count of the cluster's nodes, as the rotator publishes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetReport {
    /// Nodes whose agent publishes its state.
    pub nodes: u32,
    /// Nodes with evidence that their datapath fails, by the reason in their condition.
    pub unsound: BTreeMap<String, u32>,
    /// Nodes that leave because of a mark beyond KEP-3836, and are not unsound; `None` from a rotator that
    /// does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<u32>,
    /// When the report was written, in seconds of Unix time. A new time shows that the rotator is alive.
    #[serde(default)]
    pub written: i64,
    /// A sentence about a Node that uses one of the sentinel's addresses, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use: Option<String>,
}

/// Reason why a published count is ignored.
#[derive(Debug, Error)]
pub enum FleetReportError {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("{unsound} failing nodes of {nodes} is not a valid count")]
    Absurd { unsound: u64, nodes: u32 },
}

impl FleetReport {
    /// Parses the output of [`FleetReport::text`].
    ///
    /// # Errors
    /// The text is not a report, or more nodes fail or leave than there are.
    pub fn parse(text: &str) -> Result<Self, FleetReportError> {
        let report: Self = serde_json::from_str(text)?;
        let unsound: u64 = report.unsound.values().map(|n| u64::from(*n)).sum();
        let unsound = unsound.max(report.leaving.unwrap_or_default().into());
        if unsound > u64::from(report.nodes) {
            let nodes = report.nodes;
            return Err(FleetReportError::Absurd { unsound, nodes });
        }
        Ok(report)
    }

    pub fn text(&self) -> String {
        // Maps and numbers always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether both reports have the same content, apart from the time of writing.
    pub fn is_same(&self, other: &FleetReport) -> bool {
        let Self {
            nodes,
            unsound,
            leaving,
            written: _,
            in_use,
        } = self;
        (nodes, unsound, leaving, in_use)
            == (&other.nodes, &other.unsound, &other.leaving, &other.in_use)
    }

    pub fn count(&self) -> Count {
        Count {
            unsound: self.unsound.values().sum(),
            nodes: self.nodes,
        }
    }

    /// The count with its time; `None` if no agent publishes its condition.
    pub fn published(&self) -> Option<Published> {
        let (count, leaving, written) = (self.count(), self.leaving, self.written);
        (self.nodes > 0).then_some(Published {
            count,
            leaving,
            written,
        })
    }
}

/// Number of unsound nodes and of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Count {
    pub unsound: u32,
    /// All nodes that publish their state.
    pub nodes: u32,
}

/// A count with the time when the rotator wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Published {
    pub count: Count,
    /// See [`FleetReport::leaving`].
    #[serde(default)]
    pub leaving: Option<u32>,
    /// See [`FleetReport::written`].
    pub written: i64,
}

impl Published {
    /// The count of leaving nodes in place of unsound ones.
    pub fn of_leaving(mut self) -> Option<Self> {
        self.count.unsound = self.leaving?;
        Some(self)
    }
}

impl Count {
    /// Whether `others`, the number of other unsound nodes, reaches the limit of `percent`, so that this
    /// node must not answer 503 too. One node may always fail.
    pub fn is_over(self, percent: u32, others: u32) -> bool {
        let may = u64::from(self.nodes) * u64::from(percent) / 100;
        u64::from(others) >= may.max(1)
    }
}
