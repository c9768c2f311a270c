//! Code of both the agent and the command line that the pure crates cannot contain. It must build for macOS and
//! Windows.

pub mod bind_address;
pub mod causes;
pub mod docs;
pub mod input;
pub mod listed;
pub mod recordings;
pub mod values;
pub mod versions;
