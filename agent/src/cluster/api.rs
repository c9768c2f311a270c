//! An API server as the source of the view.

use std::hash::{BuildHasher, RandomState};

pub mod client;
mod objects;
mod routes;

pub use routes::forget;

/// A number below `most`, another one on each node and each time.
fn jitter(most: u64) -> u64 {
    RandomState::new().hash_one(()) % most.max(1)
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    /// This node.
    Node,
    /// Services.
    Service,
    /// EndpointSlices.
    Slice,
}
