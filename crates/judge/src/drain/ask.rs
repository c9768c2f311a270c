//! A caller's parameters: the query of `/drainz`, parsed.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::SignedDuration;
use thiserror::Error;

pub const DEFAULT_QUIET: Duration = Duration::from_secs(10);
/// Minimum quiet time: there is a sample at least every half second.
pub const MIN_QUIET: Duration = Duration::from_secs(1);
pub const MAX_QUIET: Duration = Duration::from_secs(600);
/// Maximum for the time that a caller has waited or wants to wait: a day.
const MAX_WAIT: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Required time without a new connection.
    pub quiet: Duration,
    /// Time that the caller has already waited. With it the caller declares that the node is
    /// leaving, even if the Node object does not.
    pub waited: Option<Duration>,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            quiet: DEFAULT_QUIET,
            waited: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AskError {
    /// It is no duration, or out of range.
    #[error(
        "{what} {value:?} is not a duration {bounds}: give seconds or a number with a unit, for \
         example 12.5, 30s or 1m30s"
    )]
    Duration {
        what: &'static str,
        value: String,
        /// Allowed range.
        bounds: &'static str,
    },
    #[error("parameter {0:?} is not known: the parameters are quiet and waited")]
    Unknown(String),
}

impl Ask {
    /// Parses the query of a URL, such as `quiet=30s&waited=12.5`. An empty one gives the defaults.
    ///
    /// # Errors
    /// A parameter is unknown or its value is invalid; the first such parameter is reported. Unknown
    /// parameters are not ignored: a typo in a termination hook must not make the node look quiet too early.
    pub fn parse(query: &str) -> Result<Self, AskError> {
        let mut ask = Self::default();
        for parameter in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "quiet" => ask.quiet = quiet_time(value)?,
                "waited" => ask.waited = Some(wait("waited", value)?),
                _ => return Err(AskError::Unknown(name.to_owned())),
            }
        }
        Ok(ask)
    }

    /// The query for [`Ask::parse`].
    pub fn query(&self) -> String {
        let mut query = format!("quiet={:.3}", self.quiet.as_secs_f64());
        if let Some(waited) = self.waited {
            query += &format!("&waited={:.3}", waited.as_secs_f64());
        }
        query
    }
}

/// Parses a quiet time.
///
/// # Errors
/// The text is no duration, or not between [`MIN_QUIET`] and [`MAX_QUIET`].
pub fn quiet_time(text: &str) -> Result<Duration, AskError> {
    let bounds = "between 1s and 10m";
    span("quiet time", text, MIN_QUIET..=MAX_QUIET, bounds)
}

/// Parses the maximum time to wait.
///
/// # Errors
/// The text is no duration, or longer than a day.
pub fn timeout(text: &str) -> Result<Duration, AskError> {
    wait("timeout", text)
}

fn wait(what: &'static str, text: &str) -> Result<Duration, AskError> {
    span(what, text, Duration::ZERO..=MAX_WAIT, "of at most 24h")
}

/// Seconds (for scripts), or a number with a unit.
fn span(
    what: &'static str,
    text: &str,
    range: RangeInclusive<Duration>,
    bounds: &'static str,
) -> Result<Duration, AskError> {
    let span = match text.trim().parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => {
            let span = text.trim().parse::<SignedDuration>().ok();
            span.and_then(|span| span.try_into().ok())
        }
    };
    span.filter(|span| range.contains(span))
        .ok_or_else(|| AskError::Duration {
            what,
            value: text.to_owned(),
            bounds,
        })
}
