//! What an agent says, asked through a port-forward: its report, or why there is none.

use thiserror::Error;

use super::error::FleetError;
use super::forward::ForwardError;
use agent_core::fleet::Told;
use agent_core::report::page::{self, NoPage, OtherSchema};
use agent_core::report::{Report, SCHEMA};
use agent_core::time::Wall;

/// Where an agent serves its report.
pub(super) const PAGE: &str = "/verdict";

/// An agent that gave no report.
#[derive(Debug, Error)]
pub enum AgentError {
    /// It was not reached.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// It has nothing to say yet.
    #[error("it has no verdict yet{waiting}")]
    TooEarly {
        /// What it waits for, with a comma before.
        waiting: String,
    },
    /// Something else answers there.
    #[error("what answers at its port is no agent of pathproof ({answer}): see --agent-port")]
    Stranger {
        /// Its first line.
        answer: String,
    },
    /// Written by a version that is too different.
    #[error(
        "its report cannot be read by this version of pathproof (schema {theirs}, ours is {SCHEMA}): use the agent's own"
    )]
    Schema {
        /// Its schema, as far as it is known.
        theirs: String,
    },
}

impl AgentError {
    /// A right is missing, so that no other agent would answer either.
    pub fn denied(&self) -> Option<&FleetError> {
        match self {
            AgentError::Forward(ForwardError::Fleet(error)) if error.is_permission() => Some(error),
            _ => None,
        }
    }
}

/// A report, and the text that it was read from.
#[derive(Clone, Debug)]
pub struct Page {
    /// As the agent wrote it.
    pub body: String,
    /// The same, read.
    pub report: Report,
}

impl From<NoPage> for AgentError {
    fn from(why: NoPage) -> Self {
        match why {
            NoPage::TooEarly(waiting) => AgentError::TooEarly { waiting },
            NoPage::Stranger(answer) => AgentError::Stranger { answer },
        }
    }
}

/// Reads an answer.
pub(super) fn page(answer: &[u8]) -> Result<Page, AgentError> {
    let text = String::from_utf8_lossy(answer);
    let body = page::body(&text)?;
    let report =
        page::report(body).map_err(|OtherSchema { theirs, .. }| AgentError::Schema { theirs })?;
    Ok(Page {
        body: body.to_owned(),
        report,
    })
}

/// The part of a report that the list shows.
pub(super) fn told(report: Report) -> Told {
    let livez = report.answers.livez;
    let written = i64::try_from(report.written.as_nanosecond()).unwrap_or_default();
    Told {
        sound: livez.status == 200 && !livez.would_fail,
        audit: livez.would_fail && livez.status == 200,
        written: Wall(written),
        verdict: report.verdict,
    }
}
