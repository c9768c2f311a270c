//! The count of the cluster's nodes that the rotator publishes on the sentinel's slices, and that each
//! agent's fleet brake reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Annotation of the sentinel's slices that holds a [`FleetReport`].
pub const FLEET: &str = "pathproof.io/fleet";
/// Agents read no more bytes of the annotation than this.
pub const FLEET_LENGTH: usize = 1_024;
/// Maximum number of labels that make failure domains: groups of nodes with the same value, such as a zone.
pub const DOMAIN_LABELS: usize = 4;

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
    /// Failing and all nodes of the failure domains in which nodes fail, by label and value. Labels without
    /// such a domain are listed too. An earlier rotator lists none, and then the cluster's count alone limits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub domains: BTreeMap<String, BTreeMap<String, (u32, u32)>>,
    /// The fullest of the domains for which the annotation has no room; `None` if it lists them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<(u32, u32)>,
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
        let domains = report.domains.values().flat_map(BTreeMap::values);
        let domains = domains.chain(&report.rest);
        let domains = domains.map(|(unsound, nodes)| (u64::from(*unsound), *nodes));
        let absurd = domains
            .chain([(unsound, report.nodes)])
            .find(|(unsound, nodes)| *unsound > u64::from(*nodes));
        match absurd {
            Some((unsound, nodes)) => Err(FleetReportError::Absurd { unsound, nodes }),
            None => Ok(report),
        }
    }

    pub fn text(&self) -> String {
        // Maps and numbers always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether both reports have the same content, apart from the time of writing.
    pub fn is_same(&self, other: &FleetReport) -> bool {
        let written = other.written;
        let same = Self {
            written,
            ..self.clone()
        };
        same == *other
    }

    pub fn count(&self) -> Count {
        Count {
            unsound: self.unsound.values().sum(),
            nodes: self.nodes,
        }
    }

    /// The count with its time, for a node on which `value_of` returns the value of a label.
    pub fn published<'a>(&self, value_of: impl Fn(&str) -> Option<&'a str>) -> Published {
        let mut domains = [Count::default(); DOMAIN_LABELS];
        for (count, (label, listed)) in domains.iter_mut().zip(&self.domains) {
            let known = value_of(label).and_then(|value| listed.get(value).or(self.rest.as_ref()));
            if let Some(&(unsound, nodes)) = known {
                *count = Count { unsound, nodes };
            }
        }
        Published {
            count: self.count(),
            domains,
            leaving: self.leaving,
            written: self.written,
        }
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
    /// Counts of the failure domains of this node, by the label's place. They are zero without such a label,
    /// while no node of the domain fails, and from an earlier rotator.
    #[serde(default)]
    pub domains: [Count; DOMAIN_LABELS],
    /// See [`FleetReport::leaving`].
    #[serde(default)]
    pub leaving: Option<u32>,
    /// See [`FleetReport::written`].
    pub written: i64,
}

impl Published {
    /// The count of leaving nodes in place of unsound ones. They are counted for the whole cluster only.
    pub fn of_leaving(mut self) -> Option<Self> {
        self.count.unsound = self.leaving?;
        self.domains = [Count::default(); DOMAIN_LABELS];
        Some(self)
    }

    /// All counts that limit this node: of the cluster, then of its failure domains.
    pub fn counts(&self) -> [Count; 1 + DOMAIN_LABELS] {
        let [a, b, c, d] = self.domains;
        [self.count, a, b, c, d]
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
