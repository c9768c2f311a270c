//! The Nodes that enforce, by their labels: a canary that a manifest names.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Selects Nodes by labels: all terms must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSelector(pub Vec<LabelTerm>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelTerm {
    /// `label KEY`, as in [`NodeFacts::marks`](crate::cluster::NodeFacts::marks).
    pub mark: String,
    /// The value; `None` is any.
    pub value: Option<String>,
    /// Whether the Node must have this label and value, or must not.
    pub wanted: bool,
}

impl NodeSelector {
    /// Whether a Node with these marks is selected.
    pub fn matches(&self, marks: &BTreeMap<Arc<str>, Arc<str>>) -> bool {
        self.0.iter().all(|term| {
            let found = marks.get(term.mark.as_str());
            let value = term.value.as_deref();
            found.is_some_and(|found| value.is_none_or(|value| value == &**found)) == term.wanted
        })
    }

    /// Whether a term is about this mark.
    pub fn names(&self, mark: &str) -> bool {
        self.0.iter().any(|term| term.mark == mark)
    }
}
