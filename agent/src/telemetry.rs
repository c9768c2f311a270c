//! The log: text for people or JSON for machines, on standard error, filtered by directives.

use std::io::{self, IsTerminal};

use thiserror::Error;
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// Without the client's own lines: whoever sends a request reports its failure once.
pub(crate) const DEFAULT_FILTER: &str = "info,kube_client=off";

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people; with colours on a terminal, unless NO_COLOR is set.
    Text,
    /// One JSON object a line.
    Json,
}

/// A log that could not be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The directives are unsound.
    #[error(
        "--log-filter: {filter:?} is no filter: give a level (error, warn, info, debug, trace) or directives, for example info,pathproof::datapath=debug"
    )]
    Filter {
        /// What was said.
        filter: String,
        /// What tracing said.
        source: ParseError,
    },
    /// Something else has set up a log in this process.
    #[error("the log is set up already")]
    Twice(#[from] TryInitError),
}

/// Sets up the process's log.
///
/// # Errors
/// The filter is unsound, or there is a log already.
pub fn init(format: Format, filter: &str) -> Result<(), TelemetryError> {
    let registry = tracing_subscriber::registry().with(parse(filter)?);
    match format {
        Format::Text => {
            registry
                .with(fmt::layer().with_writer(io::stderr).with_ansi(
                    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
                ))
                .try_init()?
        }
        Format::Json => registry
            .with(
                fmt::layer()
                    .json()
                    .flatten_event(true)
                    .with_writer(io::stderr),
            )
            .try_init()?,
    }
    Ok(())
}

pub(crate) fn parse(filter: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|source| TelemetryError::Filter {
            filter: filter.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        assert!(parse("info").is_ok());
        assert!(parse("warn,pathproof::datapath=trace").is_ok());
        let message = parse("pathproof=loud").unwrap_err().to_string();
        assert!(
            message.contains("--log-filter") && message.contains("loud"),
            "{message}"
        );
    }
}
