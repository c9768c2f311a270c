//! `pathproof fleet` as it was asked for.

use std::time::Duration;

use super::{ConfigError, parse};
use crate::args::FleetAccess;

/// The longest that one request may take.
const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// How agents are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetConfig {
    /// The agents' namespace.
    pub namespace: String,
    /// The agents' admin port.
    pub port: u16,
    /// How long one request may take.
    pub timeout: Duration,
}

impl FleetConfig {
    /// Turns what was said into values.
    ///
    /// # Errors
    /// The first setting that is unsound, with the remedy.
    pub fn resolve(said: &FleetAccess) -> Result<Self, ConfigError> {
        let option = "--request-timeout";
        // A bare number is seconds, as with kubectl.
        let text = said.request_timeout.trim();
        let text = match text.parse::<u64>() {
            Ok(seconds) => format!("{seconds}s"),
            Err(_) => text.to_owned(),
        };
        let timeout = parse::duration(option, &text, (MAX_REQUEST_TIMEOUT, "10m"))?;
        if timeout.is_zero() {
            return Err(ConfigError::NoTimeout { option });
        }
        parse::node_name(&said.namespace).map_err(|_| ConfigError::Namespace {
            value: said.namespace.clone(),
        })?;
        Ok(Self {
            namespace: said.namespace.clone(),
            port: said.agent_port,
            timeout,
        })
    }
}
