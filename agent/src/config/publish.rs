//! What is written to the API server, out of what was said.

use super::{ConfigError, Source};
use crate::args::{Publish, RunArgs};

/// What is written to the API server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublishConfig {
    /// The Node's condition.
    pub condition: bool,
    /// Events about the Node.
    pub events: bool,
}

impl PublishConfig {
    /// Whether anything is.
    pub fn any(self) -> bool {
        self.condition || self.events
    }
}

/// Both are on where there is an API server, and cannot be where there is none.
pub(super) fn resolve(args: &RunArgs, source: &Source) -> Result<PublishConfig, ConfigError> {
    let has_api = matches!(source, Source::Api { .. });
    let wanted = |option, said| match (said, has_api) {
        (Some(Publish::On), false) => Err(ConfigError::NowhereToPublish { option }),
        (Some(Publish::On), true) | (None, true) => Ok(true),
        (Some(Publish::Off), _) | (None, false) => Ok(false),
    };
    Ok(PublishConfig {
        condition: wanted("--publish-condition", args.publish_condition)?,
        events: wanted("--publish-events", args.publish_events)?,
    })
}
