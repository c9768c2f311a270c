//! What the agent and the command line both need, beside the crates that decide. It builds for every system that
//! kubectl runs on.

pub mod bind_address;
pub mod causes;
pub mod docs;
pub mod input;
pub mod listed;
pub mod recordings;
pub mod values;
pub mod versions;
