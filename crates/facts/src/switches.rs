//! Switches that need no rollout: the annotation `pathproof.io/enforcement` of the Node and of the
//! sentinel's Service, and labels that `--enforce-nodes` selects. If one of these or `--enforcement` is audit,
//! audit is in force.

use serde::{Deserialize, Serialize};
use thiserror::Error;

mod selector;

pub use selector::{LabelTerm, NodeSelector};

/// Value of an annotation, if it exists.
type Text<'a> = Option<&'a str>;

/// Name of the annotation; its value is `audit` or `enforce`.
pub const ENFORCEMENT: &str = "pathproof.io/enforcement";

/// Whether a broken datapath changes the answer: `--enforcement`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Answer 503 while the datapath is broken.
    #[default]
    Enforce,
    /// Publish the verdict, and never answer 503 for the datapath.
    Audit,
}

/// The setting that requires audit mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "snake_case")]
pub enum AuditBy {
    #[error("--enforcement is audit")]
    Flag,
    /// The Node does not match `--enforce-nodes`, or was never read.
    #[error("the Node does not match --enforce-nodes")]
    Selector,
    #[error("the Node's annotation {ENFORCEMENT} is audit")]
    Node,
    /// The annotation of the sentinel's Service, for the whole cluster.
    #[error("the annotation {ENFORCEMENT} of the sentinel's Service is audit")]
    Cluster,
}

/// The switches as last read: an unreachable API server does not change them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    node: Option<Enforcement>,
    cluster: Option<Enforcement>,
    /// Whether `--enforce-nodes` selects the Node; `None` without this option.
    #[serde(default)]
    selected: Option<bool>,
    /// The value of `--enforce-nodes` that gave [`selected`](Self::selected).
    #[serde(default)]
    selector: Option<NodeSelector>,
    /// Invalid annotations, a sentence each.
    pub ignored: Vec<String>,
}

impl Switches {
    /// Reads the annotations of the Node and of the sentinel's Service. If an object is unknown (`None`),
    /// its switch stays as it is. Returns whether the list of invalid annotations changed.
    pub fn read(&mut self, node: Option<Text<'_>>, service: Option<Text<'_>>) -> bool {
        let mut ignored = Vec::new();
        if let Some(text) = node {
            self.node = said("the Node", text, &mut ignored);
        }
        if let Some(text) = service {
            self.cluster = said("the sentinel's Service", text, &mut ignored);
        }
        let differs = self.ignored != ignored;
        self.ignored = ignored;
        differs
    }

    /// The same without the Node's switch, for a node that was renamed.
    #[must_use]
    pub fn without_node(self) -> Self {
        Self {
            node: None,
            selected: None,
            ..self
        }
    }

    /// The same for an agent with this value of `--enforce-nodes`. A Node that was never read with this value
    /// is not selected.
    #[must_use]
    pub fn selecting(self, selector: Option<&NodeSelector>) -> Self {
        let known = self.selected.filter(|_| self.selector.as_ref() == selector);
        Self {
            selected: selector.map(|_| known.unwrap_or_default()),
            selector: selector.cloned(),
            ..self
        }
    }

    /// Records whether `--enforce-nodes` selects the Node.
    pub fn select(&mut self, selected: bool) {
        self.selected = Some(selected);
    }

    /// The setting that makes the node audit, if any.
    pub fn audit(&self, flag: Enforcement) -> Option<AuditBy> {
        let audit = Some(Enforcement::Audit);
        let unselected = audit.filter(|_| self.selected == Some(false));
        let asks = [
            (AuditBy::Flag, Some(flag)),
            (AuditBy::Selector, unselected),
            (AuditBy::Cluster, self.cluster),
            (AuditBy::Node, self.node),
        ];
        let mut asks = asks.into_iter();
        asks.find(|(_, said)| *said == audit).map(|(by, _)| by)
    }
}

fn said(object: &str, text: Text<'_>, ignored: &mut Vec<String>) -> Option<Enforcement> {
    match text? {
        "audit" => Some(Enforcement::Audit),
        "enforce" => Some(Enforcement::Enforce),
        other => {
            let shown: String = other.chars().take(40).collect();
            ignored.push(format!(
                "the annotation {ENFORCEMENT} of {object} is {shown:?} and is ignored: set it to audit \
                 or enforce"
            ));
            None
        }
    }
}

#[cfg(test)]
mod tests;
