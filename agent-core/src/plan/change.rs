//! What a plan is made of, and what is told of its results.

use agent_common::service::{EndpointKey, EndpointValue, FrontendKey, FrontendValue, SourceClass};

use serde::{Deserialize, Serialize};

use crate::cluster::ObjectName;
use crate::expect::SourcePrefix;

/// One change of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// Set the counts of a service id to zero: it stands for another Service port from now on.
    ResetCounts {
        /// The id.
        service: u32,
    },
    /// Put a source prefix.
    PutSource {
        /// The prefix.
        prefix: SourcePrefix,
        /// What it is.
        class: SourceClass,
    },
    /// Delete a source prefix.
    DeleteSource {
        /// The prefix.
        prefix: SourcePrefix,
    },
    /// Put an endpoint, or put back one that had left.
    PutEndpoint {
        /// Key.
        key: EndpointKey,
        /// Value.
        value: EndpointValue,
    },
    /// Put a frontend, or change what is owed to it.
    PutFrontend {
        /// Key.
        key: FrontendKey,
        /// Value.
        value: FrontendValue,
    },
    /// Delete a frontend.
    DeleteFrontend {
        /// Key.
        key: FrontendKey,
    },
    /// Mark an endpoint as one that left its slice: an update of what stands.
    RetireEndpoint {
        /// Key.
        key: EndpointKey,
        /// Value, flagged `LEFT`.
        value: EndpointValue,
    },
    /// Delete an endpoint.
    DeleteEndpoint {
        /// Key.
        key: EndpointKey,
    },
}

/// How much found no place. All zero is full coverage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Frontends that are not in the map, those withheld because endpoints are missing included.
    pub frontends: u64,
    /// Endpoints that are not in the map.
    pub endpoints: u64,
    /// Source prefixes that are not in the map.
    pub sources: u64,
    /// Service ports without an id.
    pub services: u64,
}

/// A frontend that two Services claim. The first keeps it until it lets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict<'a> {
    /// The frontend.
    pub frontend: FrontendKey,
    /// Who has it.
    pub holder: &'a ObjectName,
    /// Who wants it too.
    pub claimant: &'a ObjectName,
}
