//! How the agent begins, lives and is judged alive: readiness by named guards, the main loop's
//! heartbeat, the limits and memory of the process.

pub mod heartbeat;
pub mod limits;
pub(crate) mod memory;
pub mod ready;
