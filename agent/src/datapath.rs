//! The kernel's side of the agent: loads and attaches the observer, writes plans into its maps and
//! reads evidence out of them. All of aya is in here, and nothing else than I/O: what evidence
//! means is `domain`'s to say. It must not name `cluster` or `http`.

pub mod attach;
pub mod devices;
pub mod load;
pub mod pins;
pub mod program;
pub mod sample;
pub mod sweep;
mod syscall;
