//! What is written to the API server, and what keeps it from being written.

use serde::{Deserialize, Serialize};

/// The condition and the Events. Absent is what was not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishReport {
    /// The Node's condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<WriteReport>,
    /// Events about the Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<WriteReport>,
}

impl PublishReport {
    /// What keeps anything from being written.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        [&self.condition, &self.events]
            .into_iter()
            .flatten()
            .filter_map(|of| of.problem.as_deref())
    }
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WriteReport {
    /// When it was last written, since the agent started.
    pub written: Option<jiff::Timestamp>,
    /// What keeps it from being written now: one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
