//! Sources of the cluster view: an API server ([`api`]), or a folder of ordinary Kubernetes YAML
//! ([`watch`]), followed live.
//!
//! Both turn Kubernetes objects into facts (`convert`) and deliver [`Update`]s; what follows from
//! facts is decided elsewhere. Kubernetes types must not leave this module.

use std::fmt;

use agent_core::cluster::{Change, ObjectName};

pub mod api;
mod convert;
mod facts;
mod manifests;
pub mod watch;
pub mod yaml;

pub(crate) use convert::NOT_SERVED_LABELS;

#[cfg(test)]
mod tests;

/// Changes in the source of the view since the last update, and everything wrong with it now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// Changes of the view, to be applied as one batch.
    pub changes: Vec<Change>,
    /// Everything that is wrong now, not only what is new.
    pub problems: Vec<Problem>,
    /// Objects of a folder that are there and do not matter.
    pub ignored: u64,
    /// A Service with external IPs that is not kept: what it claims is not known.
    pub unknown_claims: Option<ObjectName>,
}

/// Something in a source that could not be taken as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File and line, or the API server; what is wrong, and what counts instead.
    message: String,
    /// The source itself does not report changes: what it said before may be old by now.
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
