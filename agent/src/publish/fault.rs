//! Why the API server did not take what was written.

use std::time::Duration;

use thiserror::Error;

use crate::causes::chain;
use crate::metrics::WriteResult;
use agent_core::condition::Refusal;

/// A try that failed.
#[derive(Debug, Error)]
pub(super) enum Fault {
    /// 403.
    #[error("the API server does not allow it (403: {message})")]
    Forbidden {
        /// Its words.
        message: String,
    },
    /// 404.
    #[error("the API server does not know it (404: {message})")]
    NotFound {
        /// Its words.
        message: String,
    },
    /// 409.
    #[error("somebody else wrote at the same moment (409)")]
    Conflict,
    /// 429.
    #[error("the API server is busy (429)")]
    Throttled {
        /// For how long, as it says.
        wait: Option<Duration>,
    },
    /// 400 to 499.
    #[error("the API server refuses it ({code}: {message})")]
    Rejected {
        /// The status.
        code: u16,
        /// Its words.
        message: String,
    },
    /// 500 and more.
    #[error("the API server failed ({code}: {message})")]
    Server {
        /// The status.
        code: u16,
        /// Its words.
        message: String,
    },
    /// No connection, or one that broke.
    #[error("the API server cannot be reached: {why}")]
    Unreachable {
        /// Every cause in turn.
        why: String,
    },
    /// No answer.
    #[error("the API server did not answer within {} s", patience.as_secs())]
    Timeout {
        /// How long was waited.
        patience: Duration,
    },
}

impl Fault {
    /// As metrics count it.
    pub(super) fn result(&self) -> WriteResult {
        match self {
            Fault::Forbidden { .. } => WriteResult::Forbidden,
            Fault::NotFound { .. } => WriteResult::NotFound,
            Fault::Conflict => WriteResult::Conflict,
            Fault::Throttled { .. } => WriteResult::Throttled,
            Fault::Rejected { .. } => WriteResult::Rejected,
            Fault::Server { .. } => WriteResult::ServerError,
            Fault::Unreachable { .. } => WriteResult::Unreachable,
            Fault::Timeout { .. } => WriteResult::Timeout,
        }
    }

    /// What it means for the next try.
    pub(super) fn refusal(&self) -> Refusal {
        match self {
            Fault::Forbidden { .. } => Refusal::Denied,
            Fault::Throttled { wait } => Refusal::Failed { wait: *wait },
            _ => Refusal::Failed { wait: None },
        }
    }

    /// Whether it may pass by itself soon.
    pub(super) fn is_passing(&self) -> bool {
        !matches!(self, Fault::Forbidden { .. } | Fault::NotFound { .. })
    }
}

impl From<kube::Error> for Fault {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Fault::Unreachable { why: chain(&error) };
        };
        let wait = status.details.as_ref().map(|of| of.retry_after_seconds);
        let (code, message) = (status.code, status.message);
        match code {
            403 => Fault::Forbidden { message },
            404 => Fault::NotFound { message },
            409 => Fault::Conflict,
            429 => Fault::Throttled {
                wait: wait.map(|seconds| Duration::from_secs(seconds.into())),
            },
            400..500 => Fault::Rejected { code, message },
            _ => Fault::Server { code, message },
        }
    }
}
