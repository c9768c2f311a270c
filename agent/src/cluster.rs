//! Sources of the cluster view: an API server ([`api`]), or a folder of ordinary Kubernetes YAML
//! ([`watch`]), followed live.
//!
//! Both put Kubernetes objects into a `store`, which turns them into facts (`convert`) and returns
//! [`Update`]s; conclusions are drawn elsewhere. Kubernetes types must not leave this module.

use std::fmt;
use std::time::Duration;

use pathproof_facts::cluster::{Change, ObjectName};

pub mod api;
mod budget;
mod convert;
mod facts;
mod manifests;
mod store;
pub mod watch;
pub mod yaml;

pub(crate) use convert::NOT_SERVED_LABELS;

#[cfg(test)]
mod tests;

/// A batch of changes is delivered when no further change followed for this time, or after [`GATHER`].
const QUIET: Duration = Duration::from_millis(5);
/// Maximum time from the first change of a batch to the delivery of the batch.
const GATHER: Duration = Duration::from_millis(30);

/// Changes of the view's source since the last update, and all current problems.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// To be applied as one batch.
    pub changes: Vec<Change>,
    /// All current problems, not only new ones.
    pub problems: Vec<Problem>,
    /// Number of objects in a folder whose kind the agent does not use.
    pub ignored: u64,
    /// A Service with external IPs that was left out: the addresses that it uses are unknown.
    pub unknown_frontends: Option<ObjectName>,
    /// A sentence about this node if a complete view has no Node for it.
    pub missing_node: Option<String>,
}

/// Something in a source that could not be used as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// States the place (file and line, or the API server), what is wrong there, and what is used instead.
    message: String,
    /// The source delivers no changes at present, so the view may be outdated.
    pub is_silence: bool,
}

impl Problem {
    fn new(message: String) -> Self {
        Self {
            message,
            is_silence: false,
        }
    }

    fn silence(message: String) -> Self {
        Self {
            message,
            is_silence: true,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
