//! What cannot be had from an API server, and what would help.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::causes::chain;

/// A right, as roles name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// `list`.
    pub verb: &'static str,
    /// `pods/portforward`.
    pub resource: &'static str,
    /// Where; nothing for the whole cluster.
    pub namespace: Option<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in the whole cluster"),
        }
    }
}

/// Why something is not known.
#[derive(Debug, Error)]
pub enum FleetError {
    /// 403.
    #[error(
        "the right to {right} is missing (the API server: {said}); deploy/examples/fleet-rbac.yaml has the roles"
    )]
    Denied {
        /// Which.
        right: Right,
        /// The API server's words.
        said: String,
    },
    /// 401.
    #[error(
        "the API server does not know who asks (401: {said}): log in again, or look at the user of the kubeconfig"
    )]
    Unauthorized {
        /// The API server's words.
        said: String,
    },
    /// Any other refusal.
    #[error("the API server did not {what} ({code}: {said})")]
    Refused {
        /// What it was asked for: `list nodes`.
        what: &'static str,
        /// The status.
        code: u16,
        /// The API server's words.
        said: String,
    },
    /// Pages that come to no end.
    #[error(
        "the API server forgot the list of nodes again and again while it was read: try once more"
    )]
    Endless,
    /// No connection, or one that broke.
    #[error("the API server cannot be reached to {what}: {why}")]
    Unreachable {
        /// What it was to be asked for.
        what: &'static str,
        /// Every cause in turn.
        why: String,
    },
    /// No answer.
    #[error(
        "the API server did not {what} within {} s: give more time with --request-timeout",
        timeout.as_secs()
    )]
    Timeout {
        /// What it was asked for.
        what: &'static str,
        /// How long was waited.
        timeout: Duration,
    },
}

impl FleetError {
    /// Rights are missing.
    pub fn is_permission(&self) -> bool {
        matches!(
            self,
            FleetError::Denied { .. } | FleetError::Unauthorized { .. }
        )
    }

    /// Of what a request for something that takes this right came to.
    pub(super) fn of(error: kube::Error, what: &'static str, right: Right) -> Self {
        let kube::Error::Api(status) = error else {
            return FleetError::Unreachable {
                what,
                why: chain(&error),
            };
        };
        Self::of_status(status.code, status.message.clone(), what, right)
    }

    /// Of a status that is no success.
    pub(super) fn of_status(code: u16, said: String, what: &'static str, right: Right) -> Self {
        match code {
            401 => FleetError::Unauthorized { said },
            403 => FleetError::Denied { right, said },
            code => FleetError::Refused { what, code, said },
        }
    }
}
